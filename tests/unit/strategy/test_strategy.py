"""The strategy base on its own, without a grid."""

import doctest
import re
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower
from helpers import update_of, vec

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.algorithms.refl import REFL
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.core.hyper import bounded, within
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update
from fl_app.schedule import Buffered
from fl_app.strategy import AsyncStrategy, strategy
from fl_app.strategy.asynchronous import Asynchronous
from fl_app.strategy.memories import Memories, exponentials
from fl_app.strategy.start import UNCALLED


class Mean(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params


def test_the_example_in_the_docstring():
    results = doctest.testmod(strategy)
    assert results.attempted >= 3
    assert results.failed == 0


class Discounting(Mean):
    """A strategy with its own `__init__`."""

    def __init__(self, *, discount=0.5):
        super().__init__()
        self.discount = discount


@dataclass(kw_only=True)
class Declared(Mean):
    """A strategy with declared fields."""

    discount: float = bounded(0.5, within("(0, 1]"), "it is a share")


def test_authors_may_declare_fields_or_write_init():
    with_init, with_fields = Discounting(discount=0.25), Declared(discount=0.25)
    assert (with_init.discount, with_init.state, with_init.report) == (0.25, {}, {})
    assert (with_fields.clip_norm, with_fields.lr_schedule, with_fields.state) == (None, None, {})
    assert repr(with_fields) == "Declared(discount=0.25)"
    assert strategy.described(np.float64(0.5)).__class__ is float
    assert strategy.described(np.random.default_rng(0)) == "Generator(PCG64)"  # in each process
    assert vars(deepcopy(with_fields)) == vars(with_fields)
    with pytest.raises(TypeError):
        Declared(0.25)  # by keyword only
    with pytest.raises(TypeError, match="clip_norm"):
        FedAvg(clip_norm=1.0)  # it has no gradient to clip


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Declared(discount=2), "strategy.discount=2 must be in (0, 1]: it is a share"),
        (lambda: FedBuff(lr_schedule=0.5), "strategy.lr_schedule=0.5 must be null or a schedule"),
    ],
)
def test_values_out_of_their_bounds_are_refused(make, text):
    with pytest.raises(ValueError, match=f"^algorithm.{re.escape(text)}"):
        make()


