"""Strategies in somebody else's Flower app, whose ClientApp never heard of this project."""

import logging
import math
import re
import threading
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import foreign_app
import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, Result
from helpers import Quadratic, vec
from store_grid import SuperLink

from fl_app.algorithms.eafl import EAFL
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.feddyn.trainer import FedDynTrainer
from fl_app.algorithms.fedhist import FedHist
from fl_app.asynchronous import Asynchronous
from fl_app.core.errors import RunError
from fl_app.core.types import Extra, GlobalModel
from fl_app.flower import codec
from fl_app.schedule import Buffered, k_async, synchronous

NUM_ROUNDS = 20


def initial() -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(foreign_app.Net().state_dict())


def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
    """As the quickstart's global evaluation: the mean squared error on everybody's function."""
    model = foreign_app.Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    x, y = foreign_app.load_data(20)
    with torch.no_grad():
        return MetricRecord({"mse": torch.nn.functional.mse_loss(model(x), y).item()})


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        (FedBuff(), {"schedule": Buffered(concurrency=3, buffer_size=2)}),
        (FedBuff(), {}),
        (Asynchronous(FedAdam(eta=0.1)), {"schedule": Buffered(concurrency=3, buffer_size=2)}),
        (Asynchronous(FedAdam(eta=0.1)), {}),
        (EAFL(server_lr=1.0, num_clusters=2, recluster_every=3), {}),
    ],
    ids=["FedBuff", "FedBuff by default", "FedAdam", "FedAdam by default", "EAFL by default"],
)
def test_start_trains_an_unmodified_client_app(strategy: Any, settings: dict[str, Any]) -> None:
    grid = FakeGrid(foreign_app.app, 4)
    result = strategy.start(
        grid=grid,
        initial_arrays=initial(),
        num_rounds=NUM_ROUNDS,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_fn=evaluate,
        **settings,
    )
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
    assert len(grid.received) >= NUM_ROUNDS


def test_an_unmodified_client_app_evaluates() -> None:
    """Versions 5, 10, 15 and 20, each measured by all four, as Flower's own means would be."""
    grid = FakeGrid(foreign_app.app, 4)
    result = FedBuff().start(
        grid,
        initial(),
        num_rounds=NUM_ROUNDS,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_config=ConfigRecord({"tolerance": 0.5}),
        client_eval_every=5,
    )
    found = result.evaluate_metrics_clientapp
    assert list(found)[-1] == NUM_ROUNDS
    assert set(found) == {5, 10, 15, 20}
    asked = [m for m in grid.received if m.metadata.message_type == "evaluate"]
    assert {m.content["config"]["server-round"] for m in asked} == set(found)
    assert {m.content["config"]["tolerance"] for m in asked} == {0.5}
    assert all("lr" not in m.content["config"] for m in asked)
    model = foreign_app.Net()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    total, sizes = 0.0, range(8, 12)
    for partition, size in enumerate(sizes):
        x, y = foreign_app.load_data(partition)
        with torch.no_grad():
            total += size * torch.nn.functional.mse_loss(model(x), y).item()
    assert found[NUM_ROUNDS]["eval_loss"] == pytest.approx(total / sum(sizes))
    assert set(found[NUM_ROUNDS]) == {"eval_loss", "eval_acc"}


