"""The most useful clients train, and the buffer's pace follows the slowest: Pisces' schedule."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, SHARE, UNIT_INTERVAL, bounded
from fl_app.core.pool import ClientPool
from fl_app.core.types import Flags, Numbers, Order, Rng, Update, Updates
from fl_app.schedule.base import Ids
from fl_app.schedule.timed import Timed

MEMORY = 5  # ages of a client whose mean counts; versions whose losses are compared
CREDITS = 5  # times that a client's loss may be an outlier
NEAR = 0.5  # difference of losses within a cluster


@dataclass(eq=False)
class Guided(Timed):
    """Places go to clients by utility; the buffer is aggregated at the slowest client's pace.

    Selection and pace of Pisces (Jiang et al., SoCC 2022, arXiv:2206.09264), as in its authors'
    code. Of the F free places Binomial(F, e) go to random clients whose loss is unknown, the others
    to those of the highest

        U_i = n_i L_i (1 + tau_i)^(-beta)

    with L_i the client's last loss and tau_i the mean of its last 5 ages. e falls by a factor with
    each selection. A client whose update waits is not selected. The whole buffer is aggregated when

        max_{j at work} T_j / b

    seconds have passed since the last aggregation, T_j being the seconds of j's last order.

    With `robust` a client's loss is compared with those of the last 5 base versions, by DBSCAN with
    a radius of 0.5 and C / 2 neighbours. A client that was an outlier 5 times is never selected
    again.

    Deviations: L_i is the mean loss of the order, and the paper's is the root of the mean square of
    the examples' losses. Free places are refilled at once [A]. T_j of a client that is new is the
    longest that is known [A]; the code has 180 s. The code looks at its clients every few seconds.

    Args:
        concurrency: C, clients at work at a time.
        staleness_bound: b > 0, versions during the slowest order; None = C.
        exponent: beta.
        exploration: e at first, a probability.
        exploration_decay: its factor, in (0, 1].
        min_exploration: e at last, a probability.
        robust: whether clients with outlying losses are left out.

    Raises:
        ValueError: a value is out of its bounds.
    """

    concurrency: int = bounded(10, COUNT, "no client would ever start")
    staleness_bound: float | None = bounded(None, POSITIVE, "no version would be made")
    exponent: float = bounded(0.5, NON_NEGATIVE, "stale clients would be preferred")
    exploration: float = bounded(0.9, UNIT_INTERVAL, "it is a probability")
    exploration_decay: float = bounded(0.98, SHARE, "it would grow")
    min_exploration: float = bounded(0.3, UNIT_INTERVAL, "it is a probability")
    robust: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = f"at most algorithm.schedule.exploration={self.exploration}"
        fits = self.min_exploration <= self.exploration
        self._require(fits, "min_exploration", bound, "e would grow")
        self._exploring = self.exploration  # e
        self._value: dict[int, float] = {}  # client -> n_i L_i
        self._latency: dict[int, float] = {}  # client -> T_i
        self._ages: dict[int, list[int]] = {}  # client -> its last ages
        self._credits: dict[int, int] = {}  # client -> how often it may still be an outlier
        self._losses: dict[int, dict[int, float]] = {}  # base version -> client -> loss
        self._last_buffer: list[tuple[int, int]] = []  # client and base version of the last version
        self._aggregated = 0.0  # when

    def due(self) -> float:
        if not self._seen:
            return math.inf
        if not self._at_work:
            return self._aggregated
        longest = max(self._latency.values())
        slowest = max(self._latency.get(client_id, longest) for client_id in self._at_work)
        return self._aggregated + slowest / (self.staleness_bound or self.concurrency)

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        """Clients for the free places: the most useful ones, and some that are unknown."""
        free, begin = self.concurrency - len(busy), list[int]()
        if free > 0 and idle:
            waiting = {update.client_id for update in buffer}
            pool = [c for c in idle if c not in waiting and self._credits.get(c, CREDITS) > 0]
            pool = [pool[place] for place in rng.permutation(len(pool))]  # ties are random
            unknown = [client_id for client_id in pool if client_id not in self._value]
            known = sorted((c for c in pool if c in self._value), key=self._utility, reverse=True)
            num_random = min(len(unknown), int(rng.binomial(free, self._exploring)))
            begin = known[: free - num_random]
            begin += unknown[: free - len(begin)]
            if begin:
                decayed = self._exploring * self.exploration_decay
                self._exploring = max(decayed, self.min_exploration)
        self.note(busy, begin)
        return begin

    def take(self, buffer: Updates) -> Updates:
        """The whole buffer, when it is due."""
        for update in self.arrivals(buffer):
            self._learn(update)
        if self._now < self.due():
            return ()
        self._aggregated = self._now
        self._last_buffer = [(update.client_id, update.base_version) for update in buffer]
        return buffer

    def recall(self, busy: Mapping[int, Order], version: int) -> Sequence[int]:
        """Nobody; the ages of the last version's updates are noted."""
        for client_id, base in self._last_buffer:
            ages = [*self._ages.get(client_id, ()), version - 1 - base]
            self._ages[client_id] = ages[-MEMORY:]
        self._last_buffer = []
        oldest = min((order.base_version for order in busy.values()), default=version) - MEMORY
        self._losses = {v: losses for v, losses in self._losses.items() if v > oldest}
        return ()

    def _utility(self, client_id: int) -> float:
        age = fmean(self._ages.get(client_id, [0]))
        return self._value[client_id] * float((age + 1) ** -self.exponent)

    def _learn(self, update: Update) -> None:
        client_id, base, loss = update.client_id, update.base_version, update.loss
        self._latency[client_id] = update.seconds
        self._value[client_id] = update.num_examples * loss if math.isfinite(loss) else 0.0
        if not self.robust:
            return
        self._losses.setdefault(base, {})[client_id] = loss
        recent: dict[int, float] = {}  # a client counts once, with its newest loss
        for version in range(base, base - MEMORY, -1):
            recent = self._losses.get(version, {}) | recent
        if len(recent) >= self.concurrency:
            noise = outliers(np.array([*recent.values()]), NEAR, self.concurrency // 2)
            for place in np.flatnonzero(noise):
                outlier = [*recent][place]
                self._credits[outlier] = self._credits.get(outlier, CREDITS) - 1


def outliers(values: Numbers, radius: float, neighbours: int) -> Flags:
    """Which of M numbers DBSCAN leaves out of its clusters, shape ``(M,)``.

    A number is in a cluster if it is within `radius` of one that has so many `neighbours` within
    it, itself included.
    """
    near = np.abs(values[:, None] - values) <= radius
    core = near.sum(axis=1) >= neighbours
    return np.array(~near[:, core].any(axis=1))
