"""The contraction of a cycle, and the momenta that are stable with it."""

import numpy as np
import pytest
from helpers import vec

from fl_app.algorithms.overlap_fedavg import OverlapFedAvg
from fl_app.core.types import GlobalModel, Update
from scripts.contraction import contraction


def test_the_largest_eigenvalue_of_a_linear_cycle_is_found() -> None:
    """D(w) = -C (w - w*) with the eigenvalues 0.05, 0.2 and 0.9 of C."""
    turn, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((3, 3)))
    matrix = turn @ np.diag([0.05, 0.2, 0.9]) @ turn.T
    minimum = np.array([1.0, -2.0, 0.5])

    def displacement(model: np.ndarray) -> np.ndarray:
        return (-matrix @ (model - minimum)).astype(np.float32)

    model = np.array([3.0, 1.0, -1.0], np.float32)
    assert contraction(displacement, model) == pytest.approx(0.9, rel=1e-3)


@pytest.mark.parametrize("momentum", [0.0, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("contracts", [0.05, 0.25, 0.45, 0.65, 0.95, 1.5])
def test_a_late_displacement_with_momentum_is_stable_below_one_minus_momentum(
    contracts: float, momentum: float
) -> None:
    """Overlap-FedAvg itself, with one client whose uploads are -c times the model before."""
    strategy = OverlapFedAvg(server_lr=1.0, compensation=0.0, momentum=momentum)
    before, now = vec(1), vec(1)
    for version in range(400):
        upload = Update(0, max(version - 1, 0), -contracts * before, "delta", 1, 0.0)
        before, now = now, strategy.aggregate(GlobalModel(now, version), [upload])
        if abs(now) > 10:
            break
    assert (abs(now) < 1) == (contracts < 1 - momentum)
