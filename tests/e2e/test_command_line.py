"""The command line: files, refusals, interruption."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import python, status_of

from fl_app.__main__ import main
from fl_app.core.files import ANOTHER
from fl_app.runner import signals

FILES = {"summary.json", "events.jsonl", "metrics.csv", "config.yaml", "model.npz"}


def test_one_run_writes_its_files(tmp_path):
    words = ["runtime.workers=0", "algorithm=fedbuff", "num_versions=6", "eval_every=2"]
    assert status_of(main, f"hydra.run.dir={tmp_path}", *words) == 0
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} >= FILES
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["overrides"] == words
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
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    names = ("accuracy", "staleness", "timeline", "partition", "overview")
    assert figures == {f"{name}.png" for name in names}


@pytest.mark.parametrize(
    "overrides",
    [
        "algorithm=fedbuff,fedavg none=1",
        "experiment=quickstart seed=0,1",
        "hydra.launcher._target_=other.Launcher",
        "hydra.sweeper._target_=other.Sweeper",
        "hydra.run.dir=named",
    ],
)
def test_a_refused_sweep_leaves_no_folder(monkeypatch, tmp_path, capsys, overrides):
    """It leaves neither its folder nor parents of it; a folder that the user made stays."""
    monkeypatch.chdir(tmp_path)
    words = ["-m", *overrides.split(), "experiment.seeds=[3]"]
    assert status_of(main, *words) == 2
    captured = capsys.readouterr()
    assert "All jobs in one report" not in captured.out
    assert ("other." in overrides) == ("experiment.parallel runs side by side" in captured.err)
    assert ("run.dir" in overrides) == ("give hydra.sweep.dir=" in captured.err)
    assert status_of(main, "hydra.run.dir='~/x'") == 2  # no shell replaces this ~
    assert not list(tmp_path.iterdir())
    (tmp_path / "named").mkdir()
    assert status_of(main, *words, "hydra.sweep.dir=named") == 2
    assert (tmp_path / "named").is_dir()


def test_interrupt_ends_soon_with_files_written(tmp_path):
    command = [sys.executable, "-m", "fl_app", f"hydra.run.dir={tmp_path}", "num_versions=1000000"]
    process = subprocess.Popen(
        [*command, "runtime.workers=2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    log = tmp_path / "events.jsonl"
    while process.poll() is None and not (log.exists() and '"aggregate"' in log.read_text()):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # also to the workers, as a terminal does
    start = time.monotonic()
    output, _ = process.communicate(timeout=30)
    assert time.monotonic() - start < 6.0  # two on a free core
    assert process.returncode == 130, output
    assert "interrupted" in output
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} >= {*FILES, "table.csv"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["stopped"] == "interrupted"
    assert summary["num_versions"] > 0


# -- a folder that holds a run --------------------------------------------------------------------

QUICKSTART = "experiment=quickstart"
SHORT = ["runtime.workers=0", "num_versions=3", "num_clients=20"]
CELLS = [QUICKSTART, "experiment.only=[fedbuff,wkafl]"]
THREE_WAYS = f"give resume=auto to go on with it, {ANOTHER}, or remove it"


def command(*arguments):
    """The exit code of the command line."""
    flags = [word for word in arguments if word == "-m"]
    return status_of(main, *flags, *SHORT, *arguments[len(flags) :])


def run_in(folder, *overrides):
    return command(f"hydra.run.dir={folder}", *overrides)


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("one") / "run"
    assert run_in(folder, "algorithm=wkafl", "checkpoint_every=1") == 0
    return folder


@pytest.fixture
def finished_run(one):
    """The folder of a finished run, in which no file may change."""
    before = contents(one)
    yield one
    assert contents(one) == before


def test_another_run_neither_replaces_nor_continues_it(finished_run, capsys):
    for overrides in ("algorithm=fedbuff", "algorithm=wkafl checkpoint_every=1", QUICKSTART):
        assert run_in(finished_run, *overrides.split()) == 2
        error = capsys.readouterr().err
        assert f"{finished_run} holds a run, whose files would be lost: give" in error
        assert (THREE_WAYS in error) == (overrides != QUICKSTART)
    assert run_in(finished_run, "algorithm=fedbuff", "resume=auto") == 2
    error = capsys.readouterr().err
    assert "holds a run of another configuration (" in error
    assert "algorithm." in error
    assert "give them as before, or another folder" in error
    assert run_in(finished_run, QUICKSTART, "resume=auto") == 2
    assert f"{finished_run} holds a run, whose files would be lost" in capsys.readouterr().err


@pytest.mark.slow
def test_cells_are_not_overwritten(tmp_path, capsys):
    assert run_in(tmp_path, *CELLS) == 0
    before = contents(tmp_path)
    assert run_in(tmp_path, *CELLS) == 2
    assert f"{tmp_path / 'fedbuff'} holds a run" in (error := capsys.readouterr().err)
    assert THREE_WAYS in error
    for overrides in ([], ["resume=auto"]):
        assert run_in(tmp_path, *overrides) == 2
        error = capsys.readouterr().err
        assert f"{tmp_path / 'fedbuff'} holds a run" in error
        assert "resume=auto to go on" not in error
    assert contents(tmp_path) == before
    longer = ("experiment.only=[fedbuff]", "num_versions=4", "resume=auto")
    assert run_in(tmp_path, QUICKSTART, *longer) == 2
    assert "another configuration (num_versions=3 instead of 4" in capsys.readouterr().err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("place", ["file/run", "/proc/nobody/may"])
@pytest.mark.parametrize("mode", [["hydra.run.dir="], ["-m", "seed=1", "hydra.sweep.dir="]])
def test_a_folder_that_cannot_be_made_is_reported_in_one_line(tmp_path, capsys, place, mode):
    (tmp_path / "file").touch()
    *flags, key = mode
    assert command(*flags, f"{key}{tmp_path / place}") == 2
    error = capsys.readouterr().err
    assert "cannot be written to (" in error
    assert "give another folder (hydra.run.dir=..., of a sweep hydra.sweep.dir=..., " in error
    assert len(error.splitlines()) == 1


def test_ctrl_c_that_is_too_late_for_a_job_ends_the_sweep(tmp_path, monkeypatch, capsys):
    def run_to_the_end(*_):
        signals.received = signal.SIGINT

    monkeypatch.setattr(signals, "received", None)
    monkeypatch.setattr("fl_app.runner.run.run", run_to_the_end)
    assert command("-m", "seed=1,2", f"hydra.sweep.dir={tmp_path}") == 130
    assert capsys.readouterr().err.startswith("interrupted; to go on: ")
    assert not (tmp_path / "1").exists()


# -- refusals do not import slow packages ---------------------------------------------------------

HEAVY = ("torch", "torchvision", "sklearn", "scipy", "pandas", "altair", "vl_convert", "ray")
REFUSED = """
algorith=fedbuff
algorithm=fedbuf
runtime.workers=-3
client_eval_every=5 client_eval_fraction=20
algorithm.strategy.server_lr=-1
algorithm.schedule.concurrency=51
algorithm.client.local_lr=fast
devices.ratio=-1
experiment=quickstart experiment.parallel=0
task.model=foo
task=cifar10 task.scaling=foo
task=csv
task=csv task.path=a.csv task.schema=none.json
task=huggingface task.path=a task.channels=2
"""
# Runs `python -m fl_app` with each of the lines, and prints status and imported packages.
COMMANDS = f"""
import json, shlex, sys
from fl_app.__main__ import main

for words in sys.argv.pop().splitlines():
    sys.argv[1:] = shlex.split(words)
    status = main()
    print(json.dumps([words, status, [name for name in {HEAVY} if name in sys.modules]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_heavy_is_imported_for_a_refusal(tmp_path):
    process = python("-c", COMMANDS, REFUSED.strip(), cwd=tmp_path)
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert results == [[line, 2, []] for line in REFUSED.strip().splitlines()], process.stderr
    assert process.stderr.count("error: ") == len(results)
