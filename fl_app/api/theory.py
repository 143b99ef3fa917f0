"""The long run of a federation by theory: throughput, ages and loads.

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

The 95 % of ages are those of a loop of drawn seconds. Where clients come and go, the others'
arrivals during an order are taken as Poisson instead [A].

**Freed places are refilled after the aggregation.** The mean age is (M - K) / K. There is no closed
form for X, since it depends on the distribution: a loop of drawn seconds and the server's work
stands for it. With K = M these are rounds, each as long as the largest of M draws. `Routed` is in
the loop, too: its product form holds for exponential seconds alone.

**Starts by the clock** (`Periodic`) are in the loop, too. Below M clients at work their number is
X times the mean seconds at work, and X = burst / period, whatever M is.

**A server whose work takes seconds** is in the loop, too.

An order ends when its client goes offline, and then brings no update. With k of N clients online,
M of them are at work as M N / k of all would be [A], and k is binomial.
"""

import heapq
import math
from copy import copy
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit
from scipy.stats import binom

from fl_app.core.types import Numbers
from fl_app.devices.fleet import Churn, Fleet, Overlapping
from fl_app.engine.server import Server
from fl_app.schedule.buffered import Buffered
from fl_app.schedule.periodic import Periodic
from fl_app.schedule.routed import Routed

Integers: TypeAlias = NDArray[np.int64]
Plannable: TypeAlias = Buffered | Periodic | Routed

DRAWS = 40_000  # seconds drawn, of all clients together
LOOP = 20_000  # arrivals in a loop of drawn seconds
RARE = 1e-3  # of the most frequent number of clients online; those below it are left out
IDLE = Server()  # its work takes no time
LATER = "after_aggregation"


class Orders(NamedTuple):
    """The durations of orders, without the waits for a place or the server.

    Attributes:
        draws: seconds of orders of every client, shape ``(N, draws)``.
        seconds: s_i, their means, shape ``(N,)``.
        success: probability that an order brings an update, shape ``(N,)``.
        brought: mean seconds of orders that bring an update, shape ``(N,)``.
        online: share of the clients that are online.
        server: durations of the server's own work.
        eval_every: versions between two evaluations on the server.
        joules: mean of an order of every client, shape ``(N,)``; NaN = unknown.
    """

    draws: Numbers
    seconds: Numbers
    success: Numbers
    brought: Numbers
    online: float
    server: Server
    eval_every: int
    joules: Numbers

    def work(self, buffer_size: int) -> float:
        """Seconds of the server's work for an order."""
        server = self.server
        version = server.aggregation + server.evaluation / self.eval_every
        return server.dispatch + server.receipt + version / buffer_size


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


def steady(orders: Orders, schedule: Plannable, arrivals: int = LOOP) -> Steady:
    """The long run of a federation under a schedule.

    Args:
        orders: of its clients.
        schedule: `Buffered`, `Periodic` or `Routed`.
        arrivals: in the loop of drawn seconds, if the schedule needs one.
    """
    size = orders.seconds.size
    buffer = schedule.buffer_size if isinstance(schedule, Buffered) else 1
    concurrency, work = schedule.concurrency or size, orders.work(buffer)
    later = getattr(schedule, "refill", "") == LATER
    serves = work + orders.server.poll > 0  # clients are always online then
    if isinstance(schedule, Routed):
        schedule.route(orders.seconds, orders.joules)
    if not isinstance(schedule, Buffered) or later or serves:
        clients, client_ages, duration, waiting, busy = simulate(orders, schedule, arrivals)
        counts = np.bincount(clients, minlength=size)
        ages = np.bincount(clients, client_ages, size) / np.maximum(counts, 1)
        attempts = updates = counts / duration
        at_work = concurrency - later * waiting * float(attempts.sum())
        if not isinstance(schedule, Buffered):
            at_work = busy
    else:
        numbers, chances = numbers_online(size, orders.online, concurrency)
        parts = [closed_form(orders, schedule, buffer, number) for number in numbers]
        attempts, updates, ages_by_updates, at_work = (
            np.dot(chances, values) for values in zip(*parts, strict=True)
        )
        ages = ages_by_updates / updates
        waiting = (buffer - 1) / 2 / updates.sum()
    total = float(updates.sum())
    measures = {
        "concurrency": concurrency,
        "buffer_size": buffer,
        "updates_per_second": total,
        "versions_per_second": total / buffer,
        "mean_age": float(updates @ ages) / total,
        "clients_at_work": at_work,
        "seconds_in_buffer": waiting,
        # Share of the server's time; above 0.8, queues dominate.
        "server_load": total * work,
        "joules_per_update": float(attempts @ orders.joules) / total,
    }
    return Steady(attempts, updates, ages, measures)