@pytest.mark.parametrize(("fraction", "count"), [(0.5, 2), (0.0, 0)])
def test_a_strategy_of_flower_aggregates_what_its_clients_measured(
    fraction: float, count: int
) -> None:
    def worst(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
        losses = [float(content["metrics"]["eval_loss"]) for content in contents]
        assert all(weighted_by in content["metrics"] for content in contents)
        return MetricRecord({"worst": max(losses), "clients": len(losses)})

    grid = FakeGrid(foreign_app.app, 4)
    inner = FedAdam(eta=0.1, fraction_evaluate=fraction, evaluate_metrics_aggr_fn=worst)
    result = Asynchronous(inner).start(
        grid,
        initial(),
        num_rounds=3,
        train_config=ConfigRecord({"lr": 0.1}),
        evaluate_config=ConfigRecord({"tolerance": 0.5}),
        evaluate_fn=evaluate,
    )
    last = result.evaluate_metrics_clientapp.get(3)
    assert (0 if last is None else last["clients"]) == count
    assert len(result.evaluate_metrics_serverapp) == 4


def test_evaluations_on_clients_that_nobody_would_do_are_refused() -> None:
    """The strategy says that nobody evaluates, and the call that clients do."""

    def start(**settings: Any) -> Result:
        adapter = Asynchronous(FedAdam(fraction_evaluate=0.0))
        config = ConfigRecord({"lr": 0.1})
        grid = FakeGrid(foreign_app.app, 4)
        return adapter.start(grid, initial(), num_rounds=2, train_config=config, **settings)

    with pytest.raises(ValueError, match=r"client_eval_every=2 .* give client_eval_fraction"):
        start(client_eval_every=2)
    told = {"client_eval_fraction": 0.5, "evaluate_config": ConfigRecord({"tolerance": 0.5})}
    assert start(client_eval_every=2, **told).evaluate_metrics_clientapp
    assert not start().evaluate_metrics_clientapp


def test_clients_that_cannot_evaluate_train_on() -> None:
    def trains_only(message: Message, context: Context) -> Message:
        if message.metadata.message_type != "train":
            raise ValueError("no `evaluate` function registered")
        return foreign_app.app(message, context)

    result = FedBuff().start(
        FakeGrid(trains_only, 3),
        initial(),
        num_rounds=NUM_ROUNDS,
        train_config=ConfigRecord({"lr": 0.1}),
        client_eval_every=1,
    )
    assert len(result.train_metrics_clientapp) == NUM_ROUNDS
    assert result.evaluate_metrics_clientapp == {}


class Hinting(FedBuff):
    """Sends a vector that no client of another project has heard of."""

    order_extra = ("hint",)

    def dispatch_extra(self, model: GlobalModel, client_id: int) -> Extra:
        return {"hint": model.params}


def test_an_unmodified_client_app_leaves_vectors_beside_the_model_alone() -> None:
    grid = FakeGrid(foreign_app.app, 2)
    result = Hinting().start(
        grid, initial(), num_rounds=2, train_config=ConfigRecord({"lr": 0.1}), evaluate_fn=evaluate
    )
    assert len(result.train_metrics_clientapp) == 2
    assert grid.received
    assert all({"arrays", "extra.hint"} <= message.content.keys() for message in grid.received)


def test_clients_without_the_algorithms_own_equations_are_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("flwr").addHandler(caplog.handler)  # which does not propagate
    try:
        with caplog.at_level(logging.INFO, "flwr"), pytest.raises(RunError) as error:
            FedDyn().start(
                FakeGrid(foreign_app.app, 2),
                initial(),
                train_config=ConfigRecord({"lr": 0.1}),
                schedule=Buffered(concurrency=2, buffer_size=1),
            )
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    missing = "fl_app.algorithms.feddyn.trainer.FedDynTrainer"
    assert f"the ClientApp must train with {missing}: " in str(error.value)
    assert f"Its ClientApp must train with {missing}" in caplog.messages


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_client_app_with_a_client_fn_ends_the_run_in_words(evaluates: bool) -> None:
    """Flower's own FedAvg fails on it, too."""

    class Client(NumPyClient):
        def fit(self, parameters: Any, config: Any) -> Any:
            return parameters, 1, {}

    legacy = ClientApp(client_fn=lambda context: Client().to_client())

    def app(message: Message, context: Context) -> Message:
        trains = evaluates and message.metadata.message_type == "train"
        return (foreign_app.app if trains else legacy)(message, context)

    with pytest.raises(RunError, match=r"client_fn.*@app\.train\(\).*docs/flower\.md"):
        FedBuff().start(
            FakeGrid(app, 2),
            initial(),
            train_config=ConfigRecord({"lr": 0.1}),
            client_eval_every=1,
            schedule=Buffered(2, 1),
        )


def test_a_simulation_with_fewer_nodes_than_a_version_takes_is_refused() -> None:
    link = SuperLink(2)
    module = import_module("flwr.superlink.grid.inmemory_grid")
    grid = module.InMemoryGrid(SimpleNamespace(state=lambda: link.state))
    grid.set_run(link.grid.run)
    with pytest.raises(ValueError, match=r"buffer_size=10 must be at most .* 2: it waits until"):
        FedHist().start(grid, initial())
    with pytest.raises(ValueError, match=r"buffer_size=10 .*Buffered\(concurrency=2, buffer_s"):
        FedBuff().start(grid, initial())


@pytest.mark.parametrize(
    ("strategy", "schedule", "words"),
    [
        (FedHist(), k_async(3), r"schedule.buffer_size=3 should be at most .* 2: it waits"),
        (FedBuff(), Buffered(3, 3), r"schedule.buffer_size=3 should be at most .* 2: .* twice"),
        (FedHist(), k_async(2), r"schedule.buffer_size=2 is the number of nodes.* synchronous"),
        (FedBuff(), Buffered(2, 2), ""),  # the fast node may fill the buffer
        (FedHist(), k_async(1), ""),
    ],
)
def test_fewer_real_nodes_than_a_version_takes_are_warned_of(
    strategy: Any, schedule: Buffered, words: str
) -> None:
    """More may join: here the third does when the run is told that it waits for it."""
    grid = FakeGrid(foreign_app.app, 2)
    told: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "schedule.buffer_size" in record.getMessage():
                told.append(record.getMessage())
                if len(grid.node_ids) < schedule.buffer_size:
                    grid.connect({"partition-id": 2})

    logging.getLogger("flwr").addHandler(handler := Handler())
    try:
        config = ConfigRecord({"lr": 0.1})
        strategy.start(grid, initial(), num_rounds=1, train_config=config, schedule=schedule)
    finally:
        logging.getLogger("flwr").removeHandler(handler)
    assert len(told) == bool(words)
    assert not words or re.search(words, told[0])


class Own(FedDynTrainer):
    """A user's class that builds on the algorithm's."""


@pytest.mark.parametrize("trainer", [FedDynTrainer, Own])
def test_clients_with_the_algorithms_own_equations_are_heard(
    trainer: type[FedDynTrainer],
) -> None:
    devices = [trainer(Quadratic([[[3.0]], [[5.0]]]), local_lr=0.5) for _ in range(2)]
    layout = devices[0].model.layout

    def app(message: Message, context: Context) -> Message:
        node = context.node_config["partition-id"]
        order = replace(codec.read_order(message, layout), client_id=node)
        upload = devices[node].train(order)
        lineage = " ".join(devices[node].lineage)
        return codec.pack_upload(message, upload, layout, lineage=lineage)

    result = FedDyn().start(
        FakeGrid(app, 2),
        codec.record_of(layout.named(vec(0))),
        num_rounds=1,
        schedule=synchronous(2),  # nobody is asked twice, however slow the other one is
    )
    assert result.arrays["w"].numpy().tolist() == [2.0]  # (1.5 + 2.5) / 2


def test_a_refused_argument_leaves_nobody_watching_the_nodes() -> None:
    before = set(threading.enumerate())
    with pytest.raises(ValueError, match="eval_every=0"):
        FedBuff().start(FakeGrid(foreign_app.app, 1), initial(), evaluate_fn=evaluate, eval_every=0)
    for thread in set(threading.enumerate()) - before:
        thread.join(2.0)
        assert not thread.is_alive()


def test_in_flowers_own_round_a_bad_reply_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """w = 0, the one good client sends 3: FedBuff's mean displacement at age 0 leads to 3."""

    def app(message: Message, context: Context) -> Message:
        sent = {
            0: np.array([math.nan], np.float32),
            1: np.zeros(2, np.float32),
            2: np.array([9.0], np.float32),
            3: np.array([3.0], np.float32),
        }
        node = context.node_config["partition-id"]
        if node == 4:
            raise RuntimeError("out of memory")
        arrays = ArrayRecord({"w": Array(sent[node])})
        metrics = MetricRecord({"num-examples": 0 if node == 2 else 5, "loss": 0.5})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    grid = FakeGrid(app, 5)
    strategy = FedBuff()
    arrays = ArrayRecord({"w": Array(np.zeros(1, np.float32))})
    messages = strategy.configure_train(1, arrays, ConfigRecord(), grid)
    replies = grid.pull_messages(grid.push_messages(messages))
    aggregated, metrics = strategy.aggregate_train(1, replies)
    assert aggregated is not None
    assert aggregated["w"].numpy().tolist() == [3.0]
    assert metrics is not None
    assert metrics["loss"] == 0.5
    left_out = [r.getMessage() for r in caplog.records if "left out of round 1" in r.getMessage()]
    assert len(left_out) == 4
    assert "out of memory" in left_out[-1]
