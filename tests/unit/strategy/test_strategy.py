"""The strategy base on its own, without a grid."""

import doctest
import logging
import re
from copy import deepcopy
from dataclasses import dataclass

import pytest
from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower
from helpers import vec

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.algorithms.refl import REFL
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.core.hyper import bounded, within
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy import AsyncStrategy, strategy
from fl_app.strategy.asynchronous import Asynchronous


class Mean(AsyncStrategy):
    def aggregate(self, model, updates):
        return model.params


def test_the_example_in_the_docstring():
    results = doctest.testmod(strategy)
    assert results.attempted >= 3
    assert results.failed == 0


class Discounting(Mean):
    """Of an author who writes `__init__`."""

    def __init__(self, *, discount=0.5):
        super().__init__(clip_norm=2.0)
        self.discount = discount


@dataclass(kw_only=True)
class Declared(Mean):
    """Of an author who declares fields."""

    discount: float = bounded(0.5, within("(0, 1]"), "it is a share")


def test_authors_may_declare_fields_or_write_init():
    assert (Mean().clip_norm, Mean(clip_norm=3.0).clip_norm) == (None, 3.0)
    written, declared = Discounting(discount=0.25), Declared(discount=0.25)
    assert (written.discount, written.clip_norm, written.state, written.report) == (0.25, 2, {}, {})
    assert (declared.clip_norm, declared.lr_schedule, declared.state) == (None, None, {})
    assert repr(declared) == "Declared(discount=0.25)"
    assert vars(deepcopy(declared)) == vars(declared)
    with pytest.raises(TypeError):
        Declared(0.25)  # by keyword only
    with pytest.raises(TypeError, match="clip_norm"):
        FedAvg(clip_norm=1.0)  # it has no gradient to clip


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Declared(discount=2), "strategy.discount=2 must be in (0, 1]: it is a share"),
        (lambda: Mean(clip_norm=0), "strategy.clip_norm=0 must be above 0 or null: "),
        (lambda: FedBuff(clip_norm=-1), "strategy.clip_norm=-1 must be above 0 or null: "),
        (lambda: FedBuff(lr_schedule=0.5), "strategy.lr_schedule=0.5 must be null or a schedule"),
    ],
)
def test_values_out_of_their_bounds_are_refused(make, text):
    with pytest.raises(ValueError, match=f"^algorithm.{re.escape(text)}"):
        make()


def test_the_summary_tells_the_settings(caplog):
    logging.getLogger("flwr").addHandler(caplog.handler)  # which does not propagate
    try:
        with caplog.at_level(logging.INFO, "flwr"):
            FedBuff(server_lr=0.25).summary()
            Asynchronous(flower.FedAvg(fraction_train=0.5))
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "fraction_train=0.5 has no effect: the schedule" in caplog.text
    assert "FedBuff, asynchronous" in caplog.text
    assert "'server_lr': 0.25" in caplog.text
    assert "state" not in caplog.text


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"num_rounds": 0}, "num_rounds=0 must be a finite number >= 1: nothing would be trained"),
        (
            {"timeout": 0.0},
            "timeout=0.0 must be a finite number above 0: every order would be late",
        ),
        (
            {"schedule": 2},
            "schedule=2 must be a fl_app.schedule.Schedule, such as k_async(2): it says",
        ),
        ({"initial_arrays": None}, "initial_arrays=NoneType must be an ArrayRecord, such as "),
    ],
)
def test_start_refuses_what_cannot_run_before_it_touches_the_grid(settings, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        Mean().start(None, **{"initial_arrays": ArrayRecord(), **settings})


def test_flowers_own_rounds_would_drop_what_travels_beside_models():
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
    for version, (moved, mean) in enumerate([(1, 1), (4, 3), (2, 2.5)]):
        model = GlobalModel(params, version)
        update = Update(0, version, vec(moved), "model", 10, 0.1)
        params = strategy.aggregate(model, [update])
        assert params.tolist() == [moved]
        assert strategy.to_evaluate(GlobalModel(params, version + 1)).tolist() == [mean]


def test_later_versions_count_more_with_a_larger_exponent():
    """e = 3: shares 1, 4/5, 4/6 of 1, 6, 9: 1 + 4/5 5 = 5; 5 + 2/3 4."""
    strategy, params = CANA(averaging=3.0, calibration=0.0), vec(0)
    means = []
    for version, moved in enumerate((1, 6, 9)):
        update = Update(0, version, vec(moved), "model", 10, 0.1)
        params = strategy.aggregate(GlobalModel(params, version), [update])
        means.append(strategy.to_evaluate(GlobalModel(params, version + 1))[0])
    assert means == pytest.approx([1, 5, 5 + 8 / 3])