def numbers_online(size: int, share: float, concurrency: int) -> tuple[list[int], Numbers]:
    """Numbers of clients online, except 0, and their probabilities; a grid if there are many.

    Args:
        size: N.
        share: of the time that each client is online, in (0, 1].
        concurrency: M; if always at least M are online, the result is their mean number alone.
    """
    step = 1 + int(math.sqrt(size * share * (1 - share)) / 4)
    numbers = np.arange(round(size * share) % step, size + 1, step)
    chances = binom.pmf(numbers, size, share)
    likely = chances > RARE * chances[numbers > 0].max()
    numbers, chances = numbers[likely], chances[likely] / chances[likely].sum()
    if numbers[0] >= concurrency:
        return [round(size * share)], np.ones(1)
    return numbers[numbers > 0].tolist(), chances[numbers > 0]


def closed_form(
    orders: Orders, schedule: Buffered, buffer: int, num_online: int
) -> tuple[Numbers, Numbers, Numbers, float]:
    """The long run where a freed place is refilled at once.

    Args:
        orders: of all clients.
        schedule: with the number of places.
        buffer: K.
        num_online: clients that are online.

    Returns:
        Of every client orders and updates a second, and updates a second times their mean age; and
        clients at work.
    """
    size = orders.seconds.size
    places = min(schedule.concurrency or size, num_online)
    of_all = min(round(places * size / num_online), size)
    busy, others = product_form(orders.seconds, of_all)
    attempts = busy / orders.seconds * places / of_all
    others *= (places - 1) / max(of_all - 1, 1)
    updates = attempts * orders.success
    ages = orders.brought * others * float(updates.sum() / attempts.sum()) / buffer
    return attempts, updates, updates * ages, float(attempts @ orders.seconds)


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


