"""Flat vectors: arithmetic, names, places; functions of staleness; the set of idle clients."""

import math
from collections import Counter

import numpy as np
import pytest
from helpers import vec

from fl_app.core import staleness
from fl_app.core.layout import Layout, check_vector
from fl_app.core.pool import ClientPool
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update
from fl_app.core.vector import (
    BLOCK,
    all_finite,
    clipped,
    combine,
    cosines,
    norm,
    read_only,
    weighted_sum,
    worst_decile,
)


@pytest.mark.parametrize("size", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_every_entry_is_summed_whatever_the_blocks(size):
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((3, size)).astype(np.float32)
    weights = np.array([0.5, -1.0, 2.0])
    np.testing.assert_allclose(weighted_sum(weights, list(vectors)), weights @ vectors, atol=1e-5)


def test_read_only_copies_only_what_can_be_written():
    frozen, open_one = vec(1, 2), np.array([1, 2], np.float32)
    assert read_only(frozen) is frozen
    copy = read_only(open_one)
    open_one[0] = 9
    assert copy.tolist() == [1, 2]
    assert not copy.flags.writeable


@pytest.mark.parametrize("size", [1, BLOCK, 2 * BLOCK + 3])
def test_combine_is_sum_lengths_and_products(size):
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((3, size)).astype(np.float32)
    others = rng.standard_normal((2, size)).astype(np.float32)
    weights = np.array([0.5, -1.0, 2.0])
    total, lengths, products = combine(weights, list(vectors), others)
    assert total.tobytes() == weighted_sum(weights, list(vectors)).tobytes()
    np.testing.assert_allclose(lengths, np.linalg.norm(vectors, axis=1), rtol=1e-5)
    np.testing.assert_allclose(products, vectors @ others.T, rtol=1e-3, atol=1e-3)
    assert combine(weights, list(vectors))[2].shape == (3, 0)
    out = np.empty(size, np.float32)
    assert combine(weights, list(vectors), out=out)[0] is out
    assert out.tobytes() == total.tobytes()
    with pytest.raises(ValueError, match="does not go into"):
        combine(weights, list(vectors), out=out[1:])


def test_norm_by_hand():
    assert norm(vec(3, 0, -4)) == 5
    small = vec(3e-25, 0, -4e-25)  # the squares are no float32
    assert norm(small) == pytest.approx(5e-25, rel=1e-6, abs=0)
    assert norm(vec(0, 0)) == 0


def test_cosines_by_hand():
    """[3, 4] and [0, 0] against [1, 0], [-6, -8] and [0, 0]."""
    products = [[3, -50, 0], [0, 0, 0]]
    assert cosines(products, [5, 0], [1, 10, 0]).tolist() == [[0.6, -1, 0], [0, 0, 0]]


def test_clipped_by_hand():
    """[6, 8] of length 10, and 9 beside it, to length 5."""
    long = vec(6, 8, 9)
    assert clipped(long, 5, size=2).tolist() == [3, 4, 9]
    assert clipped(long, 10, size=2) is long


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_what_is_infinite_or_not_a_number_is_found_wherever_it_is(shape, dtype):
    largest = np.full(shape, np.finfo(dtype).max, dtype)  # whose square is infinite
    assert all_finite([])
    assert all_finite([largest, np.array(7), np.array(["text"])])
    for bad in (np.nan, np.inf, -np.inf):
        spoiled = largest.copy()
        spoiled[(-1,) * len(shape)] = bad
        assert not all_finite([largest, spoiled])


def test_worst_decile_is_the_mean_of_the_lowest_tenth():
    assert worst_decile([0.9, 0.1, 0.5]) == 0.1
    assert worst_decile(np.arange(25.0)) == pytest.approx(1.0)  # of 0, 1, 2


MODEL = GlobalModel(vec(0, 0, 20), 5, {3: vec(1, 2, 10), 5: vec(0, 0, 20)}, num_trainable=2)
PAYLOADS = {
    "model": vec(3, -2, 14),
    "delta": vec(2, -4, 4),
    "pseudo": vec(-4, 8, -4),
    "gradient": vec(-4, 8, -4),
}


def update(kind, vector, version=3):
    return Update(7, version, vector, kind, 10, 0.1, rate_sum=0.5)


@pytest.mark.parametrize("kind", PAYLOADS)
def test_every_kind_means_the_same(kind):
    uploaded = update(kind, PAYLOADS[kind])
    assert MODEL.delta(uploaded).tolist() == [2, -4, 4]
    assert MODEL.gradient(uploaded).tolist() == [-4, 8, -4]
    assert MODEL.local(uploaded).tolist() == [3, -2, 14]
    assert uploaded.vector.tolist() == PAYLOADS[kind].tolist()


def test_step_moves_buffers_by_the_whole_direction():
    """[0, 0] - 1/4 [-4, 8] = [1, -2]; buffer 20 - (-4) = 24."""
    stepped = MODEL.step(vec(-4, 8, -4), 0.25)
    assert stepped.tolist() == [1, -2, 24]
    assert stepped.dtype == np.float32


def test_base_is_the_version_that_was_cited():
    assert MODEL.base(update("delta", vec(0, 0, 0))).tolist() == [1, 2, 10]
    assert MODEL.base(update("delta", vec(0, 0, 0), version=5)) is MODEL.params
    with pytest.raises(KeyError, match=r"client 7 cites version 4, .* not in the history \[3, 5\]"):
        MODEL.base(update("model", vec(0, 0, 0), version=4))


# -- names and places of arrays in one vector ------------------------------------------------------

ARRAYS = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bn.running_mean": np.array([7.0, 8.0], np.float32),
    "bn.num_batches_tracked": np.array(9, np.int64),
    "head.bias": np.array([10.0], np.float64),
}
LAYOUT = Layout.of_arrays(ARRAYS)


