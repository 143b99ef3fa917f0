"""Strategies in another project's Flower app, whose ClientApp does not use this project."""

import csv
import json
import logging
import math
import os
import re
import subprocess
import sys
import threading
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import foreign_app
import numpy as np
import pytest
import torch
from fake_grid import FakeGrid, SuperLink
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedProx
from foreign_app import SERVERS, read_fit, write_app
from helpers import Quadratic, python, vec

from fl_app import report
from fl_app.algorithms import fedprox
from fl_app.algorithms.eafl import EAFL
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.feddyn.trainer import FedDynTrainer
from fl_app.algorithms.fedhist import FedHist
from fl_app.asynchronous import Asynchronous
from fl_app.core.errors import RunError
from fl_app.field.control import COMMANDS
from fl_app.flower import codec
from fl_app.record.log import JsonLines, read_events
from fl_app.schedule import Buffered, k_async, synchronous
from fl_app.schedule.routed import Routed
from lab.demo import Federation

NUM_ROUNDS = 20
TOLERANCE = ConfigRecord({"tolerance": 0.5})


def initial():
    torch.manual_seed(0)
    return ArrayRecord(foreign_app.Net().state_dict())


def start(strategy, app=foreign_app.app, *, nodes=4, **settings):
    """Start with the app on `nodes` nodes, or on the given grid; return the result."""
    grid = settings.pop("grid", None) or FakeGrid(app, nodes)
    common = {"num_rounds": NUM_ROUNDS, "train_config": ConfigRecord({"lr": 0.1})}
    return strategy.start(grid, initial(), **{**common, **settings})


def evaluate(version, arrays):
    """The mean squared error on the common function, as in the quickstart's global evaluation."""
    model = foreign_app.Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = foreign_app.load_data(20)
    with torch.no_grad():
        return MetricRecord({"mse": torch.nn.functional.mse_loss(model(x), y).item()})


# -- the programs of docs/flower.md ---------------------------------------------------------------


