"""Flower's Strategy, written once, so that an algorithm's author writes `aggregate`."""

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from copy import deepcopy
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fl_app.core.errors import RunError, require, require_at_least, require_positive
from fl_app.core.events import Aggregated, Arrived, Clustered, Event, Failed, Rejected, Sink
from fl_app.core.files import disk_errors_as_run_errors
from fl_app.core.layout import Layout, check_returned, check_vector
from fl_app.core.rates import LinearDecay
from fl_app.core.types import KINDS, Config, Extra, GlobalModel, Scalar, Update, Vector
from fl_app.core.vector import clipped, combine, norm, weighted_sum
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.guard import Guard
from fl_app.engine.wall import WallClock
from fl_app.flower import wire
from fl_app.flower.grid import GridMailbox
from fl_app.schedule import Buffered, Schedule

log = logging.getLogger("flwr")

Floats: TypeAlias = Sequence[float] | NDArray[np.float64]


class AsyncStrategy(Strategy):
    """An asynchronous algorithm: one required method, `aggregate`.

    Usable in three ways: by the engine (simulation and deployment of this project), in any
    ServerApp through `start`, and on its own with hand-made `GlobalModel` and `Update` objects.

    Args:
        clip_norm: longest trainable part of an upload in `gradients`, > 0; None = any.
        lr_schedule: of the server's rate in `step`; None = constant.

    Attributes:
        schedule: when clients start and updates are aggregated, unless told otherwise.
        needs: full name of the trainer whose equations the clients must know; "" = any client's
            models will do.
        cites_forgotten: whether its clients may say that they started from a version that no order
            under way cites, and no model is kept of: their displacements are all it looks at.
        takes: kinds of uploads that its equations can use.
        transient: names of attributes that may change during a run, since they can be computed
            again. Any other change is learning that no checkpoint holds: no run goes on from one.
        order_extra: names of the vectors, of the model's shape, that every order carries beside the
            model (`dispatch_extra`). Known before the run, as are the seconds of a transfer.
        upload_extra: names of those that every upload carries (`Update.extra`).
        state: everything learned; whoever restores it restores the algorithm.
        report: numbers about the last aggregation (such as ``weight``, one per update), which go
            into its event; the engine empties it before every `aggregate`.

    Example:
        >>> class Mean(AsyncStrategy):
        ...     def aggregate(self, model, updates):
        ...         return model.params + sum(model.delta(u) for u in updates) / len(updates)
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> delta = np.array([2.0, 4.0], np.float32)
        >>> Mean().aggregate(model, [Update(7, 3, delta, "delta", 10, 0.5)]).tolist()
        [2.0, 4.0]
    """

    schedule: ClassVar[Schedule] = Buffered(concurrency=None, buffer_size=1)
    needs: ClassVar[str] = ""
    cites_forgotten: ClassVar[bool] = False
    takes: ClassVar[Sequence[str]] = KINDS
    transient: ClassVar[Collection[str]] = ()
    order_extra: ClassVar[tuple[str, ...]] = ()
    upload_extra: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, *, clip_norm: float | None = None, lr_schedule: LinearDecay | None = None
    ) -> None:
        require(
            clip_norm is None or clip_norm > 0,
            "strategy.clip_norm",
            clip_norm,
            "above 0 or null",
            "nothing would be left of an upload",
        )
        require(
            lr_schedule is None or isinstance(lr_schedule, LinearDecay),
            "strategy.lr_schedule",
            lr_schedule,
            "null or a schedule with keys of its own, such as strategy.lr_schedule.to",
            "nobody knows what to multiply the rate by",
        )
        self.clip_norm = clip_norm
        self.lr_schedule = lr_schedule
        self.state: dict[str, Any] = {}
        self.report: dict[str, Any] = {}

    # -- the algorithm ----------------------------------------------------------------------------

    @abstractmethod
    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        """The next global model.

        Args:
            model: w_t and the older versions that `updates` cite.
            updates: what the schedule released, K >= 1, oldest arrival first.

        Returns:
            w_{t+1}, shape ``(d,)``, float32, finite; arguments are left alone.
        """

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        """What a client that starts now receives: a vector of shape ``(d,)`` and settings."""
        del client_id
        return model.params, {}

    def dispatch_extra(self, model: GlobalModel, client_id: int) -> Extra:
        """The vectors named in `order_extra`, shape ``(d,)``; also with the answer to a pause.

        One that is read-only is given to clients as it is, another one is copied for every order.
        """
        raise NotImplementedError

    def refresh(self, model: GlobalModel, paused: Update) -> tuple[Vector, Config]:
        """The answer to a client that paused: a vector of shape ``(d,)`` and settings.

        Only asked when there is a newer version than the client started from.
        """
        del paused
        return model.params, {}

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        """A reason to refuse an arrival, or None."""
        del model, update
        return None

    def cluster(self, model: GlobalModel, updates: Sequence[Update]) -> Mapping[int, int]:
        """Clusters of clients, for a schedule that asks for them; no version comes of it.

        Args:
            model: w_t.
            updates: the latest upload of every client that is there, as a descent direction.

        Returns:
            client -> cluster, numbered from 0 by falling size. A client that is in none, since it
            comes later, belongs to cluster 0, the largest.
        """
        del model
        return {update.client_id: 0 for update in updates}

    def to_evaluate(self, model: GlobalModel) -> Vector:
        """What is tested and saved, shape ``(d,)``."""
        return model.params

    def totals(self) -> dict[str, float]:
        """What ``summary.json`` is to say of the run as a whole, such as the privacy it cost."""
        return {}

    def _train_metrics(self) -> MetricRecord | None:
        """What Flower's result says of the last aggregation; None = the clients' mean loss."""
        return None

    def check(self, num_versions: float, schedule: Schedule) -> None:
        """Refuse a run of so many versions at most, inf = nobody knows, under this schedule.

        Raises:
            ValueError: naming the key, its bound and what would happen.
        """

    # -- pieces of `aggregate` that many algorithms share -----------------------------------------

    def clip(self, model: GlobalModel, uploads: Iterable[Vector]) -> list[Vector]:
        """g min(1, clip_norm / ||g||) over the trainable part of each upload ``(d,)``."""
        if self.clip_norm is None:
            return list(uploads)
        return [clipped(upload, self.clip_norm, model.num_trainable) for upload in uploads]

    def gradients(self, model: GlobalModel, updates: Sequence[Update]) -> list[Vector]:
        """Descent directions of K updates ``(d,)``, clipped; they may be the uploads themselves."""
        return self.clip(model, (model.gradient(update) for update in updates))

    def average(self, model: GlobalModel, weights: Floats, uploads: Sequence[Vector]) -> Vector:
        """sum_i p_i g_i, a new vector ``(d,)``; says so in the report (`describe`)."""
        split = model.num_trainable
        direction = np.empty_like(uploads[0])
        total, lengths, _ = combine(weights, [u[:split] for u in uploads], out=direction[:split])
        self.describe(weights, lengths, norm(total))
        weighted_sum(weights, [u[split:] for u in uploads], out=direction[split:])
        return direction

    def complete(
        self, model: GlobalModel, direction: Vector, weights: Floats, uploads: Sequence[Vector]
    ) -> Vector:
        """A direction ``(num_trainable,)`` and the mean of the uploads' buffers: ``(d,)``."""
        buffers = [upload[model.num_trainable :] for upload in uploads]
        if not buffers[0].size:
            return direction
        return np.concatenate([direction, weighted_sum(weights, buffers)])

    def describe(self, weights: Floats, lengths: Floats, total_length: float) -> None:
        """Report an aggregation: ``weight``, and how many clients' worth of averaging it did.

        ``effective_clients`` is (mean_i ||g_i|| / ||g||)^2 of the weighted mean g: K if all count
        the same and are orthogonal, 1 if one counts alone or all agree. Weights that do not sum to
        1 change the step but not this number.

        Args:
            weights: p_i, shape ``(K,)``.
            lengths: ||g_i|| over the trainable part, shape ``(K,)``.
            total_length: ||sum_i p_i g_i||.
        """
        self.report["weight"] = [float(weight) for weight in weights]
        self.report["effective_clients"] = (
            float(np.mean(lengths) * np.sum(weights) / total_length) ** 2 if total_length else None
        )

    def step(self, model: GlobalModel, direction: Vector, server_lr: float) -> Vector:
        """w_t - eta direction, with eta = `server_lr` as far as `lr_schedule` leaves it."""
        decay = 1.0 if self.lr_schedule is None else self.lr_schedule.factor(model.version)
        return model.step(direction, server_lr * decay)

    # -- Flower's Strategy, asynchronous ----------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
        *,
        schedule: Schedule | None = None,
        guard: Guard | None = None,
        eval_every: int = 1,
        sinks: Sequence[Sink] = (),
        seed: int = 0,
        output: str | PathLike[str] | None = None,
    ) -> Result:
        """Run asynchronously on real or simulated nodes, in real time.

        Flower's own signature, read asynchronously: `num_rounds` counts published versions, and
        `timeout` is how long one order may take before its place is given to another client.
        ClientApps that never heard of this project work: they receive ``arrays`` and ``config``,
        and return ``arrays`` and ``metrics`` with ``num-examples``. Not so with an algorithm whose
        clients have equations of their own (`needs`): the first reply without them ends the run.

        Args:
            grid: reaches the nodes.
            initial_arrays: w_0 by name.
            num_rounds: versions to publish, >= 1.
            timeout: seconds, > 0.
            train_config: sent with every order.
            evaluate_config: unused, for evaluation is central.
            evaluate_fn: maps (version, arrays) to metrics.
            schedule: instead of the class's own.
            guard: bounds on uploads; default none.
            eval_every: versions between evaluations.
            sinks: receive the run's events, and are closed however the run ends.
            seed: of the choice of clients.
            output: folder for the run's files, as of a run of the command line: ``events.jsonl``,
                ``metrics.csv``, ``summary.json``, ``model.npz``, ``config.yaml``, and a report to
                open in a browser, ``report.html``. None = no files.

        Returns:
            The final arrays; by version, the clients' mean loss and the evaluations. After Ctrl-C,
            what was reached by then.

        Raises:
            ValueError: an argument is out of its bounds, or `output` holds a run already.
            RunError: the run could not go on; its files are written.
        """
        with ExitStack() as stack:
            for sink in sinks:
                stack.callback(sink.close)
            require_at_least("num_rounds", num_rounds, 1, "nothing would be trained")
            require_positive("timeout", timeout, "every order would be late")
            schedule = schedule or deepcopy(self.schedule)
            self.check(num_rounds, schedule)
            if output is not None:
                # Only now, for who writes no files needs none of it.
                from fl_app import report
                from fl_app.record.folder import RunFolder, require_free

                folder = Path(output)
                require_free(folder)
                stack.enter_context(disk_errors_as_run_errors(folder))
            layout = wire.layout_of(initial_arrays)
            result = Result()

            def evaluate(version: int, vector: Vector) -> Mapping[str, float]:
                assert evaluate_fn is not None
                metrics = evaluate_fn(version, wire.to_arrays(vector, layout))
                if metrics is None:
                    return {}
                log.info("Version %d: %s", version, metrics)
                result.evaluate_metrics_serverapp[version] = metrics
                return {name: float(v) for name, v in metrics.items() if isinstance(v, int | float)}

            self.summary()
            mailbox = GridMailbox(
                grid,
                layout,
                train_config=self._prepare(layout, train_config),
                deadline=timeout,
                introduce=False,
                needs=self.needs,
            )
            stack.callback(mailbox.close)  # also if the engine refuses an argument
            listening: list[Sink] = [*sinks, _Results(self, result, num_rounds)]
            engine = Engine(
                strategy=self,
                schedule=schedule,
                clock=WallClock(mailbox, deadline=timeout),
                initial=wire.from_arrays(initial_arrays, layout),
                num_trainable=layout.num_trainable,
                stop=Stop(num_versions=num_rounds),
                evaluate=evaluate if evaluate_fn else None,
                eval_every=eval_every,
                guard=guard,
                sinks=listening,
                seed=seed,
                learning_rates=rates(self),
            )
            if output is not None:  # nothing can be refused any more
                settings = {
                    "algorithm": {
                        "name": self._label,
                        "strategy": self._settings(),
                        "schedule": described(schedule),
                    },
                    "runtime": {"name": "deployment"},
                    "num_versions": num_rounds,
                    "eval_every": eval_every,
                    "seed": seed,
                }
                files = RunFolder(folder, settings)
                stack.callback(files.close)
                listening.append(files)
            outcome = engine.run()
            log.info("Stopped by %s after %.1f s", outcome.stopped, outcome.seconds)
            result.arrays = wire.to_arrays(outcome.params, layout)
            if output is not None:
                num_clients = sum(len(clients) for clients in engine.clients)
                model = layout.named(outcome.params)
                files.finish(outcome, model, num_clients, report.TARGET_ACCURACY)
                report.write_report(folder, figures=outcome.stopped != "interrupted")
                log.info("Files: %s", folder)
                log.info("Report, to open in a browser: %s", folder / report.PAGE)
            if outcome.error is not None:
                raise outcome.error
            return result

    @property
    def _label(self) -> str:
        """Name of the algorithm in files and reports: for one of this project, as configured."""
        package, _, file = type(self).__module__.rpartition(".")
        return file if package == "fl_app.algorithms" else type(self).__name__

    def _prepare(self, layout: Layout, train_config: ConfigRecord | None) -> Mapping[str, object]:
        """Get ready for a run of `start`; what to send with every order beside `dispatch`'s own."""
        del layout
        return dict(train_config or {})

    def summary(self) -> None:
        """Log the algorithm and its hyper-parameters."""
        log.info("%s, asynchronous: %s", type(self).__name__, self._settings())
        if self.needs:
            log.info("Its ClientApp must train with %s", self.needs)

    def _settings(self) -> dict[str, Scalar | None]:
        """The hyper-parameters, by name."""
        own = {k: v for k, v in vars(self).items() if k not in ("state", "report") and k[0] != "_"}
        return {name: described(value) for name, value in own.items()}

    # -- Flower's Strategy, in Flower's own synchronous loop --------------------------------------
    # `start` never calls these; Flower's wrappers and users' own round loops do.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to every node.

        Raises:
            ValueError: the algorithm sends more than a model.
        """
        if self.order_extra or self.upload_extra:
            names = dict.fromkeys([*self.order_extra, *self.upload_extra])
            raise ValueError(
                f"{type(self).__name__} exchanges more than models ({', '.join(names)}), which "
                "Flower's own round loop would drop: call start"
            )
        self._round = arrays
        config["server-round"] = server_round
        record = wire.train_record(arrays, config)
        return [
            Message(content=record, message_type=MessageType.TRAIN, dst_node_id=node)
            for node in grid.get_node_ids()
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate one round, in which every update has age 0."""
        layout = wire.layout_of(self._round)
        params, version = wire.from_arrays(self._round, layout), server_round - 1
        updates = []
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                updates.append(_update_of(reply, layout, node, version, self.needs))
            except ValueError as error:
                log.warning("node %d is left out of round %d: %s", node, server_round, error)
        if not updates:
            return None, None
        model = GlobalModel(params, version, num_trainable=layout.num_trainable)
        params = self.aggregate(model, updates)
        if problem := check_returned(f"{type(self).__name__}.aggregate", params, layout.size):
            raise RunError(problem)
        arrays = wire.to_arrays(params, layout)
        return arrays, MetricRecord({"loss": float(np.mean([u.loss for u in updates]))})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Nothing: evaluation is central."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing: evaluation is central."""
        return None


