"""A kit's federation on loopback: TLS, keys, a helper, a table per node, and killed processes.

Its server, helper and three nodes start once, as docs/edge.md and docs/your-data.md describe.
"""

import json
import os
import shutil
import signal
import sqlite3
import time
from collections import Counter

import numpy as np
import psutil
import pytest
import torch
from helpers import make_config, python
from kit_processes import ask, count, end, free_ports, give_ports, keep, processes, start, wait_for
from sklearn.datasets import load_iris

from fl_app.client.build import build_task
from fl_app.field.control import OFFLINE_AFTER, SuperLink, Unreachable, public_bytes
from fl_app.field.kit import Kit
from fl_app.tasks.task import Task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.federation]

NODES, VERSIONS, MEMBERS = 3, 40, 2  # enough versions for doctor to find a running run
RUN = [
    *("algorithm=fedbuff", "runtime=deployment", "deadline=120", "checkpoint_every=1"),
    f"algorithm.schedule.concurrency={NODES}",
]
DIGITS = [*RUN, "task=digits", "partition=iid", "eval_every=1", f"num_clients={NODES}"]


class Federation:
    """Processes of a kit, each started as a user or a service starts it.

    Attributes:
        out: the kit.
        server: the server's folder.
        helper: the helper's folder.
    """

    def __init__(self, out):
        self.out, self.server, self.helper = out, out / "server", out / "helper"
        self._running = {}

    def start(self, name, *command):
        self._running[name] = start(self.out / f"{name}.log", *command)
        return self._running[name]

    def keep(self, name):
        self._running[name] = keep(self.out / name)

    def end(self, name):
        end(self._running.pop(name))

    def kill(self, name):
        """Kill the children of a supervisor, which starts them again."""
        for process in psutil.Process(self._running[name].pid).children(recursive=True):
            process.kill()

    def run(self, name, *overrides):
        if "secure_aggregation=helper" not in overrides:
            for key in self.out.glob("node-*/helper.pub"):
                key.unlink()  # with it, nodes refuse orders in clear
        return self.start(name, "run", "--output", self.out / name, self.server, *overrides)

    def log(self, name):
        return (self.out / f"{name}.log").read_text()

    def close(self):
        for name in list(self._running):
            self.end(name)


