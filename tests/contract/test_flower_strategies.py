"""Every strategy of Flower: with arrivals of age 0 it gives the model of its synchronous rounds.

Strategies that cannot do so are refused with the reason.
"""

import re
from collections import deque
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower
from helpers import vec

from examples.fedctl_fedasync import FedCtlAsync
from examples.fedsasync import FedSaSync
from fl_app.asynchronous import Asynchronous
from fl_app.core.errors import RunError
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update
from fl_app.schedule import Buffered, synchronous

CLIENTS = 7
ROUNDS = 3
LR = 0.1


def initial():
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(3, 2), "b": np.ones(1, np.float32)}
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def train(strategy, **more):
    rate, grid = ConfigRecord({"lr": LR}), FakeGrid(client, CLIENTS)
    return strategy.start(grid, initial(), ROUNDS, train_config=rate, **more)


def client(message, context):
    """Three steps towards the client's own point, with the settings of the order's config."""
    client_id = context.node_config["partition-id"]
    config = message.content["config"]
    received = {name: array.numpy() for name, array in message.content["arrays"].items()}
    model = {name: array.copy() for name, array in received.items()}
    rng = np.random.default_rng(client_id)
    point = {name: rng.standard_normal(array.shape) for name, array in sorted(received.items())}
    for _ in range(3):
        for name, array in model.items():
            pull = config.get("proximal-mu", 0.0) * (array - received[name])
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


def metrics_of_devices(contents, weighted_by):
    """Use all records of the replies."""
    assert weighted_by == "num-correct"
    names = [content["device"]["name"] for content in contents]
    return MetricRecord({"boards": sum(str(name).startswith("board") for name in names)})


# Flower's strategies by class name.
CASES = {
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
PRIVATE = {
    f"DifferentialPrivacy{side}Side{kind}Clipping": () if kind == "Adaptive" else (1.0,)
    for side in ("Client", "Server")
    for kind in ("Adaptive", "Fixed")
}
REFUSED = {
    "FedXgbBagging": (flower.FedXgbBagging, "its models are trees"),
    "FedXgbCyclic": (flower.FedXgbCyclic, "its models are trees"),
} | {
    name: (
        partial(getattr(flower, name), flower.FedAvg(), 0.1, *clip, CLIENTS),
        "use algorithm=dp_fedbuff",
    )
    for name, clip in PRIVATE.items()
}
OTHERS = {
    "weights and metrics of one's own": lambda **k: flower.FedAvg(
        weighted_by_key="num-correct", train_metrics_aggr_fn=metrics_of_devices, **k
    )
}


def test_every_strategy_of_flower_is_tested():
    assert {*CASES, *REFUSED} == set(flower.__all__) - {"Result", "Strategy"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, *OTHERS])
def test_arrivals_of_age_zero_give_the_model_of_flowers_own_rounds(name):
    make = (CASES | OTHERS)[name]
    rounds, strategy = train(make(fraction_evaluate=0.0)), Asynchronous(make(fraction_evaluate=0.0))
    arrivals = train(strategy, schedule=synchronous(CLIENTS))
    dumps(strategy.state_dict())  # a checkpoint holds it
    assert list(arrivals.arrays) == list(rounds.arrays)
    for key, array in rounds.arrays.items():
        actual = arrivals.arrays[key].numpy()
        assert not np.array_equal(actual, initial()[key].numpy())
        np.testing.assert_allclose(actual, array.numpy(), rtol=1e-5, atol=1e-6)
    assert list(arrivals.train_metrics_clientapp) == list(rounds.train_metrics_clientapp)
    for version, metrics in rounds.train_metrics_clientapp.items():
        actual = arrivals.train_metrics_clientapp[version]
        assert actual.keys() == metrics.keys()
        for key, value in metrics.items():
            np.testing.assert_allclose(actual[key], value, rtol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_strategies_name_the_reason(name):
    make, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"^inner={name} cannot be run asynchronously: .*{reason}"):
        Asynchronous(make())


def test_metrics_that_are_missing_end_the_run_with_flowers_reason():
    inner = flower.QFedAvg(client_learning_rate=LR, train_loss_key="val_loss")
    with pytest.raises(RunError, match=r"^QFedAvg cannot aggregate version 1: .*'val_loss'"):
        train(Asynchronous(inner), schedule=Buffered())


