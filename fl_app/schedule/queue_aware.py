"""Clients train for the time of a round that their queue leaves: FedQueue's schedule."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, SHARE, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Config, Parts, Rng, Update, Updates
from fl_app.schedule.base import Ids, not_waiting
from fl_app.schedule.timed import Timed

MIN_BUDGET = 0.5  # seconds of training that every order has
MIN_PACE = 1e-9  # seconds a step


@dataclass(eq=False)
class QueueAware(Timed):
    """Rounds of T seconds; each client trains for the time that its queue is expected to leave.

    The scheduler of FedQueue (Li et al. 2026, arXiv:2605.02125), as in its authors' code. With
    q_i the smoothed seconds before client i's training begins and c_i those of one of its steps,

        H_i = max(floor(max(1/2, T - q_i - theta) / c_i), H_0),    rate factor min_j H_j / H_i

    The buffer is aggregated when no client is at work, at the latest (1 + epsilon) T seconds after
    the last aggregation. An update whose order waited longer than q_i + alpha T, with the q_i of
    its dispatch, is not admitted to its own round: it waits for the next one, unless all are late.
    All clients take part; one begins again when its update has been aggregated. A client's first
    order has H_0 steps.

    The seconds before the training are the client's metric ``queue_seconds``; without it those of
    the download on simulated devices (``devices/network=queue``), else 0.

    Args:
        period: T, seconds.
        cutoff: epsilon.
        admission: alpha.
        margin: theta, seconds.
        first_queue: q_i before a client's first update, seconds.
        queue_smoothing: share of the last order in q_i, in (0, 1].
        pace_smoothing: share of the last order in c_i, in (0, 1].
        warm_up_steps: H_0.

    Raises:
        ValueError: a value is out of its bounds.
    """

    period: float = bounded(3600.0, POSITIVE, "rounds would have no time")
    cutoff: float = bounded(0.15, NON_NEGATIVE, "a round would end before its orders are due")
    admission: float = bounded(0.2, NON_NEGATIVE, "orders that waited as expected would be late")
    margin: float = bounded(60.0, NON_NEGATIVE, "orders would be late on purpose")
    first_queue: float = bounded(2.0, NON_NEGATIVE, "a wait cannot be negative")
    queue_smoothing: float = bounded(0.5, SHARE, "queues would never be learned")
    pace_smoothing: float = bounded(0.5, SHARE, "speeds would never be learned")
    warm_up_steps: int = bounded(20, COUNT, "nothing would be trained")

    transient = ("_parts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._parts: Callable[..., Parts] | None = None
        self._queue: dict[int, float] = {}  # client -> q_i
        self._pace: dict[int, float] = {}  # client -> c_i
        self._orders: dict[int, Config] = {}  # client -> config values of its last order
        self._plans: dict[int, tuple[int, int, float]] = {}  # client -> sequence, round, limit
        self._late: dict[int, int] = {}  # order that waits and is late -> its round
        self._round, self._opened = 0, 0.0
        self._over = False  # whether the round has ended, and no client has begun again

    def settle(self, parts: Callable[..., Parts], joules: Callable[..., float] | None) -> None:
        self._parts = parts

    def due(self) -> float:
        return self._opened + (1 + self.cutoff) * self.period if self._seen else math.inf

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Idle clients whose update does not wait."""
        begin = not_waiting(idle, buffer)
        fewest = min(map(self._budget, self._pace), default=self.warm_up_steps) if begin else 0
        for client_id in begin:
            steps, sequence = self._budget(client_id), self._plans.get(client_id, (-1,))[0] + 1
            factor = fewest / steps if client_id in self._pace else 1.0
            self._orders[client_id] = {"local_steps": steps, "local_lr_factor": factor}
            limit = self._expected(client_id) + self.admission * self.period
            self._plans[client_id] = sequence, self._round, limit
        self._over = False
        self.note(busy, begin)
        return begin

    def work(self, client_id: int) -> Config:
        return self._orders[client_id]

    def take(self, buffer: Updates) -> Updates:
        """The round's updates, and late ones of earlier rounds."""
        for update in self.arrivals(buffer):
            self._learn(update)
        if not buffer or self._over or (self._at_work and self._now < self.due()):
            return ()
        ready = [u for u in buffer if self._late.get(u.order, -1) < self._round] or list(buffer)
        for update in ready:
            self._late.pop(update.order, None)
        self._round, self._opened, self._over = self._round + 1, self._now, True
        return ready

    def _expected(self, client_id: int) -> float:
        return self._queue.get(client_id, self.first_queue)

    def _budget(self, client_id: int) -> int:
        """H_i."""
        if client_id not in self._pace:
            return self.warm_up_steps
        seconds = max(MIN_BUDGET, self.period - self._expected(client_id) - self.margin)
        return max(math.floor(seconds / self._pace[client_id] + 1e-9), self.warm_up_steps)

    def _learn(self, update: Update) -> None:
        client_id = update.client_id
        sequence, own_round, limit = self._plans[client_id]
        wait = 0.0 if self._parts is None else self._parts(client_id, sequence, 0.0).download
        wait = float(update.metrics.get("queue_seconds", wait))
        if wait > limit:
            self._late[update.order] = own_round
        share, previous = self.queue_smoothing, self._expected(client_id)
        self._queue[client_id] = share * wait + (1 - share) * previous
        steps = update.steps or self.warm_up_steps
        share, pace = self.pace_smoothing, max((update.seconds - wait) / steps, MIN_PACE)
        previous = self._pace.get(client_id, pace)
        self._pace[client_id] = share * pace + (1 - share) * previous
