"""Carries out orders: in this process, or in one that reads them from its pipe."""

import pickle
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import numpy as np

from fl_app.core.bugs import traceback_of
from fl_app.core.types import Order, Reply, Scores, Trainer, Upload
from fl_app.engine.arena import Arena


def pack(content: object, out_of_band: Callable[[memoryview], bool]) -> bytes:
    """Orders or replies as bytes; `pickle.loads` takes them with the arrays sent out of band.

    Args:
        content: what is to be sent.
        out_of_band: called once with the memory of each array; whether the bytes leave it out.
    """
    return pickle.dumps(content, 5, buffer_callback=lambda buffer: not out_of_band(buffer.raw()))


def carry_out(trainer: Trainer, orders: Sequence[Order]) -> list[Reply]:
    """The reply to every order; several orders need a `fl_app.client.batch.BatchTrainer`."""
    uploads: Sequence[Upload | None] = [None] * len(orders)
    if len(orders) > 1:
        batch_trainer: Any = trainer
        # An error in one of them, or too little memory, must not fail the others.
        with suppress(Exception):
            uploads = batch_trainer.train_together(orders)
    return [
        _carry_out_one(trainer, order) if upload is None else Reply(order.number, upload)
        for order, upload in zip(orders, uploads, strict=True)
    ]


def _carry_out_one(trainer: Trainer, order: Order) -> Reply:
    try:
        result: Any = trainer.score(order) if order.evaluates else trainer.train(order)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return Reply(order.number, error=reason, traceback=traceback_of(error))
    expected: Any = Scores if order.evaluates else Upload
    if not isinstance(result, expected):
        problem = f"the client returned {type(result).__name__}, expected {expected.__name__}"
    elif order.evaluates:
        return Reply(order.number, scores=result)
    elif isinstance(result.extra, Mapping):
        return Reply(order.number, result)
    else:
        problem = f"the upload's extra is a {type(result.extra).__name__} instead of a mapping"
    return Reply(order.number, error=problem, traceback=problem)


def work(
    pipe: Connection,
    inherited: Sequence[Connection],
    arena: Arena,
    trainer: Trainer,
) -> None:
    """Run a worker: read orders, train, answer.

    A message has orders as `pack` made them, the slots of their arrays out of band, and free slots
    for arrays of the replies. An answer has the replies and the slots that they use.

    Args:
        pipe: to the engine's process.
        inherited: other pipe ends that the forked process has inherited, to be closed.
        arena: holds the vectors.
        trainer: carries out orders.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for other in inherited:
        other.close()  # else the pipes of a dead parent never end
    # Read while training: a client's state can be larger than a pipe, and a parent that waits to
    # send the next order would wait for ever for a worker that waits to send its answer.
    messages: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, messages), daemon=True).start()
    with suppress(BrokenPipeError):  # the parent was killed
        while (message := messages.get()) is not None:
            send(pipe, _answer(trainer, arena, *message))


def _answer(
    trainer: Trainer, arena: Arena, packed: bytes, slots: Sequence[int], free: Sequence[int]
) -> tuple[bytes, list[int]]:
    # Read-only: the server and other clients use them, too.
    buffers = [arena.view(slot).data.toreadonly() for slot in slots]
    replies = carry_out(trainer, pickle.loads(packed, buffers=buffers))
    used: list[int] = []

    def place_in_arena(memory: memoryview) -> bool:
        if memory.nbytes != arena.num_bytes or len(used) == len(free):
            return False
        used.append(free[len(used)])
        arena.view(used[-1])[:] = np.frombuffer(memory, np.float32)
        return True

    return pack(replies, place_in_arena), used


def _receive(pipe: Connection, messages: SimpleQueue[Any]) -> None:
    with suppress(EOFError, OSError):
        while True:
            messages.put(pipe.recv())
    messages.put(None)


def send(pipe: Connection, message: object) -> None:
    """Send a message, as `Connection.send` does, but without a pickler of its own each time."""
    pipe.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))
