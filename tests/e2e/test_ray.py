"""`runtime=ray` on Ray clusters of several machines, which are raylets on this machine."""

import gc
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing, suppress
from typing import Any

import psutil
import pytest

import fl_app
from fl_app.core.events import Evaluated
from fl_app.record.log import read_events

pytestmark = [
    pytest.mark.slow,
    pytest.mark.federation,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # ray.cluster_utils leaves files open
    pytest.mark.xdist_group("federation"),
]

STORE = 100 << 20  # bytes of each machine's object store
SMALL = ("devices.ratio=110", "seed=7", "num_clients=20")
# They cover states, extra vectors, pauses, recalls, evaluations on clients and holdouts. LeNet's
# vectors are too large for a call and lie in the store.
RUNS = {
    "fedbuff": ("num_versions=6", "client_eval_every=2", "task.holdout=0.2"),
    "fedasmu": ("algorithm=fedasmu", "num_versions=6"),
    "port": ("algorithm=port", "num_versions=6"),
    "overlap_fedavg": ("algorithm=overlap_fedavg", "num_versions=6", "deadline=50"),
    "large": (
        *("algorithm=scaffold", "task=mnist", "task.made_up=true"),
        *("partition=iid", "partition.max_size=20"),
        *("algorithm.client.batch_size=10", "num_versions=8", "eval_every=4"),
    ),
}


@pytest.fixture(scope="module")
def start():
    """A function that starts clusters; `machines` are numbers of processors, the head's first."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    clusters: list[Any] = []

    def start_one(*machines, **more):
        cluster = Cluster()
        clusters.append(cluster)
        for cpus in machines:
            cluster.add_node(num_cpus=cpus, object_store_memory=STORE, **more)
        return cluster

    yield start_one
    for cluster in clusters:
        cluster.shutdown()
    left = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(left, timeout=20)
    assert [process.cmdline() for process in alive] == []
    clusters.clear()
    gc.collect()  # while warnings about their open files are ignored


@pytest.fixture(scope="module")
def cluster(start):
    """Three machines with a processor each."""
    return start(1, 1, 1)


def arguments(cluster, folder, settings):
    return [
        *(sys.executable, "-m", "fl_app", f"hydra.run.dir={folder}", *SMALL, *settings),
        *("runtime=ray", f"runtime.address={cluster.address}"),
    ]


class Command:
    """A process in its own group. Its output goes to a file, which, unlike a pipe, never blocks."""

    def __init__(self, command):
        self._file = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=self._file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid

    def runs(self):
        return self._process.poll() is None

    def output(self):
        self._file.seek(0)
        return self._file.read()

    def wait(self, status=0, seconds=300.0):
        """Wait until it has ended with this status; return its output."""
        assert self._process.wait(seconds) == status, self.output()
        return self.output()

    def close(self):
        if self.runs():
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._file.close()


def launch(command):
    return closing(Command(command))


def output_of(command, status=0):
    with launch(command) as process:
        return process.wait(status)


def run_inprocess(folder, *settings):
    fl_app.run(*SMALL, *settings, "runtime.workers=0", output=folder, progress=False)


def assert_same(one, other):
    for name in ("events.jsonl", "model.npz", "metrics.csv"):
        assert (one / name).read_bytes() == (other / name).read_bytes(), name


def versions(folder):
    events = read_events(folder / "events.jsonl")
    return max((event.version for event in events if isinstance(event, Evaluated)), default=-1)


def wait_for_version(process, folder, version):
    while versions(folder) < version:
        assert process.runs(), process.output()
        time.sleep(0.02)


def workers():
    """The processes that train, on all machines of all clusters."""
    result = []
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended
            if "ray::ClusterWorker" in " ".join(each.cmdline()):
                result.append(each)
    return result


SEVERAL = """
import sys

import fl_app

_, folder, address, *runs = sys.argv
for run in runs:
    name, *settings = run.split()
    settings += ["runtime=ray", f"runtime.address={address}"]
    fl_app.run(*settings, output=f"{folder}/{name}", progress=False)
