"""Local steps by which groups of clients arrive together: FedCompass's schedule."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fl_app.core.hyper import COUNT, SHARE, at_least, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Config, Rng, Update, Updates
from fl_app.schedule.base import Ids
from fl_app.schedule.timed import Timed

GENERAL, ALONE = 0, -1  # in place of a group: late, and a client's first update
ROUNDING = 1e-9  # of steps: equally fast clients must join each other
MIN_PACE = 1e-9  # seconds a step, of an order that took no time


@dataclass(eq=False)
class Compass(Timed):
    """Groups of clients that arrive together; all clients work.

    The scheduler of FedCompass (Li et al., ICLR 2024, arXiv:2309.14675), as in its authors' code.
    With c_i the smoothed seconds of a step of client i, transfers included, a client that begins
    at t joins the group g for which it has the most steps,

        Q_i = floor((T_g - t) / c_i),    Q_min <= Q_i <= Q_max

    or founds one, with the greatest such number over all groups g that still wait,

        Q_i = floor((L_g + Q_max min_{j in g} c_j - t) / c_i) <= Q_max,    at least Q_min

    or Q_max if there are none. It expects the group at T = t + Q_i c_i, and waits for it until
    L = t + lambda Q_i c_i. A group is aggregated when it is complete, at L at the latest. An
    update that comes later begins no version: it joins the next group's (the general buffer), and
    its client begins again at once. A client's first order has Q_max steps; its update is
    aggregated alone. Of clients that begin together the fastest comes first.

    Args:
        min_steps: Q_min.
        max_steps: Q_max >= Q_min.
        speed_momentum: share of the last order in c_i, in (0, 1].
        latest_factor: lambda >= 1.

    Raises:
        ValueError: a value is out of its bounds.
    """

    min_steps: int = bounded(20, COUNT, "nothing would be trained")
    max_steps: int = bounded(100, COUNT, "nothing would be trained")
    speed_momentum: float = bounded(0.9, SHARE, "speeds would never be learned")
    latest_factor: float = bounded(1.5, at_least(1), "every group would be late")

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = f"at least algorithm.schedule.min_steps={self.min_steps}"
        fits = self.max_steps >= self.min_steps
        self._require(fits, "max_steps", bound, "no number would be between")
        self._pace: dict[int, float] = {}  # client -> c_i
        self._steps: dict[int, int] = {}  # client -> those of its last order
        self._groups: dict[int, tuple[float, float]] = {}  # group -> T, L; numbered from 1
        self._member: dict[int, int] = {}  # client at work, or waiting with its group -> group
        self._placed: dict[int, int] = {}  # order whose update waits -> group, GENERAL or ALONE
        self._founded = 0

    def due(self) -> float:
        ends = [late for _, late in self._groups.values() if late > self._now]
        return min(ends, default=math.inf)

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Idle clients whose update does not wait for its group."""
        waiting = {u.client_id for u in buffer if self._placed.get(u.order, ALONE) != GENERAL}
        # Nobody waits for a client that left or failed.
        self._member = {c: g for c, g in self._member.items() if c in busy or c in waiting}
        begin = [client_id for client_id in idle if client_id not in waiting]
        begin.sort(key=lambda client_id: self._pace.get(client_id, 0.0))
        for client_id in begin:
            self._steps[client_id] = self._assign(client_id)
        self.note(busy, begin)
        return begin

    def work(self, client_id: int) -> Config:
        return {"local_steps": self._steps[client_id]}

    def take(self, buffer: Updates) -> Updates:
        """A first update, or a complete or late group with the general buffer."""
        for update in self.arrivals(buffer):
            self._placed[update.order] = self._place(update)
        self._placed = {update.order: self._placed[update.order] for update in buffer}
        for update in buffer:
            if self._placed[update.order] == ALONE:
                return [update]
        for group, (_, latest) in list(self._groups.items()):
            at_work = any(g == group for c, g in self._member.items() if c in self._at_work)
            if at_work and self._now < latest:
                continue
            del self._groups[group]
            if group in self._placed.values():
                return [u for u in buffer if self._placed[u.order] in (group, GENERAL)]
        return ()

    def _place(self, update: Update) -> int:
        """Where an arrival belongs; its seconds count for its client's pace."""
        client_id, share = update.client_id, self.speed_momentum
        pace = max(update.seconds / (update.steps or self.max_steps), MIN_PACE)
        previous = self._pace.get(client_id)
        self._pace[client_id] = pace if previous is None else (1 - share) * previous + share * pace
        if previous is None:
            return ALONE
        group = self._member.get(client_id, GENERAL)
        if group not in self._groups:  # aggregated without it
            self._member.pop(client_id, None)
            return GENERAL
        return group

    def _assign(self, client_id: int) -> int:
        """The steps of a client that begins now; it joins or founds a group."""
        pace, now = self._pace.get(client_id), self._now
        if pace is None:
            return self.max_steps
        choices = [(self._until(expected, pace), g) for g, (expected, _) in self._groups.items()]
        choices = [each for each in choices if self.min_steps <= each[0] <= self.max_steps]
        if choices:
            steps, self._member[client_id] = max(choices)
            return steps
        candidates = []
        for group, (_, latest) in self._groups.items():
            paces = [self._pace[c] for c, g in self._member.items() if g == group]
            if not paces:  # its clients have failed, or were refused
                continue
            steps = self._until(latest + self.max_steps * min(paces), pace)
            candidates += [steps] if now < latest and steps <= self.max_steps else []
        steps = max(self.min_steps, *candidates) if candidates else self.max_steps
        self._founded += 1
        self._member[client_id] = self._founded
        seconds = steps * pace
        self._groups[self._founded] = now + seconds, now + self.latest_factor * seconds
        return steps

    def _until(self, end: float, pace: float) -> int:
        return math.floor((end - self._now) / pace + ROUNDING)
