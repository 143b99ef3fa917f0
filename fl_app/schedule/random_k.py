"""In every iteration K random clients answer: WKAFL's own simulation."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT
from fl_app.core.pool import ClientPool
from fl_app.core.types import Parts, Rng, Updates
from fl_app.schedule.base import Ids, Schedule, not_waiting


@dataclass(eq=False)
class RandomK(Schedule):
    """Every iteration, K of P clients drawn uniformly without replacement report.

    The speed model of WKAFL's published code: all clients are at work on the model they received
    when they last reported, and iteration j falls on second j of virtual time. The draw decides
    how long each order takes, so this schedule is also the run's devices.

    Args:
        buffer_size: K.
        num_clients: P.
        seed: of the draws.

    Raises:
        ValueError: not 1 <= K <= P.
    """

    buffer_size: int
    num_clients: int
    seed: int

    def __post_init__(self) -> None:
        bound = f"between 1 and num_clients={self.num_clients}"
        fits = COUNT.holds(self.buffer_size) and self.buffer_size <= self.num_clients
        self._require(fits, "buffer_size", bound, "so many are drawn without replacement")
        self._rng = np.random.default_rng((self.seed, 0x5A4D))
        self._iteration = 0
        self._draws: dict[int, deque[int]] = defaultdict(deque)

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Idle clients whose update does not wait for the aggregation."""
        return not_waiting(idle, buffer)

    def validate_population(self, num_clients: int) -> None:
        reason = "draws would name clients that do not exist"
        fits = num_clients == self.num_clients
        self._require(fits, "num_clients", f"num_clients={num_clients}", reason)

    @property
    def devices(self) -> "RandomK":
        return self

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """The order ends with the next iteration that draws this client."""
        upcoming = self._draws[client_id]
        while not upcoming or upcoming[0] <= now:
            if upcoming:
                upcoming.popleft()
            else:
                self._iteration += 1
                for client in self._rng.choice(self.num_clients, self.buffer_size, replace=False):
                    self._draws[int(client)].append(self._iteration)
        return Parts(0.0, upcoming.popleft() - now, 0.0)
