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

The 95 % of ages are those of a loop of drawn seconds.

**Freed places are refilled after the aggregation.** The mean age is (M - K) / K. There is no closed
form for X, since it depends on the distribution: a loop of drawn seconds and the server's work
stands for it. With K = M these are rounds, each as long as the largest of M draws. `Routed` is in
the loop, too: its product form holds for exponential seconds alone.

**Starts by the clock** (`Periodic`) are in the loop, too. Below M clients at work their number is
X times the mean seconds at work, and X = burst / period, whatever M is.

**A server whose work takes seconds**, and **clients that come and go**, are in the loop, too. An
order ends when its client goes offline, and then brings no update. Stays are exponential. So a
client that was online t seconds ago is online with the probability

    p + (1 - p) exp(-t / mean_online - t / mean_offline)

with p the long-run one, and the rest of its stay has the mean of all stays.
"""

import heapq
import math
import random
from bisect import bisect
from copy import copy
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

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
IDLE = Server()  # its work takes no time
ALWAYS = Churn(mean_online=1e300, mean_offline=1e-300)
NEVER = (math.inf, 0, 0, 0.0, True)  # an order that does not end
LATER = "after_aggregation"


class Orders(NamedTuple):
    """The durations of orders, without the waits for a place or the server.

    Attributes:
        draws: seconds of orders of every client that stays online, shape ``(N, draws)``.
        seconds: s_i, their means, until the client goes offline, shape ``(N,)``.
        stays: when clients are online; None = always.
        server: durations of the server's own work.
        eval_every: versions between two evaluations on the server.
        joules: mean of an order of every client, shape ``(N,)``; NaN = unknown.
    """

    draws: Numbers
    seconds: Numbers
    stays: Churn | None
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
        sample: clients and ages of updates in the loop of drawn seconds; None = without one.
    """

    orders: Numbers
    updates: Numbers
    ages: Numbers
    measures: dict[str, float]
    sample: list[Integers] | None


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
    at_once = isinstance(schedule, Buffered) and schedule.refill != LATER
    if isinstance(schedule, Routed):
        schedule.route(orders.seconds, orders.joules)
    if at_once and orders.stays is None and work + orders.server.poll == 0:
        chances, others = product_form(orders.seconds, min(concurrency, size))
        attempts = updates = chances / orders.seconds
        ages, busy, sample = orders.seconds * others / buffer, float(chances.sum()), None
        waiting = (buffer - 1) / 2 / updates.sum()
    else:
        numbers, sample, duration, waiting, busy = simulate(orders, schedule, arrivals)
        counts = np.bincount(sample[0], minlength=size)
        attempts, updates = numbers / duration, counts / duration
        ages = np.bincount(sample[0], sample[1], size) / np.maximum(counts, 1)
    total = float(updates.sum())
    measures = {
        "concurrency": concurrency,
        "buffer_size": buffer,
        "updates_per_second": total,
        "versions_per_second": total / buffer,
        "mean_age": float(updates @ ages) / total,
        "clients_at_work": busy,
        "seconds_in_buffer": waiting,
        # Share of the server's time; above 0.8, queues dominate.
        "server_load": total * work,
        "joules_per_update": float(attempts @ orders.joules) / total,
    }
    return Steady(attempts, updates, ages, measures, sample)


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
) -> tuple[Integers, list[Integers], float, float, float]:
    """Simulate drawn durations, clients that come and go, and the server's work.

    Args:
        orders: of every client.
        schedule: M, K, and when freed places are refilled; or M and p_i; or M and the clock.
        arrivals: number of counted ones, at least those of two versions. Before, up to two per
            order under way are not counted, while the ages grow.

    Returns:
        Orders of every client, shape ``(N,)``; clients and ages of the updates, each of shape
        ``(arrivals,)``; the seconds in which they arrived; their mean seconds in the buffer;
        and the mean number of clients at work.
    """
    (size, num_draws), buffer_size = orders.draws.shape, getattr(schedule, "buffer_size", 1)
    refills_later = getattr(schedule, "refill", "") == LATER
    concurrency = free = schedule.concurrency or size
    first = 2 * concurrency // buffer_size  # version that counts
    last = first + max(arrivals // buffer_size, 2)
    rng, turns, routed = random.Random(0), count(), isinstance(schedule, Routed)
    routes = np.cumsum(schedule.shares).tolist() if routed else []
    idle, queues, stays = [*range(size)], [0] * size, orders.stays or ALWAYS
    online = stays.mean_online / (stays.mean_online + stays.mean_offline)
    rate = 1 / stays.mean_online + 1 / stays.mean_offline
    away, seen = list[tuple[float, int]](), [-math.inf] * size  # returns; when last online
    ready, under_way = list[int](), list[tuple[float, int, int, float, bool]]()  # a heap
    now, server = 0.0, copy(orders.server)  # it remembers when it is free
    due, clock = 0.0, replace(schedule)  # it remembers the next start
    attempts, clients, ages, waiting, busy = [0] * size, list[int](), list[int](), 0.0, 0.0

    def leave(client: int) -> None:
        heapq.heappush(away, (now + rng.expovariate(1 / stays.mean_offline), client))

    for version in range(last):
        if version == first:
            start, attempts, clients, ages, waiting, busy = now, [0] * size, [], [], 0.0, 0.0
        arrived, receipts = list[int](), 0.0
        while len(arrived) < buffer_size:
            while away and away[0][0] <= now:
                back, client = heapq.heappop(away)
                seen[client] = back
                idle.append(client)
            starts = free
            if isinstance(schedule, Periodic):
                starts = min(schedule.burst, free) if now >= due else 0
            due = clock.wake(now)
            while starts and (routed or idle):
                if routed:
                    client = bisect(routes, rng.random() * routes[-1])
                else:
                    client = idle.pop(int(rng.random() * len(idle)))
                    chance = online + (1 - online) * math.exp((seen[client] - now) * rate)
                    if rng.random() >= chance:
                        leave(client)
                        continue
                starts, free, queues[client] = starts - 1, free - 1, queues[client] + 1
                if queues[client] == 1:
                    ready.append(client)
            while ready:
                client = ready.pop(0)
                now = server.work("dispatch", now)
                seconds = orders.draws[client, next(turns) % num_draws]
                stay = rng.expovariate(1 / stays.mean_online)
                end = now + min(seconds, stay)
                heapq.heappush(under_way, (end, client, version, now, stay < seconds))
            end, client, base, sent, is_lost = under_way[0] if under_way else NEVER
            begins = end if is_lost else server.begins(end)
            joins = away[0][0] if away and free and math.isinf(due) else math.inf
            if min(due, joins) < begins:
                # All starts by the clock before the next arrival are lost if no place is free.
                now = max(now, min(due, joins), 0.0 if free else begins * (1 - 1e-12))
                continue
            heapq.heappop(under_way)
            attempts[client] += 1
            queues[client] -= 1
            free += is_lost or not refills_later
            if is_lost:
                now = max(now, end)
                leave(client)
            else:
                now, seen[client] = server.receive(end), end
                arrived.append(client)
                receipts += now
                ages.append(version - base)
                if queues[client]:
                    ready.append(client)
                elif not refills_later:
                    idle.append(client)
            busy += now - sent
        clients += arrived
        if refills_later:
            free += buffer_size
            idle += arrived
        waiting += buffer_size * now - receipts
        now = server.work("aggregation", now)
        if version % orders.eval_every == 0:
            now = server.work("evaluation", now)
    sample, duration = [np.array(clients), np.array(ages)], now - start
    return np.array(attempts), sample, duration, waiting / len(clients), busy / duration


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
    seconds = draws
    if stays is not None:
        mean = stays.mean_online
        seconds = -mean * np.expm1(-draws / mean)
        # The share of each part that is done before the client goes offline.
        work = -mean * np.diff(np.exp(-work.cumsum(axis=2) / mean), axis=2, prepend=1.0)
    energy = devices.joules
    joules = np.array([energy(each) if energy else math.nan for each in work.mean(axis=1)])
    return Orders(draws, seconds.mean(axis=1), stays, server, eval_every, joules)
