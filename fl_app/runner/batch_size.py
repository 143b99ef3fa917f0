"""How many orders a run computes together: as configured, measured, or one at a time."""

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.batchable import obstacle
from fl_app.client.recipe import Recipe, convolution
from fl_app.core.pool import ClientPool
from fl_app.core.types import GlobalModel, Order, Upload
from fl_app.engine.checks import order_extra
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.spawned import in_spawned_process
from fl_app.runner.factory import virtual_clock
from fl_app.runner.imagined import ImaginedWorkers, Stopwatch

if TYPE_CHECKING:
    from fl_app.runner.factory import Components

log = logging.getLogger(__name__)

SECONDS = 1.0  # that a measurement takes, more or less
LONG_STEP = 0.02  # seconds; a step that takes longer is not spent on calling torch
NEARLY = 0.9  # of the best rate is enough for a smaller batch, which takes less memory
GAIN = 1.2  # least gain for which orders are computed together: measurements vary
SIZES = (4, 8, 12, 16, 24, 32, 64)
LARGEST = 128  # size that is tried
MESSAGE = 1e-4  # seconds that an order and its upload take each process, as measured on a server
UPDATES = 8  # of every client at work, in a run that is imagined
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
    costs = _costs(components, at_work)
    if costs.told:
        log.warning("runtime.batch=auto: 1 (%s)", costs.told)
        return 1
    rates = {size: _rate(components, costs, size, at_work) for size in costs.seconds}
    gains = {size: rate / rates[1] for size, rate in rates.items() if size > 1}
    best = min(size for size in gains if gains[size] >= NEARLY * max(gains.values()))
    told = ", ".join(f"{size}: {gain:.1f}" for size, gain in gains.items())
    best = best if gains[best] > GAIN else 1
    log.warning(
        "runtime.batch=auto: %s (times the updates of one client at a time: %s)", best, told
    )
    return best


def _at_work(components: "Components") -> int:
    """About how many clients are at work at a time."""
    schedule, num_clients = deepcopy(components.schedule), int(components.config.num_clients)
    idle = ClientPool(range(num_clients))
    started = len(schedule.start(idle, {}, [], np.random.default_rng(0)))
    return min(num_clients, max(started, getattr(schedule, "concurrency", None) or 1))


@dataclass(frozen=True)
class _Costs:
    """What was measured.

    Attributes:
        seconds: of an operation by its number of clients, 1 and more than 1; empty = see `told`.
        upload: of a client.
        told: why clients are not to be trained together.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    upload: Upload | None = None
    told: str = ""


def _costs(components: "Components", at_work: int) -> _Costs:
    """Measure where the workers train."""
    if at_work < 2:
        return _Costs(told="one client is at work at a time")
    orders, gpus = _orders(components, min(at_work, LARGEST)), components.placement.gpus
    if gpus:
        return in_spawned_process(partial(_on_gpu, components.recipe(), gpus[0], orders))
    return _measured(components.trainer, orders, convolution(components.config))


def _on_gpu(recipe: Recipe, gpu: str, orders: Sequence[Order]) -> _Costs:
    """As `_measured`, in a process that may use a GPU."""
    return _measured(recipe.trainer(gpu), orders, convolution(recipe.config), time.perf_counter)


def _measured(
    trainer: LocalTrainer,
    orders: Sequence[Order],
    form: str,
    clock: Callable[[], float] = time.process_time,
) -> _Costs:
    """The seconds of operations with some numbers of clients, at most those of the orders."""
    trainer = copy(trainer)
    trainer.sender = trainer  # compression takes as long either way
    steps = [
        trainer.lengths(trainer.task.train_indices(o.client_id).size, o.config)[1] for o in orders
    ]
    usual = sum(steps) / len(steps)
    trainer.local_steps = 1
    upload = trainer.train(orders[0])
    step = _seconds(lambda: trainer.train(orders[0]), SECONDS / 20, clock)
    if step > LONG_STEP:
        return _Costs(told=f"a step of one client takes {1e3 * step:.0f} ms")
    trainer.local_steps = max(1, min(max(steps), int(PIECE / step)))
    scale = usual / trainer.local_steps if trainer.upload != "gradient" else 1.0
    sizes = sorted({size for size in SIZES if size < len(orders)} | {len(orders)})
    seconds = {1: scale * _seconds(lambda: trainer.train(orders[0]), SECONDS / 10, clock)}
    for size in sizes:
        some = orders[:size]
        batch = BatchTrainer(trainer, form)
        together = _seconds(lambda: batch.train(some, [None] * size), SECONDS / 10, clock)  # noqa: B023
        seconds[size] = scale * together
    return _Costs(seconds, upload)


def _rate(components: "Components", costs: _Costs, size: int, at_work: int) -> float:
    """Updates a second of the run's beginning, imagined, with batches of at most this size."""
    assert costs.upload is not None
    known, placement = [*costs.seconds], components.placement
    # Processes that share a GPU count as one.
    num_workers, num_cores = len(placement.gpus), None
    if not placement.gpus:
        num_workers = max(placement.workers, 1)
        num_cores = min(len(os.sched_getaffinity(0)), 1 + num_workers) if placement.workers else 1
    workers = ImaginedWorkers(
        costs.upload,
        num_workers,
        num_cores,
        lambda count: float(np.interp(count, known, [*costs.seconds.values()])),
        MESSAGE if placement.workers else 0.0,
    )
    watch = Stopwatch(workers, at_work, SECONDS / 10)
    parts = replace(
        components,
        strategy=deepcopy(components.strategy),
        schedule=deepcopy(components.schedule),
        devices=deepcopy(components.devices),
    )
    watch.engine = Engine(
        strategy=parts.strategy,
        schedule=parts.schedule,
        clock=virtual_clock(parts, workers, size),
        initial=parts.initial,
        num_trainable=parts.trainer.model.layout.num_trainable,
        stop=Stop(updates=UPDATES * at_work),
        sinks=[watch],
        seed=parts.config.seed,
    )
    watch.engine.run()
    return watch.rate()


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
