"""Flower's own robust aggregation on the first K arrivals, against clients that lie."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from configs import composed
from helpers import Quadratic, Run, run

from fl_app.client import LocalTrainer
from fl_app.client.build import build_trainer
from fl_app.core.types import Order, Upload
from fl_app.runner.validate import build_schedule, build_strategy, validate_config

CLIENTS = 20
LIARS = (3, 11)
TASK = Quadratic.scattered(CLIENTS)
ROBUST = ["krum", "multi_krum", "median", "trimmed_mean"]


class WithLiars:
    """Trains, but the liars then send a long step the other way."""

    def __init__(self, honest: LocalTrainer) -> None:
        self._honest = honest

    def train(self, order: Order) -> Upload:
        upload = self._honest.train(order)
        if order.client_id in LIARS:
            return replace(upload, vector=-10 * upload.vector)
        return upload


def train(name: str, *, liars: bool, seed: int = 0) -> Run:
    config = composed(f"algorithm={name}", f"seed={seed}")
    validate_config(config)
    trainer: Any = build_trainer(config, TASK)
    initial = np.zeros(trainer.model.layout.size, np.float32)
    return run(
        build_schedule(config),
        WithLiars(trainer) if liars else trainer,
        num_clients=CLIENTS,
        num_versions=40,
        strategy=build_strategy(config),
        initial=initial,
        seed=seed,
    )


@pytest.mark.parametrize("name", ROBUST)
def test_liars_do_no_harm(name: str) -> None:
    """The clients' own optima lie 0.46 around the common one; Krum takes one client's word."""
    result = train(name, liars=True)
    used = Counter(c for event in result.kind("aggregate") for c in event["client"])
    assert min(used[liar] for liar in LIARS) > 5
    assert np.linalg.norm(TASK.optimum) > 5
    assert np.linalg.norm(result.outcome.params - TASK.optimum) < 0.6


def test_a_mean_is_harmed() -> None:
    honest, harmed = (train("fedbuff", liars=liars).outcome.params for liars in (False, True))
    assert np.linalg.norm(honest - TASK.optimum) < 0.6
    assert np.linalg.norm(harmed - TASK.optimum) > 2


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROBUST, "fedavgm"])
def test_same_seed_same_log(name: str) -> None:
    one, same, other = (train(name, liars=True, seed=seed) for seed in (0, 0, 1))
    assert same.events == one.events != other.events
    assert same.final == one.final != other.final
