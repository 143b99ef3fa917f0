"""Mailboxes without Flower: training in this process, or in others that run ahead."""

import math
import multiprocessing
import os
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np

from fl_app.core.errors import RunError
from fl_app.core.types import NO_EXTRA, Order, Reply, Scores, Upload, Vector
from fl_app.core.vector import read_only
from fl_app.engine.arena import Arena
from fl_app.engine.worker import (
    BESIDE_ORDER,
    BESIDE_VECTOR,
    NOTHING,
    Answer,
    BatchTrainer,
    Failure,
    Trainer,
    Unfit,
    carry_out_all,
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
        self.batch = batch_of(trainer)
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
        answers = carry_out_all(self._trainer, orders)
        return [
            _reply(order.number, answer, together)
            for order, (answer, together) in zip(orders, answers, strict=True)
        ]

    def close(self) -> None:
        self._batches.clear()


@dataclass
class _Given:
    """An order with a worker.

    Attributes:
        order: the order.
        received: the vectors that are sent, kept alive here.
        results: those for the results.
    """

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


class Processes:
    """Trains in worker processes, which get two orders each and read models from shared memory.

    A subclass says how a process starts.

    Only small tuples travel through pipes. A worker that dies, or works on one order for longer
    than `patience`, is replaced: its current order fails, and the new worker gets the order that
    waited behind it. If SIGTERM ended the worker, the new one gets both. Orders that are computed
    together count as one; if their worker is replaced, the new one gets them one by one.

    Args:
        num_workers: processes, >= 1.
        size: d, entries of a model vector.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.
        monotonic: tells real time.
        batch: largest number of orders that a worker computes together, >= 1.
    """

    def __init__(
        self,
        num_workers: int,
        size: int,
        *,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
        batch: int = 1,
    ) -> None:
        self.batch = batch
        self._upload_extra = tuple(upload_extra)
        self._patience = patience
        self._monotonic = monotonic
        self._arena = Arena(size)
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        for place in range(num_workers):
            self._workers.append(self._begin(place))

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
            waiting = self._patience_left() if timeout is None else timeout
            for key, _ in self._selector.select(waiting):
                replies.extend(self._read(key.data))
            if replies or timeout is not None:
                return replies
            replies.extend(self._replace_hung())

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()
            worker.process.close()
        self._workers.clear()
        self._selector.close()

    def _begin(self, place: int) -> _Worker:
        """A new worker."""
        ours, theirs = multiprocessing.Pipe()
        process = self._process(place, theirs, ours)
        process.start()
        theirs.close()
        _limit(ours, self._patience)
        worker = _Worker(place, process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _process(self, place: int, theirs: Connection, ours: Connection) -> BaseProcess:
        """The process of a new worker, which is to `work`; not yet started.

        Args:
            place: of the worker among all.
            theirs: its end of the pipe.
            ours: the other end.
        """
        raise NotImplementedError

    def _give(self, worker: _Worker, orders: Sequence[Order]) -> None:
        given, messages = zip(*map(self._placed, orders), strict=True)
        if not worker.orders:
            worker.since = self._monotonic()
        worker.orders.append(list(given))
        with suppress(OSError):  # it is dead, and `_read` will see the end of its pipe
            try:
                send(worker.pipe, messages)
            except BlockingIOError:  # it stopped reading, half a message is in its pipe
                worker.process.kill()

    def _placed(self, order: Order) -> tuple[_Given, tuple[Any, ...]]:
        """The order with its vectors in shared memory, and what a worker is told of it."""
        received, places = [], []
        for vector in (order.vector, *order.extra.values()):
            place = self._arena.slot(vector) if vector.size else NOTHING
            if place is None:  # not a shared version, but the strategy's own vector
                vector = self._arena.share(vector)
                place = self._arena.slot(vector)
            received.append(vector)
            places.append(place)
        results, slots = zip(
            *(self._arena.new() for _ in range(1 + len(self._upload_extra))), strict=True
        )
        about = [getattr(order, name) for name in BESIDE_ORDER]
        return _Given(order, received, list(results)), (places, slots, list(order.extra), about)

    def _read(self, worker: _Worker) -> list[Reply]:
        try:
            answers: list[tuple[Answer | tuple[Any, ...], bool]] | Unfit
            answers = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(1.0)
            code = worker.process.exitcode
            if code == -signal.SIGTERM:
                # The signal went to the whole process group, so the main process may be about to
                # save a checkpoint. The orders are given again, so that it holds no failure.
                self._renew(worker)
                return []
            return self._replace(worker, f"worker process died (exit code {code})")
        if isinstance(answers, Unfit):
            raise RunError(f"a worker process cannot train: {answers.reason}")
        batch = worker.orders.popleft()
        worker.since = self._monotonic()
        return [
            _reply(given.order.number, self._with_vectors(answer, given), together)
            for given, (answer, together) in zip(batch, answers, strict=True)
        ]

    def _with_vectors(self, answer: Answer | tuple[Any, ...], given: _Given) -> Answer:
        """An answer as the client gave it."""
        if not isinstance(answer, tuple):
            return answer
        result, *extra = given.results
        named = dict(zip(self._upload_extra, extra, strict=True)) if extra else NO_EXTRA
        beside = dict(zip(BESIDE_VECTOR, answer, strict=True))
        return Upload(vector=result, extra=named, **beside)

    def _patience_left(self) -> float:
        """Seconds until the first worker has had its order for too long."""
        first = min((self._due(worker) for worker in self._workers), default=math.inf)
        return min(max(first - self._monotonic(), 0.0), self._patience)

    def _due(self, worker: _Worker) -> float:
        """When the worker has had its oldest batch for too long; inf = it has none."""
        if not worker.orders:
            return math.inf
        return worker.since + self._patience * len(worker.orders[0])

    def _replace_hung(self) -> list[Reply]:
        now = self._monotonic()
        for worker in self._workers:
            if now >= self._due(worker):
                return self._replace(
                    worker, f"no result after {self._patience:g} s of real time: worker replaced"
                )
        return []

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
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        worker.process.close()
        self._workers.remove(worker)
        fresh = self._begin(worker.place)
        self._workers.append(fresh)
        for batch in worker.orders:
            self._give(fresh, [given.order for given in batch])


class Workers(Processes):
    """Worker processes that are forked, and inherit their trainer with its data.

    Args:
        trainer: carries out orders; if it is a `BatchTrainer`, several at once.
        num_workers: processes, >= 1; one per core is best, each on one torch thread.
        size: d, entries of a model vector.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.
        monotonic: tells real time.
    """

    def __init__(
        self,
        trainer: Trainer,
        num_workers: int,
        size: int,
        *,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._trainer = trainer
        super().__init__(
            num_workers,
            size,
            upload_extra=upload_extra,
            patience=patience,
            monotonic=monotonic,
            batch=batch_of(trainer),
        )

    def _process(self, place: int, theirs: Connection, ours: Connection) -> BaseProcess:
        inherited = [worker.pipe for worker in self._workers] + [ours]
        return multiprocessing.get_context("fork").Process(
            target=work,
            args=(theirs, inherited, self._arena, lambda: self._trainer, self._upload_extra),
            daemon=True,
        )


def batch_of(trainer: Trainer) -> int:
    """Largest number of orders that a trainer carries out together."""
    return trainer.batch if isinstance(trainer, BatchTrainer) else 1


def _reply(number: int, answer: Answer, together: bool = False) -> Reply:
    if isinstance(answer, Failure):
        return Reply(number, error=answer.reason, traceback=answer.traceback)
    if isinstance(answer, Scores):
        return Reply(number, scores=answer)
    for vector in (answer.vector, *answer.extra.values()):
        if isinstance(vector, np.ndarray):
            vector.flags.writeable = False
    return Reply(number, answer, together=together)


def _limit(pipe: Connection, seconds: float) -> None:
    """Make a write to the pipe (a socket) that blocks for `seconds` raise BlockingIOError."""
    whole = int(min(seconds, 1e9))
    limit = struct.pack("ll", whole, int(1e6 * (min(seconds, 1e9) - whole)))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
