"""The set of idle clients."""

from collections import Counter

import numpy as np
import pytest

from fl_app.core.pool import ClientPool


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
