"""Limits in which an algorithm must come down to another one."""

import numpy as np
from helpers import composed, sent, vec

from fl_app.algorithms.ace import ACE
from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.dynsgd import DynSGD
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedstaleasync import FedStaleAsync
from fl_app.algorithms.ringleader import Ringleader
from fl_app.algorithms.wkafl import WKAFL
from fl_app.core.types import GlobalModel
from fl_app.runner.validate import build_strategy

RATE = 0.2

PLAIN_WKAFL = {"momentum": 0, "min_similarity": -1, "similarity_sharpness": 0}
PLAIN_WKAFL |= {"clip_norm": None, "lr_decay": 0}


def test_wkafl_with_everything_off_takes_stale_gradients_as_they_are():
    """The estimate still weighs by age, but nothing is left that follows it."""
    rng = np.random.default_rng(1)
    updates = [
        sent(k, 9 - age, *rng.standard_normal(7), kind="gradient", examples=5 + 20 * k)
        for k, age in enumerate([0, 1, 4, 2])
    ]
    model = GlobalModel(vec(*rng.standard_normal(7)), 9, num_trainable=5)
    wkafl = WKAFL(server_lr=RATE, **PLAIN_WKAFL)
    expected = FedAvgK(server_lr=RATE).aggregate(model, updates)
    np.testing.assert_allclose(wkafl.aggregate(model, updates), expected, rtol=1e-6)


# -- memories of clients --------------------------------------------------------------------------

POPULATION, SIZE, TRAINED = 6, 7, 5


def course(strategy, *, warm=False, num_versions=25, buffer_size=3):
    """The models of versions made of random updates; some buffers hold a client twice.

    `warm`: everybody is heard with the first version, which is left out.
    """
    rng = np.random.default_rng(2)
    params, models = rng.standard_normal(SIZE).astype(np.float32), []
    for version in range(num_versions):
        first = warm and version == 0
        clients = range(POPULATION) if first else rng.choice(POPULATION, buffer_size)
        updates = [
            sent(
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
    dude = build_strategy(composed("algorithm=dude_asgd", f"num_clients={POPULATION}", *keys))
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


def test_cana_without_ages_is_ca2fl_once_everybody_was_heard():
    every = {"exponent": 0, "calibration": 1, "memory_span": None}
    same_course(CANA(**every, **KNOWN), CA2FL(**KNOWN), warm=True)
    cold = CANA(**every, **KNOWN), CA2FL(**KNOWN)
    assert not np.allclose(*(course(each)[3] for each in cold), atol=1e-3)
