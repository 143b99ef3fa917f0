"""Orders on their way to the workers of a cluster: which ones go together, and which go again."""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fl_app.core.types import NO_EXTRA, Order, Reply, Vector
from fl_app.engine.clock import NO_VECTOR

CALL_SECONDS = 0.1  # of training that a call is worth, against some milliseconds for itself
MOST_ORDERS = 32  # of a call
# A worker that dies takes its call along. An order that has lost so many workers has failed: it is
# the likely reason, since it travels alone from the second worker on.
MOST_DEATHS = 3


class OrderQueue:
    """Orders that wait for a worker, in calls of as many as are worth `CALL_SECONDS`."""

    def __init__(self) -> None:
        self._waiting: deque[Order] = deque()
        self._deaths: Counter[int] = Counter()  # by number of the order
        self.call_size = 1  # orders of a call

    def __len__(self) -> int:
        return len(self._waiting)

    def push(self, order: Order) -> None:
        self._waiting.append(order)

    def next_call(self, places: int) -> list[Order]:
        """The first waiting orders, for one call.

        Args:
            places: calls that workers accept now, >= 1. The waiting orders are spread over them.
        """
        count = min(math.ceil(len(self._waiting) / places), self.call_size)
        orders = [self._waiting.popleft()]
        # An order that has lost a worker travels alone, for it may be the reason.
        while (
            len(orders) < count
            and not self._deaths[orders[0].number]
            and not self._deaths[self._waiting[0].number]
        ):
            orders.append(self._waiting.popleft())
        return orders

    def done(self, orders: Sequence[Order], seconds: float) -> None:
        """Note that a call was carried out, in so many seconds of a worker."""
        for order in orders:
            self._deaths.pop(order.number, None)
        each = max(seconds / len(orders), 1e-6)
        self.call_size = max(1, min(int(CALL_SECONDS / each), MOST_ORDERS))

    def lost(self, calls: Iterable[Sequence[Order]], reason: str) -> list[Reply]:
        """Let orders of a lost worker wait again, before all others.

        Args:
            calls: of the worker, oldest first. It was at work on the oldest.
            reason: why it was lost.

        Returns:
            The replies of orders that have failed.
        """
        calls = list(calls)
        for order in calls[0] if calls else ():
            self._deaths[order.number] += 1
        failed, again = [], []
        for order in (order for call in calls for order in call):
            if self._deaths[order.number] < MOST_DEATHS:
                again.append(order)
            else:
                del self._deaths[order.number]
                text = f"{MOST_DEATHS} workers died with this order, the last one: {reason}"
                failed.append(Reply(order.number, error=text))
        self._waiting.extendleft(reversed(again))
        return failed

    def clear(self) -> None:
        self._waiting.clear()


@dataclass(frozen=True, slots=True)
class Parcel:
    """An order whose vectors travel beside it, since several orders share them.

    Attributes:
        order: without vectors.
        place: of its vector among those of the call.
        extra: places of its extra vectors, by name.
    """

    order: Order
    place: int
    extra: dict[str, int]


def pack(
    orders: Sequence[Order], reference: Callable[[Vector], Any]
) -> tuple[list[Parcel], list[Any]]:
    """Parcels of some orders, and references to the vectors that they share.

    Args:
        orders: in the sequence in which they are to be carried out.
        reference: what travels in place of a vector; called once for each.
    """
    places: dict[int, int] = {}
    references: list[Any] = []

    def place(vector: Vector) -> int:
        if id(vector) not in places:
            places[id(vector)] = len(references)
            references.append(reference(vector))
        return places[id(vector)]

    parcels = [
        Parcel(
            replace(order, vector=NO_VECTOR, extra=NO_EXTRA),
            place(order.vector),
            {name: place(vector) for name, vector in order.extra.items()},
        )
        for order in orders
    ]
    return parcels, references


def unpack(parcels: Iterable[Parcel], vectors: Sequence[Vector]) -> list[Order]:
    """The orders of a call, with its vectors."""
    return [
        replace(
            parcel.order,
            vector=vectors[parcel.place],
            extra={name: vectors[place] for name, place in parcel.extra.items()} or NO_EXTRA,
        )
        for parcel in parcels
    ]