"""


def test_the_same_files_as_inprocess(cluster, tmp_path):
    runs = [" ".join([name, *SMALL, *settings]) for name, settings in RUNS.items()]
    folder = tmp_path / "there"
    output_of([sys.executable, "-c", SEVERAL, str(folder), cluster.address, *runs])
    for name, settings in RUNS.items():
        run_inprocess(tmp_path / "here" / name, *settings)
        assert_same(tmp_path / "here" / name, folder / name)


def test_killed_workers_and_lost_machines_change_no_results(start, tmp_path):
    """Machines join in the middle of the run, and are lost, all but that of the command."""
    settings = ["num_versions=60", "eval_every=1", "algorithm.client.local_epochs=6"]
    run_inprocess(tmp_path / "here", *settings)
    rng = random.Random(3)
    cluster = start(1)
    with launch(arguments(cluster, tmp_path / "there", settings)) as process:
        for moment in range(2):
            # The command is connected to the machine that existed when it started.
            machine = cluster.add_node(num_cpus=1, object_store_memory=STORE)
            wait_for_version(process, tmp_path / "there", 20 * moment + rng.randrange(20))
            if moment == 0:
                while len(workers()) < 2:
                    time.sleep(0.1)
                rng.choice(workers()).kill()
            time.sleep(rng.random() / 10)
            cluster.remove_node(machine, allow_graceful=False)
        assert "a worker is lost" in process.wait()
    assert_same(tmp_path / "here", tmp_path / "there")
    cluster.shutdown()


def test_a_run_that_was_interrupted_with_its_cluster_resumes(tmp_path, monkeypatch):
    """The signal goes to all of their processes, as from a terminal or a batch system."""
    monkeypatch.setenv("TEST_OF_A_CLUSTER", str(tmp_path))  # all its processes inherit this
    settings = ["algorithm=scaffold", "num_versions=80", "eval_every=1"]
    run_inprocess(tmp_path / "here", *settings)
    folder = f"hydra.run.dir={tmp_path / 'there'}"
    command = [sys.executable, "-m", "fl_app", folder, *SMALL, *settings]
    command += ["runtime=ray", "runtime.workers=2"]
    with launch(command) as process:
        wait_for_version(process, tmp_path / "there", 20)
        assert len(processes_of(tmp_path)) > 3  # more than the command itself
        os.killpg(process.pid, signal.SIGTERM)
        assert "Traceback" not in process.wait(128 + signal.SIGTERM, seconds=60)
    assert not psutil.wait_procs(processes_of(tmp_path), timeout=10)[1]
    assert "goes on from version" in output_of([*command, "resume=auto"])
    assert_same(tmp_path / "here", tmp_path / "there")
    assert not processes_of(tmp_path)


def processes_of(folder):
    """The processes of a test; other tests may have started others."""
    result = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("TEST_OF_A_CLUSTER") == str(folder):
                result.append(process)
    return result


SCRIPT = """
import sys
import time

import numpy as np
from torch import nn

import fl_app
from fl_app.client import LocalTrainer

rng = np.random.default_rng(0)
x = rng.normal(size=(2000, 10)).astype(np.float32)
y = x[:, 0] > 0
mine = fl_app.Task.from_arrays(x, y, x, y, model=lambda: nn.Linear(10, 2))


class Own(LocalTrainer):
    def correct(self, grad, step):
        return [0.5 * each for each in grad]


class Hangs(LocalTrainer):
    def train(self, order):
        if order.client_id == 3:
            time.sleep(1000)
        return super().train(order)


folder, *cluster = sys.argv[1:]
for name, trainer, runtime in (
    ("here", Own, ["runtime.workers=0"]),
    ("there", Own, cluster),
    ("hung", Hangs, [*cluster, "runtime.patience=2"]),
):
    words = ["num_versions=5", "num_clients=10", *runtime]
    fl_app.run(trainer, *words, task=mine, output=f"{folder}/{name}")
"""


def test_objects_of_a_script_reach_the_machines_and_a_hanging_order_fails_alone(cluster, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    settings = ["runtime=ray", f"runtime.address={cluster.address}"]
    output_of([sys.executable, str(tmp_path / "script.py"), str(tmp_path), *settings])
    assert_same(tmp_path / "here", tmp_path / "there")
    events = [json.loads(line) for line in (tmp_path / "hung" / "events.jsonl").open()]
    failures = [event for event in events if "3 workers died with this order" in str(event)]
    assert {event["client"] for event in failures} == {3}