def events(run, kind):
    lines = (run / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    running = Federation(tmp_path_factory.mktemp("edge") / "out")
    port, helper_port = free_ports(2)
    init = ["init", "--nodes", NODES, "--host", "localhost", "--port", port, running.out]
    helper = ["helper", "--new", "--host", "localhost", "--port", helper_port, running.out]
    for command in (init, helper):
        process = ask(*command)
        assert process.returncode == 0, process.stderr
    address = f"secure_aggregation=helper secure_aggregation.address=localhost:{helper_port}"
    assert address in process.stdout
    give_ports(running.out)
    for name in ("helper", *(f"node-{i}" for i in range(NODES)), "server"):
        running.keep(name)
    yield running
    running.close()
    wait_for(lambda: not processes(running.out), "all processes are gone")
    doctor = ask("doctor", running.out / "node-0")
    assert doctor.returncode == 1
    assert "refused" in doctor.stdout


def test_a_masked_run_outlives_its_helper_and_the_doctor_finds_nothing(federation):
    """The helper is killed while the server waits for it: no update is lost or used twice."""
    folder, server = federation.out / "masked", federation.server
    helper_port = Kit.read(federation.helper, {}).settings["PORT"]
    overrides = [
        *(*DIGITS, f"algorithm.schedule.buffer_size={MEMBERS}", f"num_versions={VERSIONS}"),
        *("secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
        f"secure_aggregation.address=localhost:{helper_port}",
    ]
    run = federation.run("masked", *overrides)
    wait_for(lambda: count(folder, "aggregate") > 1, "two versions are published")
    federation.kill("helper")
    before = count(folder, "aggregate")
    time.sleep(3)  # of five; uploads arrive, the server waits, and makes no version
    assert count(folder, "aggregate") <= before + 1
    wait_for(lambda: count(folder, "aggregate") > before + 1, "it goes on")

    same = federation.start("same", "run", "--output", folder, server, *overrides)
    arguments = {"helper": [], "server": overrides, "node-0": []}
    doctors = {
        name: federation.start(f"doctor-{name}", "doctor", federation.out / name, *more)
        for name, more in arguments.items()
    }
    wait_for(lambda: "no other run is submitted" in federation.log("same"), "it is found")
    same.terminate()  # like Ctrl-C, which background jobs of a shell ignore
    same.wait(10)
    assert "A run that is under way goes on" in federation.log("same")
    assert "submitted: " not in federation.log("same")
    for name, doctor in doctors.items():
        assert doctor.wait(100) == 0, federation.log(f"doctor-{name}")
        log = federation.log(f"doctor-{name}")
        assert ask("healthy", federation.out / name).returncode == 0
    assert "refuses their calls" in log or shutil.which("caddy") is None
    (server / "keys" / "node-0.pub").rename(server / "added.pub")
    assert ask("register", server, server / "added.pub").stdout.count("could join already") == 1
    assert (server / "keys" / "added.pub").exists()  # from which it is registered again

    assert run.wait(300) == 0, federation.log("masked")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["num_versions"], summary["failures"]) == (VERSIONS, 0)
    orders = Counter(o for event in events(folder, "aggregate") for o in event["order"])
    # A fast node may upload again before three have; its older upload is replaced, not used.
    orders.update(event["order"] for event in events(folder, "reject"))
    assert {event["reason"].split(" of ")[0] for event in events(folder, "reject")} <= {
        "a newer upload"
    }
    assert set(orders.values()) == {1}
    assert len(orders) == MEMBERS * VERSIONS + len(events(folder, "reject"))
    with sqlite3.connect(f"file:{federation.helper / 'helper.db'}?mode=ro", uri=True) as database:
        query = "SELECT count(*), count(DISTINCT request) FROM used"
        used = 2 * MEMBERS * VERSIONS  # a seed and an order for each
        assert database.execute(query).fetchone() == (used, VERSIONS)
    database.close()
    accuracies = [event["accuracy"] for event in events(folder, "evaluate")]
    assert accuracies[-1] > accuracies[0] + 0.2


def test_a_run_outlives_its_superlink_and_killed_nodes_come_back(federation):
    """All die at once; of the second node, the process that trains.

    The SuperLink refuses a node that comes back until it has noticed that the node is offline.
    """
    folder, server = federation.out / "killed", federation.server
    overrides = [*DIGITS, "algorithm/schedule=periodic", "algorithm.schedule.period=1.5"]
    overrides.append("num_versions=40")
    run = federation.run("killed", *overrides)
    wait_for(lambda: count(folder, "aggregate") > 1, "two versions are published")
    node = min(processes(federation.out / "node-1", "fl_app.node.warm"))  # its executor is a fork
    (superlink,) = processes(server, "flower-superlink")
    (worker,) = processes(federation.out / "node-2", "fl_app.node.worker")
    workers = federation.log("node-2").count("carries out orders")
    for process in (node, worker, superlink):
        os.kill(process, signal.SIGKILL)

    link = SuperLink(Kit.read(server))
    keys = [public_bytes(server / "keys" / f"node-{i}.pub") for i in (1, 2)]

    def status():
        try:
            return {link.registered()[key] for key in keys}
        except Unreachable:
            return set()

    wait_for(lambda: "offline" in status(), "a node is missed")
    assert wait_for(lambda: status() == {"online"}, "both are back") < 2 * OFFLINE_AFTER
    assert run.wait(300) == 0, federation.log("killed")
    log = federation.log("killed")
    assert log.count("submitted: ") == 2
    assert "num_versions=40 resume=auto" in log
    assert json.loads((folder / "summary.json").read_text())["num_versions"] == 40
    assert federation.log("node-2").count("carries out orders") == workers + 1
    assert {event["client"] for event in events(folder, "arrival")[-20:]} == {*range(NODES)}


# -- one table per node ---------------------------------------------------------------------------

SPECIES = ((0, 1), (1, 2))  # of the first two nodes; neither has all
MODEL = """
from torch import nn

def make(input_shape, num_outputs):
    return nn.Sequential(nn.Linear(*input_shape, 40), nn.ReLU(), nn.Linear(40, num_outputs))

def loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1)
"""


def write_table(path, species):
    flowers = load_iris()
    mask = np.isin(flowers.target, species)
    rows = zip(flowers.data[mask], flowers.target_names[flowers.target[mask]], strict=True)
    lines = [",".join([*map(str, values), name]) for values, name in rows]
    path.write_text("\n".join(["a,b,c,d,species", *lines]) + "\n")


def accuracy(folder, *keys):
    """Accuracy of a run's final model on data of all classes."""
    task = build_task(make_config(*keys, "num_clients=1", "partition=iid", "task.test_share=0.5"))
    assert isinstance(task, Task)
    module = task.model()
    with np.load(folder / "model.npz") as arrays:
        module.load_state_dict({name: torch.from_numpy(arrays[name]) for name in arrays})
    return task.test(module)["accuracy"]


def test_nodes_with_a_table_each_and_one_that_cannot_be_read(federation, tmp_path, monkeypatch):
    """The server has no data. Model and loss lie in its folder and travel with the app."""
    tables = [tmp_path / f"node-{i}.csv" for i in range(NODES)]
    for path, species in zip(tables, SPECIES, strict=False):
        write_table(path, species)
    tables[2].write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    sample, schema = tmp_path / "sample.csv", tmp_path / "schema.json"
    write_table(sample, (0, 1, 2))
    overrides = ["task=csv", f"task.path={sample}", "task.target=species"]
    schema.write_text(python("-m", "fl_app.schema", *overrides).stdout)
    (federation.server / "my_model.py").write_text(MODEL)
    model = ["task.model=my_model:make", "task.loss=my_model:loss"]
    for i, path in enumerate(tables):
        federation.end(f"node-{i}")
        settings = federation.out / f"node-{i}" / "node.env"
        text = settings.read_text()
        assert 'DATA=""' in text
        settings.write_text(text.replace('DATA=""', f'DATA="{path}"'))
        federation.keep(f"node-{i}")

    data = ["task=csv", f"task.schema={schema}", "task.holdout=0.2"]
    assert ask("doctor", federation.out / "node-0", *data).returncode == 0
    assert ask("doctor", federation.out / "node-2", *data).returncode == 1
    run = federation.run(
        "tables",
        *(*RUN, *data, *model, "num_clients=null", "num_versions=12", "seed=1"),
        *("algorithm.schedule.buffer_size=2", "client_eval_every=4"),
        *("algorithm.client.local_epochs=5", "algorithm.client.local_lr=0.1"),
    )
    assert run.wait(400) == 0, federation.log("tables")
    folder = federation.out / "tables"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["stopped"], summary["num_clients"]) == ("num_versions", NODES)
    failures = events(folder, "failure")
    (bad,) = {event["client"] for event in failures}
    good = {*range(NODES)} - {bad}
    assert summary["without_update"] == [bad]
    reason = "ValueError: this node's own data cannot be read as task=csv"
    assert all(reason in event["reason"] for event in failures)
    assert {event["client"] for event in events(folder, "arrival")} == good
    assert events(folder, "evaluate") == []  # the server has nothing to test on
    evaluations = events(folder, "clients_evaluate")
    assert evaluations[-1]["version"] == summary["num_versions"]
    assert {event["client"] for event in events(folder, "client_evaluate")} == good
    assert evaluations[-1]["accuracy_mean"] > 0.6
    monkeypatch.syspath_prepend(federation.server)
    assert accuracy(folder, *overrides, *model) > 0.75  # chance: a third; arrivals vary
