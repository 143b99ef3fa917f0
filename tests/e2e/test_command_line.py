"""The command line as a user meets it: files, refusals, interruption."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fl_app import report
from fl_app.__main__ import main

FILES = {"summary.json", "events.jsonl", "metrics.csv", "config.yaml", "model.npz"}


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *overrides: str) -> int:
    arguments = ["fl_app", f"hydra.run.dir={folder}", "runtime.workers=0", *overrides]
    monkeypatch.setattr(sys, "argv", arguments)
    return main()


def test_one_run_writes_its_files(monkeypatch, tmp_path, capsys):
    assert run(monkeypatch, tmp_path, "algorithm=fedbuff", "num_versions=6", "eval_every=2") == 0
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} >= FILES
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["overrides"] == [
        "runtime.workers=0",
        "algorithm=fedbuff",
        "num_versions=6",
        "eval_every=2",
    ]
    assert (summary["algorithm"], summary["task"], summary["num_versions"]) == (
        "fedbuff",
        "digits",
        6,
    )
    with (tmp_path / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:4] == ["version", "t", "accuracy", "loss"]
    assert [row["version"] for row in rows] == ["0", "2", "4", "6"]
    with (tmp_path / "partition.csv").open() as file:
        clients = list(csv.DictReader(file))
    assert list(clients[0]) == ["client", *map(str, range(10))]
    assert sum(int(each[str(label)]) for each in clients for label in range(10)) == 1437
    assert len(clients) == 50
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert {event["kind"] for event in events} == {"dispatch", "arrival", "aggregate", "evaluate"}
    assert sum(event["kind"] == "arrival" for event in events) == summary["client_updates"]
    with np.load(tmp_path / "model.npz", allow_pickle=False) as model:
        assert sum(model[name].size for name in model) == 2410
    assert "<h1>fedbuff on digits</h1>" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "tensorboard").exists()
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    names = ("accuracy", "staleness", "timeline", "partition", "overview")
    assert drawn == {f"{name}.png" for name in names}


@pytest.mark.slow
def test_quickstart_compares_its_cells_at_equal_updates(monkeypatch, tmp_path):
    """The main job, cut to ten virtual seconds a cell: the user's overrides win over the cells'."""
    assert run(monkeypatch, tmp_path, "experiment=quickstart", "max_seconds=10") == 0
    with (tmp_path / "table.csv").open() as file:
        cells = [row["cell"] for row in csv.DictReader(file)]
    assert cells == [
        *("fedavg", "fedbuff", "wkafl", "fedhist", "fedasmu", "overlap_fedavg", "eafl")
    ]
    first = {
        cell: json.loads((tmp_path / cell / "events.jsonl").read_text().splitlines()[0])
        for cell in cells
    }
    assert len({event["accuracy"] for event in first.values()}) == 1  # the same start
    for cell in cells:
        assert json.loads((tmp_path / cell / "summary.json").read_text())["stopped"] == "seconds"
    signs = {"overlap_fedavg": '"beside":true', "eafl": '"kind":"cluster"'}
    for cell, sign in signs.items():
        assert sign in (tmp_path / cell / "events.jsonl").read_text()


@pytest.mark.slow
def test_jobs_of_a_sweep_are_reported_together(monkeypatch, tmp_path, capsys):
    sweep = (f"hydra.sweep.dir={tmp_path}", "algorithm=fedbuff,fedasync", "num_versions=1", "-m")
    assert run(monkeypatch, tmp_path, *sweep) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert told == f"All jobs in one report: python -m fl_app.report {tmp_path}"
    table = report.write_report(tmp_path, figures=False)
    assert [row["cell"] for row in table.rows] == ["fedbuff", "fedasync"]


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("algorith=fedbuff", "unknown key 'algorith'; did you mean algorithm"),
        ("+surplus=1", "unknown keys: surplus"),
        (
            "+algorithm.client.surplus=1",
            "unexpected keyword argument 'surplus'; its arguments are task, ",
        ),
        ("num_versions=many", "num_versions=many must be an integer >= 1"),
        ("target_accuracy=90", "target_accuracy=90 must be in [0, 1] or null"),
        ("algorithm.client.upload=weights", "client.upload=weights must be gradient, "),
        ("runtime=deployment", "runtime=deployment needs Flower's nodes"),
        ("runtime.device=gpu", "runtime.device=gpu must be cpu, a device that torch can use here"),
    ],
)
def test_refusals_name_key_and_bound(monkeypatch, capsys, tmp_path, override, text):
    monkeypatch.setattr(sys, "argv", ["fl_app", f"hydra.run.dir={tmp_path}", override])
    assert main() == 2
    assert text in capsys.readouterr().err
    assert not list(tmp_path.rglob("summary.json"))


@pytest.mark.parametrize(
    "words",
    ["algorithm=fedbuff,fedavg none=1", "experiment=quickstart seed=0,1"],
)
def test_a_refused_sweep_leaves_no_folder(monkeypatch, tmp_path, capsys, words):
    """Neither its own, nor those above; one that the user made stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fl_app", "-m", *words.split(), "experiment.seeds=[3]"])
    assert main() == 2
    assert "All jobs in one report" not in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
    (tmp_path / "named").mkdir()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "hydra.sweep.dir=named"])
    assert main() == 2
    assert (tmp_path / "named").is_dir()


def test_interrupt_ends_within_two_seconds_with_files_written(tmp_path):
    command = [sys.executable, "-m", "fl_app", f"hydra.run.dir={tmp_path}", "num_versions=1000000"]
    process = subprocess.Popen(
        [*command, "runtime.workers=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    metrics = tmp_path / "metrics.csv"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count("\n") > 2):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the workers as well
    pressed = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - pressed < 2.0
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} >= {*FILES, "table.csv"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert summary["num_versions"] > 0


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_parallel_sweep_tells_of_a_failed_job_in_one_line(tmp_path: Path) -> None:
    words = ["-m", "seed=0,-1", "num_versions=1", "runtime.workers=0"]
    words += ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2", f"hydra.sweep.dir={tmp_path}"]
    command = [sys.executable, "-m", "fl_app", *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr.splitlines() == [
        "error: seed=-1 must be an integer >= 0: every random stream starts from it"
    ]
    assert done.returncode == 2
    assert (tmp_path / "0" / "summary.json").exists()