def test_trainable_entries_come_first():
    assert LAYOUT.size == 10
    assert LAYOUT.num_trainable == 7
    vector = LAYOUT.flatten(list(ARRAYS.values()))
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 10, 7, 8, 9]
    assert LAYOUT.slices["head.bias"] == slice(6, 7)


def test_round_trip_keeps_names_order_shapes_and_dtypes():
    back = LAYOUT.named(LAYOUT.flatten(list(ARRAYS.values())))
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_integers_are_rounded_to_the_nearest():
    """A mean of counters, such as 9.6, is nearer to 10 than to 9."""
    vector = LAYOUT.flatten(list(ARRAYS.values()))
    vector[-1] = 9.6
    assert LAYOUT.named(vector)["bn.num_batches_tracked"] == 10


def test_arrays_that_do_not_fit():
    arrays = list(ARRAYS.values())
    with pytest.raises(ValueError, match=r"^got 3 arrays, the model has 4$"):
        LAYOUT.flatten(arrays[:3])
    arrays[0] = arrays[0].T
    with pytest.raises(
        ValueError, match=r"^array 'conv.weight' has shape \(3, 2\), the model's has \(2, 3\)$"
    ):
        LAYOUT.flatten(arrays)


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.zeros(3, np.float32), ""),
        (np.full(3, 1e30, np.float32), ""),  # finite, though its squares are not
        (np.array([0, np.nan, 0], np.float32), "payload has non-finite entries"),
        (np.array([0, np.inf, -np.inf], np.float32), "payload has non-finite entries"),
        (np.zeros(4, np.float32), "payload has shape (4,), expected (3,)"),
        (np.zeros((3, 1), np.float32), "payload has shape (3, 1), expected (3,)"),
        (np.zeros(3), "payload is float64, expected float32"),
        (np.zeros(3, np.int32), "payload is int32, expected float32"),
        ([0.0, 0.0, 0.0], "payload is list, expected float32"),
        (None, "payload is NoneType, expected float32"),
    ],
)
def test_what_may_enter_an_aggregation(vector, reason):
    assert check_vector(vector, 3) == reason


# -- staleness ------------------------------------------------------------------------------------


def test_exponential_falls_by_half_every_226_hundredths():
    """(e/2)^-1 = 2/e; ln 2 / ln(e/2) = 0.693147 / 0.306853 = 2.258891."""
    assert staleness.exponential(1) == pytest.approx(2 / math.e)
    assert staleness.exponential(2.258891) == pytest.approx(0.5, rel=1e-6)


def test_freshness_by_hand():
    """Ages 3 and 4: 1 and 2/e, over their sum."""
    assert staleness.freshness([3, 4]) == pytest.approx([1 / (1 + 2 / math.e), 2 / (math.e + 2)])


def test_freshness_of_ages_whose_weights_no_float_could_hold():
    assert staleness.exponential(5000) == 0
    assert staleness.freshness([5000, 5001]) == pytest.approx(staleness.freshness([0, 1]))
    assert staleness.freshness([0, 5000]).tolist() == [1, 0]


def test_linear_decay_by_hand():
    """From 1 to 0.2 over 4 versions: 0.2 less each, and no less after the last."""
    decay = LinearDecay(to=0.2, versions=4)
    assert [decay.factor(v) for v in range(6)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


# -- the set of idle clients -----------------------------------------------------------------------


def test_behaves_as_a_set():
    """Random adds and removes, beside Python's own set."""
    rng = np.random.default_rng(0)
    pool, expected = ClientPool(), set[int]()
    for _ in range(2000):
        client_id = int(rng.integers(30))
        if rng.random() < 0.5:
            pool.add(client_id)
            expected.add(client_id)
        else:
            pool.discard(client_id)
            expected.discard(client_id)
        assert set(pool) == expected
        assert len(pool) == len(list(pool)) == len(expected)
        assert (client_id in pool) == (client_id in expected)


@pytest.mark.parametrize(("size", "count"), [(1000, 3), (10, 3), (10, 10), (10, 12), (0, 2)])
def test_draw_is_distinct_and_as_many_as_there_are(size, count):
    drawn = ClientPool(range(size)).draw(count, np.random.default_rng(1))
    assert len(drawn) == len(set(drawn)) == min(count, size)
    assert set(drawn) <= set(range(size))


@pytest.mark.parametrize("size", [6, 100])
def test_draw_is_uniform_without_the_excluded(size):
    """Both ways of drawing; 99.99 % of binomial counts lie within 4 standard deviations."""
    pool, rng, excluded = ClientPool(range(size)), np.random.default_rng(2), {0, 3}
    counts = Counter()
    rounds = 400 * size
    for _ in range(rounds):
        counts.update(pool.draw(2, rng, excluded))
    assert counts.keys() == set(range(size)) - excluded
    share = 2 / (size - 2)
    spread = 4.5 * (rounds * share * (1 - share)) ** 0.5
    assert all(abs(n - rounds * share) < spread for n in counts.values())
