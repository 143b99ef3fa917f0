"""Cells of an experiment side by side: the files of one after the other, whatever is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
from commands import started
from configs import composed

from fl_app.runner.cells import compose_cells

WORDS = ["experiment=quickstart", "experiment.only=[fedavg,fedbuff,wkafl,fedhist]"]
WORDS += ["num_versions=60", "max_updates=null", "eval_every=10", "checkpoint_every=20"]


def quickstart(folder: Path, *more: str) -> AbstractContextManager[subprocess.Popen[str]]:
    return started(*WORDS, f"hydra.run.dir={folder}", *more)


def files(folder: Path) -> dict[str, bytes]:
    """What does not depend on the wall clock."""
    names = ("events.jsonl", "metrics.csv", "model.npz")
    return {
        f"{p.parent.name}/{p.name}": p.read_bytes() for n in names for p in folder.glob(f"*/{n}")
    }


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert not err
    assert out.endswith("All 4 cells are done\n")
    return out


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("one-by-one")
    with quickstart(folder) as process:
        finished(process)
    assert len(files(folder)) == 12
    return files(folder)


def wait_for(process: subprocess.Popen[str], condition: object) -> None:
    while not condition():  # type: ignore[operator]
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_cells_side_by_side_write_the_same_files(
    tmp_path: Path, one_by_one: dict[str, bytes]
) -> None:
    with quickstart(tmp_path, "experiment.parallel=2") as process:
        out = finished(process)
    assert files(tmp_path) == one_by_one
    assert len(re.findall(r"^\w+, cell \d of 4: 60/60 versions", out, re.MULTILINE)) == 4
    assert (tmp_path / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_process_loses_nothing(tmp_path: Path, one_by_one: dict[str, bytes]) -> None:
    cell = tmp_path / "fedavg"
    with quickstart(tmp_path, "experiment.parallel=2") as process:
        main = psutil.Process(process.pid)
        wait_for(process, lambda: any(holds(c, cell) for c in main.children()))
        (victim,) = [c for c in main.children() if holds(c, cell)]
        wait_for(process, lambda: any((cell / "checkpoints").glob("*.safetensors")))
        victim.kill()
        _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a process was killed, most likely since memory ran short: resume=auto goes on" in err
    with quickstart(tmp_path, "resume=auto") as process:
        assert "fedavg, cell 1 of 4: goes on from version" in finished(process)
    assert files(tmp_path) == one_by_one


def holds(process: psutil.Process, folder: Path) -> bool:
    try:
        return any(Path(file.path).parent == folder for file in process.open_files())
    except psutil.Error:  # it has ended
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "batch system"])
def test_ctrl_c_loses_nothing(
    tmp_path: Path, one_by_one: dict[str, bytes], whole_group: bool
) -> None:
    with quickstart(tmp_path, "experiment.parallel=2") as process:
        for cell in ("fedavg", "fedbuff"):
            wait_for(process, (tmp_path / cell / "metrics.csv").exists)
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    (line,) = err.splitlines()
    assert line.startswith("interrupted; to go on: python -m fl_app ")
    assert not (tmp_path / "fedhist").exists()
    ends = [json.loads(path.read_text())["stopped"] for path in tmp_path.glob("*/summary.json")]
    assert "interrupted" in ends
    with quickstart(tmp_path, "resume=auto") as process:  # with another number of processes
        finished(process)
    assert files(tmp_path) == one_by_one


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_processes_end_with_the_command(tmp_path: Path) -> None:
    with quickstart(tmp_path, "experiment.parallel=2", "num_versions=5000") as process:
        wait_for(process, (tmp_path / "fedavg" / "metrics.csv").exists)
        cells = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(cells, timeout=30)
        assert not [p.cmdline() for p in alive]


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_cell_that_is_refused_keeps_no_other_from_running(tmp_path: Path) -> None:
    """What only the data can tell: fedasync here has more clients than examples."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "own.yaml").write_text(
        "# @package _global_\nexperiment:\n  name: own\n  cells:\n"
        "    good: [algorithm=fedbuff, num_versions=2]\n"
        "    bad: [algorithm=fedasync, num_versions=2, num_clients=5000]\n"
    )
    words = ["--config-dir", f"{tmp_path}/conf", "experiment=own", "experiment.parallel=2"]
    command = [sys.executable, "-m", "fl_app", *words, f"hydra.run.dir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "num_clients=5000 must be at most" in done.stderr
    assert done.returncode == 1
    assert (tmp_path / "run" / "good" / "summary.json").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["experiment=quickstart", "experiment.parallel=0"], "parallel=0 must be an integer >= 1"),
        (["experiment=quickstart", "experiment.parallel=two"], "parallel=two must be an integer"),
        (["experiment.parallel=2"], "parallel=2 must be 1 without experiment=<name>"),
        (
            ["experiment=quickstart", "experiment.parallel=2", "runtime=flower"],
            "parallel=2 must be 1 with runtime=flower",
        ),
        (
            ["experiment=quickstart", "experiment.parallel=2", "runtime=ray"],
            "parallel=2 must be 1 with runtime.address=null: .* `ray start --head`",
        ),
    ],
)
def test_numbers_of_cells_that_cannot_run_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        compose_cells(composed(*words), words)
