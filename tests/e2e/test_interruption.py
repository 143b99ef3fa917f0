"""Ctrl-C and SIGTERM at any moment of a command: one line, the expected status, no loss."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from commands import started

SWEEP = ["-m", "seed=0,1,2", "num_versions=40", "eval_every=1", "runtime.workers=0"]
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}


def wait_for_rows(process: subprocess.Popen[str], metrics: Path) -> None:
    while not (metrics.exists() and metrics.read_text().count("\n") > 2):
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def stopped(folder: Path) -> list[str]:
    return [json.loads((folder / str(n) / "summary.json").read_text())["stopped"] for n in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("hydra.errors", signal.SIGINT),
        ("numpy", signal.SIGTERM),
        ("flwr.app", signal.SIGTERM),
        ("torch._C", signal.SIGINT),
    ],
)
def test_one_line_while_modules_are_imported(
    tmp_path: Path, module: str, number: signal.Signals
) -> None:
    with started(f"hydra.run.dir={tmp_path}", options=("-X", "importtime")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:") and line.split("|")[-1].strip() == module:
                process.send_signal(number)
                break
        _, rest = process.communicate(timeout=30)
    assert [line for line in rest.splitlines() if not line.startswith("import time:")] == [
        "interrupted"
    ]
    assert process.returncode == STATUS[number]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_sweep_ends_at_once_and_one_command_goes_on(tmp_path: Path) -> None:
    with started(*SWEEP, f"hydra.sweep.dir={tmp_path}") as process:
        wait_for_rows(process, tmp_path / "1" / "metrics.csv")
        os.killpg(process.pid, signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    again = f"{' '.join(SWEEP)} hydra.sweep.dir={tmp_path} resume=auto"
    assert err.splitlines() == [f"interrupted; to go on: python -m fl_app {again}"]
    assert process.returncode == STATUS[signal.SIGTERM]
    assert not (tmp_path / "2").exists()
    finished = (tmp_path / "0" / "summary.json").stat().st_mtime_ns
    with started(*again.split()) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert stopped(tmp_path) == ["num_versions"] * 3
    assert (tmp_path / "0" / "summary.json").stat().st_mtime_ns == finished
    assert out.count("goes on from version") == 1


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("whole_group", [True, False], ids=["terminal", "batch system"])
def test_a_parallel_sweep_ends_at_once_and_one_command_goes_on(
    tmp_path: Path, whole_group: bool
) -> None:
    words = [*SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    with started(*words, f"hydra.sweep.dir={tmp_path}") as process:
        wait_for_rows(process, tmp_path / "0" / "metrics.csv")
        wait_for_rows(process, tmp_path / "1" / "metrics.csv")
        if whole_group:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    assert "Error executing job" not in err
    assert err.count("interrupted; to go on: ") == 1
    assert process.returncode == 130
    assert not (tmp_path / "2" / "events.jsonl").exists()
    with started(*words, f"hydra.sweep.dir={tmp_path}", "resume=auto") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert stopped(tmp_path) == ["num_versions"] * 3


@pytest.mark.slow
def test_jobs_end_with_the_main_process_of_a_parallel_sweep(tmp_path: Path) -> None:
    """SIGKILL, as of a batch system that has lost its patience: nobody is left to end the jobs."""
    words = [*SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    with started(*words, f"hydra.sweep.dir={tmp_path}", "num_versions=4000") as process:
        wait_for_rows(process, tmp_path / "0" / "metrics.csv")
        jobs = psutil.Process(process.pid).children(recursive=True)
        assert len(jobs) >= 2
        process.kill()
        _, alive = psutil.wait_procs(jobs, timeout=30)
        assert not [p.cmdline() for p in alive]
