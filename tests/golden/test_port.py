"""PORT by hand: two displacements, one fresh and one that turned back."""

import pytest
from helpers import vec

from fl_app.algorithms.port import PORT
from fl_app.core.types import GlobalModel, Update


def test_weights_by_age_agreement_and_data() -> None:
    """w_3 = (3, 0), w_1 = (1, 0): the global model went along (1, 0).

    Fresh: n 10, cos 1:              10 (1 (1 + 1)/2 + 3 10/10)  = 10 * 4    = 40
    Age 2: n 30, Delta = (0, 2), cos 0: 30 (1 (0 + 1)/2 + 3 10/12) = 30 * 3   = 90
    p = 40/130, 90/130; w_4 = (3, 0) + 40/130 (1, 0) + 90/130 (0, 2).
    """
    model = GlobalModel(vec(3, 0), 3, {1: vec(1, 0), 3: vec(3, 0)})
    strategy = PORT()
    params = strategy.aggregate(
        model,
        [
            Update(0, 3, vec(1, 0), "delta", 10, 0.0),
            Update(1, 1, vec(0, 2), "delta", 30, 0.0),
        ],
    )
    assert params.tolist() == pytest.approx([3 + 40 / 130, 180 / 130])
    assert strategy.report["weight"] == pytest.approx([40 / 130, 90 / 130])


def test_opposition_counts_least() -> None:
    """Straight back: cos -1 gives 0 + a Omega / (age + Omega); with a = 0 nothing is left of it."""
    model = GlobalModel(vec(3, 0), 3, {2: vec(2, 0)})
    back = Update(0, 2, vec(-1, 0), "delta", 10, 0.0)
    along = Update(1, 2, vec(0.5, 0), "delta", 10, 0.0)
    strategy = PORT(staleness_weight=0.0)
    assert strategy.aggregate(model, [back, along]).tolist() == [3.5, 0.0]
    assert strategy.aggregate(model, [back]).tolist() == [2.0, 0.0]  # nobody else: it counts


def test_buffers_never_enter_the_cosine() -> None:
    model = GlobalModel(vec(3, 0, 9), 3, {2: vec(2, 0, 0)}, num_trainable=2)
    updates = [
        Update(0, 2, vec(1, 0, -5), "delta", 10, 0.0),
        Update(1, 2, vec(1, 0, 5), "delta", 10, 0.0),
    ]
    strategy = PORT(staleness_weight=0.0)
    assert strategy.aggregate(model, updates).tolist() == [4.0, 0.0, 9.0]
    assert strategy.report["weight"] == [0.5, 0.5]


@pytest.mark.parametrize(
    ("reference", "shares"), [("base", [1 / 3, 2 / 3]), ("two_back", [0.5, 0.5])]
)
def test_directions_are_compared_with_the_base_or_two_versions_back(
    reference: str, shares: list[float]
) -> None:
    """w = [0, 0], [1, 0], [1, 1]; two uploads of age 1, [1, 0] and [0, 1], a = 0, b = 1.

    base: [0, 1], cosines 0 and 1, u = 1/2, 1.  Two back: [1, 1], both cosines 0.7071068.
    """
    strategy = PORT(staleness_weight=0.0, reference=reference)
    models = [vec(0, 0), vec(1, 0), vec(1, 1)]
    for version, params in enumerate(models):
        model = GlobalModel(params, version, dict(enumerate(models[: version + 1])))
        base = max(0, version - 1)
        updates = [Update(c, base, vec(1 - c, c), "delta", 10, 0.0) for c in range(2)]
        strategy.aggregate(model, updates)
    assert strategy.report["weight"] == pytest.approx(shares)
