"""Mailboxes without Flower: training in this process, or in others that run ahead."""

import math
import multiprocessing
import pickle
import selectors
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from fl_app.core.errors import RunError
from fl_app.core.types import NO_EXTRA, Order, Reply, Vector
from fl_app.core.vector import read_only
from fl_app.engine.arena import Arena
from fl_app.engine.worker import (
    NOTHING,
    ORDER,
    UPLOAD,
    Answer,
    BatchTrainer,
    Message,
    Trainer,
    carry_out,
    send,
    work,
)

# One at work, one waiting, so that a worker never waits for the engine; batches count as one.
ORDERS_PER_WORKER = 2


class Inline:
    """Trains in this process, when the engine asks: slow, simple, and open to a debugger.

    Args:
        trainer: carries out orders; if it is a `BatchTrainer`, several at once.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.batch = trainer.batch if isinstance(trainer, BatchTrainer) else 1
        self._trainer = trainer
        self._batches: deque[Sequence[Order]] = deque()

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        return 1 - len(self._batches)

    def push(self, order: Order) -> None:
        self._batches.append([order])

    def push_together(self, orders: Sequence[Order]) -> None:
        self._batches.append(orders)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        if not self._batches or timeout == 0.0:
            return []
        orders = self._batches.popleft()
        return map(_sealed, carry_out(self._trainer, orders))

    def close(self) -> None:
        self._batches.clear()


@dataclass
class _Given:
    """An order with a worker, and the vectors of its message, kept alive here."""

    order: Order
    received: list[Vector]
    results: list[Vector]


@dataclass
class _Worker:
    place: int
    """Among the workers; the one that replaces it has the same."""
    process: BaseProcess
    pipe: Connection
    orders: deque[list[_Given]] = field(default_factory=deque)
    """In batches, oldest first."""
    since: float = 0.0
    """When the oldest batch may have begun."""


class Workers:
    """Trains in worker processes, which get two orders each and read models from shared memory.

    Only small tuples travel through pipes. A worker that dies, or works on one order for longer
    than `patience`, is replaced: its current order fails, and the new worker gets the order that
    waited behind it. If SIGTERM ended the worker, the new one gets both. Orders that are computed
    together count as one; if their worker is replaced, the new one gets them one by one.

    Args:
        trainer: carries out orders; if it is a `BatchTrainer`, several at once. Workers are forked
            and inherit it with its data. With `devices` it is a function that makes a trainer for a
            device: a process that has begun to use a GPU cannot be forked, and what was forked from
            it cannot use one. So workers are spawned, and the function is pickled.
        num_workers: processes, >= 1; one per core is best, each on one torch thread.
        size: d, entries of a model vector.
        devices: of the workers in turn; () = they are forked.
        batch: largest number of orders that a worker computes together; default: the trainer's.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.
        monotonic: tells real time.

    Raises:
        ValueError: the function cannot be pickled.
    """

    def __init__(
        self,
        trainer: Trainer | Callable[[str], Trainer],
        num_workers: int,
        size: int,
        *,
        devices: Sequence[str] = (),
        batch: int | None = None,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.batch = batch or (trainer.batch if isinstance(trainer, BatchTrainer) else 1)
        self._trainer: Any = _pickled(trainer) if devices else trainer
        self._devices = devices
        self._upload_extra = tuple(upload_extra)
        self._patience = patience
        self._monotonic = monotonic
        self._arena = Arena(size)
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        for place in range(num_workers):
            self._begin(place)

    def share(self, vector: Vector) -> Vector:
        return self._arena.share(vector)

    def capacity(self) -> int:
        return sum(ORDERS_PER_WORKER - len(worker.orders) for worker in self._workers)

    def push(self, order: Order) -> None:
        self.push_together([order])

    def push_together(self, orders: Sequence[Order]) -> None:
        self._give(min(self._workers, key=lambda worker: len(worker.orders)), orders)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        replies: list[Reply] = []
        while True:
            waiting = timeout
            if timeout is None:
                due = min(map(self._due, self._workers), default=math.inf)
                waiting = min(max(due - self._monotonic(), 0.0), self._patience)
            for key, _ in self._selector.select(waiting):
                replies.extend(self._read(key.data))
            if replies or timeout is not None:
                return replies
            for worker in list(self._workers):
                if self._monotonic() >= self._due(worker):
                    why = f"no result after {self._patience:g} s of real time: worker replaced"
                    replies.extend(self._replace(worker, why))
            if replies:
                return replies

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            self._end(worker)
        self._workers.clear()
        self._selector.close()

    def _begin(self, place: int) -> _Worker:
        """A new worker."""
        ours, theirs = multiprocessing.Pipe()
        how, inherited = "fork", [ours, *(worker.pipe for worker in self._workers)]
        equip: Callable[[], Trainer] = partial(getattr, self, "_trainer")
        if self._devices:
            how, inherited = "spawn", []
            device = self._devices[place % len(self._devices)]
            equip = partial(_unpickled, [self._trainer], device)
        context: Any = multiprocessing.get_context(how)
        process = context.Process(
            target=work,
            args=(theirs, inherited, self._arena, equip, self._upload_extra),
            daemon=True,
        )
        process.start()
        theirs.close()
        worker = _Worker(place, process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, orders: Sequence[Order]) -> None:
        given, messages = zip(*map(self._placed, orders), strict=True)
        if not worker.orders:
            worker.since = self._monotonic()
        worker.orders.append(list(given))
        with suppress(OSError):  # it is dead, and `_read` will see the end of its pipe
            send(worker.pipe, messages)

    def _placed(self, order: Order) -> tuple[_Given, Message]:
        """The order with its vectors in shared memory, and what a worker is told of it."""
        received = [
            self._arena.share(vector) if vector.size else vector
            for vector in (order.vector, *order.extra.values())
        ]
        places = [NOTHING if (slot := self._arena.slot(v)) is None else slot for v in received]
        new = [self._arena.new() for _ in range(1 + len(self._upload_extra))]
        slots = [slot for _, slot in new]
        message = Message(ORDER.of(order), places, list(order.extra), slots)
        return _Given(order, received, [vector for vector, _ in new]), message

    def _read(self, worker: _Worker) -> list[Reply]:
        try:
            answers: list[Answer] | RunError = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(1.0)
            code = worker.process.exitcode
            if code == -signal.SIGTERM:
                # The signal went to the whole process group, so the main process may be about to
                # save a checkpoint. The orders are given again, so that it holds no failure.
                self._renew(worker)
                return []
            return self._replace(worker, f"worker process died (exit code {code})")
        if isinstance(answers, RunError):
            raise answers
        batch = worker.orders.popleft()
        worker.since = self._monotonic()
        return [
            _sealed(answer if isinstance(answer, Reply) else self._with_vectors(given, *answer))
            for given, answer in zip(batch, answers, strict=True)
        ]

    def _with_vectors(
        self, given: _Given, number: int, values: tuple[Any, ...], together: bool
    ) -> Reply:
        vector, *extra = given.results
        named = dict(zip(self._upload_extra, extra, strict=True)) if extra else NO_EXTRA
        return Reply(number, UPLOAD.whole(values, vector, named), together=together)

    def _due(self, worker: _Worker) -> float:
        """When the worker has had its oldest batch for too long; inf = it has none."""
        if not worker.orders:
            return math.inf
        return worker.since + self._patience * len(worker.orders[0])

    def _replace(self, worker: _Worker, reason: str) -> list[Reply]:
        """A new worker takes over the orders behind the one that failed.

        If that was one of several that were computed together, all of them are given again.
        """
        failed = worker.orders.popleft() if worker.orders else []
        if len(failed) > 1:
            worker.orders.extendleft([given] for given in reversed(failed))
            failed = []
        self._renew(worker)
        return [Reply(given.order.number, error=reason) for given in failed]

    def _renew(self, worker: _Worker) -> None:
        """A new worker in place of this one, with its orders."""
        self._selector.unregister(worker.pipe)
        worker.process.kill()
        self._end(worker)
        self._workers.remove(worker)
        fresh = self._begin(worker.place)
        for batch in worker.orders:
            self._give(fresh, [given.order for given in batch])

    def _end(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        worker.process.close()


def _sealed(reply: Reply) -> Reply:
    """The reply, whose vectors nobody can write to."""
    if reply.upload is not None:
        for vector in (reply.upload.vector, *reply.upload.extra.values()):
            if isinstance(vector, np.ndarray):
                vector.flags.writeable = False
    return reply


def _pickled(equip: object) -> bytes:
    try:
        return pickle.dumps(equip, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            "runtime.device needs worker processes that inherit nothing, and what they train "
            f"with cannot be pickled ({error}): define classes and functions in a module, not "
            "in a notebook or in another function, or set runtime.workers=0"
        ) from error


def _unpickled(parcel: list[bytes], device: str) -> Trainer:
    # Pickled in advance: multiprocessing would put tensors into `/dev/shm`, which containers keep
    # small. Popped, so that a worker does not keep the bytes for ever.
    trainer: Trainer = pickle.loads(parcel.pop())(device)
    return trainer