@pytest.mark.parametrize("server", SERVERS, ids=["FedHist", "FedAdam"])
def test_server_app_and_client_app_of_the_page(server, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(write_app(tmp_path, server))
    for name in ("client_app", "server_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    client_app, server_app = import_module("client_app").app, import_module("server_app").app
    server_app(FakeGrid(client_app, 4), Context(1, 0, {}, RecordDict(), {}))
    assert read_fit(capsys.readouterr().out) == pytest.approx([2, 1], abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_simulation_of_the_page(tmp_path):
    process = python("simulate.py", cwd=write_app(tmp_path, SERVERS[0]))
    assert read_fit(process.stdout) == pytest.approx([2, 1], abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.federation
def test_real_nodes_of_the_page(tmp_path):
    folder = tmp_path / "app"
    folder.mkdir()
    federation = Federation(tmp_path / "federation", 3)
    home = {**os.environ, "FLWR_HOME": str(federation.kit.folder / "flower")}
    home["PATH"] = f"{COMMANDS}{os.pathsep}{home['PATH']}"
    try:
        federation.start()
        app = write_app(folder, SERVERS[0].replace("num_rounds=40", "num_rounds=12"))
        command = [COMMANDS / "flwr", "run", app, "field", "--stream"]
        run = subprocess.run(command, env=home, capture_output=True, text=True, timeout=300)
        assert read_fit(run.stdout + run.stderr) == pytest.approx([2, 1], abs=0.5)  # from 0, 0
    finally:
        assert federation.stop()


# -- training and evaluation ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (FedBuff(), {}),
        (Asynchronous(FedAdam(eta=0.1)), {"schedule": Buffered(concurrency=3, buffer_size=2)}),
        (EAFL(server_lr=1.0, num_clusters=2, recluster_every=3), {}),
    ],
    ids=["FedBuff", "FedAdam", "EAFL"],
)
def test_start_trains_an_unmodified_client_app(strategy, settings):
    result = start(strategy, evaluate_fn=evaluate, **settings)
    state = result.arrays.to_torch_state_dict()
    assert {name: (v.shape, v.dtype) for name, v in state.items()} == {
        name: (v.shape, v.dtype) for name, v in foreign_app.Net().state_dict().items()
    }
    assert all(torch.isfinite(v).all() for v in state.values())
    assert list(result.evaluate_metrics_serverapp) == list(range(NUM_ROUNDS + 1))
    errors = [float(m["mse"]) for m in result.evaluate_metrics_serverapp.values()]
    assert errors[-1] < 0.3 * errors[0]
    assert errors[-1] == evaluate(NUM_ROUNDS, result.arrays)["mse"]
    assert list(result.train_metrics_clientapp) == list(range(1, NUM_ROUNDS + 1))
    assert all(math.isfinite(m["train_loss"]) for m in result.train_metrics_clientapp.values())


def test_an_unmodified_client_app_evaluates():
    """All four evaluate versions 5, 10, 15 and 20; metrics are means like Flower's."""
    grid = FakeGrid(foreign_app.app, 4)
    result = start(FedBuff(), grid=grid, evaluate_config=TOLERANCE, client_eval_every=5)
    metrics = result.evaluate_metrics_clientapp
    assert list(metrics)[-1] == NUM_ROUNDS
    assert set(metrics) == {5, 10, 15, 20}
    orders = [m for m in grid.received if m.metadata.message_type == "evaluate"]
    assert {m.content["config"]["server-round"] for m in orders} == set(metrics)
    assert {m.content["config"]["tolerance"] for m in orders} == {0.5}
    assert all("lr" not in m.content["config"] for m in orders)
    model = foreign_app.Net()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    total, sizes = 0.0, range(8, 12)
    for partition, size in enumerate(sizes):
        x, y = foreign_app.load_data(partition)
        with torch.no_grad():
            total += size * torch.nn.functional.mse_loss(model(x), y).item()
    assert metrics[NUM_ROUNDS]["eval_loss"] == pytest.approx(total / sum(sizes))
    assert set(metrics[NUM_ROUNDS]) == {"eval_loss", "eval_acc"}


@pytest.mark.parametrize(("losses", "mean"), [((1, 2), 1.75), ((1, math.nan), math.nan)])
def test_metrics_are_means_by_examples_and_arrays_that_are_rounded_are_named(losses, mean, logs):
    def app(message, context):
        node = context.node_config["partition-id"]
        metrics = {"num-examples": 1 + 2 * node, "train_loss": losses[node], "acc": 4.0 * node}
        metrics["loss"] = 5.0
        content = RecordDict({**message.content, "metrics": MetricRecord(metrics)})
        return Message(content, reply_to=message)

    arrays = {"w": np.zeros(1), "n": np.array([2**24 + 1]), "b": np.array([7])}
    result = FedBuff().start(FakeGrid(app, 2), codec.record_of(arrays), 1, schedule=synchronous(2))
    means = dict(result.train_metrics_clientapp[1])
    assert means == pytest.approx({"train_loss": mean, "acc": 3.0, "loss": 5.0}, nan_ok=True)
    assert "initial_arrays w, n: models are float32" in logs.text
    strategy, parts = FedHist(), (FakeGrid(app, 2), codec.record_of(arrays), 1)
    strategy.start(*parts, schedule=synchronous(2))
    with pytest.raises(ValueError, match="strategy=FedHist must be a new object"):
        strategy.start(*parts)


class Hinting(FedBuff):
    """Sends a vector that other projects' clients do not know."""

    order_extra = ("hint",)

    def dispatch_extra(self, model, client_id):
        return {"hint": model.params}


def test_clients_that_cannot_evaluate_or_do_not_know_a_vector_train_on():
    def trains_only(message, context):
        if message.metadata.message_type != "train":
            raise ValueError("no `evaluate` function registered")
        return foreign_app.app(message, context)

    grid = FakeGrid(trains_only, 3)
    result = start(Hinting(), grid=grid, client_eval_every=1)
    assert len(result.train_metrics_clientapp) == NUM_ROUNDS
    assert result.evaluate_metrics_clientapp == {}
    orders = [m for m in grid.received if m.metadata.message_type == "train"]
    assert all({"arrays", "extra.hint"} <= message.content.keys() for message in orders)


# -- apps that do not fit -------------------------------------------------------------------------


def test_clients_without_the_algorithms_own_equations_are_reported(logs):
    with pytest.raises(RunError) as error:
        start(FedDyn(), nodes=2, schedule=Buffered(concurrency=2, buffer_size=1))
    missing = "fl_app.algorithms.feddyn.trainer.FedDynTrainer"
    assert f"the ClientApp must train with {missing}: " in str(error.value)
    assert f"Its ClientApp must train with {missing}" in logs.messages


class Own(FedDynTrainer):
    """A user's class that builds on the algorithm's."""


@pytest.mark.parametrize("trainer", [FedDynTrainer, Own])
def test_clients_with_the_algorithms_own_equations_are_accepted(trainer):
    devices = [trainer(Quadratic([[[3.0]], [[5.0]]]), local_lr=0.5) for _ in range(2)]
    layout = devices[0].model.layout

    def app(message, context):
        node = context.node_config["partition-id"]
        order = replace(codec.read_order(message, layout), client_id=node)
        upload = devices[node].train(order)
        lineage = " ".join(devices[node].lineage)
        return codec.pack_upload(message, upload, layout, lineage=lineage)

    result = FedDyn().start(
        FakeGrid(app, 2),
        codec.record_of(layout.named(vec(0))),
        num_rounds=1,
        schedule=synchronous(2),  # no client gets a second order while the other one is slow
    )
    assert result.arrays["w"].numpy().tolist() == [2.0]  # (1.5 + 2.5) / 2


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_client_app_with_a_client_fn_ends_the_run_with_an_explanation(evaluates):
    """Flower's FedAvg fails on it, too."""

    class Client(NumPyClient):
        def fit(self, parameters, config):
            return parameters, 1, {}

    legacy = ClientApp(client_fn=lambda context: Client().to_client())

    def app(message, context):
        trains = evaluates and message.metadata.message_type == "train"
        return (foreign_app.app if trains else legacy)(message, context)

    with pytest.raises(RunError, match=r"client_fn.*@app\.train\(\).*docs/flower\.md"):
        start(FedBuff(), app, nodes=2, client_eval_every=1, schedule=Buffered(2, 1))


def test_a_simulation_with_fewer_nodes_than_a_version_takes_is_refused():
    link = SuperLink(2)
    module = import_module("flwr.superlink.grid.inmemory_grid")
    grid = module.InMemoryGrid(SimpleNamespace(state=lambda: link.state))
    grid.set_run(link.grid.run)
    with pytest.raises(ValueError, match=r"buffer_size=10 must be at most .* 2: it waits until"):
        start(FedHist(), grid=grid)
    with pytest.raises(ValueError, match=r"buffer_size=10 .*Buffered\(concurrency=2, buffer_s"):
        start(FedBuff(), grid=grid)
    with pytest.raises(ValueError, match=r"min_clients=5 must be at most .* 2: .*num_clusters=2"):
        start(EAFL(), grid=grid)
    with pytest.raises(ValueError, match="schedule=Routed must be another one"):
        start(FedBuff(), grid=grid, schedule=Routed(2))


@pytest.mark.parametrize(
    ("strategy", "schedule", "pattern"),
    [
        (FedHist(), k_async(3), r"schedule.buffer_size=3 should be at most .* 2: it waits"),
        (FedBuff(), Buffered(3, 3), r"schedule.buffer_size=3 should be at most .* 2: .* twice"),
        (FedHist(), k_async(2), r"schedule.buffer_size=2 is the number of nodes.* synchronous"),
        (FedBuff(), Buffered(2, 2), ""),  # the fast node may fill the buffer
        (FedHist(), k_async(1), ""),
    ],
)
def test_fewer_real_nodes_than_a_version_takes_are_warned_of(strategy, schedule, pattern):
    """Nodes may join later: here the third one joins after the warning."""
    grid = FakeGrid(foreign_app.app, 2)
    messages = []

    class Handler(logging.Handler):
        def emit(self, record):
            if "schedule.buffer_size" in record.getMessage():
                messages.append(record.getMessage())
                if len(grid.node_ids) < schedule.buffer_size:
                    grid.connect({"partition-id": 2})

    logging.getLogger("flwr").addHandler(handler := Handler())
    try:
        start(strategy, grid=grid, num_rounds=1, schedule=schedule)
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    assert len(messages) == bool(pattern)
    assert not pattern or re.search(pattern, messages[0])


def test_in_flowers_own_round_a_bad_reply_is_left_out(caplog):
    """w = 0, the one good client sends 3: FedBuff's mean displacement at age 0 leads to 3."""
    values = {0: [math.nan], 1: [0, 0], 2: [9], 3: [3]}

    def app(message, context):
        node = context.node_config["partition-id"]
        if node == 4:
            raise RuntimeError("out of memory")
        arrays = ArrayRecord({"w": Array(np.array(values[node], np.float32))})
        metrics = MetricRecord({"num-examples": 0 if node == 2 else 5, "loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid, strategy = FakeGrid(app, 5), FedBuff()
    arrays = ArrayRecord({"w": Array(np.zeros(1, np.float32))})
    msgs = fedprox.FedProx(proximal=0.1).configure_train(1, arrays, ConfigRecord({"lr": 2.0}), grid)
    assert [dict(message.content["config"]) for message in msgs] == 5 * [
        {"lr": 2.0, "server-round": 1, "proximal-mu": 0.1}
    ]
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    replies = grid.pull_messages(grid.push_messages(messages))
    aggregated, metrics = strategy.aggregate_train(1, replies)
    assert aggregated is not None
    assert aggregated["w"].numpy().tolist() == [3.0]
    assert metrics is not None
    assert metrics["loss"] == 0.5
    warnings = [r.getMessage() for r in caplog.records if "left out of round 1" in r.getMessage()]
    assert len(warnings) == 4
    assert "out of memory" in warnings[-1]


# -- files, sinks and logs ------------------------------------------------------------------------


def score(version, arrays):
    return MetricRecord({"accuracy": version / 4, "loss": 1.0 / (1 + version)})


def run_short(strategy, **settings):
    more = {"evaluate_fn": score, "schedule": Buffered(concurrency=3, buffer_size=2)}
    return start(strategy, nodes=3, num_rounds=4, **{**more, **settings})


def test_a_run_writes_the_files_of_the_command_line(tmp_path, logs):
    folder = tmp_path / "runs" / "one"
    result = run_short(Asynchronous(FedProx(proximal_mu=0.1)), output=folder)
    versions = [e.version for e in read_events(folder / "events.jsonl") if e.kind == "aggregate"]
    assert versions == [1, 2, 3, 4]
    with (folder / "metrics.csv").open(newline="") as file:
        accuracies = [row["accuracy"] for row in csv.DictReader(file)]
    assert accuracies == ["0.0", "0.25", "0.5", "0.75", "1.0"]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["algorithm"] == "FedProx"
    assert (summary["num_versions"], summary["stopped"]) == (4, "num_versions")
    assert (summary["final_accuracy"], summary["num_clients"]) == (1.0, 3)
    assert summary["aggregation"]["train_loss"] > 0
    with np.load(folder / "model.npz") as model:
        assert list(model) == list(result.arrays)
        assert all(np.array_equal(model[n], a.numpy()) for n, a in result.arrays.items())
    assert "FedProx" in (folder / report.PAGE).read_text()
    assert (folder / "table.csv").is_file()
    assert "proximal_mu=0.1" in (folder / "config.yaml").read_text()
    assert f"Report, to open in a browser: {folder / report.PAGE}" in logs.messages


@pytest.mark.parametrize("name", ["events.jsonl", "summary.json"])
def test_an_earlier_run_is_not_overwritten(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"^output=.* holds a run, whose files would be lost"):
        run_short(FedBuff(), output=tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {tmp_path / name: "{}"}


def test_a_refused_argument_leaves_no_files_and_no_threads(tmp_path):
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="eval_every=0"):
        run_short(FedBuff(), output=tmp_path / "run", eval_every=0)
    assert list(tmp_path.iterdir()) == []
    for thread in set(threading.enumerate()) - before:
        thread.join(2.0)
        assert not thread.is_alive()


class Raises(FedBuff):
    """Raises when it makes version 3."""

    def __init__(self, error):
        super().__init__()
        self._error = error

    def aggregate(self, model, updates):
        if model.version == 2:
            raise self._error
        return super().aggregate(model, updates)


@pytest.mark.parametrize(
    ("error", "stopped"),
    [
        (RunError("no more"), "RunError: no more"),
        (RuntimeError("a bug"), None),
        (KeyboardInterrupt(), "interrupted"),
    ],
)
def test_a_run_that_cannot_go_on_has_its_files_and_closes_the_callers_sinks(
    error, stopped, tmp_path
):
    """Ctrl-C returns the result so far; after a bug there is no report."""
    path, folder = tmp_path / "own.jsonl", tmp_path / "run"
    context = nullcontext() if stopped == "interrupted" else pytest.raises(type(error))
    with context:
        result = run_short(Raises(error), output=folder, sinks=[JsonLines(path)])
        assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    assert [event.kind for event in read_events(path)].count("aggregate") == 2
    if stopped is not None:
        summary = json.loads((folder / "summary.json").read_text())
        assert (summary["stopped"], summary["num_versions"]) == (stopped, 2)
        assert (folder / report.PAGE).is_file()