def rates(strategy: AsyncStrategy) -> dict[str, float]:
    """The server's learning rate by its key, if the strategy has one."""
    server_lr = getattr(strategy, "server_lr", None)
    return {} if server_lr is None else {"strategy.server_lr": server_lr}


def described(value: object) -> Scalar | None:
    """A setting as a log or a file tells it: objects by their class and settings."""
    if isinstance(value, None | bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if hasattr(value, "__name__"):  # a function or a class
        return str(value.__name__)
    if type(value).__repr__ is not object.__repr__:
        return repr(value)
    attributes = getattr(value, "__dict__", {})
    own = [f"{k}={described(v)}" for k, v in attributes.items() if k[0] != "_"]
    return f"{type(value).__name__}({', '.join(own)})"


def _update_of(reply: Message, layout: Layout, node: int, version: int, needs: str) -> Update:
    """What a node sent in a round of Flower's; ValueError if it cannot be aggregated."""
    if reply.has_error():
        raise ValueError(wire.error_of(reply))
    upload = wire.unpack_reply(reply, layout, needs=needs)
    require_at_least("num-examples", upload.num_examples, 1, "it would have no weight")
    problem = check_vector(upload.vector, layout.size)
    if problem:
        raise ValueError(problem)
    return Update.of(upload, node, version)


class _Results:
    """Sink that fills Flower's result with what each version's updates say of the training."""

    def __init__(self, strategy: AsyncStrategy, result: Result, num_versions: int) -> None:
        self._strategy = strategy
        self._result = result
        self._num_versions = num_versions
        self._losses: dict[int, float] = {}  # of orders whose updates wait in the buffer

    def emit(self, event: Event) -> None:
        match event:
            case Arrived() if event.loss is not None:
                self._losses[event.order] = event.loss
            case Clustered():
                for order in event.order:
                    self._losses.pop(order, None)
            case Aggregated():
                losses = [self._losses.pop(n) for n in event.order if n in self._losses]
                record = self._strategy._train_metrics()
                if record is None and losses:
                    record = MetricRecord({"train_loss": float(np.mean(losses))})
                if record is not None:
                    self._result.train_metrics_clientapp[event.version] = record
                log.info(
                    "Version %d of %d from %d updates, ages %s, mean loss %s",
                    event.version,
                    self._num_versions,
                    len(event.client),
                    event.age,
                    f"{np.mean(losses):.4f}" if losses else "unknown",
                )
            case Failed() | Rejected():
                log.warning("%s of client %s: %s", event.kind, event.client, event.reason)

    def close(self) -> None:
        """Nothing to do."""
