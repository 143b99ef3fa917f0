"""The mailbox over workers of a Ray cluster: sends them orders in calls, and takes the replies."""

import logging
import math
import os
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from fl_app.client.build import Recipe
from fl_app.cluster.connection import connect, disconnect, resources, room
from fl_app.cluster.worker import ClusterWorker, NotReady
from fl_app.core.errors import RunError, error_text
from fl_app.core.types import Order, Reply
from fl_app.engine.clock import Mailbox
from fl_app.engine.worker import pack
from fl_app.engine.workers import read_only_reply

if TYPE_CHECKING:
    from fl_app.runner.components import Components

log = logging.getLogger(__name__)

CALLS = 2  # at most of a worker: one at work and one waiting, so that it never idles
REFRESH = 1.0  # seconds between two checks for new machines
NO_WORKER_SECONDS = 120.0  # that a run waits while no worker can train
INLINE_BYTES = 90 << 10  # at most of a vector within a call; Ray's own limit is 100 KiB
MAX_LETTERS = 300  # of Ray's error messages
CALL_SECONDS = 0.1  # of training in a call, whose overhead is some milliseconds
MAX_ORDERS = 32  # in a call
# A worker that dies loses its call. An order fails after so many lost workers: it is the likely
# reason, since from the second worker on it is sent alone.
MAX_DEATHS = 3


