"""State of clients: parameters that are never sent to them, and memories between orders.

Clients build frozen and initial private parameters from the seed, or read them from a file.
"""

import json
from collections import Counter, defaultdict
from threading import Lock

import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from helpers import make_config

from fl_app import client_app
from fl_app.client import LocalTrainer
from fl_app.core.events import Aggregated
from fl_app.node import memory
from fl_app.node.handler import MessageHandler
from fl_app.record.log import JsonLines
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.validate import validate_config

SMALL = ["algorithm=fedbuff", "num_clients=4", "num_versions=4", "eval_every=2", "partition=iid"]
SMALL += ["algorithm.schedule.buffer_size=2", "algorithm.schedule.concurrency=4"]
SMALL += ["algorithm.client.local_steps=2"]
HEAD = "task.trainable=[3.*]"  # of the perceptron: 32 x 10 + 10 parameters; 64 x 32 + 32 are frozen
OWN = "algorithm.client.private=[3.*]"
SIZES = {HEAD: 4 * 330, OWN: 4 * 2080}  # bytes of a vector


@pytest.fixture(autouse=True)
def _process(monkeypatch, tmp_path):
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "state"))
    threads = torch.get_num_threads()
    client_app.handler = MessageHandler()
    yield
    client_app.handler = MessageHandler()
    torch.set_num_threads(threads)


@pytest.fixture
def weights(tmp_path):
    """A file with values that no seed gives."""
    file = tmp_path / "weights.npz"
    rng = np.random.default_rng(3)
    shapes = {"1.weight": (32, 64), "1.bias": (32,), "3.weight": (10, 32), "3.bias": (10,)}
    values = {name: 0.1 * rng.standard_normal(shape) for name, shape in shapes.items()}
    np.savez(file, **{name: value.astype(np.float32) for name, value in values.items()})
    return f"task.weights={file}"


def nodes(folder, count, forgetful=False):
    """Nodes with separate handlers and folders, and the list of their replies.

    Args:
        folder: where their files lie.
        count: number of nodes.
        forgetful: a new handler, as of a new process, handles every message.
    """
    lock = Lock()
    replies = []
    handlers = defaultdict(MessageHandler)

    def app(message, context):
        with lock:
            client_app.handler = MessageHandler() if forgetful else handlers[context.node_id]
            replies.append(client_app.app(message, context))
            return replies[-1]

    configs = [
        {"partition-id": number, "state-dir": str(folder / f"node-{number}")}
        for number in range(count)
    ]
    return FakeGrid(app, count, configs), replies


def federation(folder, *overrides, base=SMALL, grid=None, stopped="num_versions"):
    config = make_config(*base, *overrides)
    validate_config(config)
    _, summary = run_cell(Plan(config), folder, label="", grid=grid)
    assert (summary["stopped"], summary["failures"], summary["rejected"]) == (stopped, 0, 0)
    return (folder / "events.jsonl").read_bytes(), summary


def same_in_flower(folder, *overrides):
    """Log and summary of a run without Flower, which are the same with two of its nodes."""
    log, summary = federation(folder / "inline", *overrides, "runtime.workers=0")
    grid, _ = nodes(folder, 2)
    flower = federation(folder / "flower", *overrides, "runtime=flower", grid=grid)
    assert flower[0] == log
    assert flower[1]["model_sha256"] == summary["model_sha256"]
    return log, summary


def kinds(log):
    return Counter(json.loads(line)["kind"] for line in log.splitlines())


@pytest.mark.parametrize("part", [HEAD, OWN])
@pytest.mark.parametrize("from_file", [False, True])
def test_the_same_files_in_flower_as_inline(part, from_file, tmp_path, weights):
    log, summary = same_in_flower(tmp_path, part, *([weights] if from_file else []))
    vector, counts = SIZES[part], kinds(log)
    assert summary["bytes_down"] == vector * counts["dispatch"]
    assert summary["bytes_up"] == vector * counts["arrival"]
    if part == HEAD and from_file:  # the model starts from the file and keeps frozen parameters
        model = tmp_path / "inline" / "model.npz"
        with np.load(model) as final, np.load(weights.partition("=")[2]) as file:
            for name in ("1.weight", "1.bias", "3.weight", "3.bias"):
                assert (final[name] == file[name]).all() == (name[0] == "1")
                assert np.abs(final[name] - file[name]).max() < 0.2


@pytest.mark.parametrize("part", [HEAD, OWN])
def test_clients_evaluate_with_frozen_and_private_parameters(part, tmp_path, weights):
    """Scores in Flower are the same as inline."""
    overrides = [part, weights, "client_eval_every=2", "task.holdout=0.2"]
    log, _ = same_in_flower(tmp_path, *overrides)
    assert kinds(log)["client_evaluate"] > 4
    real, _ = nodes(tmp_path, 3, forgetful=True)
    log, _ = federation(tmp_path / "real", *overrides, "runtime=deployment", grid=real)
    assert kinds(log)["client_evaluate"] > 0


def test_private_parameters_never_leave_a_real_node(tmp_path, weights):
    grid, replies = nodes(tmp_path, 3, forgetful=True)
    _, summary = federation(tmp_path / "run", OWN, weights, "runtime=deployment", grid=grid)
    assert summary["bytes_down"] == SIZES[OWN] * summary["orders"]
    records = [record for reply in replies for record in reply.content.array_records.values()]
    for record in records:
        assert not any("3." in name for name in record)
        assert sum(array.numpy().nbytes for array in record.values()) == SIZES[OWN]
    for path in (files := list(tmp_path.rglob("client-*.npz"))):
        with np.load(path) as state:
            assert set(state) == {"private.3.weight", "private.3.bias"}
    assert files


