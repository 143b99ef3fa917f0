"""DP-FedBuff by hand: clip, one client's share, noise, and what it costs.

d = 2, C = 5, eta_g = 1, w_t = (10, 20) at version 4. Four updates, ages 0, 0, 3, 0:

    client 1   (3, 4), length 5: whole                  s = 1
    client 2   (6, 8), length 10: halved to (3, 4)      s = 1
    client 3   (0, 2)                                   s(3) = (1 + 3)^(-1/2) = 1/2
    client 1   (-3, 0), again: its two count half each

    sum of u_i = 1/2 (3, 4) + 1/2 (-3, 0) + (3, 4) + 1/2 (0, 2) = (3, 7);   w_{t+1} - w_t = (3, 7)/4

Cost: n releases of the Gaussian mechanism with noise z have the Renyi divergence n a / (2 z^2) at
every order a > 1, so epsilon <= min_a n a / (2 z^2) + ln(1/delta) / (a - 1)
= n / (2 z^2) + sqrt(2 n ln(1/delta)) / z; for n = 8, z = 4, delta = 1e-5: 0.25 + 3.393.
"""

import math
import re
from typing import Any

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.dp_fedbuff import DPFedBuff
from fl_app.core.errors import RunError
from fl_app.core.rates import LinearDecay
from fl_app.core.types import GlobalModel, Update

MODEL = GlobalModel(vec(10, 20), 4, {1: vec(0, 0)})


def update(client: int, base: int, *delta: float) -> Update:
    return Update(client, base, vec(*delta), "delta", 10, 0.5)


UPDATES = [update(1, 4, 3, 4), update(2, 4, 6, 8), update(3, 1, 0, 2), update(1, 4, -3, 0)]


def strategy(**settings: Any) -> DPFedBuff:
    return DPFedBuff(**({"clip_norm": 5.0, "noise_multiplier": 1e-12, "noise_seed": 0} | settings))


def test_the_step_without_noise() -> None:
    moved = strategy().aggregate(MODEL, UPDATES)
    np.testing.assert_allclose(moved, [10.75, 21.75], rtol=1e-6)


def test_rate_and_its_decay() -> None:
    half = strategy(server_lr=2.0, lr_schedule=LinearDecay(0.0, 8))  # 1/2 at version 4
    np.testing.assert_allclose(half.aggregate(MODEL, UPDATES), [10.75, 21.75], rtol=1e-6)


def test_no_client_moves_the_sum_by_more_than_the_bound() -> None:
    """With all of one client's updates left out, but the same K: at most C / K away."""
    loud = [update(1, 4, 300, 400) for _ in range(3)]
    rest = [update(2, 4, 1, 0)]
    silent = [update(1, 4, 0, 0) for _ in range(3)]
    moved, without = (strategy().aggregate(MODEL, few + rest) for few in (loud, silent))
    assert np.linalg.norm(moved - without) == pytest.approx(5 / 4, rel=1e-5)


def test_the_noise_has_the_deviation_that_is_accounted_for() -> None:
    """z C / K = 0.6 x 5 / 4 = 0.75 in each of 40,000 entries, in mean 0; every version's own."""
    size = 40_000
    model = GlobalModel(np.zeros(size, np.float32), 0)
    updates = [Update(k, 0, np.zeros(size, np.float32), "delta", 10, 0.5) for k in range(4)]
    tested = strategy(noise_multiplier=0.6)
    first, second = (tested.aggregate(model, updates) for _ in range(2))
    for noise in (first, second):
        assert noise.std() == pytest.approx(0.75, rel=0.02)
        assert abs(noise.mean()) < 0.02
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_noise_without_a_seed_is_nobodys_to_repeat() -> None:
    one, other = (
        strategy(noise_seed=None, noise_multiplier=1.0).aggregate(MODEL, UPDATES) for _ in range(2)
    )
    assert one.tobytes() != other.tobytes()


def test_epsilon_of_so_many_versions() -> None:
    tested = strategy(noise_multiplier=4.0)
    bound = 8 / (2 * 16) + math.sqrt(2 * 8 * math.log(1e5)) / 4
    assert bound == pytest.approx(3.643, abs=1e-3)
    # Flower's accountant converts more tightly than by hand, by some tenths.
    assert 0.8 * bound < tested.epsilon(8) <= bound
    assert tested.epsilon(0) == 0 < tested.epsilon(7) < tested.epsilon(8)


def test_what_a_run_cost() -> None:
    tested = strategy(noise_multiplier=4.0)
    assert tested.totals()["epsilon"] == 0
    for _ in range(3):
        tested.aggregate(MODEL, UPDATES)  # client 1 is twice in each
    tested.aggregate(MODEL, [update(2, 4, 1, 1)])
    assert tested.totals() == {
        "epsilon": tested.epsilon(4),
        "epsilon_of_most_frequent_client": tested.epsilon(4),  # client 2
        "delta": 1e-5,
    }
    tested.aggregate(MODEL, [update(5, 4, 1, 1)])
    totals = tested.totals()
    assert totals["epsilon"] == tested.epsilon(5)
    assert totals["epsilon_of_most_frequent_client"] == tested.epsilon(4)


def test_a_run_that_would_spend_more_is_refused() -> None:
    tested = strategy(noise_multiplier=4.0, max_epsilon=3.64)
    tested.validate_run(8, DPFedBuff.schedule)
    text = "strategy.max_epsilon=3.64 must be at least 1"
    with pytest.raises(
        ValueError, match=f"^algorithm.{re.escape(text)}.* for num_versions=80 with noise"
    ):
        tested.validate_run(80, DPFedBuff.schedule)


def test_buffers_would_leave_without_noise() -> None:
    model = GlobalModel(vec(1, 2), 0, num_trainable=1)
    with pytest.raises(RunError, match="needs a model without buffers such as BatchNorm"):
        strategy().aggregate(model, [update(0, 0, 1, 1)])
