"""What a federation will do, by theory: throughput, ages and loads, without a run.

An order of client i takes s_i seconds on average, transfers and the server's handling included.
Symbols: M concurrency, K buffer_size, N clients, X updates a second.

**Freed places are refilled at once.** M clients are at work, and a freed place goes to any idle
client with equal probability. The set B of clients at work has the probability

    P(B) ~ prod_{i in B} s_i        (product form; it holds for any distribution of the seconds)

so that, with e_k the elementary symmetric polynomials of s, and e_k^i those without s_i,

    P(i at work) = s_i e_{M-1}^i / e_M,              X_i = P(i at work) / s_i
    X = (N - M + 1) e_{M-1} / e_M                    (Little: X times the mean seconds at work is M)
    X^i = (N - M + 1) e_{M-2}^i / e_{M-1}^i          (the others' updates while i is at work)
    age of i = s_i X^i / K,                          mean age = (M - 1) / K

The others' arrivals during an order are taken as Poisson for the 95 % of ages [A].

**Freed places are refilled after the aggregation.** The mean age is (M - K) / K. There is no closed
form for X, since it depends on the distribution: a loop of drawn seconds stands for it, without
models and messages. With K = M these are rounds, each as long as the largest of M draws.

**A server whose work takes seconds** is one station of M/M/1 type among M orders (mean value
analysis). An order ends when its client goes offline, and then brings no update. A share a of
the clients is online, and M of them are at work as M / a of all would be [A].

**Starts by the clock** (`Periodic`) are a loss system D/M/M/M: with q_j = exp(j period / s) - 1, a
start finds no place with the probability p = 1 / (1 + sum_k C(M, k) prod_{j<=k} q_j), which holds
for exponential seconds [A]. The mean age is E[ceil(seconds / period)] - 1 - M p / (1 - p): as many
clients are at work after an arrival as a start finds that finds a place.
"""

import heapq
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit, gammaln, logsumexp

from fl_app.api.settings import Setting, plan_of
from fl_app.client.build import asks_for_masks, instantiate
from fl_app.core.errors import require
from fl_app.core.types import Numbers
from fl_app.devices.fleet import Churn, Fleet, Overlapping
from fl_app.devices.table import boards_of
from fl_app.engine.server import Server
from fl_app.runner.components import Components, build_components, message_bytes
from fl_app.runner.validate import decides_work
from fl_app.schedule.buffered import Buffered
from fl_app.schedule.periodic import Periodic
from fl_app.schedule.routed import Routed

if TYPE_CHECKING:
    from fl_app.api.plot import Plot
    from fl_app.tasks.task import Task

Planned: TypeAlias = Buffered | Periodic | Routed

DRAWS = 40_000  # seconds drawn, of all clients together
LOOP = 20_000  # arrivals in a loop of drawn seconds
ROUGH = 2_000  # the same for a row of the grid
MIXES = 8  # passes in which the wait at the server, and who is heard how often, agree
ENOUGH = 0.99  # of the most updates a second: more clients at work would not help
BUFFERS = (1, 2, 5, 10, 20, 50)  # of the grid
LATER = "after_aggregation"
INSTEAD = "theory does not cover it: run it, with runtime.train=false if only seconds decide"


class Orders(NamedTuple):
    """What the orders of a federation take, without the waits for a place or the server.

    Attributes:
        draws: seconds of orders of every client, shape ``(N, draws)``.
        seconds: s_i, their means, shape ``(N,)``.
        success: probability that an order brings an update, shape ``(N,)``.
        brought: mean seconds of orders that bring an update, shape ``(N,)``.
        online: share of the clients that are online.
        per_update: seconds of the server's work for an update.
        per_version: seconds of the server's work for a version.
        joules: mean of an order of every client, shape ``(N,)``; NaN = unknown.
    """

    draws: Numbers
    seconds: Numbers
    success: Numbers
    brought: Numbers
    online: float
    per_update: float
    per_version: float
    joules: Numbers


class Steady(NamedTuple):
    """The long run of a schedule.

    Attributes:
        orders: of every client, a second, shape ``(N,)``.
        updates: of every client, a second, shape ``(N,)``.
        ages: mean age of every client's updates, versions, shape ``(N,)``.
        measures: of all clients together, by name; seconds, versions, bytes, joules.
    """

    orders: Numbers
    updates: Numbers
    ages: Numbers
    measures: dict[str, float]


