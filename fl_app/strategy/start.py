"""A run of `AsyncStrategy.start`: in real time, over any Grid of Flower."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fl_app import report
from fl_app.core.errors import explaining, require
from fl_app.core.events import Aggregated, ClientsEvaluated, Event, Failed, Rejected, Sink
from fl_app.core.files import disk_errors_as_run_errors, require_writable
from fl_app.core.hyper import COUNT, POSITIVE, count
from fl_app.core.layout import Layout, names_of
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.engine.client_evaluation import ClientEvaluation
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.guard import Guard, Intake, Opened
from fl_app.engine.wall import WallClock
from fl_app.flower import codec, names
from fl_app.flower.grid import GridMailbox
from fl_app.flower.nodes import count_nodes
from fl_app.record.folder import RunFolder, require_free
from fl_app.record.history import History
from fl_app.schedule import Schedule
from fl_app.schedule.routed import Routed
from fl_app.strategy.strategy import AsyncStrategy, described, mean_metrics

AGAIN = "call start again with another output folder: it cannot resume a run"

# Methods of Flower's rounds.
UNCALLED = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")

MEAN = "_mean"  # end of the name of a metric's mean

log = logging.getLogger("flwr")


def run(
    strategy: AsyncStrategy,
    grid: Grid,
    initial_arrays: ArrayRecord,
    num_versions: int,
    timeout: float,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
    evaluate: Callable[[int, ArrayRecord], MetricRecord | None] | None,
    schedule: Schedule | None,
    guard: Guard | None,
    eval_every: int,
    client_eval_every: int | None,
    client_eval_fraction: float,
    sinks: Sequence[Sink],
    seed: int,
    output: str | PathLike[str] | None,
) -> Result:
    """Run `strategy`; arguments and result are those of its `start`.

    Raises:
        ValueError: as `start`.
        RunError: as `start`.
    """
    with ExitStack() as stack:
        for sink in sinks:
            fits = hasattr(sink, "emit") and hasattr(sink, "close")
            require(fits, "sinks", sink, "objects with emit and close", "they receive the events")
            stack.callback(sink.close)
        COUNT.check("num_rounds", num_versions, "it counts the versions that are trained")
        count(0).check("seed", seed, "it seeds the schedule's draws")
        fits, bound = isinstance(guard, Guard | None), "a fl_app.engine.guard.Guard"
        require(fits, "guard", guard, bound, "it checks every upload")
        POSITIVE.check("timeout", timeout, "every order would be late")
        schedule = deepcopy(strategy.schedule) if schedule is None else schedule
        bound, reason = "a fl_app.schedule.Schedule, such as k_async(2)", "it says who trains when"
        fits = hasattr(schedule, "take") and not isinstance(schedule, type)
        require(fits, "schedule", schedule, bound, reason)
        reason = "its probabilities are those of simulated devices"
        require(not isinstance(schedule, Routed), "schedule", "Routed", "another one", reason)
        cls = type(strategy)
        custom = names_of(h for h in UNCALLED if getattr(cls, h) is not getattr(AsyncStrategy, h))
        reason = "start never calls them; override dispatch, aggregate or summary instead"
        require(not custom, f"methods of {cls.__name__}", custom, "none of Flower's rounds", reason)
        for key, config in (("train_config", train_config), ("evaluate_config", evaluate_config)):
            reserved = names_of(name for name in names.RESERVED if name in (config or {}))
            bound, reason = f"none of {', '.join(names.RESERVED)}", "every order overwrites them"
            require(not reserved, f"keys of {key}", reserved, bound, reason)
            with explaining(f"{key} must be a ConfigRecord"):
                codec.config_record(config or {})
        # Flower's own strategies may go on from what they have learned.
        learned = (
            vars(strategy).get("_started") and strategy.state and not hasattr(strategy, "inner")
        )
        bound, reason = "a new object", "it would go on from what it learned in an earlier start"
        require(not learned, "strategy", cls.__name__, bound, reason)
        strategy.validate_run(num_versions, schedule)
        if guard is not None:
            guard.validate_kinds(strategy.takes)
        bound = "an ArrayRecord with arrays, such as of model.state_dict()"
        kind, fits = type(initial_arrays).__name__, isinstance(initial_arrays, ArrayRecord)
        require(fits and len(initial_arrays) > 0, "initial_arrays", kind, bound, "it is version 0")
        if client_eval_every is None and evaluate_config is not None:
            client_eval_every = eval_every
        client_evaluation = ClientEvaluation(client_eval_every, client_eval_fraction, seed)
        folder, history, files = None if output is None else Path(output), History(), None
        if folder is not None:
            require_free(folder)
            stack.enter_context(disk_errors_as_run_errors(folder, AGAIN))
            files = RunFolder(folder, history, live=True)
        arrays = codec.arrays_of(initial_arrays)
        kinds = {name: a.dtype for name, a in arrays.items() if a.dtype.kind not in "fiub"}
        require(not kinds, "initial_arrays", kinds, "real numbers", "models are float32")
        # "d" = float64. Zeros count too, since training changes them.
        same = {n: np.array_equal(np.float32(a), a, equal_nan=True) for n, a in arrays.items()}
        if lossy := [n for n, a in arrays.items() if a.dtype == "d" or not same[n]]:
            note = "initial_arrays %s: models are float32, which rounds float64 and integers > 2^24"
            log.warning(note, names_of(lossy))
        layout = Layout.of_arrays(arrays)
        results = _Results(strategy, layout, num_versions, evaluate)
        strategy.summary()
        vars(strategy)["_started"] = True
        num_nodes = _count_nodes(grid, schedule)
        if note := strategy.memory_cost(layout.num_trainable, num_nodes):
            log.info(note)
        mailbox = GridMailbox(
            grid,
            layout,
            train_config=strategy._prepare(layout, train_config),
            evaluate_config=dict(evaluate_config or {}),
            deadline=timeout,
            needs=strategy.needs,
        )
        stack.callback(mailbox.close)  # also if the engine refuses an argument
        all_sinks: list[Sink] = [*sinks, results]
        engine = Engine(
            strategy=strategy,
            schedule=schedule,
            clock=WallClock(mailbox, deadline=timeout),
            initial=codec.from_arrays(initial_arrays, layout),
            num_trainable=layout.num_trainable,
            stop=Stop(num_versions=num_versions),
            evaluate=results.evaluate if evaluate else None,
            eval_every=eval_every,
            client_evaluation=client_evaluation,
            guard=guard or Guard(),
            intake=results,
            sinks=all_sinks,
            seed=seed,
        )
        if files is not None and folder is not None:  # no argument can be refused any more
            settings = {
                "algorithm": {
                    "name": strategy._label,
                    "strategy": strategy._settings(),
                    "schedule": described(schedule),
                },
                "runtime": {"name": "deployment"},
                "num_versions": num_versions,
                "eval_every": eval_every,
                "client_eval_every": client_eval_every,
                "client_eval_fraction": client_eval_fraction,
                "seed": seed,
            }
            with require_writable(folder):
                files.lock()
            stack.callback(files.close)
            files.begin(settings)
            all_sinks += [history, files]
        outcome = engine.run()
        log.info("Stopped by %s after %.1f s", outcome.stopped, outcome.seconds)
        results.result.arrays = codec.record_of(layout.named(outcome.params))
        if files is not None and folder is not None:
            num_clients = sum(len(clients) for clients in engine.clients)
            about = {"algorithm": strategy._label, "task": None, "seed": seed}
            model = layout.named(outcome.params)
            target = report.TARGET_ACCURACY
            files.finish(outcome, model, {**about, "num_clients": num_clients}, target)
            finished = outcome.stopped != "interrupted"
            report.write_report(folder, figures=finished, must_draw=False)
            log.info("Files: %s", folder)
            log.info(report.where(folder))
        if outcome.error is not None:
            raise outcome.error
        return results.result


def _count_nodes(grid: Grid, schedule: Schedule) -> int:
    """The number of nodes; refuses a schedule that needs more nodes than a simulation has."""
    num_nodes, fixed = count_nodes(grid)
    size = schedule.min_clients
    if size == 1 or not 0 < num_nodes <= size:
        return num_nodes
    # If places are refilled at once, a node's second update may fill the buffer.
    waits = getattr(schedule, "refill", "at_once") == "after_aggregation"
    fit = f"start schedule=Buffered(concurrency={num_nodes}, buffer_size={max(1, num_nodes // 2)})"
    key = "schedule.buffer_size"
    if not hasattr(schedule, "buffer_size"):
        key, waits = "schedule.min_clients", size > num_nodes
        fit = f"a schedule that needs fewer (of EAFL: num_clusters={num_nodes})"
    if size > num_nodes:
        effect = "it waits until there are so many" if waits else "it counts some nodes twice"
        bound = f"at most the number of nodes, {num_nodes}"
        reason = f"{effect}; give {fit}, or have more nodes"
        require(not fixed, key, size, bound, reason)
        log.warning("%s=%d should be %s: %s", key, size, bound, reason)
    elif waits:
        message = "schedule.buffer_size=%d is the number of nodes: this is synchronous; give %s"
        log.warning(message, size, fit)
    return num_nodes


@dataclass(eq=False)
class _Results(Intake):
    """Sink that fills Flower's result; an intake, too, as events lack the clients' metrics."""

    strategy: AsyncStrategy
    layout: Layout
    num_versions: int
    measure: Callable[[int, ArrayRecord], MetricRecord | None] | None

    def __post_init__(self) -> None:
        self.result = Result()
        self._updates: Updates = ()  # of the last aggregation
        self._failure_logged = False

    def open(self, model: GlobalModel, updates: Updates) -> Opened:
        self._updates = updates
        return super().open(model, updates)

    def evaluate(self, version: int, vector: Vector) -> Mapping[str, float]:
        """Metrics of a version by the user's function."""
        assert self.measure is not None
        metrics = self.measure(version, codec.record_of(self.layout.named(vector)))
        if metrics is None:
            return {}
        kind, bound = type(metrics).__name__, "a MetricRecord, or None"
        require(isinstance(metrics, Mapping), "result of evaluate_fn", kind, bound, "it is kept")
        log.info("Version %d: %s", version, metrics)
        self.result.evaluate_metrics_serverapp[version] = metrics
        return {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}

    def emit(self, event: Event) -> None:
        match event:
            case Aggregated():
                means = mean_metrics(self._updates)
                record = self.strategy._metrics
                record = MetricRecord(means) if record is None else record
                self.result.train_metrics_clientapp[event.version] = record
                log.info(
                    "Version %d of %d from %d updates, ages %s, mean loss %s",
                    event.version,
                    self.num_versions,
                    len(event.client),
                    event.age,
                    next((f"{means[n]:.4f}" for n in names.LOSS_NAMES if n in means), "unknown"),
                )
            case ClientsEvaluated():
                record = MetricRecord(
                    {
                        key.removesuffix(MEAN): float(value)
                        for key, value in event.metrics.items()
                        if key.endswith(MEAN)
                    }
                )
                self.result.evaluate_metrics_clientapp[event.version] = record
                log.info("Version %d on %d clients: %s", event.version, event.clients, record)
            case Failed() | Rejected():
                # Only the first has its traceback logged; the others likely have the same cause.
                lines = event.reason.strip().splitlines()
                reason = "".join(lines[-1:]) if self._failure_logged else event.reason
                self._failure_logged = True
                log.warning("%s of client %s: %s", event.kind, event.client, reason)

    def close(self) -> None:
        """Nothing to do."""