def test_sub_models_travel_alone(tmp_path):
    """64-32-10: half of it has 65 16 + 16 10 + 10 = 1210 of 2410 entries."""
    overrides = ["algorithm.client.widths=[1,0.5]", "algorithm.client.width_window=rolling"]
    same_in_flower(tmp_path, *overrides)
    grid, replies = nodes(tmp_path, 4)
    slow = ["devices=two_speed", "devices.slow_share=0.5", "algorithm.client.upload=model"]
    log, _ = federation(tmp_path / "real", *overrides, *slow, "runtime=deployment", grid=grid)
    orders, part = [m.content for m in grid.received], {False: 2410, True: 1210}
    orders = [order for order in orders if "arrays" in order]
    for order in orders:
        assert order["arrays"]["vector"].numpy().size == part[order["config"]["client-id"] >= 2]
    records = [records for reply in replies if (records := reply.content.array_records)]
    assert {each["arrays"]["vector"].numpy().size for each in records} == {1210, 2410}
    events = [event for event in map(json.loads, log.splitlines()) if "bytes" in event]
    assert all(event["bytes"] == 4 * part[event["client"] >= 2] for event in events)


def test_a_node_whose_sub_model_failed_trains_on(tmp_path, monkeypatch):
    train, failures = LocalTrainer._train, []

    def fails_once(self, order):
        if self.model.layout.size == 1210 and not failures:
            failures.append(order.client_id)
            raise OSError("out of memory")
        return train(self, order)

    monkeypatch.setattr(LocalTrainer, "_train", fails_once)
    overrides = ["algorithm.client.widths=[1,0.5]", "devices=two_speed", "devices.slow_share=0.5"]
    config = make_config(*SMALL, *overrides, "runtime=deployment", "num_versions=12")
    _, summary = run_cell(Plan(config), tmp_path / "run", label="", grid=nodes(tmp_path, 4)[0])
    assert (summary["failures"], summary["rejected"], len(failures)) == (1, 0, 1)


# -- memory of clients between their orders -------------------------------------------------------

MEMORY = ["num_clients=6", "num_versions=6", "eval_every=3", "algorithm.client.local_epochs=3"]
CASES = {
    "fedasmu": ["algorithm=fedasmu", "devices/network=normal", "algorithm.schedule.concurrency=3"],
    "overlap_fedavg": ["algorithm=overlap_fedavg", "devices/network=normal"],
    "moon": ["algorithm=moon", "algorithm.schedule.buffer_size=3"],
    "port": [
        *("algorithm=port", "algorithm.schedule.buffer_size=2", "devices.ratio=110"),
        *("algorithm.strategy.staleness_bound=2", "algorithm.schedule.concurrency=6"),
    ],
}


def one_at_a_time(run_id=1):
    """A ClientApp with a lock: nodes of the fake grid share one trainer, real ones do not."""
    lock = Lock()

    def app(message, context):
        context.run_id = run_id
        with lock:
            return client_app.app(message, context)

    return app


def run_with_memory(folder, overrides, grid=None, *, stopped="num_versions"):
    log, summary = federation(folder, *overrides, base=MEMORY, grid=grid, stopped=stopped)
    return log, summary["model_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedasmu", "port"])
def test_any_node_serves_any_client_and_time_is_virtual(name, tmp_path):
    """A client's memory travels with its orders: the files are the same as without Flower."""
    inline = run_with_memory(tmp_path / "inline", [*CASES[name], "runtime.workers=0"])
    grid = FakeGrid(one_at_a_time(), 2)
    flower = run_with_memory(tmp_path / "flower", [*CASES[name], "runtime=flower"], grid)
    assert flower == inline
    workers = run_with_memory(tmp_path / "workers", [*CASES[name], "runtime.workers=2"])
    assert workers == inline
    assert {"fedasmu": {"pause", "refresh"}, "port": {"recall"}}[name] <= {*kinds(inline[0])}


@pytest.mark.parametrize("name", ["moon", "overlap_fedavg"])
def test_real_nodes_have_their_memory_when_a_run_resumes(name, tmp_path, monkeypatch):
    """Also with another run id of Flower, and if devices are ahead of the checkpoint."""
    overrides = [*CASES[name], "runtime=deployment", "checkpoint_every=2"]
    folder, state = tmp_path / "real", tmp_path / "state"

    def interrupt(self, event):
        emit(self, event)
        if isinstance(event, Aggregated) and event.version == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        emit = JsonLines.emit
        patch.setattr(JsonLines, "emit", interrupt)
        run_with_memory(folder, overrides, FakeGrid(one_at_a_time(), 6), stopped="interrupted")
    files = set(state.rglob("*.npz"))

    client_app.handler = MessageHandler()
    hits = {}  # at the first order of every client
    load = memory.load

    def load_and_note(path):
        content = load(path)
        hits.setdefault(path, bool(content))
        return content

    monkeypatch.setattr(memory, "load", load_and_note)
    grid = FakeGrid(one_at_a_time(run_id=2), 6)
    log, _ = run_with_memory(folder, [*overrides, "resume=auto"], grid)
    assert set(state.rglob("*.npz")) >= files
    assert len(list(state.iterdir())) == 1
    assert [path for path in hits if hits[path]] == [path for path in hits if path in files]
    events = [json.loads(line) for line in log.splitlines()]
    assert not any(event["kind"] == "reject" for event in events)
    if name == "overlap_fedavg":  # at first, memories that are ahead of the server are ignored
        ages = [event["age"] for event in events if event["kind"] == "aggregate"]
        assert ages == [[age] * 6 for age in (0, 1, 0, 1, 1, 1)]
