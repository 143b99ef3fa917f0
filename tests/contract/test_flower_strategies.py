"""Every strategy that Flower ships, on arrivals of age 0: what its own synchronous round does.

Or it is refused, with the reason.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy
from helpers import Recorder

from fl_app.asynchronous import Asynchronous
from fl_app.core.errors import RunError
from fl_app.schedule import Buffered, synchronous

CLIENTS = 7
ROUNDS = 3
LR = 0.1


def initial() -> ArrayRecord:
    return ArrayRecord(
        {
            "w": Array(np.arange(6, dtype=np.float32).reshape(3, 2)),
            "b": Array(np.ones(1, np.float32)),
        }
    )


def client(message: Message, context: Context) -> Message:
    """Three steps towards the client's own point; believes what its config says."""
    client_id = context.node_config["partition-id"]
    config = message.content["config"]
    sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
    model = {name: array.copy() for name, array in sent.items()}
    rng = np.random.default_rng(client_id)
    point = {name: rng.standard_normal(array.shape) for name, array in sorted(sent.items())}
    for _ in range(3):
        for name, array in model.items():
            pull = config.get("proximal-mu", 0.0) * (array - sent[name])
            array -= (config["lr"] * (array - point[name] + pull)).astype(np.float32)
    loss = float(sum(np.square(model[name] - point[name]).sum() for name in model))
    metrics = {
        "num-examples": 5 + client_id,
        "num-correct": 1 + 2 * client_id,
        "train_loss": loss,
        "per-class": [loss, float(client_id)],
        "round": config["server-round"],
    }
    content = RecordDict(
        {
            "own-arrays": ArrayRecord({name: Array(array) for name, array in model.items()}),
            "own-metrics": MetricRecord(metrics),
            "device": ConfigRecord({"name": f"board {client_id}", "key": b"\x01"}),
        }
    )
    return Message(content, reply_to=message)


class FallingRate(flower.FedAvg):
    """A rate that falls with every call, and a config that remembers."""

    rate = 0.4

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.rate *= 0.5
        config["lr"] = min(float(config["lr"]) * 0.9, self.rate)
        return super().configure_train(server_round, arrays, config, grid)


class OwnRates(flower.FedAvg):
    """Tells every node something else."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        for message in super().configure_train(server_round, arrays, config, grid):
            own = ConfigRecord({**config, "lr": LR / (1 + message.metadata.dst_node_id % 5)})
            content = RecordDict({"arrays": arrays, "config": own})
            yield Message(content, message.metadata.dst_node_id, "train")


def metrics_of_devices(contents: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Reads all that a reply holds."""
    assert weighted_by == "num-correct"
    names = [content["device"]["name"] for content in contents]
    return MetricRecord({"boards": sum(str(name).startswith("board") for name in names)})


# Flower's own ones by class name.
CASES: dict[str, Callable[..., Strategy]] = {
    "Bulyan": lambda **k: flower.Bulyan(num_malicious_nodes=1, **k),
    "FedAdagrad": flower.FedAdagrad,
    "FedAdam": flower.FedAdam,
    "FedAvg": flower.FedAvg,
    "FedAvgM": lambda **k: flower.FedAvgM(server_momentum=0.9, server_learning_rate=0.7, **k),
    "FedMedian": flower.FedMedian,
    "FedProx": lambda **k: flower.FedProx(proximal_mu=2.0, **k),
    "FedTrimmedAvg": flower.FedTrimmedAvg,
    "FedYogi": flower.FedYogi,
    "Krum": lambda **k: flower.Krum(num_malicious_nodes=1, **k),
    "MultiKrum": lambda **k: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=3, **k),
    "QFedAvg": lambda **k: flower.QFedAvg(client_learning_rate=LR, q=0.5, **k),
}
REFUSED: dict[str, tuple[Callable[[], Strategy], str]] = {
    name: (lambda make=make: make(flower.FedAvg(), 0.1, CLIENTS), "use algorithm=dp_fedbuff")  # type: ignore[misc]
    for name, make in {
        "DifferentialPrivacyClientSideAdaptiveClipping": (
            flower.DifferentialPrivacyClientSideAdaptiveClipping
        ),
        "DifferentialPrivacyServerSideAdaptiveClipping": (
            flower.DifferentialPrivacyServerSideAdaptiveClipping
        ),
        "DifferentialPrivacyClientSideFixedClipping": (
            lambda s, noise, n: flower.DifferentialPrivacyClientSideFixedClipping(s, noise, 1.0, n)
        ),
        "DifferentialPrivacyServerSideFixedClipping": (
            lambda s, noise, n: flower.DifferentialPrivacyServerSideFixedClipping(s, noise, 1.0, n)
        ),
    }.items()
}
REFUSED |= {
    "FedXgbBagging": (flower.FedXgbBagging, "its models are trees"),
    "FedXgbCyclic": (flower.FedXgbCyclic, "its models are trees"),
}
OTHERS: dict[str, Callable[..., Strategy]] = {
    "weights and metrics of one's own": lambda **k: flower.FedAvg(
        weighted_by_key="num-correct", train_metrics_aggr_fn=metrics_of_devices, **k
    ),
    "falling rate": FallingRate,
    "a rate for each node": OwnRates,
}


