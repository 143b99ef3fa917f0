"""A worker process: reads orders from its pipe, trains, and writes the results to shared memory."""

import pickle
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from fl_app.core.bugs import traceback_of
from fl_app.core.layout import check_extra
from fl_app.core.types import Order, Scores, Upload, Vector
from fl_app.engine.arena import Arena
from fl_app.engine.clock import NO_VECTOR

# What travels through the pipe: every field of an Order and of an Upload but the vectors.
BESIDE_ORDER, BESIDE_VECTOR = (
    [entry.name for entry in fields(cls) if entry.name not in ("vector", "extra")]
    for cls in (Order, Upload)
)
NOTHING = -1  # in place of a slot: an empty vector, the client continues with its model


class Trainer(Protocol):
    """What a worker calls (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order) -> Upload: ...
    def score(self, order: Order) -> Scores: ...


@runtime_checkable
class BatchTrainer(Trainer, Protocol):
    """A trainer of several clients at once (`fl_app.client.batch.BatchTrainer`).

    Attributes:
        batch: largest number of orders that are to be trained together.
    """

    batch: int

    def train_together(self, orders: Sequence[Order]) -> Sequence[Upload | None]:
        """Upload of every order; None = it is to be trained alone."""
        ...


@dataclass(frozen=True)
class Failure:
    """Why a client has neither an upload nor scores; `traceback` as of `Reply`."""

    reason: str
    traceback: str


Answer: TypeAlias = Upload | Scores | Failure  # of a client


@dataclass(frozen=True)
class Unfit:
    """Sent by a worker that cannot train, and has ended: the reason."""

    reason: str


def carry_out_all(trainer: Trainer, orders: Sequence[Order]) -> list[tuple[Answer, bool]]:
    """The answer to every order, and whether it was computed together with others."""
    uploads: Sequence[Upload | None] = [None] * len(orders)
    if len(orders) > 1 and isinstance(trainer, BatchTrainer):
        # What one of them raises must not be the end of the others. Nor must too little memory.
        with suppress(Exception):
            uploads = trainer.train_together(orders)
    return [
        (_carry_out(trainer, order), False) if upload is None else (upload, True)
        for order, upload in zip(orders, uploads, strict=True)
    ]


def _carry_out(trainer: Trainer, order: Order) -> Answer:
    """A client's upload or scores, or why there are none."""
    try:
        if order.evaluates:
            scores = trainer.score(order)
            if not isinstance(scores, Scores):
                return _unusable(f"the client returned {type(scores).__name__} instead of Scores")
            return scores
        upload = trainer.train(order)
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback_of(error))
    if not isinstance(upload, Upload):
        return _unusable(f"the client returned {type(upload).__name__} instead of an Upload")
    if not isinstance(upload.extra, Mapping):
        return _unusable(
            f"the upload's extra is a {type(upload.extra).__name__} instead of a mapping"
        )
    return upload


def _unusable(reason: str) -> Failure:
    return Failure(reason, traceback=reason)


def work(
    pipe: Connection,
    inherited: Sequence[Connection],
    arena: Arena,
    equip: Callable[[], Trainer],
    upload_extra: Sequence[str],
) -> None:
    """A worker's life: read orders, train, write the results into their slots, say so.

    Args:
        pipe: to the engine's process.
        inherited: other ends of pipes, which a process that was forked has, too.
        arena: has the vectors.
        equip: makes the trainer.
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
        trainer = equip()
    except Exception as error:
        send(pipe, Unfit(f"{type(error).__name__}: {error}"))
        return
    while (batch := messages.get()) is not None:
        orders: list[Order] = []
        results: list[list[Vector]] = []
        for places, slots, names, about in batch:
            received, *extra = (NO_VECTOR if p == NOTHING else arena.view(p) for p in places)
            for vector in (received, *extra):
                vector.flags.writeable = False  # it is the server's, and other clients' too
            beside = dict(zip(BESIDE_ORDER, about, strict=True))
            named = dict(zip(names, extra, strict=True))
            orders.append(Order(vector=received, extra=named, **beside))
            results.append([*map(arena.view, slots)])
        answers = carry_out_all(trainer, orders)
        send(
            pipe,
            [
                (_without_vectors(answer, places, upload_extra), batched)
                for (answer, batched), places in zip(answers, results, strict=True)
            ],
        )


def _without_vectors(
    answer: Answer, results: Sequence[Vector], names: Sequence[str]
) -> Answer | tuple[Any, ...]:
    """What is sent of an answer whose vectors fit into shared memory, or else the answer itself."""
    out, *further = results
    if (
        not isinstance(answer, Upload)
        or not isinstance(answer.vector, np.ndarray)
        or (answer.vector.dtype, answer.vector.shape) != (out.dtype, out.shape)
        or check_extra(answer.extra, tuple(names), out.size)
    ):
        return answer
    np.copyto(out, answer.vector)
    for name, result in zip(names, further, strict=True):
        np.copyto(result, answer.extra[name])
    return tuple(getattr(answer, name) for name in BESIDE_VECTOR)


def _receive(pipe: Connection, messages: SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(pipe.recv())
    messages.put(None)


def send(pipe: Connection, message: object) -> None:
    """Send a message, as `Connection.send` does, but sooner."""
    # `Connection.send` makes a pickler with tables of its own for every message, and a dataclass
    # names its fields one by one: together 0.1 ms a message.
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