def test_the_summary_logs_the_settings(logs):
    FedBuff(server_lr=0.25).summary()
    Asynchronous(flower.FedAvg(0.5, min_available_nodes=5, weighted_by_key="size")).summary()
    texts = "fraction_train=0.5 has", "min_available_nodes=5 has", "key=size weighs", "Sampling"
    assert all(each in logs.text for each in (*texts, "FedBuff, async", "'server_lr': 0.25"))
    assert "state" not in logs.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_rounds": 0}, "num_rounds=0 must be an integer >= 1: it counts"),
        ({"num_rounds": 2.5}, "num_rounds=2.5 must be an integer >= 1: it counts"),
        ({"train_config": {"version": 1}}, "keys of train_config=version must be none of version"),
        ({"train_config": {"width": 0.5}}, "keys of train_config=width must be none of version"),
        ({"initial_arrays": ArrayRecord([np.ones(1, complex)])}, "must be real numbers"),
        ({"timeout": 0.0}, "timeout=0.0 must be a finite number above 0"),
        ({"train_config": {"lr": {"first": 1}}}, "train_config must be a ConfigRecord: TypeError"),
        ({"schedule": 2}, "schedule=2 must be a fl_app.schedule.Schedule"),
        ({"schedule": Buffered}, "must be a fl_app.schedule.Schedule, such as k_async(2): it says"),
        ({"initial_arrays": None}, "initial_arrays=NoneType must be an ArrayRecord with arrays"),
        ({}, "initial_arrays=ArrayRecord must be an ArrayRecord with arrays"),
        ({"seed": -1}, "seed=-1 must be an integer >= 0"),
        ({"guard": 3}, "guard=3 must be a fl_app.engine.guard.Guard"),
        ({"sinks": [3]}, "sinks=3 must be objects with emit and close"),
    ],
)
def test_start_refuses_invalid_settings_before_it_uses_the_grid(settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Mean().start(None, **{"initial_arrays": ArrayRecord(), **settings})


@pytest.mark.parametrize("hook", UNCALLED)
def test_start_refuses_methods_that_it_never_calls(hook):
    strategy_class = type("Own", (Mean,), {hook: None})
    with pytest.raises(ValueError, match=f"^methods of Own={hook} must .* override dispatch, a"):
        strategy_class().start(None, ArrayRecord())


def test_flowers_own_rounds_refuse_strategies_with_extra_vectors():
    with pytest.raises(ValueError, match=r"^SCAFFOLD exchanges more than models \(control\)"):
        SCAFFOLD().configure_train(1, ArrayRecord(), ConfigRecord(), FakeGrid(lambda m, c: m, 1))


# -- means of versions ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [
        CA2FL(averaging=1.0, calibration=0.0),
        CANA(averaging=1.0),
        DynSGD(averaging=1.0),
        FedAvgK(averaging=1.0),
        FedBuff(averaging=1.0),
        FedHist(server_lr=1.0, norm_decay=0.0, averaging=1.0),
        FedStaleWeight(averaging=1.0),
        REFL(averaging=1.0),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
def test_a_mean_of_the_versions_is_tested(strategy):
    """e = 1: shares 2/2, 2/3, 2/4 of w = 1, 4, 2: 1; 1 + 2/3 3 = 3; 3 - 1/2 = 2.5.

    w_3 = 2 has the weight 3, w_2 the weight 2, w_1 the weight 1: (6 + 8 + 1) / 6.
    """
    start = GlobalModel(vec(0), 0)
    assert strategy.to_evaluate(start) is start.params
    params = vec(0)
    for version, (w, mean) in enumerate([(1, 1), (4, 3), (2, 2.5)]):
        model = GlobalModel(params, version)
        update = Update(0, version, vec(w), "model", 10, 0.1)
        params = strategy.aggregate(model, [update])
        assert params.tolist() == [w]
        assert strategy.to_evaluate(GlobalModel(params, version + 1)).tolist() == [mean]


def test_later_versions_count_more_with_a_larger_exponent():
    """e = 3: shares 1, 4/5, 4/6 of 1, 6, 9: 1 + 4/5 5 = 5; 5 + 2/3 4."""
    strategy, params, means = CANA(averaging=3.0, calibration=0.0), vec(0), []
    for version, w in enumerate((1, 6, 9)):
        update = Update(0, version, vec(w), "model", 10, 0.1)
        params = strategy.aggregate(GlobalModel(params, version), [update])
        means.append(strategy.to_evaluate(GlobalModel(params, version + 1))[0])
    assert means == pytest.approx([1, 5, 5 + 8 / 3])


# -- a server's memories of clients: rows, sums, checkpoints ---------------------------------------

SIZE = 5


def make_memories(dtype, exponent=0.5):
    """400 gradients of 100 clients, some of them tiny, and the last one of each client."""
    rng = np.random.default_rng(0)
    memories, last = Memories(dtype, 3, exponent), {}
    for number in range(400):
        client = int(rng.integers(100))
        vector = (10.0 ** rng.integers(-9, 3) * rng.standard_normal(SIZE)).astype(np.float32)
        memories.put(client, vector, 5 * number)
        last[client] = vector
        if number == 200:  # from here on, gradients leave the sums
            memories.weighted(1000)
    return memories, last


@pytest.mark.parametrize(("dtype", "precision"), [("float32", 0.0), ("float16", 1e-3)])
def test_the_last_gradient_of_every_client_is_kept(dtype, precision):
    """float16 rounds to 11 bits, whatever the length of the gradient."""
    memories, last = make_memories(dtype)
    assert len(memories) == len(last)
    for client, vector in last.items():
        bound = precision * np.abs(vector).max()
        np.testing.assert_allclose(memories.row(client), vector, rtol=0, atol=bound)
    assert 100 not in memories


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_are_those_of_the_rows_as_they_are_kept(dtype):
    memories, _ = make_memories(dtype)
    for now in (1995, 2000, 9000, 9001):  # at 9000 the sums are computed again
        weights = {c: np.float64(1 + now - at) ** -0.5 for c, at in memories.versions.items()}
        total, mass = memories.weighted(now)
        expected = sum(weight * memories.row(client) for client, weight in weights.items())
        np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-5)  # of float32
        assert mass == pytest.approx(sum(weights.values()), rel=1e-6)
        for client in (now % 7, *range(now, now + 70)):  # one has a gradient, others have none
            memories.put(client, np.arange(SIZE, dtype=np.float32) + now % 11, now)


