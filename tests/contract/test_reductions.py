"""Limits in which an algorithm must equal a simpler one, such as averaging K gradients."""

from copy import deepcopy

import numpy as np
import pytest
from helpers import Quadratic, make_config, run, update_of, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.afl import AFL
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.fedstaleweight import FedStaleWeight
from fl_app.algorithms.gsgm import GSGM
from fl_app.algorithms.port import PORT
from fl_app.algorithms.refl import REFL
from fl_app.algorithms.rescaled_asgd import RescaledASGD
from fl_app.algorithms.ringleader import Ringleader
from fl_app.algorithms.safl import SAFL
from fl_app.algorithms.sasgd import SASGD
from fl_app.algorithms.twafl import TWAFL
from fl_app.algorithms.wkafl import WKAFL
from fl_app.client import LocalTrainer
from fl_app.core.types import GlobalModel
from fl_app.devices.compute import UniformRatio
from fl_app.devices.fleet import Fleet
from fl_app.runner.validate import build_strategy
from fl_app.schedule import k_async

CLIENTS = 10
RATE = 0.2

PLAIN_WKAFL = {"momentum": 0, "min_similarity": -1, "similarity_sharpness": 0}
PLAIN_WKAFL |= {"clip_norm": None, "lr_decay": 0}


class Unequal(Quadratic):
    """Client i has only the first 1 + (i mod 8) of its points."""

    def train_indices(self, client_id):
        return super().train_indices(client_id)[: 1 + client_id % 8]


def equal_speeds(strategy, task):
    """K = P and equal devices: every client trains on every version, so all ages are 0."""
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
    "fedstaleweight": FedStaleWeight(server_lr=RATE),
    "ca2fl": CA2FL(server_lr=RATE),
    "ace": ACE(server_lr=RATE),
    "ringleader": Ringleader(server_lr=RATE),
    "rescaled_asgd": RescaledASGD(server_lr=RATE),
    "wkafl-all-off": WKAFL(server_lr=RATE, **PLAIN_WKAFL),
    "fedhist-no-utility": FedHist(server_lr=RATE, egs=False, ina=False, utility_weight=0),
    "fedhist-no-haa": FedHist(server_lr=RATE, egs=False, ina=False, haa=False),
    "afl": AFL(server_lr=RATE),
    "safl": SAFL(server_lr=RATE),
    "port": PORT(server_lr=RATE),
}
BY_EXAMPLES = ("afl", "safl", "port", "twafl-as-printed")


@pytest.mark.parametrize("name", MEANS)
def test_fresh_gradients_are_averaged(name):
    task, weighting = Unequal.scattered(CLIENTS), ["uniform", "examples"]
    if name in BY_EXAMPLES:
        weighting.reverse()
    mean, other = (
        equal_speeds(FedAvgK(server_lr=RATE, weighting=each), task).outcome.params
        for each in weighting
    )
    result = equal_speeds(MEANS[name], task)
    assert set(result.history.ages) == {0}
    assert np.linalg.norm(mean) > 1
    np.testing.assert_allclose(result.outcome.params, mean, rtol=1e-6)
    assert not np.allclose(result.outcome.params, other, rtol=1e-3)


# -- memories of clients --------------------------------------------------------------------------

POPULATION, SIZE, TRAINED = 6, 7, 5


def course(strategy, *, warm=False, num_versions=25, buffer_size=3):
    """The models after random updates; some buffers hold a client twice.

    `warm`: all clients upload for the first version, whose model is left out.
    """
    rng = np.random.default_rng(2)
    params, models = rng.standard_normal(SIZE).astype(np.float32), []
    for version in range(num_versions):
        first = warm and version == 0
        clients = range(POPULATION) if first else rng.choice(POPULATION, buffer_size)
        updates = [
            update_of(
                int(client),
                max(0, version - int(rng.integers(6))),
                *rng.standard_normal(SIZE),
                kind="gradient",
            )
            for client in clients
        ]
        params = strategy.aggregate(GlobalModel(params, version, num_trainable=TRAINED), updates)
        models.append(params)
    return models[warm:]


def same_course(one, other, *, warm=False):
    pairs = zip(course(one, warm=warm), course(other, warm=warm), strict=True)
    for mine, others in pairs:
        np.testing.assert_allclose(mine, others, rtol=2e-5, atol=2e-5)


KNOWN = {"server_lr": RATE, "num_clients": POPULATION}


def test_dude_asgd_is_ace_over_all_clients():
    keys = [f"algorithm.strategy.server_lr={RATE}", "algorithm.strategy.lr_schedule=null"]
    dude = build_strategy(make_config("algorithm=dude_asgd", f"num_clients={POPULATION}", *keys))
    one, other = course(dude), course(ACE(over="all", **KNOWN))
    assert [m.tobytes() for m in one] == [m.tobytes() for m in other]
    assert not np.allclose(one[0], course(ACE(**KNOWN))[0], atol=1e-3)


def test_ringleader_with_one_arrival_at_a_time_is_ace():
    one, other = (course(each(**KNOWN), buffer_size=1) for each in (Ringleader, ACE))
    assert [m.tobytes() for m in one] == [m.tobytes() for m in other]
    assert not np.allclose(course(Ringleader(**KNOWN))[-1], course(ACE(**KNOWN))[-1], atol=1e-3)


def test_fedstaleasync_without_ages_and_with_equal_participation_is_ca2fl():
    plain = {"upload_exponent": 0, "memory_exponent": 0, "participation_rate": 0}
    same_course(FedStaleAsync(**plain, **KNOWN), CA2FL(**KNOWN))
    other = FedStaleAsync(**(plain | {"memory_exponent": 1}), **KNOWN)
    assert not np.allclose(course(other)[-1], course(CA2FL(**KNOWN))[-1], atol=1e-3)


def test_cana_without_memories_is_dynsgd_or_the_mean():
    dynsgd = DynSGD(server_lr=RATE)
    same_course(CANA(exponent=1, calibration=0, **KNOWN), dynsgd)
    same_course(CANA(exponent=0, calibration=0, **KNOWN), FedAvgK(server_lr=RATE))


def test_cana_without_ages_is_ca2fl_once_all_clients_have_uploaded():
    every = {"exponent": 0, "calibration": 1, "memory_span": None}
    same_course(CANA(**every, **KNOWN), CA2FL(**KNOWN), warm=True)
    cold = CANA(**every, **KNOWN), CA2FL(**KNOWN)
    assert not np.allclose(*(course(each)[3] for each in cold), atol=1e-3)
