"""The mean of the versions by hand."""

import pytest
from helpers import vec

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.algorithms.refl import REFL
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy.averaging import AveragesVersions


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
def test_a_mean_of_the_versions_is_tested(strategy: AveragesVersions) -> None:
    """e = 1: shares 2/2, 2/3, 2/4 of w = 1, 4, 2: 1; 1 + 2/3 3 = 3; 3 - 1/2 = 2.5.

    w_3 = 2 has the weight 3, w_2 the weight 2, w_1 the weight 1: (6 + 8 + 1) / 6.
    """
    start = GlobalModel(vec(0), 0)
    assert strategy.to_evaluate(start) is start.params
    params = vec(0)
    for version, (moved, mean) in enumerate([(1, 1), (4, 3), (2, 2.5)]):
        model = GlobalModel(params, version)
        update = Update(0, version, vec(moved), "model", 10, 0.1)
        params = strategy.aggregate(model, [update])
        assert params.tolist() == [moved]
        assert strategy.to_evaluate(GlobalModel(params, version + 1)).tolist() == [mean]


def test_later_versions_count_more_with_a_larger_exponent() -> None:
    """e = 3: shares 1, 4/5, 4/6 of 1, 6, 9: 1 + 4/5 5 = 5; 5 + 2/3 4."""
    strategy, params = CANA(averaging=3.0, calibration=0.0), vec(0)
    means = []
    for version, moved in enumerate((1, 6, 9)):
        update = Update(0, version, vec(moved), "model", 10, 0.1)
        params = strategy.aggregate(GlobalModel(params, version), [update])
        means.append(strategy.to_evaluate(GlobalModel(params, version + 1))[0])
    assert means == pytest.approx([1, 5, 5 + 8 / 3])