def test_powers_of_the_age_are_sums_of_exponentials():
    for exponent, span in ((0.1, 64), (0.5, 600), (1, 9000), (2, 9000)):
        rates, shares = exponentials(exponent, span)
        ages = np.arange(span + 1.0)
        sums = np.exp(-np.outer(ages, rates)) @ shares
        np.testing.assert_allclose(sums, (1 + ages) ** -exponent, rtol=1e-6)


def test_the_rounding_of_large_gradients_that_left_does_not_stay():
    memories = Memories(exponent=0.5)
    for version, large in ((0, 1e7), (5, 0.25), (4999, 0.25)):
        memories.forget_before(version - 9)
        for client, value in ((0, large), (1, 0.123)):
            memories.put(client, vec(value), version)
        total, mass = memories.weighted(version)
    assert total / mass == pytest.approx((0.25 + 0.123) / 2, rel=1e-6)


def test_forgotten_gradients_are_in_no_weighted_sum_until_there_is_another():
    memories = Memories(exponent=0.0)
    for client, version in ((0, 1), (1, 5), (2, 5)):
        memories.put(client, vec(2.0**client), version)
    memories.forget_before(4.5)
    assert [memories.counts(client) for client in (0, 1, 2, 3)] == [False, True, True, False]
    assert (len(memories), 0 in memories) == (3, True)
    assert memories.weighted(6) == (np.array([6.0]), 2.0)
    memories.put(0, vec(16), 4)  # still too old
    memories.put(2, vec(32), 5)
    assert memories.counts(2)
    memories.put(0, vec(64), 6)
    assert memories.weighted(6) == (np.array([98.0]), 3.0)


def test_extreme_gradients_keep_their_digits():
    memories = Memories("float16")
    for vector in (vec(3e38, -1e38), vec(1e-38, 3e-39)):
        memories.put(0, vector, 0)
        np.testing.assert_allclose(memories.row(0), vector, rtol=1e-3)


def updates(version, rng):
    return [
        update_of(int(client), max(0, version - int(rng.integers(4))), *rng.standard_normal(SIZE))
        for client in rng.choice(8, 3)
    ]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "make",
    [
        lambda dtype: CA2FL(memory_dtype=dtype),
        lambda dtype: FedStaleAsync(memory_dtype=dtype),
        lambda dtype: CANA(memory_dtype=dtype, fusion=0.5, fusion_length=3, num_clients=8),
    ],
    ids=["ca2fl", "fedstaleasync", "cana"],
)
def test_a_restored_strategy_continues_with_the_same_bytes(make, dtype):
    rng = np.random.default_rng(1)
    batches = [updates(version, rng) for version in range(30)]
    strategy, params = make(dtype), vec(*range(SIZE))
    for version, batch in enumerate(batches):
        if version == 15:
            restored, other = make(dtype), params
            restored.load_state_dict(loads(dumps(strategy.state_dict())))
        params = strategy.aggregate(GlobalModel(params, version, num_trainable=4), batch)
        if version >= 15:
            other = restored.aggregate(GlobalModel(other, version, num_trainable=4), batch)
            assert other.tobytes() == params.tobytes()


def test_a_checkpoint_of_another_type_is_refused():
    memories = Memories("float32")
    memories.put(0, vec(1), 0)
    with pytest.raises(ValueError, match=r"memory_dtype=float16 must be float32, as in the check"):
        Memories("float16").load_state_dict(memories.state_dict())


def test_memories_larger_than_the_machines_are_refused():
    with pytest.raises(ValueError, match=r"^algorithm\.strategy\.memory_dtype=float32 must be a"):
        CA2FL().memory_cost(10**12, 1000)


def test_clients_beyond_num_clients_count():
    """num_clients = 2, and three clients report: the mean of the memories is over three."""
    strategy = CA2FL(num_clients=2)
    model = GlobalModel(vec(0), 0)
    strategy.aggregate(model, [Update(c, 0, vec(3), "pseudo", 1, 1.0) for c in range(3)])
    params = strategy.aggregate(model, [Update(3, 0, vec(0), "pseudo", 1, 1.0)])
    np.testing.assert_allclose(params, [-9 / 4])
