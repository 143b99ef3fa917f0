"""Mailboxes without Flower: training in this process, or in forked ones that run ahead."""

import math
import multiprocessing
import os
import pickle
import selectors
import signal
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from fl_app.core.layout import check_extra
from fl_app.core.types import NO_EXTRA, Order, Reply, Scores, Upload, Vector
from fl_app.core.vector import read_only
from fl_app.engine.arena import Arena
from fl_app.engine.clock import NO_VECTOR

# What travels through the pipe: every field of an Order and of an Upload but the vectors.
BESIDE_ORDER, BESIDE_VECTOR = (
    [entry.name for entry in fields(cls) if entry.name not in ("vector", "extra")]
    for cls in (Order, Upload)
)
NOTHING = -1  # in place of a slot: an empty vector, the client continues with its model
ORDERS_PER_WORKER = 2  # one at work, one waiting, so that a worker never waits for the engine


class Trainer(Protocol):
    """What a worker calls (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order, out: Vector | None = None) -> Upload: ...
    def score(self, order: Order) -> Scores: ...


class Inline:
    """Trains in this process, when the engine asks: slow, simple, and open to a debugger."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._orders: deque[Order] = deque()

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        return 1 - len(self._orders)

    def push(self, order: Order) -> None:
        self._orders.append(order)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        if not self._orders or timeout == 0.0:
            return []
        order = self._orders.popleft()
        return [_reply(order.number, _carry_out(self._trainer, order, None))]

    def close(self) -> None:
        self._orders.clear()


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    orders: deque[tuple[Order, list[Vector], list[Vector]]] = field(default_factory=deque)
    """Oldest first; with the vectors that are sent, kept alive here, and those for the results."""
    since: float = 0.0
    """When the oldest order may have begun."""


class Workers:
    """Trains in worker processes, which get two orders each and read models from shared memory.

    Only small tuples travel through pipes. A worker that dies, or works on one order for longer
    than `patience`, is replaced: its current order fails, and the new worker gets the order that
    waited behind it. If SIGTERM ended the worker, the new one gets both.

    Args:
        trainer: inherited by every worker, with its data, through fork.
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
        self._upload_extra = tuple(upload_extra)
        self._patience = patience
        self._monotonic = monotonic
        self._arena = Arena(size)
        self._selector = selectors.DefaultSelector()
        self._context = multiprocessing.get_context("fork")
        self._workers: list[_Worker] = []
        for _ in range(num_workers):
            self._workers.append(self._spawn())

    def share(self, vector: Vector) -> Vector:
        return self._arena.share(vector)

    def capacity(self) -> int:
        return sum(ORDERS_PER_WORKER - len(worker.orders) for worker in self._workers)

    def push(self, order: Order) -> None:
        self._give(min(self._workers, key=lambda worker: len(worker.orders)), order)

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

    def _spawn(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        inherited = [worker.pipe for worker in self._workers] + [ours]
        process = self._context.Process(
            target=_work,
            args=(theirs, inherited, self._arena, self._trainer, self._upload_extra),
            daemon=True,
        )
        process.start()
        theirs.close()
        _limit(ours, self._patience)
        worker = _Worker(process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        return worker

    def _give(self, worker: _Worker, order: Order) -> None:
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
        if not worker.orders:
            worker.since = self._monotonic()
        worker.orders.append((order, received, list(results)))
        with suppress(OSError):  # it is dead, and `_read` will see the end of its pipe
            about = [getattr(order, name) for name in BESIDE_ORDER]
            try:
                _send(worker.pipe, (places, slots, list(order.extra), about))
            except BlockingIOError:  # it stopped reading, half a message is in its pipe
                worker.process.kill()

    def _read(self, worker: _Worker) -> list[Reply]:
        try:
            answer: Upload | Scores | tuple[Any, ...] | str = worker.pipe.recv()
        except (EOFError, OSError):
            worker.process.join(1.0)
            code = worker.process.exitcode
            if code == -signal.SIGTERM:
                # The signal went to the whole process group, so the main process may be about to
                # save a checkpoint. The orders are given again, so that it holds no failure.
                self._renew(worker)
                return []
            return self._replace(worker, f"worker process died (exit code {code})")
        order, _, (result, *extra) = worker.orders.popleft()
        worker.since = self._monotonic()
        if isinstance(answer, tuple):
            named = dict(zip(self._upload_extra, extra, strict=True)) if extra else NO_EXTRA
            beside = dict(zip(BESIDE_VECTOR, answer, strict=True))
            answer = Upload(vector=result, extra=named, **beside)
        return [_reply(order.number, answer)]

    def _patience_left(self) -> float:
        """Seconds until the first worker has had its order for too long."""
        began = min((w.since for w in self._workers if w.orders), default=math.inf)
        return min(max(began + self._patience - self._monotonic(), 0.0), self._patience)

    def _replace_hung(self) -> list[Reply]:
        now = self._monotonic()
        for worker in self._workers:
            if worker.orders and now - worker.since >= self._patience:
                return self._replace(
                    worker, f"no result after {self._patience:g} s of real time: worker replaced"
                )
        return []

    def _replace(self, worker: _Worker, reason: str) -> list[Reply]:
        """A new worker takes over the orders behind the one that failed."""
        failed = [worker.orders.popleft()] if worker.orders else []
        self._renew(worker)
        return [Reply(order.number, error=reason) for order, *_ in failed]

    def _renew(self, worker: _Worker) -> None:
        """A new worker in place of this one, with its orders."""
        self._selector.unregister(worker.pipe)
        worker.pipe.close()
        worker.process.kill()
        worker.process.join()
        worker.process.close()
        self._workers.remove(worker)
        fresh = self._spawn()
        self._workers.append(fresh)
        for order, *_ in worker.orders:
            self._give(fresh, order)


def _carry_out(trainer: Trainer, order: Order, out: Vector | None) -> Upload | Scores | str:
    """A client's upload or scores, or the reason why there are none."""
    try:
        if order.evaluates:
            scores = trainer.score(order)
            if not isinstance(scores, Scores):
                return f"the client returned {type(scores).__name__} instead of Scores"
            return scores
        upload = trainer.train(order, out)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if not isinstance(upload, Upload):
        return f"the client returned {type(upload).__name__} instead of an Upload"
    if not isinstance(upload.extra, Mapping):
        return f"the upload's extra is a {type(upload.extra).__name__} instead of a mapping"
    return upload


