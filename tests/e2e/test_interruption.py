"""Commands that are interrupted or killed: at most one line, the expected status, no loss."""

import json
import os
import signal
import time

import psutil
import pytest
from kit_processes import launch

pytestmark = pytest.mark.timeout(300)
slow = pytest.mark.slow

SWEEP = ["-m", "num_versions=20,60,10", "eval_every=100", "runtime.workers=0"]
CELLS = ["experiment=quickstart", "experiment.only=[fedavg,fedbuff,wkafl]"]
CELLS += ["num_versions=30", "max_updates=null", "eval_every=10", "checkpoint_every=10"]


def wait_for(process, condition):
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def wait_for_events(process, log):
    wait_for(process, lambda: log.exists() and log.read_text())


def wait_for_end(process, status=0):
    out, err = process.communicate(timeout=120)
    assert process.returncode == status, err
    return out, err


def stop_reasons(folder):
    return [json.loads((folder / str(n) / "summary.json").read_text())["stopped"] for n in range(3)]


@slow
@pytest.mark.parametrize(
    ("module", "number"), [("hydra.errors", signal.SIGINT), ("torch._C", signal.SIGTERM)]
)
def test_no_message_while_modules_are_imported(tmp_path, module, number):
    with launch(f"hydra.run.dir={tmp_path}", options=("-X", "importtime")) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("import time:") and line.split("|")[-1].strip() == module:
                process.send_signal(number)
                break
        _, err = wait_for_end(process, -number)  # 130 or 143 in a shell
    messages = [line for line in err.splitlines() if not line.startswith("import time:")]
    assert not messages


@slow
def test_a_sweep_ends_at_once_and_one_command_resumes_it(tmp_path):
    with launch(*SWEEP, f"hydra.sweep.dir={tmp_path}") as process:
        wait_for_events(process, tmp_path / "1" / "events.jsonl")
        os.killpg(process.pid, signal.SIGTERM)
        _, err = wait_for_end(process, 143)
    command = f"{' '.join(SWEEP)} hydra.sweep.dir={tmp_path} resume=auto"
    assert err.splitlines() == [f"interrupted; to go on: python -m fl_app {command}"]
    assert not (tmp_path / "2").exists()
    mtime = (tmp_path / "0" / "summary.json").stat().st_mtime_ns
    with launch(*command.split()) as process:
        out, _ = wait_for_end(process)
    assert stop_reasons(tmp_path) == ["num_versions"] * 3
    assert (tmp_path / "0" / "summary.json").stat().st_mtime_ns == mtime
    assert out.count("goes on from version") == 1


@slow
def test_ctrl_c_while_the_report_is_drawn_names_the_command_that_draws_it(tmp_path):
    words = ["num_versions=2", f"hydra.run.dir={tmp_path}"]
    with launch(*words) as process:
        wait_for(process, (tmp_path / "table.csv").exists)
        process.send_signal(signal.SIGINT)
        _, err = wait_for_end(process, 130)
    command = f"{' '.join(words)} resume=auto"
    assert err == f"interrupted; to go on: python -m fl_app {command}\n"
    with launch(*command.split()) as process:
        wait_for_end(process)
    assert (tmp_path / "report.html").exists()


@slow
def test_processes_end_with_the_command(tmp_path):
    """After SIGKILL, as by a batch system after its timeout, the command cannot end them itself."""
    with quickstart(tmp_path, "num_versions=5000", "experiment.parallel=2") as process:
        wait_for(process, lambda: any(tmp_path.glob("*/events.jsonl")))
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 2
        process.kill()
        _, alive = psutil.wait_procs(children, timeout=30)
        assert not [each.cmdline() for each in alive]


# -- cells side by side ---------------------------------------------------------------------------


def quickstart(folder, *more):
    return launch(*CELLS, f"hydra.run.dir={folder}", *more)


def files(folder):
    """Contents of files that do not depend on the wall clock."""
    names = ("events.jsonl", "metrics.csv", "model.npz")
    paths = [path for name in names for path in folder.glob(f"*/{name}")]
    return {f"{path.parent.name}/{path.name}": path.read_bytes() for path in paths}


def finish(process):
    out, err = wait_for_end(process)
    assert not err
    assert out.endswith("All 3 cells are done\n")
    return out


def workers(process):
    children = psutil.Process(process.pid).children()
    return [each for each in children if "spawn_main" in " ".join(each.cmdline())]


@slow
def test_ctrl_c_and_a_killed_process_lose_nothing(tmp_path):
    """Cells run in parallel. The command alone gets Ctrl-C, as from a batch system; later a process
    dies."""
    whole, folder = tmp_path / "whole", tmp_path / "run"
    with quickstart(whole) as process:
        finish(process)
    assert len(files(whole)) == 9
    with quickstart(folder, "experiment.parallel=2") as process:
        for cell in ("fedavg", "fedbuff"):
            wait_for(process, (folder / cell / "events.jsonl").exists)
        process.send_signal(signal.SIGINT)
        _, err = wait_for_end(process, 130)
    (line,) = err.splitlines()
    assert line.startswith("interrupted; to go on: python -m fl_app ")
    with quickstart(folder, "experiment.parallel=2", "resume=auto") as process:
        wait_for(process, lambda: any(folder.glob("wkafl/*/*.checkpoint")) and workers(process))
        workers(process)[0].kill()
        _, err = wait_for_end(process, 1)
    assert "a process was killed, most likely because memory ran short: resume=auto goes on" in err
    with quickstart(folder, "experiment.parallel=2", "resume=auto") as process:
        finish(process)
    assert files(folder) == files(whole)


@slow
def test_a_refused_cell_does_not_stop_the_others(tmp_path):
    """Only the data show the error: fedasync has more clients than examples here."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "own.yaml").write_text(
        "# @package _global_\nexperiment:\n  name: own\n  cells:\n"
        "    good: [algorithm=fedbuff, num_versions=2]\n"
        "    bad: [algorithm=fedasync, num_versions=2, num_clients=5000]\n"
    )
    overrides = ["--config-dir", f"{tmp_path}/conf", "experiment=own", "experiment.parallel=2"]
    with launch(*overrides, f"hydra.run.dir={tmp_path}/run") as process:
        _, err = wait_for_end(process, 1)
    assert "num_clients=5000 must be at most" in err
    assert (tmp_path / "run" / "good" / "summary.json").exists()