def steady(orders: Orders, schedule: Planned, arrivals: int = LOOP) -> Steady:
    """The long run of a federation under a schedule.

    Args:
        orders: of its clients.
        schedule: `Buffered` or `Periodic`.
        arrivals: in the loop of drawn seconds, if the schedule needs one.
    """
    size, online = len(orders.seconds), orders.online
    buffer = schedule.buffer_size if isinstance(schedule, Buffered) else 1
    places = min(schedule.concurrency or size, max(1, round(size * online)))
    work = orders.per_update + orders.per_version / buffer
    waits = server_seconds(float(orders.seconds.mean()), work, places)
    seconds = orders.seconds + waits
    if isinstance(schedule, Buffered) and schedule.refill == LATER:
        draws = orders.draws + waits
        attempts, ages = looped(draws, places, buffer, arrivals)
        updates = attempts
        waiting = places - float(attempts @ seconds)
    elif isinstance(schedule, Routed):
        schedule.route(seconds, orders.joules)
        (updates, ages), waiting = schedule.long_run(seconds), 0.0
        attempts = updates
    else:
        of_all = min(round(places / online), size)
        for _ in range(MIXES if work else 1):
            busy, others = product_form(seconds, of_all)
            attempts = busy / seconds * places / of_all
            # Clients that are often heard are fast: their orders, not the clients' mean, queue.
            waits = server_seconds(places / float(attempts.sum()) - waits, work, places)
            seconds = orders.seconds + waits
        others *= (places - 1) / max(of_all - 1, 1)
        if isinstance(schedule, Periodic):
            attempts /= attempts.sum()
            lost = loss(schedule.period, float(attempts @ seconds), places)
            # Each arrival leaves as many at work as a start finds that finds a place.
            at_work = attempts @ np.ceil((orders.draws + waits) / schedule.period).mean(axis=1) - 1
            age = max(at_work - places * lost / (1 - lost), 0)
            others *= age / max(attempts @ (seconds * others), 1e-12)
            attempts *= (1 - lost) / schedule.period
        updates = attempts * orders.success
        ages = (orders.brought + waits) * others * float(updates.sum() / attempts.sum()) / buffer
        waiting = (buffer - 1) / 2
    total = float(updates.sum())
    measures = {
        "concurrency": places,
        "buffer_size": buffer,
        "updates_per_second": total,
        "versions_per_second": total / buffer,
        "mean_age": float(updates @ ages) / total,
        "clients_at_work": float(attempts @ seconds),
        "seconds_in_buffer": waiting / total,
        "server_load": total * work,  # share of its time; above 0.8 queues decide
        "joules_per_update": float(attempts @ orders.joules) / total,
    }
    return Steady(attempts, updates, ages, measures)


def product_form(seconds: Numbers, concurrency: int) -> tuple[Numbers, Numbers]:
    """Of every client the probability that it is at work, and X^i, the others' updates a second.

    Args:
        seconds: s_i, all > 0, shape ``(N,)``.
        concurrency: M, 1 <= M <= N.
    """
    size, places = seconds.size, concurrency
    if places == size:
        rates = 1 / seconds
        return np.ones(size), rates.sum() - rates
    # Scaled so that independent clients would be at work M at a time: the polynomials are then the
    # probabilities of a sum of coins, and none is too small or too large for a float.
    relative = np.log(seconds) - np.log(seconds).mean()
    shift = brentq(lambda shift: expit(relative + shift).sum() - places, -50, 50)
    coins, sums = expit(relative + shift), np.ones(1)
    for coin in coins:
        sums = np.convolve(sums, (1 - coin, coin))
    # Of the other clients: from no client at work upwards, or from all of them downwards, whichever
    # does not magnify rounding.
    up, odds = coins <= 0.5, coins / (1 - coins)
    less = same = above = np.zeros(size)
    for number in range(places):
        less, same = same, np.where(up, (sums[number] - coins * same) / (1 - coins), 0)
    for number in range(size, places - 1, -1):
        above = np.where(up, 0, (sums[number] - (1 - coins) * above) / coins)
    below = np.where(up, 0, (sums[places - 1] - (1 - coins) * above) / coins)
    less, same = np.where(up, less, below), np.where(up, same, above)
    busy = np.clip(coins * same / sums[places], 0, 1)
    others = (size - places + 1) * (odds / seconds) * less / same
    return busy, others