def simulate(
    orders: Orders, schedule: Plannable, arrivals: int
) -> tuple[Integers, Integers, float, float, float]:
    """Simulate drawn durations and the server's work; clients are always online.

    Args:
        orders: of every client.
        schedule: M, K, and when freed places are refilled; or M and p_i; or M and the clock.
        arrivals: number of counted ones, at least those of two versions. Before, up to two per
            order under way are not counted, while the ages grow.

    Returns:
        Clients and ages of the updates, each of shape ``(arrivals,)``; the seconds in which they
        arrived; their mean seconds in the buffer; and the mean number of clients at work.
    """
    (size, num_draws), buffer_size = orders.draws.shape, getattr(schedule, "buffer_size", 1)
    refills_later = getattr(schedule, "refill", "") == LATER
    concurrency = free = schedule.concurrency or size
    first = 2 * concurrency // buffer_size  # version that counts
    last = first + max(arrivals // buffer_size, 2)
    rng, total, turns = np.random.default_rng(0), concurrency + last * buffer_size, count()
    if routed := isinstance(schedule, Routed):
        routes = iter(rng.choice(size, total, p=np.divide(schedule.shares, size)).tolist())
    places, idle, queues = iter(rng.random(total)), [*range(size)], [0] * size
    ready, under_way = list[int](), list[tuple[float, int, int, float]]()  # a heap
    clients, ages, waiting, busy = list[int](), list[int](), 0.0, 0.0
    now, server = 0.0, copy(orders.server)  # it remembers when it is free
    due, clock = 0.0, replace(schedule)  # it remembers the next start
    for version in range(last):
        if version == first:
            start, clients, ages, waiting, busy = now, [], [], 0.0, 0.0
        receipts = 0.0
        for number in range(buffer_size):
            starts = free if number == 0 or not refills_later else 0
            while True:
                if isinstance(schedule, Periodic):
                    starts = min(schedule.burst, free) if now >= due else 0
                due = clock.wake(now)
                for _ in range(starts):
                    client = next(routes) if routed else idle.pop(int(next(places) * len(idle)))
                    free, queues[client] = free - 1, queues[client] + 1
                    if queues[client] == 1:
                        ready.append(client)
                while ready:
                    client = ready.pop(0)
                    now = server.work("dispatch", now)
                    end = now + orders.draws[client, next(turns) % num_draws]
                    heapq.heappush(under_way, (end, client, version, now))
                begins = server.begins(under_way[0][0]) if under_way else math.inf
                if begins <= due:
                    break
                # All starts before the next arrival are lost if no place is free.
                now = max(now, due, 0.0 if free else begins * (1 - 1e-12))
            arrival, client, base, sent = heapq.heappop(under_way)
            now = server.receive(arrival)
            receipts, busy = receipts + now, busy + now - sent
            clients.append(client)
            ages.append(version - base)
            free, queues[client] = free + 1, queues[client] - 1
            (ready if queues[client] else idle).append(client)
        waiting += buffer_size * now - receipts
        now = server.work("aggregation", now)
        if version % orders.eval_every == 0:
            now = server.work("evaluation", now)
    duration = now - start
    return np.array(clients), np.array(ages), duration, waiting / len(clients), busy / duration


def ages_of_updates(
    orders: Orders, schedule: Plannable, long_run: Steady
) -> tuple[Integers, Numbers | Integers]:
    """The clients and the ages of `LOOP` updates of the long run."""
    size, num_draws = orders.draws.shape
    if orders.online == 1:
        return simulate(orders, schedule, LOOP)[:2]
    # The others' arrivals during an order are Poisson [A]; the buffer's place is uniform.
    rng, buffer = np.random.default_rng(0), long_run.measures["buffer_size"]
    clients = rng.choice(size, LOOP, p=long_run.updates / long_run.updates.sum())
    means = (long_run.ages / orders.seconds)[clients]
    means *= orders.draws[clients, rng.integers(num_draws, size=LOOP)]
    return clients, np.floor(rng.poisson(means * buffer) / buffer + rng.random(LOOP))


def orders_of(
    devices: Fleet | Overlapping,
    size: int,
    stays: Churn | None = None,
    server: Server = IDLE,
    *,
    fresh: bool = False,
    eval_every: int = 1,
) -> Orders:
    """Draw the durations of a run's orders.

    Args:
        devices: of all clients.
        size: N.
        stays: when clients are online; None = always.
        server: durations of the server's own work.
        fresh: whether a client downloads a second model while it trains.
        eval_every: versions between two evaluations on the server.
    """
    numbers = range(1, 1 + max(DRAWS // size, 4))
    parts = [[devices.parts(i, n, 0.0) for n in numbers] for i in range(size)]
    work = np.array([[each.work or each[:3] for each in row] for row in parts])
    work[:, :, 0] *= 1 + fresh
    draws = np.array([[each.seconds + fresh * each.download for each in row] for row in parts])
    success, online = np.ones(size), 1.0
    brought = draws.mean(axis=1)
    if stays is not None:
        mean = stays.mean_online
        online = mean / (mean + stays.mean_offline)
        survive = np.exp(-draws / mean)
        success, brought = survive.mean(axis=1), (draws * survive).sum(axis=1) / survive.sum(axis=1)
        draws = -mean * np.expm1(-draws / mean)
        # The share of each part that is done before the client goes offline.
        work = -mean * np.diff(np.exp(-work.cumsum(axis=2) / mean), axis=2, prepend=1.0)
    joules = devices.joules
    return Orders(
        draws,
        draws.mean(axis=1),
        success,
        brought,
        online,
        server,
        eval_every,
        np.array([joules(each) if joules else math.nan for each in work.mean(axis=1)]),
    )
