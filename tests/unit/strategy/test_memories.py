"""What a server remembers of its clients: rows, their sums, their cost, and checkpoints of them."""

import json

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.core.snapshot import Encoder, decode
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy.memories import Memories

SIZE = 5


def filled(dtype, grouped=True):
    """500 gradients of 20 clients, some of them tiny, and the last one of each client."""
    rng = np.random.default_rng(0)
    memories, last = Memories(dtype, 3, grouped), {}
    for number in range(500):
        client = int(rng.integers(20))
        vector = (10.0 ** rng.integers(-9, 3) * rng.standard_normal(SIZE)).astype(np.float32)
        memories.put(client, vector, number // 10)
        last[client] = vector
    return memories, last


@pytest.mark.parametrize(("dtype", "precision"), [("float32", 0.0), ("float16", 1e-3)])
def test_the_last_gradient_of_every_client_is_kept(dtype, precision):
    """float16 rounds to 11 bits, whatever the length of the gradient."""
    memories, last = filled(dtype)
    assert len(memories) == 20
    for client, vector in last.items():
        assert client in memories
        bound = precision * np.abs(vector).max()
        np.testing.assert_allclose(memories.row(client), vector, rtol=0, atol=bound)
    assert 99 not in memories


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_sums_are_those_of_the_rows_as_they_are_kept(dtype):
    memories, last = filled(dtype)
    rows = {client: memories.row(client).astype(np.float64) for client in last}
    np.testing.assert_allclose(memories.total, sum(rows.values()), rtol=1e-9, atol=1e-12)
    weights = {client: 1.0 / (1 + memories.versions[client]) for client in rows}
    total, mass = memories.weighted(lambda version: 1.0 / (1 + version))
    expected = sum(weights[client] * row for client, row in rows.items())
    np.testing.assert_allclose(total, expected, rtol=1e-9, atol=1e-10)
    assert mass == pytest.approx(sum(weights.values()))


def test_forgotten_gradients_are_in_no_weighted_sum_until_there_is_another():
    memories = Memories(grouped=True)
    for client, version in ((0, 1), (1, 5), (2, 5)):
        memories.put(client, vec(2.0**client), version)
    memories.forget_before(4.5)
    assert [memories.counts(client) for client in (0, 1, 2, 3)] == [False, True, True, False]
    assert memories.weighted(lambda version: 1.0) == (np.array([6.0]), 2.0)
    memories.put(0, vec(16), 4)  # still too old
    memories.put(2, vec(32), 5)
    assert memories.counts(2)
    memories.put(0, vec(64), 6)
    assert memories.weighted(lambda version: 1.0) == (np.array([98.0]), 3.0)
    assert memories.total.tolist() == [98.0]


def test_extreme_gradients_keep_their_digits():
    memories = Memories("float16")
    for vector in (vec(3e38, -1e38), vec(1e-38, 3e-39)):
        memories.put(0, vector, 0)
        np.testing.assert_allclose(memories.row(0), vector, rtol=1e-3)


def updates(version, rng):
    return [
        Update(
            int(client),
            max(0, version - int(rng.integers(4))),
            rng.standard_normal(SIZE).astype(np.float32),
            "pseudo",
            10,
            1.0,
        )
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
def test_a_restored_strategy_goes_on_with_the_same_bytes(make, dtype):
    rng = np.random.default_rng(1)
    batches = [updates(version, rng) for version in range(30)]
    strategy, params = make(dtype), vec(*range(SIZE))
    for version, batch in enumerate(batches):
        if version == 15:
            encoder = Encoder()
            text = json.dumps(encoder.encode(strategy.state_dict()))
            arrays = [array.copy() for array in encoder.arrays]
            restored, again = make(dtype), params
            restored.load_state_dict(decode(json.loads(text), arrays))
        params = strategy.aggregate(GlobalModel(params, version, num_trainable=4), batch)
        if version >= 15:
            again = restored.aggregate(GlobalModel(again, version, num_trainable=4), batch)
            assert again.tobytes() == params.tobytes()


def test_a_checkpoint_of_another_type_is_refused():
    memories = Memories("float32")
    memories.put(0, vec(1), 0)
    with pytest.raises(ValueError, match=r"memory_dtype=float16 must be float32, as in the check"):
        Memories("float16").load_state_dict(memories.state_dict())


def test_more_than_the_machine_has_is_refused():
    with pytest.raises(ValueError, match=r"^algorithm\.strategy\.memory_dtype=float32 must be a"):
        CA2FL().memory_cost(10**12, 1000)


def test_a_client_that_nobody_counted_counts():
    """num_clients = 2, and three clients report: the mean of the memories is over three."""
    strategy = CA2FL(num_clients=2)
    model = GlobalModel(vec(0), 0)
    strategy.aggregate(model, [Update(c, 0, vec(3), "pseudo", 1, 1.0) for c in range(3)])
    moved = strategy.aggregate(model, [Update(3, 0, vec(0), "pseudo", 1, 1.0)])
    np.testing.assert_allclose(moved, [-9 / 4])
