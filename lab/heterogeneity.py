"""``python -m lab.heterogeneity KEY=VALUE ...``: measures the heterogeneity of devices and states.

The overrides are those of a run; an experiment has a row for each of its settings. The numbers are
FLHetBench's DevMC-T and StatMC-T (Zhang et al., CVPR 2024), as its code ``metric.py`` defines them:

    MC-T = t / (10,000 / 20 * 20 s)

t is when 10,000 orders have been given, in rounds of 20 random clients that are online. A round
begins 20 s after the last one, in which no client works, and lasts until 80 % of its clients are
done (the percentile is interpolated).

- DevMC-T: clients are always online, an order takes its seconds.
- StatMC-T: the mean over 0, 10, ... 240 s of work, the same for every client. A client that goes
  offline continues when it is online again.

Here, one of their seconds is a 120th of the mean order of all clients [A], so that equal devices,
and devices that are always online, have 7: (20 + 120) / 20. Larger is more unequal; inf = so many
orders are never given. With fewer than 20 clients, all take part, and their number replaces 20 [A].
"""

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import islice
from statistics import fmean

import hydra
import numpy as np
from omegaconf import DictConfig

from fl_app.api.theory import orders_of
from fl_app.cli import CONF, compose
from fl_app.client.build import instantiate
from fl_app.core.types import Numbers
from fl_app.devices.fleet import Arrivals, Fleet, Overlapping
from fl_app.engine.presence import Availability
from fl_app.runner.components import build_components
from fl_app.runner.validate import checked_cells

ORDERS, PER_ROUND = 10_000, 20
ALWAYS = Arrivals(late=0.0, mean_stay=None)


class Line:
    """The times at which a client comes and goes."""

    def __init__(self, stays: Availability, client_id: int) -> None:
        self._stay = partial(stays.stay, client_id)
        self._first, self._ends = stays.starts_online(client_id), [self._stay(0)]

    def at(self, second: float) -> tuple[bool, float]:
        """Whether the client is online, and until when this state lasts."""
        ends = self._ends
        while ends[-1] <= second:
            ends.append(ends[-1] + self._stay(len(ends)))
        number = bisect_right(ends, second)
        return self._first == (number % 2 == 0), ends[number]

    def done(self, now: float, work: float) -> float:
        """When the client has been online for `work` seconds from `now` on; inf = never."""
        online, change = self.at(now)
        while not online or change - now < work:
            if math.isinf(change):
                return math.inf
            work -= online * (change - now)
            now = change
            online, change = self.at(now)
        return now + work


def rounds(draws: Numbers, lines: Sequence[Line], pause: float) -> float:
    """MC-T: seconds until `ORDERS` are given over those of the breaks alone.

    Args:
        draws: seconds of orders of every client, shape ``(N, draws)``.
        lines: of all clients.
        pause: seconds of the break before a round.
    """
    rng, now, orders, per_round = np.random.default_rng(0), 0.0, 0, min(PER_ROUND, len(lines))
    while orders < ORDERS:
        now += pause
        order = rng.permutation(len(lines)).tolist()
        ready = list(islice((client for client in order if lines[client].at(now)[0]), per_round))
        if ready:
            ends = sorted(lines[client].done(now, rng.choice(draws[client])) for client in ready)
            if math.isinf(ends[math.ceil(0.8 * (len(ends) - 1))]):
                return math.inf
            now = float(np.interp(0.8 * (len(ends) - 1), range(len(ends)), ends))
        else:  # rounds without a client, up to the first that has one
            next_change = min(line.at(now)[1] for line in lines)
            if math.isinf(next_change):
                return math.inf
            now += pause * (math.ceil((next_change - now) / pause) - 1)
        orders += len(ready)
    return now * per_round / (ORDERS * pause)


def heterogeneity(
    devices: Fleet | Overlapping, size: int, stays: Availability | None = None
) -> tuple[float, float]:
    """DevMC-T and StatMC-T.

    Args:
        devices: of all clients.
        size: number of clients.
        stays: when clients are online; None = always.
    """
    draws = orders_of(devices, size).draws
    pause = float(draws.mean()) / 6
    always, lines = ([Line(each or ALWAYS, i) for i in range(size)] for each in (None, stays))
    works = (np.full((size, 1), pause * tens / 2) for tens in range(25))
    return rounds(draws, always, pause), fmean(rounds(work, lines, pause) for work in works)


def main(overrides: Sequence[str]) -> None:
    """Print a row for each setting, of its first cell.

    Raises:
        ValueError: the overrides are refused.
    """
    config = compose(overrides)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cells = checked_cells(config, overrides)
    print(f"{'':20}   DevMC-T  StatMC-T")
    firsts = dict[str, DictConfig]()
    for name, config in cells.items():
        firsts.setdefault(name.partition("@")[2], config)
    for setting, config in firsts.items():
        devices = build_components(config).devices
        if devices is None:
            raise ValueError("the schedule decides how long orders take, and devices= does not")
        stays = config.devices.get("availability")
        stays = stays and instantiate(stays, {"seed": config.seed})
        numbers = heterogeneity(devices, config.num_clients, stays)
        print(f"{setting:20}" + "".join(f"{number:10.2f}" for number in numbers), flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