def _reply(number: int, answer: Upload | Scores | str) -> Reply:
    if isinstance(answer, str):
        return Reply(number, error=answer)
    if isinstance(answer, Scores):
        return Reply(number, scores=answer)
    for vector in (answer.vector, *answer.extra.values()):
        if isinstance(vector, np.ndarray):
            vector.flags.writeable = False
    return Reply(number, answer)


def _work(
    pipe: Connection,
    inherited: Sequence[Connection],
    arena: Arena,
    trainer: Trainer,
    upload_extra: Sequence[str],
) -> None:
    """A worker's life: read an order, train, write the results into their slots, say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipes of a dead parent never end
    # Read while training: a client's state can be larger than a pipe, and a parent that waits to
    # send the next order would wait for ever for a worker that waits to send its answer.
    orders: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, orders), daemon=True).start()
    while (message := orders.get()) is not None:
        places, slots, names, about = message
        received, *extra = (NO_VECTOR if p == NOTHING else arena.view(p) for p in places)
        out, *results = map(arena.view, slots)
        for vector in (received, *extra):
            vector.flags.writeable = False  # it is the server's, and other clients' too
        beside = dict(zip(BESIDE_ORDER, about, strict=True))
        order = Order(vector=received, extra=dict(zip(names, extra, strict=True)), **beside)
        answer = _carry_out(trainer, order, out)
        if (
            isinstance(answer, Upload)
            and answer.vector is out
            and not check_extra(answer.extra, upload_extra, out.size)
        ):
            for name, result in zip(upload_extra, results, strict=True):
                np.copyto(result, answer.extra[name])
            _send(pipe, tuple(getattr(answer, name) for name in BESIDE_VECTOR))
        else:
            _send(pipe, answer)


def _receive(pipe: Connection, orders: SimpleQueue[tuple[Any, ...] | None]) -> None:
    with suppress(EOFError, OSError):
        while True:
            orders.put(pipe.recv())
    orders.put(None)


def _limit(pipe: Connection, seconds: float) -> None:
    """Make a write to the pipe (a socket) that blocks for `seconds` raise BlockingIOError."""
    whole = int(min(seconds, 1e9))
    limit = struct.pack("ll", whole, int(1e6 * (min(seconds, 1e9) - whole)))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _send(pipe: Connection, message: object) -> None:
    # `Connection.send` makes a pickler with tables of its own for every message, and a dataclass
    # names its fields one by one: together 0.1 ms a message.
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