class OrderQueue(deque[Order]):
    """Orders that wait for a worker, grouped into calls of about `CALL_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._deaths: Counter[int] = Counter()  # by number of the order
        self.call_size = 1  # orders of a call

    def next_call(self, places: int) -> list[Order]:
        """The first waiting orders, for one call.

        Args:
            places: calls that workers accept now, >= 1. The waiting orders are spread over them.
        """
        count = min(math.ceil(len(self) / places), self.call_size)
        orders = [self.popleft()]
        # An order that has lost a worker is sent alone, since it may be the reason.
        while (
            len(orders) < count
            and not self._deaths[orders[0].number]
            and not self._deaths[self[0].number]
        ):
            orders.append(self.popleft())
        return orders

    def done(self, orders: Sequence[Order], seconds: float) -> None:
        """Record that a worker carried out a call in `seconds`."""
        for order in orders:
            self._deaths.pop(order.number, None)
        each = max(seconds / len(orders), 1e-6)
        self.call_size = max(1, min(int(CALL_SECONDS / each), MAX_ORDERS))

    def lost(self, calls: Iterable[Sequence[Order]], reason: str) -> list[Reply]:
        """Put the orders of a lost worker back, before all others.

        Args:
            calls: of the worker, oldest first. It was at work on the oldest.
            reason: why it was lost.

        Returns:
            The replies of orders that have failed.
        """
        calls = list(calls)
        for order in calls[0] if calls else ():
            self._deaths[order.number] += 1
        failed, retries = [], []
        for order in (order for call in calls for order in call):
            if self._deaths[order.number] < MAX_DEATHS:
                retries.append(order)
            else:
                del self._deaths[order.number]
                text = f"{MAX_DEATHS} workers died with this order, the last one: {reason}"
                failed.append(Reply(order.number, error=text))
        self.extendleft(reversed(retries))
        return failed


@dataclass(eq=False)
class _Worker:
    """An actor.

    Attributes:
        handle: Ray's.
        ready: whether it accepts orders.
        calls: the orders that it has, oldest call first.
    """

    handle: Any
    ready: bool = False
    calls: deque[list[Order]] = field(default_factory=deque)


@dataclass(eq=False)
class ClusterMailbox(Mailbox):
    """Mailbox for virtual time: any worker of the cluster serves any client.

    Ray restarts a lost worker where there is room. A reply depends only on the order's content. So
    other workers get the orders of a lost worker at once, and the replies are the same.

    This process is connected to the cluster. `close` ends the workers.

    Args:
        recipe: from which workers build their trainers.
        num_workers: on all machines, >= 1; None = as many as there is room for, also on machines
            that join later.
        gpus: GPUs of a worker, >= 0.
        patience: real seconds that one order may take.
        disconnects: whether `close` ends the connection to the cluster, too.

    Raises:
        ValueError: no machine has room for a worker, or the recipe cannot be sent.
        RunError: no worker started.
    """

    recipe: Recipe
    num_workers: int | None = None
    _: KW_ONLY
    gpus: float = 0
    patience: float = 600.0
    disconnects: bool = False

    def __post_init__(self) -> None:
        import ray

        self._ray = ray
        self._queue = OrderQueue()
        self._workers: list[_Worker] = []
        # Reference of a call's result -> its worker and orders; None = the call of `ready`.
        self._calls: dict[Any, tuple[_Worker, list[Order] | None]] = {}
        self._versions: dict[int, Any] = {}  # id of a vector -> its reference
        self._replies: list[Reply] = []
        self._starting = True
        self._next_check = -math.inf
        self._last_ready = time.monotonic()
        self._last_reason = ""
        self._actor = ray.remote(ClusterWorker).options(
            num_cpus=1,
            num_gpus=self.gpus,
            max_restarts=-1,
            scheduling_strategy="SPREAD",
        )
        try:
            self._recipe = ray.put(self.recipe)
            self._start()
        except TypeError as error:
            self.close()
            raise ValueError(
                f"the task or trainer cannot be sent to other machines: {error}"
            ) from error
        except BaseException:
            self.close()
            raise

    def capacity(self) -> int:
        ready = sum(worker.ready for worker in self._workers)
        assigned = sum(len(call) for worker in self._workers for call in worker.calls)
        return max(ready, 1) * CALLS * self._queue.call_size - assigned - len(self._queue)

    def push(self, order: Order) -> None:
        self._queue.append(order)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            self._add_workers()
            self._flush()
            self._receive(min(max(until - time.monotonic(), 0.0), REFRESH))
            if self._replies or time.monotonic() >= until:
                replies, self._replies = self._replies, []
                self._flush()
                return replies
            if not self._queue and not any(worker.calls for worker in self._workers):
                return []

    def close(self) -> None:
        self._queue.clear()
        self._calls.clear()
        self._versions.clear()
        for worker in self._workers:
            with suppress(self._ray.exceptions.RayError, ValueError):  # it may be dead
                self._ray.kill(worker.handle)
        self._workers.clear()
        if self.disconnects:
            disconnect()

    # -- workers ----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Wait until a worker is ready.

        Raises:
            ValueError: no machine has room for a worker.
            RunError: no worker started.
        """
        if not room(self.gpus):
            raise ValueError(
                "runtime.gpus_per_worker is more than any machine of the cluster has, so no worker "
                f"can be placed ({self._offers()}): lower it, or let a larger machine join"
            )
        self._add_workers()
        while not any(worker.ready for worker in self._workers):
            self._receive(REFRESH)
            self._add_workers()
        self._starting = False
        log.info("runtime=ray: %d workers: %s", len(self._workers), self._offers())

    def _offers(self) -> str:
        return ", ".join(
            f"a machine with {each.get('CPU', 0):g} CPUs and {each.get('GPU', 0):g} GPUs"
            for each in resources()
        )

    def _add_workers(self) -> None:
        """Start workers where there is new room.

        Raises:
            RunError: no worker can train.
        """
        now = time.monotonic()
        if now < self._next_check:
            return
        self._next_check = now + REFRESH
        target = self.num_workers or max(room(self.gpus), 1)
        for _ in range(len(self._workers), target):
            worker = _Worker(self._actor.remote(self.patience))
            self._workers.append(worker)
            self._await_ready(worker)
        if any(worker.ready for worker in self._workers):
            self._last_ready = now
        elif not self._calls or now - self._last_ready >= NO_WORKER_SECONDS:
            raise RunError(
                f"no worker is ready to train, and none was for {now - self._last_ready:.0f} s "
                f"({self._last_reason or self._offers()}): end other jobs of the cluster (`ray "
                "status` shows them), free memory on the machines or let others join, and go on "
                "with resume=auto"
            )

    def _await_ready(self, worker: _Worker) -> None:
        """Make a worker ready to train.

        Ray repeats the call until there is room and the worker has started.
        """
        repeated = worker.handle.ready.options(max_task_retries=-1)
        self._calls[repeated.remote(self._recipe)] = worker, None

    def _lose(self, worker: _Worker, error: BaseException) -> None:
        """Give the orders of a worker to others; it takes part again when Ray has restarted it.

        Raises:
            RunError: it never started, and the run has not begun.
        """
        restarts = worker.ready
        self._last_reason = error_text(error)[:MAX_LETTERS]
        log.warning("runtime=ray: a worker is lost: %s", self._last_reason)
        worker.ready = False
        self._calls = {ref: call for ref, call in self._calls.items() if call[0] is not worker}
        self._replies.extend(self._queue.lost(worker.calls, self._last_reason))
        worker.calls.clear()
        if restarts:
            self._await_ready(worker)
        elif self._starting:
            raise RunError(f"a worker of the cluster cannot start: {self._last_reason}") from error

    # -- calls ------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Send orders to workers with room, always to the one with the fewest calls."""
        ready = [worker for worker in self._workers if worker.ready]
        for places in range(sum(CALLS - len(worker.calls) for worker in ready), 0, -1):
            if not self._queue:
                return
            self._give(
                min(ready, key=lambda worker: len(worker.calls)), self._queue.next_call(places)
            )

    def _give(self, worker: _Worker, orders: list[Order]) -> None:
        references: list[Any] = []

        def by_reference(memory: memoryview) -> bool:
            if memory.nbytes <= INLINE_BYTES:
                return False
            references.append(self._reference(memory.obj))
            return True

        packed = pack(orders, by_reference)
        worker.calls.append(orders)
        self._calls[worker.handle.work.remote(packed, *references)] = worker, orders

    def _receive(self, timeout: float) -> None:
        """Handle the next result; waits for it.

        Raises:
            RunError: a worker raised an error.
        """
        errors = self._ray.exceptions
        done, _ = self._ray.wait(list(self._calls), timeout=timeout)
        for reference in done:
            worker, orders = self._calls.pop(reference)
            try:
                result = self._ray.get(reference)
            except errors.RayError as error:
                cause = getattr(error, "cause", None)
                # An error of the worker's own code would recur on others. But a worker that cannot
                # start may be on a machine that lacks something.
                fatal = isinstance(error, errors.RayTaskError) and not isinstance(cause, NotReady)
                if fatal and (orders is not None or self._starting):
                    message = f"a worker of the cluster failed: {error_text(cause or error)}"
                    raise RunError(message) from error
                self._lose(worker, cause or error)
            else:
                if orders is None:
                    worker.ready = True
                else:
                    replies, seconds = result
                    worker.calls.popleft()
                    self._queue.done(orders, seconds)
                    # Copies, since arrays of the result would stay in the cluster's store.
                    self._replies.extend(map(read_only_reply, deepcopy(replies)))

    def _reference(self, vector: Any) -> Any:
        """A reference to an array, of which the cluster's store has one copy.

        Raises:
            RunError: the store has no room for it.
        """
        key = id(vector)
        if key not in self._versions:
            try:
                self._versions[key] = self._ray.put(vector)
            except self._ray.exceptions.RayError as error:
                raise RunError(
                    f"the object store of this machine is full ({error_text(error)[:MAX_LETTERS]})"
                    ": start Ray with a larger --object-store-memory"
                ) from error
            weakref.finalize(vector, self._versions.pop, key, None).atexit = False
        return self._versions[key]


def build_cluster_mailbox(components: "Components") -> ClusterMailbox:
    """Connect to the configured cluster, and start its workers.

    Raises:
        ValueError: a value is not possible on this cluster.
        RunError: there is no such cluster, or no worker started.
    """
    runtime = components.config.runtime
    num_workers = None if runtime.workers == "auto" else int(runtime.workers)
    gpus = runtime.gpus_per_worker
    cores = len(os.sched_getaffinity(0))
    connected = connect(runtime.address, max(cores, num_workers or 0))
    return ClusterMailbox(
        Recipe(components.config, components.trainer.task, components.objects.trainer),
        num_workers,
        gpus=gpus,
        patience=runtime.patience,
        disconnects=connected,
    )
