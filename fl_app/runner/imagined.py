"""How fast a run would be, if an order took as long as was measured: an engine without training."""

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from fl_app.core.events import Arrived, Event
from fl_app.core.types import Order, Reply, Upload, Vector
from fl_app.core.vector import read_only
from fl_app.engine.engine import Engine
from fl_app.engine.workers import ORDERS_PER_WORKER


class ImaginedWorkers:
    """A mailbox whose workers do nothing, for as long as training would take.

    What the engine does itself takes the processor time that it takes.

    Args:
        upload: the answer to every order.
        num_workers: >= 1.
        num_cores: that the engine and the workers share; None = the workers use none.
        seconds: of an operation that trains so many clients.
        message: seconds that engine and worker take each to pass on an order and its upload.
    """

    def __init__(
        self,
        upload: Upload,
        num_workers: int,
        num_cores: int | None,
        seconds: Callable[[int], float],
        message: float = 0.0,
    ) -> None:
        self._upload = upload
        self._seconds = seconds
        self._num_cores = num_cores
        self._message = message
        self._messages = 0  # from the engine
        self._began = time.process_time()
        self._waited = 0.0  # seconds that the engine did nothing
        self._computed = 0.0  # seconds of work of all workers
        self._free = [0.0] * num_workers  # when each has done what it was given
        self._under_way: list[tuple[float, int, Sequence[Order]]] = []  # when it ends

    @property
    def now(self) -> float:
        """Imagined seconds since the start."""
        worked = time.process_time() - self._began + self._message * self._messages
        if self._num_cores is None:
            return self._waited + worked
        # Cores that have no time to wait are shared.
        return max(self._waited + worked, (worked + self._computed) / self._num_cores)

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        return ORDERS_PER_WORKER * len(self._free) - len(self._under_way)

    def push(self, order: Order) -> None:
        self.push_together([order])

    def push_together(self, orders: Sequence[Order]) -> None:
        self._messages += len(orders)
        seconds = self._seconds(len(orders)) + self._message * len(orders)
        end = max(self.now, heapq.heappop(self._free)) + seconds
        self._computed += seconds
        heapq.heappush(self._free, end)
        heapq.heappush(self._under_way, (end, orders[0].number, orders))

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        if timeout is None:
            self._waited += max(0.0, self._under_way[0][0] - self.now)
        replies = []
        while self._under_way and (timeout is None or self._under_way[0][0] <= self.now):
            _, _, orders = heapq.heappop(self._under_way)
            replies += [
                Reply(order.number, replace(self._upload), together=len(orders) > 1)
                for order in orders
            ]
            timeout = 0.0
        return replies

    def close(self) -> None: ...


class Stopwatch:
    """A sink that counts updates a second, and ends the run.

    Args:
        workers: whose seconds count.
        first: updates that do not count: all clients start together, as they do not later.
        budget: seconds of processor time after which the run ends.
    """

    def __init__(self, workers: ImaginedWorkers, first: int, budget: float) -> None:
        self.engine: Engine | None = None
        self._workers = workers
        self._first = first
        self._end = time.process_time() + budget
        self._times: list[float] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Arrived):
            self._times.append(self._workers.now)
        if time.process_time() > self._end and self.engine is not None:
            self.engine.stop()

    def close(self) -> None: ...

    def rate(self) -> float:
        """Updates a second; 0 if there were none."""
        times = [0.0, *self._times]
        first = self._first if len(times) > 2 * self._first else 0
        return (len(times) - 1 - first) / max(times[-1] - times[first], 1e-9)