def loss(period: float, seconds: float, places: int) -> float:
    """Probability that a start, one every `period`, finds none of the `places` (D/M/M/M)."""
    numbers = np.arange(places + 1.0)  # k
    chosen = gammaln(places + 1) - gammaln(numbers + 1) - gammaln(places - numbers + 1)
    factors = np.expm1(np.minimum(numbers[1:] * period / seconds, 700.0))  # q_k
    logs = chosen + np.append(0.0, np.log(factors).cumsum())
    return float(np.exp(-logsumexp(logs)))


def looped(
    draws: Numbers, concurrency: int, buffer_size: int, arrivals: int
) -> tuple[Numbers, Numbers]:
    """Of every client updates a second and their mean age, of a loop of drawn seconds.

    Args:
        draws: seconds of orders of every client, shape ``(N, draws)``.
        concurrency: M, K <= M <= N.
        buffer_size: K.
        arrivals: in the loop.
    """
    size, each = draws.shape
    place = np.random.default_rng(0).random(concurrency + arrivals)
    idle, under_way = [*range(size)], list[tuple[float, int, int]]()  # a heap
    updates, ages, now, orders = np.zeros(size), np.zeros(size), 0.0, 0
    for version in range(arrivals // buffer_size):
        while len(under_way) < concurrency:
            client = idle.pop(int(place[orders] * len(idle)))
            heapq.heappush(under_way, (now + draws[client, orders % each], client, version))
            orders += 1
        for _ in range(buffer_size):
            now, client, base = heapq.heappop(under_way)
            updates[client] += 1
            ages[client] += version - base
            idle.append(client)
    return updates / now, ages / np.maximum(updates, 1)


def server_seconds(think: float, work: float, orders: int) -> float:
    """Mean seconds of an order at a server that is one queue (mean value analysis).

    Args:
        think: mean seconds of an order elsewhere.
        work: seconds of the server's work for an order.
        orders: under way.
    """
    queue = at_server = 0.0
    for number in range(1, orders + 1):
        at_server = work * (1 + queue)
        queue = number * at_server / (think + at_server)
    return at_server


def orders_of(
    devices: Fleet | Overlapping,
    size: int,
    stays: Churn | None = None,
    server: Server | None = None,
    *,
    fresh: bool = False,
    eval_every: int = 1,
) -> Orders:
    """Draw what the orders of a run take.

    Args:
        devices: of all clients.
        size: N.
        stays: when clients are online; None = always.
        server: what its own work takes; None = no time.
        fresh: whether a client downloads a second model while it trains.
        eval_every: versions between two evaluations on the server.
    """
    numbers = range(1, 1 + min(max(DRAWS // size, 4), 400))
    parts = [[devices.parts(i, n, 0.0) for n in numbers] for i in range(size)]
    work = np.array([[each.work or each[:3] for each in own] for own in parts])
    work[:, :, 0] *= 1 + fresh
    draws = np.array([[each.seconds + fresh * each.download for each in own] for own in parts])
    success, online = np.ones(size), 1.0
    brought = draws.mean(axis=1)
    if stays is not None:
        mean = stays.mean_online
        online = mean / (mean + stays.mean_offline)
        survive = np.exp(-draws / mean)
        success, brought = survive.mean(axis=1), (draws * survive).sum(axis=1) / survive.sum(axis=1)
        draws = -mean * np.expm1(-draws / mean)
        # Of each part, what is done by then.
        work = -mean * np.diff(np.exp(-work.cumsum(axis=2) / mean), axis=2, prepend=1.0)
    server, joules = server or Server(), devices.joules
    draws += server.poll / 2
    return Orders(
        draws,
        draws.mean(axis=1),
        success,
        brought + server.poll / 2,
        online,
        server.dispatch + server.receipt,
        server.aggregation + server.evaluation / eval_every,
        np.array([joules(each) if joules else math.nan for each in work.mean(axis=1)]),
    )


@dataclass(frozen=True)
class Prediction:
    """What a federation will do.

    Attributes:
        measures: of the configured schedule, by name; seconds, versions, bytes, joules.
        classes: a row for each kind of board, or third of the clients by speed.
        grid: a row for each concurrency and buffer that was compared.
        best: the row of `grid` that the aim prefers; None = no row fulfils it.
    """

    measures: dict[str, float]
    classes: pd.DataFrame
    grid: pd.DataFrame
    best: "pd.Series[float] | None"

    def __str__(self) -> str:
        known = {name: each for name, each in self.measures.items() if not math.isnan(each)}
        lines = [f"{name.replace('_', ' '):22}{each:10.4g}" for name, each in known.items()]
        line = "No concurrency and buffer fulfils the aim."
        if self.grid.mean_age.nunique() == 1:
            line = "No best size: ages are those of rounds, whatever the number of clients."
        if self.best is not None:
            line = (
                "Best: concurrency={concurrency:.0f} buffer_size={buffer_size:.0f}, with "
                "{updates_per_second:.4g} updates a second of mean age {mean_age:.3g}"
            ).format(**self.best)
        lines += ["", self.classes.to_string(float_format="{:.4g}".format), "", line]
        return "\n".join(lines)

    def plot(self) -> "Plot":
        """Updates a second and their mean age over concurrency and buffer; a frame = the best."""
        from fl_app.api.plot import planned  # altair, of the extra "report"

        return planned(self.grid, self.best)


def plan(*settings: Setting, task: "Task | None" = None, aim: str = "age=10") -> Prediction:
    """Predict a run's throughput, ages and loads from its configuration.

    Args:
        settings: as of `fl_app.run`.
        task: as of `fl_app.run`.
        aim: what is best in the grid: ``"age=A"`` (the fewest seconds to a target, if the versions
            to it grow as (1 + age / A)^2 [A]; the better a method stands stale updates, the larger
            is A), ``"age<=A"`` (the most updates a second of such a mean age), ``"updates"`` (a
            second, of any age), or ``"energy"`` (the fewest joules an update). Of equally fast rows
            the one with the fewest clients at work, then with the most versions.

    Raises:
        ValueError: a setting is refused, or theory does not cover the run.
    """
    aimed = re.fullmatch(r"(updates|energy|age<?=)((?<==)\d+\.?\d*)?", aim)
    if aimed is None or (aimed[2] is None) != aim.isalpha():
        raise ValueError(f"aim={aim} must be updates, energy, age=A or age<=A, such as age<=2.5")
    made = plan_of(settings, task)
    components = build_components(made.config, task, made.given)
    config, size = components.config, components.config.num_clients
    stays, server = (config.devices.get(part) for part in ("availability", "server"))
    stays = stays and instantiate(stays, {"seed": config.seed})
    schedule = _planned(components, stays)
    assert components.devices is not None
    orders = orders_of(
        components.devices,
        size,
        stays,
        server and instantiate(server),
        fresh=components.trainer.pauses,
        eval_every=config.eval_every,
    )
    long_run = steady(orders, schedule)
    order_bytes, upload_bytes = message_bytes(components.strategy, components.trainer)
    parts = [components.strategy.part(client_id) for client_id in range(size)]
    measures = long_run.measures | {
        "bytes_down_per_second": float(long_run.orders @ parts) * order_bytes,
        "bytes_up_per_second": float(long_run.updates @ parts) * upload_bytes,
    }
    buffers = BUFFERS if "buffer_size" in config.algorithm.schedule else (1,)
    grid = pd.DataFrame(
        steady(orders, each, ROUGH).measures for each in _varied(schedule, size, buffers)
    )
    if "boards" in config.devices:
        names = np.array(boards_of(config.devices.table, config.devices.boards, size)[0])
    else:
        thirds = np.argsort(np.argsort(orders.seconds)) * 3 // size
        names = np.array(["fast third", "middle third", "slow third"])[thirds]
    classes = _classes(orders, long_run, names)
    if components.trainer.overlaps:  # displacements from the version before
        for each in (measures, grid, classes):
            each["mean_age"] += 1
        classes["age_95"] += 1
    bound = config.guard.max_age
    oldest = min(components.strategy.oldest_admitted, math.inf if bound is None else bound)
    if classes.age_95.max() > oldest:
        reached = f"updates reach age {classes.age_95.max():g}, and those above {oldest:g}"
        raise ValueError(f"{reached} are refused; {INSTEAD}")
    best = _best(grid[grid.mean_age <= oldest], aimed[1], float(aimed[2] or "inf"))
    return Prediction(measures, classes, grid, best)


def _planned(components: Components, stays: object) -> Planned:
    """The schedule; `stays` say when clients are online.

    Raises:
        ValueError: what happens does not follow from seconds alone.
    """
    config, schedule = components.config, components.schedule
    waits = isinstance(schedule, Routed) or getattr(schedule, "refill", "") == LATER
    if getattr(schedule, "burst", 1) > 1:
        reason = "algorithm.schedule.burst: several clients start at a time"
    elif components.devices is None or type(schedule) not in get_args(Planned):
        reason = f"algorithm.schedule={type(schedule).__name__}: it goes by more than seconds"
    elif who := decides_work(components.strategy, schedule, config.algorithm.client):
        reason = f"{who}: its orders say how much clients train"
    elif config.deadline is not None:
        reason = f"deadline={config.deadline}: a late client stays at work"
    elif config.client_eval_every is not None:
        reason = f"client_eval_every={config.client_eval_every}: evaluations keep clients busy"
    elif asks_for_masks(config):
        reason = "secure_aggregation: updates wait for their group"
    elif stays and not isinstance(stays, Churn):
        reason = f"devices.availability={type(stays).__name__}: stays are not exponential"
    elif waits and stays:
        reason = f"devices.availability with {type(schedule).__name__}: places wait for clients"
    else:
        return cast(Planned, schedule)
    raise ValueError(f"{reason}; {INSTEAD}")


def _varied(schedule: Planned, size: int, buffers: Sequence[int]) -> Iterator[Planned]:
    """The schedule with each concurrency and buffer that is compared."""
    spread = sorted({max(1, round(size ** (step / 7))) for step in range(8)})
    for concurrency in [size] if schedule.concurrency is None else spread:
        if not isinstance(schedule, Buffered):
            yield replace(schedule, concurrency=concurrency)
        else:
            rounds = schedule.refill == LATER and schedule.buffer_size == schedule.concurrency
            for buffer in [concurrency] if rounds else buffers:
                if buffer <= concurrency:
                    yield replace(schedule, concurrency=concurrency, buffer_size=buffer)


def _best(grid: pd.DataFrame, aim: str, age: float) -> "pd.Series[float] | None":
    """The row that is best; of equally fast ones that with the fewest at work, then buffered."""
    if aim == "age=" and grid.mean_age.nunique() > 1:
        versions = (1 + grid.mean_age / max(age, 1e-9)) ** 2
        return grid.loc[(versions * grid.buffer_size / grid.updates_per_second).idxmin()]
    if aim == "age=" or (allowed := grid[grid.mean_age <= age]).empty:
        return None
    if aim == "energy":
        least = allowed.joules_per_update.min()
        require(least > 0, "aim", "energy", "used with devices/energy", "joules are unknown")
        good = allowed[allowed.joules_per_update <= least / ENOUGH]
        return good.sort_values("updates_per_second").iloc[-1]
    good = allowed[allowed.updates_per_second >= ENOUGH * allowed.updates_per_second.max()]
    return good.sort_values(["clients_at_work", "buffer_size"]).iloc[0]


def _classes(orders: Orders, long_run: Steady, names: NDArray[np.str_]) -> pd.DataFrame:
    """A row for each class of clients; `names` are the classes of all clients."""
    buffer = round(long_run.measures["buffer_size"])
    rows = {}
    for name in np.unique(names):
        who = names == name
        updates = long_run.updates[who]
        # The others' arrivals during an order are Poisson [A]; the buffer's place is uniform.
        rng = np.random.default_rng(0)
        mean = (long_run.ages[who] / orders.seconds[who])[:, None] * orders.draws[who]
        ages = np.floor(rng.poisson(mean * buffer) / buffer + rng.random(mean.shape))
        weights = np.broadcast_to(updates[:, None], mean.shape)
        rows[name] = {
            "clients": who.sum(),
            "seconds": orders.seconds[who].mean(),
            "share": updates.sum() / long_run.updates.sum(),
            "mean_age": updates @ long_run.ages[who] / updates.sum(),
            "age_95": np.quantile(ages, 0.95, weights=weights, method="inverted_cdf"),
        }
    return pd.DataFrame.from_dict(rows, orient="index")
