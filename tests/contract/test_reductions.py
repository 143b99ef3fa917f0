"""Limits in which an algorithm must come down to plain averaging of K gradients."""

from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from helpers import Quadratic, Run, run, vec
from numpy.typing import NDArray

from fl_app.algorithms.afl import AFL
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.eafl import EAFL
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.gsgm import GSGM
from fl_app.algorithms.port import PORT
from fl_app.algorithms.refl import REFL
from fl_app.algorithms.safl import SAFL
from fl_app.algorithms.sasgd import SASGD
from fl_app.algorithms.twafl import TWAFL
from fl_app.algorithms.wkafl import WKAFL
from fl_app.client import LocalTrainer
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.devices import Fleet, UniformRatio
from fl_app.schedule import k_async
from fl_app.strategy import AsyncStrategy

CLIENTS = 10
TASK = Quadratic.scattered(CLIENTS)
RATE = 0.2

PLAIN_WKAFL = {
    "momentum": 0,
    "min_similarity": -1,
    "similarity_sharpness": 0,
    "clip_norm": None,
    "lr_decay": 0,
}


class Unequal(Quadratic):
    """Client i has only the first 1 + i mod 8 of its points."""

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        return super().train_indices(client_id)[: 1 + client_id % 8]


def equal_speeds(strategy: AsyncStrategy, task: Quadratic = TASK) -> Run:
    """K = P and all devices alike: everybody trains on every version, so all ages are 0."""
    return run(
        k_async(CLIENTS),
        LocalTrainer(task, upload="gradient", batch_size=3),
        num_clients=CLIENTS,
        num_versions=12,
        devices=Fleet(UniformRatio(ratio=1, num_clients=CLIENTS, jitter=0)),
        strategy=deepcopy(strategy),
        initial=vec(0, 0, 0),
    )


MEANS = {
    "twafl": TWAFL(server_lr=RATE),
    "twafl-as-printed": TWAFL(server_lr=RATE, normalise=False),
    "sasgd": SASGD(server_lr=RATE),
    "dynsgd": DynSGD(server_lr=RATE),
    "refl": REFL(server_lr=RATE),
    "gsgm-no-momentum": GSGM(server_lr=RATE, momentum=0),
    "fedbuff": FedBuff(server_lr=RATE),
    "wkafl-all-off": WKAFL(server_lr=RATE, **PLAIN_WKAFL),
    "fedhist-no-utility": FedHist(server_lr=RATE, egs=False, ina=False, utility_weight=0),
    "fedhist-no-haa": FedHist(server_lr=RATE, egs=False, ina=False, haa=False),
}


@pytest.mark.parametrize("strategy", MEANS.values(), ids=MEANS)
def test_fresh_gradients_are_averaged(strategy: AsyncStrategy) -> None:
    plain, result = equal_speeds(FedAvgK(server_lr=RATE)), equal_speeds(strategy)
    assert set(result.history.ages) == {0}
    assert np.linalg.norm(plain.outcome.params) > 1
    np.testing.assert_allclose(result.outcome.params, plain.outcome.params, rtol=1e-6)


MEANS_BY_EXAMPLES = {
    "afl": AFL(server_lr=RATE),
    "safl": SAFL(server_lr=RATE),
    "port": PORT(server_lr=RATE),
}


@pytest.mark.parametrize("strategy", MEANS_BY_EXAMPLES.values(), ids=MEANS_BY_EXAMPLES)
def test_fresh_gradients_are_averaged_by_examples_in_a_run(strategy: AsyncStrategy) -> None:
    task = Unequal.scattered(CLIENTS)
    by_examples = equal_speeds(FedAvgK(server_lr=RATE, weighting="examples"), task)
    result = equal_speeds(strategy, task)
    assert set(result.history.ages) == {0}
    assert np.linalg.norm(by_examples.outcome.params) > 1
    np.testing.assert_allclose(result.outcome.params, by_examples.outcome.params, rtol=1e-6)
    uniform = equal_speeds(FedAvgK(server_lr=RATE), task)
    assert not np.allclose(result.outcome.params, uniform.outcome.params, rtol=1e-3)


OTHERS = {
    "egs": FedHist(server_lr=RATE, ina=False, haa=False),
    "haa": FedHist(server_lr=RATE, egs=False, ina=False, buffer_length=2, utility_weight=10),
    "ina": FedHist(server_lr=RATE, egs=False, haa=False),
    "wkafl-selects": WKAFL(server_lr=RATE, **(PLAIN_WKAFL | {"similarity_sharpness": 10})),
    "gsgm-momentum": GSGM(server_lr=RATE, momentum=0.5),
}


@pytest.mark.parametrize("strategy", OTHERS.values(), ids=OTHERS)
def test_what_does_more_than_average_differs(strategy: AsyncStrategy) -> None:
    plain, result = equal_speeds(FedAvgK(server_lr=RATE)), equal_speeds(strategy)
    assert not np.allclose(result.outcome.params, plain.outcome.params, rtol=1e-4)


# -- with hand-made updates -----------------------------------------------------------------------

VERSION = 9


def situation(ages: list[int]) -> tuple[GlobalModel, list[Update]]:
    """Random gradients of clients with unequal data."""
    rng = np.random.default_rng(1)

    def vector() -> Vector:
        return rng.standard_normal(7).astype(np.float32)

    updates = [
        Update(k, VERSION - age, vector(), "gradient", 5 + 20 * k, 1.0)
        for k, age in enumerate(ages)
    ]
    return GlobalModel(vector(), VERSION, num_trainable=5), updates


@pytest.mark.parametrize(
    "strategy",
    [AFL(server_lr=RATE), SAFL(server_lr=RATE), EAFL(server_lr=RATE, num_clusters=1)],
    ids=type,
)
def test_fresh_gradients_are_averaged_by_examples(strategy: AsyncStrategy) -> None:
    model, updates = situation([0, 0, 0, 0])
    expected = FedAvgK(server_lr=RATE, weighting="examples").aggregate(model, updates)
    np.testing.assert_allclose(strategy.aggregate(model, updates), expected, rtol=1e-6)
    uniform = FedAvgK(server_lr=RATE).aggregate(model, updates)
    assert not np.allclose(expected, uniform, rtol=1e-3)


def test_wkafl_with_everything_off_takes_stale_gradients_as_they_are() -> None:
    """The estimate still weighs by age, but nothing is left that follows it."""
    model, updates = situation([0, 1, 4, 2])
    wkafl: Any = WKAFL(server_lr=RATE, **PLAIN_WKAFL)
    expected = FedAvgK(server_lr=RATE).aggregate(model, updates)
    np.testing.assert_allclose(wkafl.aggregate(model, updates), expected, rtol=1e-6)


def test_wkafl_without_selection_is_twafl() -> None:
    """With alpha = gamma = 0 and no clip, gbar is all there is."""
    model, updates = situation([0, 1, 4, 2])
    wkafl: Any = WKAFL(server_lr=RATE, **PLAIN_WKAFL, select=False)
    expected = TWAFL(server_lr=RATE).aggregate(model, updates)
    np.testing.assert_allclose(wkafl.aggregate(model, updates), expected, rtol=1e-6)


def test_fedhist_without_its_three_parts_is_twafl() -> None:
    model, updates = situation([0, 1, 4, 2])
    fedhist = FedHist(server_lr=RATE, egs=False, haa=False, ina=False)
    expected = TWAFL(server_lr=RATE).aggregate(model, updates)
    assert fedhist.aggregate(model, updates).tobytes() == expected.tobytes()
