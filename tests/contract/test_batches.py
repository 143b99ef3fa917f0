"""Every algorithm gives the same run with its clients trained together as one by one."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from configs import QUIET, REPRESENTATIVES, composed
from helpers import Flat, HeadedQuadratic, Run, run
from numpy.typing import NDArray

from fl_app.client.build import build_trainer
from fl_app.runner.validate import build_schedule, build_strategy
from fl_app.schedule import RandomK

CLIENTS = 20
# Whose clients pause, compare what the model computes, or keep a part of it.
ALONE = ("fedasmu", "fedper", "moon")

representatives = pytest.mark.parametrize("name", REPRESENTATIVES, scope="module")


class Unequal(HeadedQuadratic):
    """Clients have from one to all of their points, so steps and mini-batches differ in number."""

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        return super().train_indices(client_id)[: 1 + client_id * 3 % self._each]


@cache
def trained(name: str, batch: int, workers: int = 0) -> Run:
    overrides = ["algorithm.client.batch_size=3", "algorithm.client.local_epochs=3"]
    config = composed(
        f"algorithm={name}", f"num_clients={CLIENTS}", *QUIET.get(name, []), *overrides
    )
    schedule = build_schedule(config)
    return run(
        schedule,
        build_trainer(config, Unequal.scattered(CLIENTS)),
        num_clients=CLIENTS,
        num_versions=8 if getattr(schedule, "buffer_size", 10) > 1 else 30,
        devices=schedule if isinstance(schedule, RandomK) else None,
        strategy=build_strategy(config),
        workers=workers,
        batch=batch,
    )


def without_floats(events: list[Flat]) -> list[Any]:
    """What happened, without losses and weights, whose last bits differ; times do not."""
    return [
        {key: value for key, value in event.items() if key == "t" or not isinstance(value, float)}
        if "report" not in event
        else {key: event[key] for key in ("kind", "t", "version", "client", "age")}
        for event in events
    ]


@representatives
def test_together_or_one_by_one_comes_to_the_same(name: str) -> None:
    one, together = trained(name, 1), trained(name, 5)
    assert one.outcome.totals["batched_orders"] == 0
    totals = together.outcome.totals
    assert totals["batched_orders"] + totals["single_orders"] >= 8
    assert (totals["batched_orders"] > totals["single_orders"]) == (name not in ALONE)
    assert without_floats(together.events) == without_floats(one.events)
    np.testing.assert_allclose(together.outcome.params, one.outcome.params, rtol=1e-4, atol=1e-5)
    losses = [[e["loss"] for e in each.kind("arrival")] for each in (one, together)]
    np.testing.assert_allclose(*losses, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@representatives
def test_same_batch_same_bytes_whatever_the_number_of_workers(name: str) -> None:
    one, two = trained(name, 5), trained(name, 5, workers=2)
    assert two.events == one.events
    assert two.final == one.final
    assert two.outcome.totals == one.outcome.totals
