"""FedSA (re-interpreted) by hand: weights by age, and the two stages."""

import math

import pytest
from helpers import vec

from fl_app.algorithms.fedsa import FedSA
from fl_app.core.types import GlobalModel, Update


def upload(version: int, w: float, loss: float) -> Update:
    return Update(0, version, vec(w), "model", 10, loss)


def test_weight_falls_with_age() -> None:
    """Age 3: alpha = 0.6 / 2; w = 0.7 * 10 + 0.3 * 20."""
    strategy = FedSA()
    assert strategy.aggregate(GlobalModel(vec(10), 3), [upload(0, 20, 1.0)]).tolist() == [13.0]
    assert strategy.report == {"weight": [0.3], "stage": 1}


def test_the_second_stage_begins_when_the_loss_hardly_falls() -> None:
    """40 versions: windows of 2. Losses 4, 4, 3, 3 | 2.98, 2.98: from 3 to 2.98 is below 1 %.

    Then 1 and 1, which fall again, and change nothing any more.
    """
    strategy = FedSA(local_epochs=5, num_versions=40)
    stages = []
    for version, loss in enumerate([4.0, 4.0, 3.0, 3.0, 2.98, 2.98, 1.0, 1.0, 1.0]):
        model = GlobalModel(vec(10), version)
        if strategy.state["careful"]:
            config = {"local_epochs": 2, "local_lr_factor": math.sqrt(0.1)}
        else:
            config = {"local_epochs": 10, "local_lr_factor": 1.0}
        assert strategy.dispatch(model, 0)[1] == pytest.approx(config)
        params = strategy.aggregate(model, [upload(version, 20, loss)])
        stages.append(strategy.report["stage"])
        assert params.tolist() == pytest.approx([16.0 if stages[-1] == 1 else 13.0])
    assert stages == [1, 1, 1, 1, 1, 1, 2, 2, 2]


def test_a_second_stage_has_at_least_one_epoch() -> None:
    strategy = FedSA(local_epochs=1)
    strategy.state["careful"] = True
    assert strategy.dispatch(GlobalModel(vec(0), 0), 0)[1]["local_epochs"] == 1


def test_losses_that_nobody_knows_end_no_stage() -> None:
    strategy = FedSA(num_versions=20)
    for version in range(5):
        strategy.aggregate(GlobalModel(vec(10), version), [upload(version, 20, math.nan)])
    assert strategy.report["stage"] == 1