def test_every_strategy_of_flower_is_here() -> None:
    assert {*CASES, *REFUSED} == set(flower.__all__) - {"Result", "Strategy"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_of_arrivals_of_age_zero_comes_the_model_of_flowers_own_rounds(name: str) -> None:
    make = (CASES | OTHERS)[name]
    rounds = make(fraction_evaluate=0.0).start(
        FakeGrid(client, CLIENTS), initial(), ROUNDS, train_config=ConfigRecord({"lr": LR})
    )
    arrivals = Asynchronous(make(fraction_evaluate=0.0)).start(  # type: ignore[arg-type]
        FakeGrid(client, CLIENTS),
        initial(),
        ROUNDS,
        train_config=ConfigRecord({"lr": LR}),
        schedule=synchronous(CLIENTS),
    )
    assert list(arrivals.arrays) == list(rounds.arrays)
    for key, array in rounds.arrays.items():
        found = arrivals.arrays[key].numpy()
        assert not np.array_equal(found, initial()[key].numpy())
        np.testing.assert_allclose(found, array.numpy(), rtol=1e-5, atol=1e-6)
    assert list(arrivals.train_metrics_clientapp) == list(rounds.train_metrics_clientapp)
    for version, metrics in rounds.train_metrics_clientapp.items():
        found = arrivals.train_metrics_clientapp[version]
        assert found.keys() == metrics.keys()
        for key, value in metrics.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_had_says_why(name: str) -> None:
    make, why = REFUSED[name]
    with pytest.raises(ValueError, match=f"^inner={name} cannot be run asynchronously: .*{why}"):
        Asynchronous(make())  # type: ignore[arg-type]


def test_aggregated_metrics_are_in_the_event() -> None:
    recorder = Recorder()
    Asynchronous(flower.FedAvg()).start(
        FakeGrid(client, CLIENTS),
        initial(),
        2,
        train_config=ConfigRecord({"lr": LR}),
        schedule=Buffered(CLIENTS, 2),
        sinks=[recorder],
    )
    aggregations = [event for event in recorder.events if event["kind"] == "aggregate"]
    assert len(aggregations) == 2
    for event in aggregations:
        assert event["train_loss"] > 0
        assert event["num-correct"] >= 1
        assert "per-class" not in event
        assert len(event["age"]) == 2


def test_metrics_that_are_missing_end_the_run_with_flowers_reason() -> None:
    inner = flower.QFedAvg(client_learning_rate=LR, train_loss_key="val_loss")
    with pytest.raises(RunError, match=r"^QFedAvg cannot aggregate version 1: .*'val_loss'"):
        Asynchronous(inner).start(
            FakeGrid(client, 2), initial(), train_config=ConfigRecord({"lr": LR})
        )


class _Renames(flower.FedAvg):
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        assert arrays is not None
        return ArrayRecord({"b": arrays["b"], "v": arrays["w"]}), metrics


def test_aggregated_arrays_of_another_model_end_the_run() -> None:
    with pytest.raises(RunError, match=r"_Renames aggregated arrays that do not fit .*'w'"):
        Asynchronous(_Renames()).start(
            FakeGrid(client, 1), initial(), train_config=ConfigRecord({"lr": LR})
        )


class _Waits(flower.FedAvg):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        while len(list(grid.get_node_ids())) < 3:
            pass
        return []


class _Talks(flower.FedAvg):
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        grid.send_and_receive([])
        return []


class _SendsElsewhere(flower.FedAvg):
    """Sends what `content` holds."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return [
            Message(self.content(arrays, config), node, self.kind) for node in grid.get_node_ids()
        ]

    kind = "train"

    def content(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        return RecordDict({"arrays": arrays, "config": config})


class _OurKey(_SendsElsewhere):
    def content(self, arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
        config["sequence"] = 3
        return RecordDict({"arrays": arrays, "config": config})


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (_Waits, "waits for more nodes"),
        (_Talks, "sends messages itself"),
        (_OurKey, r"inner=_OurKey .* sets config\['sequence'\]"),
    ],
)
def test_what_an_order_cannot_carry_is_refused(inner: type[flower.FedAvg], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Asynchronous(inner()).start(FakeGrid(client, 1), initial())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"arrayrecord_key": "model"}, "^algorithm.strategy.inner.arrayrecord_key=model must be"),
        ({"configrecord_key": "told"}, "^algorithm.strategy.inner.configrecord_key=told must be"),
        ({"fraction_train": 0.0}, r"^algorithm.strategy.inner.fraction_train=0.0 must be above 0"),
    ],
)
def test_settings_that_no_order_could_follow_are_refused(
    settings: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        Asynchronous(flower.FedAvg(**settings))


def test_bulyan_is_refused_where_it_would_skip_every_aggregation() -> None:
    """K >= 4 f + 3, of El Mhamdi et al."""
    strategy = Asynchronous(flower.Bulyan(num_malicious_nodes=1))
    strategy.validate_run(1, Buffered(7, 7))
    text = r"^algorithm.schedule.buffer_size=6 must be at least 4 x num_malicious_nodes \+ 3=7: "
    with pytest.raises(ValueError, match=text):
        strategy.start(None, None, schedule=Buffered(6, 6))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^algorithm.schedule.buffer_size=1 must be at least"):
        strategy.start(None, None)  # type: ignore[arg-type]
