"""What a federation will do, and which sizes are best, without a run (`fl_app.api.theory`)."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from fl_app.api.settings import Setting, plan_of
from fl_app.api.theory import LATER, LOOP, Orders, Plannable, Steady, orders_of, simulate, steady
from fl_app.client.build import asks_for_masks, instantiate
from fl_app.core.errors import require
from fl_app.devices.fleet import Churn
from fl_app.devices.table import boards_of
from fl_app.engine.server import Server
from fl_app.runner.components import Components, build_components, message_bytes
from fl_app.runner.validate import work_decider
from fl_app.schedule.buffered import Buffered
from fl_app.schedule.routed import Routed

if TYPE_CHECKING:
    from fl_app.api.plot import Plot
    from fl_app.tasks.task import Task

ROUGH = 2_000  # arrivals in the loop of a row of the grid
ENOUGH = 0.99  # share of the most updates a second that counts as equally fast
MIN_ENDED = 0.1  # share of orders that end before their client goes offline; fewer take long
BUFFERS = (1, 2, 5, 10, 20, 50)  # of the grid
BY_CONTENT = ("Zeno",)  # strategies that refuse updates because of their contents
INSTEAD = "theory does not cover it: run it, with runtime.train=false if only seconds decide"


@dataclass(frozen=True)
class Prediction:
    """The prediction of a federation's long run.

    Attributes:
        measures: of the configured schedule, by name; seconds, versions, bytes, joules.
        classes: a row for each kind of board, or third of the clients by speed.
        grid: a row for each compared concurrency and buffer.
        best: the row of `grid` that is best for the aim; None = no row fulfils it.
    """

    measures: dict[str, float]
    classes: pd.DataFrame
    grid: pd.DataFrame
    best: "pd.Series[float] | None"

    def __str__(self) -> str:
        measures = {name: value for name, value in self.measures.items() if not math.isnan(value)}
        lines = [f"{name.replace('_', ' '):22}{value:10.4g}" for name, value in measures.items()]
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
        from fl_app.api.plot import grid_plot  # altair, of the extra "report"

        return grid_plot(self.grid, self.best)


def plan(*settings: Setting, task: "Task | None" = None, aim: str = "age=10") -> Prediction:
    """Predict a run's throughput, ages and loads from its configuration.

    Args:
        settings: as of `fl_app.run`.
        task: as of `fl_app.run`.
        aim: which row of the grid is best: ``"age=A"`` (the fewest seconds to a target, if the
            versions to it grow as (1 + age / A)^2 [A]; the better a method tolerates stale updates,
            the larger is A), ``"age<=A"`` (the most updates a second of such a mean age),
            ``"updates"`` (the most a second, of any age), or ``"energy"`` (the fewest joules an
            update). Of equally fast rows, the one with the fewest clients at work wins, then that
            with the most versions.

    Raises:
        ValueError: a setting is refused, or theory does not cover the run.
    """
    match = re.fullmatch(r"(updates|energy|age<?=)((?<==)\d+\.?\d*)?", aim)
    if match is None or (match[2] is None) != aim.isalpha():
        raise ValueError(f"aim={aim} must be updates, energy, age=A or age<=A, such as age<=2.5")
    configured = plan_of(settings, task)
    components = build_components(configured.config, task, configured.objects)
    config, size = components.config, components.config.num_clients
    stays, server = (config.devices.get(part) for part in ("availability", "server"))
    stays = stays and instantiate(stays, {"seed": config.seed})
    server = instantiate(server) if server else Server()
    schedule = _plannable(components, stays)
    assert components.devices is not None
    fresh = components.trainer.pauses  # at most once an order
    orders = orders_of(
        components.devices, size, stays, server, fresh=fresh, eval_every=config.eval_every
    )
    if stays and np.exp(-orders.draws / stays.mean_online).mean() < MIN_ENDED:
        value = f"{stays.mean_online:g}: {1 - MIN_ENDED:.0%} of orders are lost"
        raise ValueError(f"devices.availability.mean_online={value}; {INSTEAD}")
    long_run = steady(orders, schedule)
    order_bytes, upload_bytes = message_bytes(components.strategy, components.trainer)
    parts = [components.strategy.part(client_id) for client_id in range(size)]
    measures = long_run.measures | {
        "bytes_down_per_second": float(long_run.orders @ parts) * order_bytes * (1 + fresh),
        "bytes_up_per_second": float(long_run.updates @ parts) * upload_bytes,
    }
    buffers = BUFFERS if "buffer_size" in config.algorithm.schedule else (1,)
    grid = pd.DataFrame(
        steady(orders, variant, ROUGH).measures for variant in _variants(schedule, size, buffers)
    )
    if "boards" in config.devices:
        names = np.array(boards_of(config.devices.table, config.devices.boards, size)[0])
    else:
        thirds = np.argsort(np.argsort(orders.seconds)) * 3 // size
        names = np.array(["fast third", "middle third", "slow third"])[thirds]
    classes = _classes(orders, schedule, long_run, names)
    if components.trainer.overlaps:  # displacements from the version before
        for table in (measures, grid, classes):
            table["mean_age"] += 1
        classes["age_95"] += 1
    bound = config.guard.max_age
    oldest = min(components.strategy.oldest_admitted, math.inf if bound is None else bound)
    if classes.age_95.max() > oldest:
        problem = f"updates reach age {classes.age_95.max():g}, and those above {oldest:g}"
        raise ValueError(f"{problem} are refused; {INSTEAD}")
    best = _best(grid[grid.mean_age <= oldest], match[1], float(match[2] or "inf"))
    return Prediction(measures, classes, grid, best)


def _plannable(components: Components, stays: object) -> Plannable:
    """The schedule, if theory covers the run; `stays` say when clients are online.

    Raises:
        ValueError: the long run does not follow from seconds alone.
    """
    config, schedule = components.config, components.schedule
    bounds = [key for key in ("max_norm", "max_norm_ratio") if config.guard[key] is not None]
    norms = "".join(f" guard.{key}={config.guard[key]:g}" for key in bounds)
    if components.devices is None or type(schedule) not in get_args(Plannable):
        reason = f"algorithm.schedule={type(schedule).__name__}: it goes by more than seconds"
    elif decider := work_decider(components.strategy, schedule, config.algorithm.client):
        reason = f"{decider}: its orders say how much clients train"
    elif config.deadline is not None:
        reason = f"deadline={config.deadline}: a late client stays at work"
    elif type(components.strategy).__name__ in BY_CONTENT or norms:
        reason = f"algorithm={config.algorithm.name}{norms}: updates are refused for what they hold"
    elif config.client_eval_every is not None:
        reason = f"client_eval_every={config.client_eval_every}: evaluations keep clients busy"
    elif asks_for_masks(config):
        reason = "secure_aggregation: updates wait for their group"
    elif stays and not isinstance(stays, Churn):
        reason = f"devices.availability={type(stays).__name__}: stays are not exponential"
    elif stays and isinstance(schedule, Routed):
        reason = "devices.availability with Routed: orders wait for clients that are offline"
    else:
        return cast(Plannable, schedule)
    raise ValueError(f"{reason}; {INSTEAD}")


def _variants(schedule: Plannable, size: int, buffers: Sequence[int]) -> Iterator[Plannable]:
    """The schedule with each concurrency and buffer that is compared."""
    sizes = sorted({max(1, round(size ** (step / 7))) for step in range(8)})
    for concurrency in [size] if schedule.concurrency is None else sizes:
        if not isinstance(schedule, Buffered):
            yield replace(schedule, concurrency=concurrency)
        else:
            rounds = schedule.refill == LATER and schedule.buffer_size == schedule.concurrency
            for buffer in [concurrency] if rounds else buffers:
                if buffer <= concurrency:
                    yield replace(schedule, concurrency=concurrency, buffer_size=buffer)


def _best(grid: pd.DataFrame, aim: str, age: float) -> "pd.Series[float] | None":
    """The best row; of equally fast ones that with the fewest clients at work, then buffered."""
    if aim == "age=" and (len(grid) == 1 or grid.mean_age.nunique() > 1):
        versions = (1 + grid.mean_age / max(age, 1e-9)) ** 2
        return grid.loc[(versions * grid.buffer_size / grid.updates_per_second).idxmin()]
    if aim == "age=" or (rows := grid[grid.mean_age <= age]).empty:
        return None
    if aim == "energy":
        minimum = rows.joules_per_update.min()
        require(minimum > 0, "aim", "energy", "used with devices/energy", "joules are unknown")
        best = rows[rows.joules_per_update <= minimum / ENOUGH]
        return best.sort_values("updates_per_second").iloc[-1]
    best = rows[rows.updates_per_second >= ENOUGH * rows.updates_per_second.max()]
    return best.sort_values(["clients_at_work", "buffer_size"]).iloc[0]


def _classes(
    orders: Orders, schedule: Plannable, long_run: Steady, names: NDArray[np.str_]
) -> pd.DataFrame:
    """A row for each class of clients; `names` are the classes of all clients."""
    columns = {"clients": 1, "seconds": orders.seconds, "share": long_run.updates}
    clients = pd.DataFrame(columns | {"mean_age": long_run.updates * long_run.ages})
    rows = clients.groupby(names).sum()
    rows["seconds"] /= rows["clients"]
    rows["mean_age"] /= rows["share"]
    rows["share"] /= rows["share"].sum()
    heard, ages = long_run.sample or simulate(orders, schedule, LOOP)[1]
    rows["age_95"] = pd.Series(ages).groupby(names[heard]).quantile(0.95, interpolation="higher")
    return rows
