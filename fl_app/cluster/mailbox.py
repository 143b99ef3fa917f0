"""The mailbox over workers of a cluster: gives them orders in calls, and takes the replies."""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from queue import Empty

from fl_app.cluster.crew import Crew, Member
from fl_app.cluster.machines import Lost, Outcome
from fl_app.cluster.parcels import pack
from fl_app.cluster.results import Results
from fl_app.cluster.versions import Versions
from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply, Vector
from fl_app.core.vector import read_only

CALLS = 2  # that a worker has at most: one at work, one waiting, so that it never waits for us
CALL_SECONDS = 0.1  # of training that a call is worth, against some milliseconds for itself
MOST_ORDERS = 32  # of a call
# A worker that dies takes its call along. After so many such deaths an order has failed: it is the
# likely reason, since from the second on it travels alone. Machines that are lost do not count.
MOST_DEATHS = 3


@dataclass(eq=False)
class _Call:
    orders: list[Order]
    since: float  # when it may have begun


class ClusterMailbox:
    """Mailbox for virtual time: any worker of the cluster serves any client.

    A call carries as many orders as are worth `CALL_SECONDS`. An order is a function of its
    content alone. So if a worker or its machine is lost, others get its orders, and the replies are
    the same. An order whose workers die `MOST_DEATHS` times fails, and so does one that takes
    longer than `patience`.

    Args:
        crew: the workers.
        versions: of the model, in the cluster's store.
        results: what is done with the vectors that come back.
        patience: real seconds that one order may take.
        monotonic: tells real time.

    Raises:
        ValueError: no machine has room for a worker.
        RunError: no worker came up.
    """

    def __init__(
        self,
        crew: Crew,
        versions: Versions,
        results: Results,
        *,
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._crew = crew
        self._versions = versions
        self._results = results
        self._patience = patience
        self._monotonic = monotonic
        self._waiting: deque[Order] = deque()
        self._calls: dict[Member, deque[_Call]] = {}
        self._num_given = 0  # orders in calls
        self._size = 1  # orders of a call
        self._deaths: Counter[int] = Counter()  # by number of the order
        self._replies: list[Reply] = []
        try:
            crew.gather()
        except BaseException:
            crew.close()
            raise

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        places = max(len(self._crew.ready), 1) * CALLS * self._size
        return places - self._num_given - len(self._waiting)

    def push(self, order: Order) -> None:
        self._waiting.append(order)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        until = math.inf if timeout is None else self._monotonic() + timeout
        while True:
            for member in self._crew.look():
                self._give_back(member, Lost("its machine is gone", alone=False))
            self._flush()
            left = max(until - self._monotonic(), 0.0)
            self._receive(min(left, self._crew.seconds_to_look(), self._patience_left()))
            self._replace_hung()
            if self._replies or self._monotonic() >= until:
                replies, self._replies = self._replies, []
                self._flush()
                return replies
            if not self._waiting and not self._num_given:
                return []

    def close(self) -> None:
        self._waiting.clear()
        self._calls.clear()
        self._versions.clear()
        self._crew.close()

    def _flush(self) -> None:
        """Give orders to workers with room, the first ones to whoever has least to do."""
        if not self._waiting:
            return
        ready = self._crew.ready
        places = sum(CALLS - len(self._calls.get(member, ())) for member in ready)
        while self._waiting and places > 0:
            member = min(ready, key=lambda each: len(self._calls.get(each, ())))
            count = min(math.ceil(len(self._waiting) / places), self._size)
            orders = [self._waiting.popleft()]
            # An order whose worker died travels alone, for it may be the reason.
            while (
                len(orders) < count
                and not self._deaths[orders[0].number]
                and not self._deaths[self._waiting[0].number]
            ):
                orders.append(self._waiting.popleft())
            self._give(member, orders)
            places -= 1

    def _give(self, member: Member, orders: list[Order]) -> None:
        call = _Call(orders, self._monotonic())
        self._calls.setdefault(member, deque()).append(call)
        self._num_given += len(orders)
        parcels, references = pack(orders, self._versions.reference)
        then = partial(self._answered, member, call)
        self._crew.call(member, then, "work", parcels, *references)

    def _receive(self, timeout: float) -> None:
        """Handle what has arrived; waits for it."""
        try:
            event = self._crew.inbox.get(timeout=timeout)
            while True:
                event()
                event = self._crew.inbox.get_nowait()
        except Empty:
            pass

    def _answered(self, member: Member, call: _Call, outcome: Outcome) -> None:
        if member.gone:
            return  # its orders were given to others
        if isinstance(outcome, Lost):
            self._crew.lose(member, str(outcome))
            self._give_back(member, outcome)
            return
        if isinstance(outcome, Exception):
            raise RunError(f"a worker of the cluster failed: {outcome}") from outcome
        replies, seconds = outcome
        calls = self._calls[member]
        calls.remove(call)
        self._num_given -= len(call.orders)
        if calls:
            calls[0].since = self._monotonic()
        for order in call.orders:
            self._deaths.pop(order.number, None)
        self._replies.extend(self._results.take(replies))
        each = max(seconds / len(call.orders), 1e-6)
        self._size = max(1, min(int(CALL_SECONDS / each), MOST_ORDERS))

    def _give_back(self, member: Member, lost: Lost) -> None:
        """Let other workers do the orders of a worker that is gone."""
        calls = self._calls.pop(member, deque())
        self._num_given -= sum(len(call.orders) for call in calls)
        if calls and lost.alone:
            for order in calls[0].orders:
                self._deaths[order.number] += 1
        again = []
        for order in (order for call in calls for order in call.orders):
            if self._deaths[order.number] < MOST_DEATHS:
                again.append(order)
            else:
                del self._deaths[order.number]
                told = f"{MOST_DEATHS} workers died with this order, the last one: {lost}"
                self._replies.append(Reply(order.number, error=told))
        self._waiting.extendleft(reversed(again))

    def _patience_left(self) -> float:
        """Seconds until the first worker has had its call for too long."""
        first = min((self._due(calls) for calls in self._calls.values()), default=math.inf)
        return max(first - self._monotonic(), 0.0)

    def _due(self, calls: "deque[_Call]") -> float:
        return calls[0].since + self._patience * len(calls[0].orders) if calls else math.inf

    def _replace_hung(self) -> None:
        now = self._monotonic()
        for member, calls in list(self._calls.items()):
            if now < self._due(calls):
                continue
            reason = f"no result after {self._patience:g} s of real time: worker replaced"
            if len(calls[0].orders) == 1:
                order = calls[0].orders.pop()
                self._num_given -= 1
                self._deaths.pop(order.number, None)
                self._replies.append(Reply(order.number, error=reason))
            self._crew.lose(member, reason)
            self._give_back(member, Lost(reason))
