"""Mailboxes without Flower: training in this process, or in others that run ahead."""

import logging
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
from typing import Any, Protocol, TypeAlias

import numpy as np

from fl_app.core.errors import RunError
from fl_app.core.layout import check_extra
from fl_app.core.types import NO_EXTRA, Order, Reply, Scores, Upload, Vector
from fl_app.core.vector import read_only
from fl_app.engine.arena import Arena
from fl_app.engine.clock import NO_VECTOR

log = logging.getLogger(__name__)

# What travels through the pipe: every field of an Order and of an Upload but the vectors.
BESIDE_ORDER, BESIDE_VECTOR = (
    [entry.name for entry in fields(cls) if entry.name not in ("vector", "extra")]
    for cls in (Order, Upload)
)
Answer: TypeAlias = Upload | Scores | str  # of a client; a text says why there is neither
NOTHING = -1  # in place of a slot: an empty vector, the client continues with its model
# One at work, one waiting, so that a worker never waits for the engine; batches count as one.
ORDERS_PER_WORKER = 2


class Trainer(Protocol):
    """What a worker calls (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order, out: Vector | None = None) -> Upload: ...
    def score(self, order: Order) -> Scores: ...


class BatchTrainer(Protocol):
    """What a worker calls for several orders at once (`fl_app.client.batch.BatchTrainer`)."""

    def train(
        self, orders: Sequence[Order], outs: Sequence[Vector | None]
    ) -> Sequence[Upload | None]:
        """Upload of every order; None = it is to be trained alone."""
        ...

    def notice(self) -> str:
        """What there is to tell the user since the last call; "" = nothing."""
        ...


Equipment: TypeAlias = tuple[Trainer, BatchTrainer | None]  # of a worker


@dataclass(frozen=True)
class _Told:
    """Sent by a worker: something that the user should know."""

    text: str


@dataclass(frozen=True)
class _Unfit:
    """Sent by a worker that cannot train, and has ended: the reason."""

    reason: str


class Inline:
    """Trains in this process, when the engine asks: slow, simple, and open to a debugger.

    Args:
        trainer: carries out orders.
        together: trains several clients in one operation; None = only one at a time is trained.
    """

    def __init__(self, trainer: Trainer, together: BatchTrainer | None = None) -> None:
        self._trainer = trainer
        self._batch_trainer = together
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
        answers = _carry_out_all(self._trainer, self._batch_trainer, orders, [None] * len(orders))
        if self._batch_trainer is not None and (told := self._batch_trainer.notice()):
            log.warning(told)
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
    """

    def __init__(
        self,
        num_workers: int,
        size: int,
        *,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._upload_extra = tuple(upload_extra)
        self._patience = patience
        self._monotonic = monotonic
        self._arena = Arena(size)
        self._selector = selectors.DefaultSelector()
        self._told: set[str] = set()
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
                _send(worker.pipe, messages)
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
            answers: list[tuple[Answer | tuple[Any, ...], bool]] | _Told | _Unfit
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
        if isinstance(answers, _Unfit):
            raise RunError(f"a worker process cannot train: {answers.reason}")
        if isinstance(answers, _Told):
            if answers.text not in self._told:
                self._told.add(answers.text)
                log.warning(answers.text)
            return []
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
        trainer: carries out orders.
        num_workers: processes, >= 1; one per core is best, each on one torch thread.
        size: d, entries of a model vector.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.
        monotonic: tells real time.
        together: trains several clients in one operation; None = only one at a time is trained.
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
        together: BatchTrainer | None = None,
    ) -> None:
        self._equipment: Equipment = trainer, together
        super().__init__(
            num_workers, size, upload_extra=upload_extra, patience=patience, monotonic=monotonic
        )

    def _process(self, place: int, theirs: Connection, ours: Connection) -> BaseProcess:
        inherited = [worker.pipe for worker in self._workers] + [ours]
        return multiprocessing.get_context("fork").Process(
            target=work,
            args=(theirs, inherited, self._arena, lambda: self._equipment, self._upload_extra),
            daemon=True,
        )


def _carry_out_all(
    trainer: Trainer,
    together: BatchTrainer | None,
    orders: Sequence[Order],
    outs: Sequence[Vector | None],
) -> list[tuple[Answer, bool]]:
    """The answer to every order, and whether it was computed together with others."""
    uploads: Sequence[Upload | None] = [None] * len(orders)
    if together is not None and len(orders) > 1:
        # What one of them raises must not be the end of the others.
        with suppress(Exception):
            uploads = together.train(orders, outs)
    return [
        (_carry_out(trainer, order, out), False) if upload is None else (upload, True)
        for order, out, upload in zip(orders, outs, uploads, strict=True)
    ]


def _carry_out(trainer: Trainer, order: Order, out: Vector | None) -> Answer:
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


def _reply(number: int, answer: Answer, together: bool = False) -> Reply:
    if isinstance(answer, str):
        return Reply(number, error=answer)
    if isinstance(answer, Scores):
        return Reply(number, scores=answer)
    for vector in (answer.vector, *answer.extra.values()):
        if isinstance(vector, np.ndarray):
            vector.flags.writeable = False
    return Reply(number, answer, together=together)


def work(
    pipe: Connection,
    inherited: Sequence[Connection],
    arena: Arena,
    equip: Callable[[], Equipment],
    upload_extra: Sequence[str],
) -> None:
    """A worker's life: read orders, train, write the results into their slots, say so.

    Args:
        pipe: to the engine's process.
        inherited: other ends of pipes, which a process that was forked has, too.
        arena: has the vectors.
        equip: makes what trains.
        upload_extra: names of the extra vectors of an upload.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipes of a dead parent never end
    # Read while training: a client's state can be larger than a pipe, and a parent that waits to
    # send the next order would wait for ever for a worker that waits to send its answer.
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    try:
        trainer, together = equip()
    except Exception as error:
        _send(pipe, _Unfit(f"{type(error).__name__}: {error}"))
        return
    while (batch := messages.get()) is not None:
        orders: list[Order] = []
        outs: list[Vector] = []
        further: list[dict[str, Vector]] = []
        for places, slots, names, about in batch:
            received, *extra = (NO_VECTOR if p == NOTHING else arena.view(p) for p in places)
            out, *results = map(arena.view, slots)
            for vector in (received, *extra):
                vector.flags.writeable = False  # it is the server's, and other clients' too
            beside = dict(zip(BESIDE_ORDER, about, strict=True))
            named = dict(zip(names, extra, strict=True))
            orders.append(Order(vector=received, extra=named, **beside))
            outs.append(out)
            further.append(dict(zip(upload_extra, results, strict=True)))
        answers = _carry_out_all(trainer, together, orders, outs)
        if together is not None and (told := together.notice()):
            _send(pipe, _Told(told))
        _send(
            pipe,
            [
                (_without_vectors(answer, out, named), batched)
                for (answer, batched), out, named in zip(answers, outs, further, strict=True)
            ],
        )


def _without_vectors(
    answer: Answer, out: Vector, further: Mapping[str, Vector]
) -> Answer | tuple[Any, ...]:
    """What is sent of an answer whose vectors are in shared memory, or else the answer itself."""
    if (
        not isinstance(answer, Upload)
        or answer.vector is not out
        or check_extra(answer.extra, tuple(further), out.size)
    ):
        return answer
    for name, result in further.items():
        np.copyto(result, answer.extra[name])
    return tuple(getattr(answer, name) for name in BESIDE_VECTOR)


def _receive(pipe: Connection, messages: SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(pipe.recv())
    messages.put(None)


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
