"""Carries out orders: in this process, or in one that reads them from its pipe."""

import pickle
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from inspect import signature
from multiprocessing.connection import Connection
from operator import attrgetter
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from fl_app.core.bugs import traceback_of
from fl_app.core.errors import RunError
from fl_app.core.layout import check_extra, check_shape
from fl_app.core.types import Extra, Order, Reply, Scores, Upload, Vector
from fl_app.engine.arena import Arena
from fl_app.engine.clock import NO_VECTOR

T = TypeVar("T")
VECTORS = ("vector", "extra")

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


class Beside(Generic[T]):
    """What orders or uploads have beside their vectors: a tuple, much sooner pickled than arrays.

    Args:
        kind: `Order` or `Upload`.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind: Callable[..., T] = kind
        self._names = [name for name in signature(kind).parameters if name not in VECTORS]
        self.of: Callable[[T], tuple[Any, ...]] = attrgetter(*self._names)

    def whole(self, values: tuple[Any, ...], vector: Vector, extra: Extra) -> T:
        """The order or upload with these vectors."""
        named = dict(zip(self._names, values, strict=True))
        return self._kind(vector=vector, extra=extra, **named)


ORDER, UPLOAD = Beside(Order), Beside(Upload)

# A reply as it is; or its number, what its upload has beside the vectors, which are in their slots,
# and whether it was computed together with others.
Answer: TypeAlias = Reply | tuple[int, tuple[Any, ...], bool]


class Message(NamedTuple):
    """An order on its way to a worker, whose vectors are in shared memory.

    Attributes:
        order: beside its vectors.
        places: slots of what the client receives: the model, and the extra vectors `names`.
        names: of the extra vectors of the order.
        results: slots for the upload's vector, and for its extra vectors.
    """

    order: tuple[Any, ...]
    places: Sequence[int]
    names: Sequence[str]
    results: Sequence[int]


def carry_out(trainer: Trainer, orders: Sequence[Order]) -> list[Reply]:
    """The reply to every order."""
    uploads: Sequence[Upload | None] = [None] * len(orders)
    if len(orders) > 1 and isinstance(trainer, BatchTrainer):
        # What one of them raises must not be the end of the others. Nor must too little memory.
        with suppress(Exception):
            uploads = trainer.train_together(orders)
    return [
        _alone(trainer, order) if upload is None else Reply(order.number, upload, together=True)
        for order, upload in zip(orders, uploads, strict=True)
    ]


def _alone(trainer: Trainer, order: Order) -> Reply:
    try:
        result: Any = trainer.score(order) if order.evaluates else trainer.train(order)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Reply(order.number, error=reason, traceback=traceback_of(error))
    if order.evaluates and isinstance(result, Scores):
        return Reply(order.number, scores=result)
    problem = f"the client returned {type(result).__name__} instead of "
    problem += "Scores" if order.evaluates else "an Upload"
    if not order.evaluates and isinstance(result, Upload):
        if isinstance(result.extra, Mapping):
            return Reply(order.number, result)
        kind = type(result.extra).__name__
        problem = f"the upload's extra is a {kind} instead of a mapping"
    return Reply(order.number, error=problem, traceback=problem)


def work(
    pipe: Connection,
    inherited: Sequence[Connection],
    arena: Arena,
    equip: Callable[[], Trainer],
    upload_extra: Sequence[str],
) -> None:
    """A worker's life: read orders, train, write the results into their slots, say so.

    It answers each message, which has one or more orders, with a list of `Answer`.

    Args:
        pipe: to the engine's process.
        inherited: other ends of pipes, which a process that was forked has, too.
        arena: has the vectors.
        equip: makes the trainer. What it raises is sent as a `RunError`.
        upload_extra: names of the extra vectors of an upload.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipes of a dead parent never end
    # Read while training: a client's state can be larger than a pipe, and a parent that waits to
    # send the next order would wait for ever for a worker that waits to send its answer.
    messages: SimpleQueue[list[Message] | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    try:
        trainer = equip()
    except Exception as error:
        send(pipe, RunError(f"a worker process cannot train: {type(error).__name__}: {error}"))
        return
    while (batch := messages.get()) is not None:
        orders = [_received(message, arena) for message in batch]
        results = [[arena.view(slot) for slot in message.results] for message in batch]
        replies = carry_out(trainer, orders)
        send(
            pipe,
            [
                _answer(reply, places, upload_extra)
                for reply, places in zip(replies, results, strict=True)
            ],
        )


def _received(message: Message, arena: Arena) -> Order:
    vectors = [NO_VECTOR if place == NOTHING else arena.view(place) for place in message.places]
    for vector in vectors:
        vector.flags.writeable = False  # it is the server's, and other clients' too
    vector, *extra = vectors
    return ORDER.whole(message.order, vector, dict(zip(message.names, extra, strict=True)))


def _answer(reply: Reply, results: Sequence[Vector], names: Sequence[str]) -> Answer:
    """A reply whose vectors are written into their slots if they fit."""
    upload, size = reply.upload, results[0].size
    if upload is None or check_shape(upload.vector, size) or check_extra(upload.extra, names, size):
        return reply
    vectors = (upload.vector, *(upload.extra[name] for name in names))
    for result, vector in zip(results, vectors, strict=True):
        np.copyto(result, vector)
    return reply.number, UPLOAD.of(upload), reply.together


def _receive(pipe: Connection, messages: SimpleQueue[list[Message] | None]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(pipe.recv())
    messages.put(None)


def send(pipe: Connection, message: object) -> None:
    """Send a message, as `Connection.send` does, but without a pickler of its own each time."""
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
