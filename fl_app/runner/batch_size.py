"""How many orders a run computes together: as configured, measured, or one at a time."""

import logging
import time
from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from functools import partial
from math import ceil
from typing import TYPE_CHECKING

import numpy as np

from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.batchable import obstacle
from fl_app.client.recipe import Recipe, convolution
from fl_app.core.pool import ClientPool
from fl_app.core.types import GlobalModel, Order
from fl_app.engine.checks import order_extra
from fl_app.engine.spawned import in_spawned_process

if TYPE_CHECKING:
    from fl_app.runner.factory import Components

log = logging.getLogger(__name__)

SECONDS = 1.0  # that a measurement takes, more or less
LONG_STEP = 0.02  # seconds; a step that takes longer is not spent on calling torch
# Least measured gain for which orders are computed together: batches are not always full, and
# while the clock waits for one, there may be none for the other workers.
GAIN = 1.5
PIECE = 0.01  # seconds of training of an order in the measurement


def batch_size(components: "Components") -> int:
    """The largest number of orders that are computed together, with ``runtime.batch`` above 1.

    It says why if that is not what is asked for, and what ``auto`` has come to.

    Args:
        components: of the run.
    """
    asked: int | str = components.config.runtime.batch
    trainer = components.trainer
    reason = obstacle(trainer)
    if reason:
        log.warning("runtime.batch=%s: clients are trained one at a time: %s", asked, reason)
        return 1
    at_work = _at_work(components)
    if isinstance(asked, int):
        if asked > at_work:
            log.warning(
                "runtime.batch=%s is above the %s clients at work: batches have at most %s",
                *(asked, at_work, at_work),
            )
        return asked
    orders = _orders(components, at_work)
    placement = components.placement
    if placement.gpus:
        work = partial(_on_gpu, components.recipe(), placement.gpus, orders, at_work)
        size, told = in_spawned_process(work)
    else:
        workers, form = max(placement.workers, 1), convolution(components.config)
        size, told = _measured(components.trainer, orders, at_work, workers, form)
    log.warning("runtime.batch=auto: %s (%s)", size, told)
    return size


def _at_work(components: "Components") -> int:
    """About how many clients are at work at a time."""
    schedule, num_clients = deepcopy(components.schedule), int(components.config.num_clients)
    idle = ClientPool(range(num_clients))
    started = len(schedule.start(idle, {}, [], np.random.default_rng(0)))
    return min(num_clients, max(started, getattr(schedule, "concurrency", None) or 1))


def _on_gpu(
    recipe: Recipe, gpus: Sequence[str], orders: Sequence[Order], at_work: int
) -> tuple[int, str]:
    """As `_measured`, in a process that may use a GPU; processes that share one count as one."""
    form = convolution(recipe.config)
    return _measured(recipe.trainer(gpus[0]), orders, at_work, len(gpus), form, time.perf_counter)


def _measured(
    trainer: LocalTrainer,
    orders: Sequence[Order],
    at_work: int,
    num_workers: int,
    form: str,
    clock: Callable[[], float] = time.process_time,
) -> tuple[int, str]:
    """The size with which most orders are computed in a second, and what was measured."""
    if at_work < 2:
        return 1, "one client is at work at a time"
    trainer = copy(trainer)
    trainer.sender = trainer  # compression takes as long either way
    most = max(
        trainer._lengths(trainer.task.train_indices(o.client_id).size, o.config)[1] for o in orders
    )
    trainer.local_steps = 1
    step = _seconds(lambda: trainer.train(orders[0]), SECONDS / 20, clock)
    if step > LONG_STEP:
        return 1, f"a step of one client takes {1e3 * step:.0f} ms"
    trainer.local_steps = max(1, min(most, int(PIECE / step)))
    alone = _seconds(lambda: trainer.train(orders[0]), SECONDS / 5, clock)
    best, rate = 1, min(num_workers, at_work) / alone
    gains = []
    sizes = sorted({ceil(at_work / parts) for parts in (1, 2, num_workers, 2 * num_workers)} - {1})
    for size in sizes:
        some = orders[:size]
        batch = BatchTrainer(trainer, form)
        together = _seconds(lambda: batch.train(some, [None] * size), SECONDS / 5, clock)  # noqa: B023
        workers = min(num_workers, max(1, at_work // size))
        gain = workers * size / together / (min(num_workers, at_work) / alone)
        gains.append(f"{size}: {gain:.1f}")
        if gain > GAIN and workers * size / together > rate:
            best, rate = size, workers * size / together
    return best, f"times the updates of one client at a time: {', '.join(gains)}"


def _orders(components: "Components", count: int) -> list[Order]:
    """First orders of some clients with data."""
    initial, layout = components.initial, components.trainer.model.layout
    strategy = deepcopy(components.strategy)
    model = GlobalModel(initial, 0, {0: initial}, layout.num_trainable)
    task = components.trainer.task
    owners = [i for i in range(task.num_clients) if task.train_indices(i).size]
    orders = []
    for client_id in owners[:count]:
        vector, config = strategy.dispatch(model, client_id)
        extra = order_extra(strategy, model, client_id)
        orders.append(Order(0, client_id, 0, 0, vector, {**config, "version": 0}, 0.0, extra=extra))
    return orders


def _seconds(work: Callable[[], object], budget: float, clock: Callable[[], float]) -> float:
    """The least time of some calls, after a first one.

    On the processor the clock counts processor time: that of other programs does not count.
    """
    work()
    times: list[float] = []
    end = time.perf_counter() + budget
    while not times or time.perf_counter() < end:
        began = clock()
        work()
        times.append(clock() - began)
    return min(times)