class _Waits(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        while len(list(grid.get_node_ids())) < 3:
            pass
        return []


class _Talks(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        grid.send_and_receive([])
        return []


class _OwnRates(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        for node in grid.get_node_ids():
            node_config = ConfigRecord({**config, "lr": LR / (1 + node)})
            yield Message(RecordDict({"arrays": arrays, "config": node_config}), node, "train")


class _OtherArrays(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        arrays["w"] = Array(arrays["w"].numpy() / 2)
        return super().configure_train(server_round, arrays, config, grid)


class _Silent(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        return []


class _OurKey(flower.FedAvg):
    def configure_train(self, server_round, arrays, config, grid):
        config["sequence"] = 3
        content = RecordDict({"arrays": arrays, "config": config})
        return [Message(content, node, "train") for node in grid.get_node_ids()]


@pytest.mark.parametrize(
    ("inner", "text"),
    [
        (_Waits, "waits for more nodes"),
        (_Talks, "sends messages itself"),
        (_OwnRates, "inner=_OwnRates cannot .* its configure_train tells clients different things"),
        (_OtherArrays, "sends other arrays than the model's"),
        (_Silent, "its configure_train sends no message"),
        (_OurKey, r"inner=_OurKey .* sets config\['sequence'\]"),
    ],
)
def test_strategies_that_orders_cannot_express_are_refused(inner, text):
    with pytest.raises(RunError, match=text):
        Asynchronous(inner()).start(FakeGrid(client, 1), initial())


@pytest.mark.parametrize(
    ("inner", "settings", "text"),
    [
        (flower.FedAvg, {"arrayrecord_key": "model"}, "arrayrecord_key=model must be 'arrays': "),
        (flower.FedAvg, {"configrecord_key": "told"}, "configrecord_key=told must be 'config': "),
        (flower.FedAvg, {"fraction_train": 0.0}, "fraction_train=0.0 must be above 0: "),
        (flower.FedAdam, {"eta": -1.0}, "eta=-1.0 must be a finite number >= 0: its equations"),
        (flower.FedYogi, {"beta_2": 1.5}, r"beta_2=1.5 must be in [0, 1): its means would grow"),
    ],
)
def test_settings_that_no_order_could_follow_are_refused(inner, settings, text):
    with pytest.raises(ValueError, match=re.escape(f"algorithm.strategy.inner.{text}")):
        Asynchronous(inner(**settings))


UNCALLED = ("start", "configure_evaluate", "aggregate_evaluate")
OWN = [type(f"Own_{hook}", (flower.FedAvg,), {hook: None})() for hook in UNCALLED]


@pytest.mark.parametrize("inner", [flower.FedAdam(evaluate_metrics_aggr_fn=print), *OWN])
def test_methods_that_would_not_be_called_are_refused(inner):
    key = type(inner).__name__.partition("_")[2] or "evaluate_metrics_aggr_fn"
    with pytest.raises(ValueError, match=f"^inner=.* must have no {key} of its own, which would n"):
        Asynchronous(inner)


@pytest.mark.parametrize(
    ("inner", "name", "minimum"),
    [
        (flower.Krum(num_malicious_nodes=1), "MultiKrum", 5),
        (flower.Bulyan(num_malicious_nodes=1), "Bulyan", 7),
        (flower.FedMedian(), "FedMedian", 3),
        (flower.FedTrimmedAvg(beta=0.3), "FedTrimmedAvg", 4),
    ],
)
def test_buffers_in_which_one_bad_upload_could_decide_are_refused(inner, name, minimum):
    """Bulyan needs K >= 4 f + 3 (El Mhamdi et al.)."""
    strategy = Asynchronous(inner)
    strategy.validate_run(1, Buffered(minimum, minimum))
    text = f"algorithm.schedule.buffer_size={minimum - 1} must be at least {minimum} with {name}: "
    with pytest.raises(ValueError, match="^" + re.escape(text)):
        strategy.start(None, None, schedule=Buffered(minimum, minimum - 1))


# -- golden values of K arrivals -------------------------------------------------------------------

# Flower's strategies on K arrivals, against hand-derived values.
#
# w_t = [1, 1] at version 5. Three updates started from w_3 = [0, 0] and moved by [3, 0], [0, 3] and
# [9, 9] with n = 10, 10, 20 examples. On the current model they are the models
#
#     [4, 1], [1, 4], [10, 10]
#
#     FedAvg    (10 [4, 1] + 10 [1, 4] + 20 [10, 10]) / 40 = [250, 250] / 40 = [6.25, 6.25]
#     FedMedian [4, 4]
#     Krum      with one malicious client scores each by its 3 - 1 - 2 = 0 -> 1 nearest neighbour:
#               |[4, 1] - [1, 4]|^2 = 18 < |[4, 1] - [10, 10]|^2 = 117: the first of the close pair
#     FedAdam   eta = 0.1, beta_1 = beta_2 = 0, tau = 1: Delta = FedAvg - w_t = [5.25, 5.25],
#               m = Delta, v = Delta^2, w_{t+1} = w_t + 0.1 m / (sqrt(v) + 1)
#               = 1 + 0.1 * 5.25 / 6.25 = [1.084, 1.084]

FIFTH = GlobalModel(vec(1, 1), version=5, history={3: vec(0, 0)})
THREE = [Update(0, 3, vec(3, 0), "model", 10, 0.1), Update(1, 3, vec(0, 3), "delta", 10, 0.1)]
THREE.append(Update(2, 3, vec(9, 9), "model", 20, 0.1))


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        (flower.FedAvg(), [6.25, 6.25]),
        (flower.FedMedian(), [4, 4]),
        (flower.Krum(num_malicious_nodes=1), [4, 1]),
        (flower.FedAdam(eta=0.1, beta_1=0.0, beta_2=0.0, tau=1.0), [1.084, 1.084]),
    ],
    ids=["FedAvg", "FedMedian", "Krum", "FedAdam"],
)
def test_inner_strategy_aggregates_displacements_on_the_current_model(inner, expected):
    np.testing.assert_allclose(Asynchronous(inner).aggregate(FIFTH, THREE), expected, rtol=1e-5)


def test_the_age_of_a_reply_is_that_of_its_group():
    """FedSaSync averages the local models: (10 [3, 0] + 10 [0, 3] + 20 [9, 9]) / 40 = [5.25, 5.25].

    In fedctl, a displacement of age 2 has the weight 0.5 / sqrt(3).
    """
    strategy = Asynchronous(FedSaSync())
    strategy.dispatch(GlobalModel(vec(0, 0), version=3), 0)
    np.testing.assert_allclose(strategy.aggregate(FIFTH, THREE), [5.25, 5.25], rtol=1e-6)
    params = Asynchronous(FedCtlAsync()).aggregate(FIFTH, THREE[:1])
    np.testing.assert_allclose(params, [1 + 1.5 / np.sqrt(3), 1], rtol=1e-6)


def test_fedprox_sends_mu_to_its_clients():
    params, config = Asynchronous(flower.FedProx(proximal_mu=0.1)).dispatch(FIFTH, client_id=7)
    assert params is FIFTH.params
    assert config == {"proximal-mu": 0.1}


class Halving(flower.FedAvg):
    """Its rate halves with every round."""

    def __init__(self):
        super().__init__()
        self.rate, self.rounds, self.rates = 1.0, [], deque(maxlen=2)

    def configure_train(self, server_round, arrays, config, grid):
        self.rate *= 0.5
        self.rates.append(self.rate)
        self.rounds.append(server_round)
        config["lr"] = self.rate
        return super().configure_train(server_round, arrays, config, grid)


def test_a_version_is_one_round_however_many_clients_start_from_it():
    inner = Halving()
    strategy = Asynchronous(inner)
    orders = [strategy.dispatch(FIFTH, client_id)[1] for client_id in range(1000)]
    assert orders == [{"lr": 0.5}] * 1000
    assert (inner.rate, inner.rounds) == (0.5, [6])
    strategy.aggregate(FIFTH, THREE)
    inner.rate = 8.0  # as an `evaluate_fn` may do
    sixth = replace(FIFTH, version=6)
    assert strategy.dispatch(sixth, 0)[1] == {"lr": 4.0}
    assert inner.rounds == [6, 7]
    restored = Asynchronous(Halving())
    restored.load_state_dict(loads(dumps(strategy.state_dict())))  # the round begins again
    assert restored.inner.rates == deque([0.5])
    inner.rates = ArrayRecord()
    with pytest.raises(ValueError, match=r"inner\.rates is a ArrayRecord, which a checkpoint"):
        dumps(Asynchronous(inner).state_dict())
    assert restored.dispatch(sixth, 0)[1] == {"lr": 4.0}
