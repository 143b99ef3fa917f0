"""How long a client that fails again and again gets no order."""

from collections import Counter
from collections.abc import Collection

FIRST, LONGEST = 5.0, 600.0  # seconds


class Rests:
    """Counts, by client, the orders in a row that failed.

    A node whose data cannot be read fails within seconds. Without rests it would be given orders
    all the time, and its failures would fill the log and end the run as stalled.

    Args:
        first: seconds after the second failure in a row; every further one doubles them.
    """

    def __init__(self, first: float = FIRST) -> None:
        self._first = first
        self._failures: Counter[int] = Counter()

    def fail(self, client_id: int, others: Collection[int]) -> float:
        """Seconds that the client rests now that an order of it failed; 0 = it does not.

        Args:
            client_id: of the client.
            others: the other clients that are there. If all of them fail too, nobody rests: the
                fault is not the client's, and the run is to end soon.
        """
        self._failures[client_id] += 1
        if self._failures[client_id] == 1 or all(self._failures[other] for other in others):
            return 0.0
        doublings = min(self._failures[client_id] - 2, 10)
        return min(self._first * 2.0**doublings, LONGEST)

    def forget(self, client_id: int) -> None:
        """Count anew: the client answered, or another node serves it."""
        self._failures.pop(client_id, None)
