"""Clients are drawn with unequal probabilities: the routing of Generalized AsyncSGD."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, bounded, one_of
from fl_app.core.pool import ClientPool
from fl_app.core.types import Numbers, Parts, Rng, Updates
from fl_app.schedule.base import Ids, Schedule

MIN_SHARE = 0.1  # of an equal share [A]: 1 / (N p_i), the factor of a client's step, is at most 10
DRAWS = 40_000  # orders drawn of all clients together, to estimate each client's mean seconds


@dataclass(eq=False)
class Routed(Schedule):
    """Keep `concurrency` orders under way; each new one goes to client i with probability p_i.

    The order of a client that is at work or offline waits. The client gets the newest model when it
    begins. Every arrival makes a version. With exponential times these are queues in product form:
    with theta_i = p_i s_i and h_m the complete symmetric polynomials,

        X = h_{M-1}(theta) / h_M(theta)

    Sources: Leconte, Jonckheere, Samsonov, Moulines, arXiv:2405.00017; Alahyane, Comte,
    Jonckheere, Moulines, arXiv:2502.08206. Deviations: in both, a waiting order keeps the model of
    its draw. The aims are X, and X over the mean joules of an order [A]; theirs are bounds on
    convergence, whose constants are unknown before a run. No p_i is below 0.1 / N [A].

    Args:
        num_clients: N.
        concurrency: M, orders under way at a time, >= 1.
        aim: ``"equal"`` (p_i = 1 / N), ``"throughput"``, or ``"energy"``.

    Attributes:
        shares: N p_i of every client, of mean 1.

    Raises:
        ValueError: a value is out of its bounds.
    """

    num_clients: int
    concurrency: int = bounded(10, COUNT, "no client would ever start")
    aim: str = bounded("equal", one_of("equal", "throughput", "energy"), "nothing else is known")

    transient = ("shares",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.shares: Sequence[float] = [1.0] * self.num_clients
        self._waiting: list[int] = []  # clients drawn, whose order has not begun

    def settle(self, parts: Callable[..., Parts], joules: Callable[..., float] | None) -> None:
        """Choose p_i for devices, before the first order.

        Raises:
            ValueError: the aim is energy, and the cost of an order is unknown.
        """
        reason = "the cost of an order is unknown"
        fits = self.aim != "energy" or joules is not None
        self._require(fits, "aim", "used with devices/energy", reason)
        numbers = range(1, 1 + max(50, DRAWS // self.num_clients))
        clients = range(self.num_clients)
        draws = [[parts(i, n, 0.0) for n in numbers] for i in clients]
        seconds = [np.mean([each.seconds for each in row]) for row in draws]
        costs = [np.mean([joules(*p.logged) if joules else 1.0 for p in row]) for row in draws]
        self.route(np.array(seconds), np.array(costs))

    def route(self, seconds: Numbers, joules: Numbers) -> None:
        """Choose p_i for clients' mean seconds and joules of an order, shape ``(N,)``."""
        if self.aim != "equal":
            costs = joules if self.aim == "energy" else np.ones_like(seconds)
            self.shares = (self.num_clients * best(seconds, costs, self.concurrency)).tolist()

    def start(self, idle: ClientPool, busy: Ids, buffer: Updates, rng: Rng) -> Sequence[int]:
        free = self.concurrency - len(busy) - len(self._waiting)
        bounds = np.cumsum(self.shares)
        drawn = np.searchsorted(bounds, rng.random(max(free, 0)) * bounds[-1], side="right")
        self._waiting += drawn.tolist()
        begin = list(dict.fromkeys(each for each in self._waiting if each in idle))
        for client_id in begin:
            self._waiting.remove(client_id)
        return begin


def queues(loads: Numbers, orders: int) -> tuple[float, Numbers, Numbers]:
    """Throughput, and the mean numbers of orders at each client with M and with M - 1 orders.

    Args:
        loads: p_i s_i, shape ``(N,)``.
        orders: M >= 0.
    """
    length = previous = np.zeros_like(loads)
    throughput = 0.0
    for number in range(1, orders + 1):  # mean value analysis
        stay = loads * (1 + length)
        throughput = number / float(stay.sum())
        length, previous = throughput * stay, length
    return throughput, length, previous


def best(seconds: Numbers, joules: Numbers, orders: int) -> Numbers:
    """p_i with the most updates a second over the mean joules of an order, shape ``(N,)``.

    Args:
        seconds: mean seconds of every client's orders, > 0.
        joules: of every client's orders, > 0.
        orders: M.
    """
    from scipy.optimize import minimize  # of the extra "server"

    def chances(free: Numbers) -> tuple[Numbers, Numbers]:
        weights = np.exp(free - free.max())
        weights /= weights.sum()
        return weights, MIN_SHARE / free.size + (1 - MIN_SHARE) * weights

    def loss(free: Numbers) -> tuple[float, Numbers]:
        weights, p = chances(free)
        throughput, length, previous = queues(p * seconds, orders)
        cost = float(p @ joules)
        slope = (length - previous) / p + joules / cost  # of log(cost / throughput)
        return np.log(cost / throughput), (1 - MIN_SHARE) * weights * (slope - weights @ slope)

    result = minimize(loss, -np.log(seconds), jac=True, method="L-BFGS-B")
    return chances(result.x)[1]
