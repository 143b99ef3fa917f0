"""Mailboxes without Flower: training in this process, or in others that run ahead."""

import multiprocessing
import pickle
import selectors
import signal
import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import numpy as np

from fl_app.core.types import Order, Reply, Trainer, Vector
from fl_app.engine.arena import Arena
from fl_app.engine.clock import Mailbox
from fl_app.engine.worker import carry_out, pack, send, work

# Held by a thread that computes. A process that is forked meanwhile could wait for ever for one of
# torch's locks that the thread holds.
computing = threading.Lock()

# One at work, one waiting, so that a worker never waits for the engine; batches count as one.
ORDERS_PER_WORKER = 2


def batch_of(trainer: Trainer) -> int:
    """How many orders a trainer carries out at once."""
    return getattr(trainer, "batch", 1) if hasattr(trainer, "train_together") else 1


class Inline(Mailbox):
    """Trains in this process, when the engine asks: slow, simple, and open to a debugger.

    Args:
        trainer: carries out orders; up to its `batch` at once if it can `train_together`.

    Attributes:
        batch: how many orders it carries out at once.
    """

    def __init__(self, trainer: Trainer) -> None:
        self.batch = batch_of(trainer)
        self._trainer = trainer
        self._batches: deque[Sequence[Order]] = deque()

    def capacity(self) -> int:
        return 1 - len(self._batches)

    def push(self, *orders: Order) -> None:
        self._batches.append(orders)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        if not self._batches or timeout == 0.0:
            return []
        return map(read_only_reply, carry_out(self._trainer, self._batches.popleft()))

    def close(self) -> None:
        self._batches.clear()


@dataclass
class _Batch:
    """Orders that a worker computes together."""

    orders: Sequence[Order]
    received: dict[int, Vector]
    """Vectors in shared memory that it reads, by slot."""
    results: dict[int, Vector]
    """Vectors there that its replies may fill, by slot."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    batches: deque[_Batch] = field(default_factory=deque)
    """Oldest first."""


class Workers(Mailbox):
    """Trains in worker processes, which get two orders each and read models from shared memory.

    Arrays as large as a model do not travel through pipes. A worker that dies is replaced: its
    current order fails, and the new worker gets the order that waited behind it. If SIGTERM ended
    the worker, the new one gets both. Orders that are computed together count as one; if their
    worker is replaced, the new one gets them one by one.

    Args:
        trainer: carries out orders; up to its `batch` at once if it can `train_together`. Workers
            are forked and inherit it with its data. It uses no GPU: a forked process cannot.
        num_workers: processes, >= 1; one per core is best, each on one torch thread.
        size: d, entries of a model vector.
        vectors: of an upload, with its extra ones, >= 1.

    Attributes:
        batch: how many orders a worker carries out at once.
    """

    def __init__(self, trainer: Trainer, num_workers: int, size: int, *, vectors: int = 1) -> None:
        self.batch = batch_of(trainer)
        self._trainer = trainer
        self._vectors = vectors
        self._arena = Arena(size)
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        for _ in range(num_workers):
            self._begin()

    def share(self, vector: Vector) -> Vector:
        return self._arena.store(vector)[1]

    def capacity(self) -> int:
        return sum(ORDERS_PER_WORKER - len(worker.batches) for worker in self._workers)

    def push(self, *orders: Order) -> None:
        self._give(min(self._workers, key=lambda worker: len(worker.batches)), orders)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        replies: list[Reply] = []
        while True:
            for key, _ in self._selector.select(timeout):
                replies.extend(self._read(key.data))
            if replies or timeout is not None:
                return replies

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            self._end(worker)
        self._workers.clear()
        self._selector.close()

    def _begin(self) -> _Worker:
        """A new worker."""
        ours, theirs = multiprocessing.Pipe()
        inherited = [ours, *(worker.pipe for worker in self._workers)]
        process = multiprocessing.get_context("fork").Process(
            target=work, args=(theirs, inherited, self._arena, self._trainer), daemon=True
        )
        with computing:
            process.start()
        theirs.close()
        worker = _Worker(process, ours)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._workers.append(worker)
        return worker

    def _give(self, worker: _Worker, orders: Sequence[Order]) -> None:
        received: dict[int, Vector] = {}
        slots: list[int] = []

        def place_in_arena(memory: memoryview) -> bool:
            if memory.nbytes != self._arena.num_bytes:
                return False
            slot, received[slot] = self._arena.store(np.frombuffer(memory, np.float32))
            slots.append(slot)
            return True

        packed = pack(orders, place_in_arena)
        results = dict(self._arena.new() for _ in range(self._vectors * len(orders)))
        worker.batches.append(_Batch(orders, received, results))
        with suppress(OSError):  # it is dead, and `_read` will see the end of its pipe
            send(worker.pipe, (packed, slots, list(results)))

    def _read(self, worker: _Worker) -> list[Reply]:
        try:
            packed, slots = worker.pipe.recv()
        except (EOFError, OSError):
            return self._replace(worker)
        batch = worker.batches.popleft()
        replies = pickle.loads(packed, buffers=[batch.results[slot] for slot in slots])
        return [read_only_reply(reply) for reply in replies]

    def _replace(self, worker: _Worker) -> list[Reply]:
        """Replace a worker that died; the new one gets its orders, except for one that has failed.

        If several orders were computed together, all of them are given again.
        """
        worker.process.join(1.0)
        code = worker.process.exitcode
        current: Sequence[Order] = ()
        # SIGTERM went to the whole process group, so the main process may be about to save a
        # checkpoint. All orders are given again, so that it holds no failure.
        if worker.batches and code != -signal.SIGTERM:
            current = worker.batches.popleft().orders
        self._selector.unregister(worker.pipe)
        worker.process.kill()
        self._end(worker)
        self._workers.remove(worker)
        fresh = self._begin()
        failed = current if len(current) == 1 else ()
        retried = [] if failed else [[order] for order in current]
        for orders in (*retried, *(batch.orders for batch in worker.batches)):
            self._give(fresh, orders)
        error = f"worker process died (exit code {code})"
        return [Reply(order.number, error=error) for order in failed]

    def _end(self, worker: _Worker) -> None:
        worker.process.join()
        worker.pipe.close()
        worker.process.close()


def read_only_reply(reply: Reply) -> Reply:
    """The same reply, with its vectors made read-only."""
    if reply.upload is not None:
        for vector in (reply.upload.vector, *reply.upload.extra.values()):
            if isinstance(vector, np.ndarray):
                vector.flags.writeable = False
    return reply
