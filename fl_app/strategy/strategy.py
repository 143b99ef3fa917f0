"""Adapts an `Algorithm` to Flower's Strategy."""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import RunError
from fl_app.core.events import Sink
from fl_app.core.hyper import at_least
from fl_app.core.layout import Layout, check_returned, check_vector
from fl_app.core.types import KINDS, RESIDUAL, GlobalModel, Scalar, Update, Updates
from fl_app.flower import codec, names
from fl_app.schedule import Buffered, Schedule

if TYPE_CHECKING:
    from fl_app.engine.guard import Guard

log = logging.getLogger("flwr")
NO_SETTINGS = ("state", "report", "shares")  # attributes of a run


class AsyncStrategy(Algorithm, Strategy):
    """An asynchronous algorithm as a strategy of Flower: one required method, `aggregate`.

    It can be used in three ways: by the engine (simulation and deployment of this project), in any
    ServerApp through `start`, and on its own with hand-made `GlobalModel` and `Update` objects.

    Attributes:
        schedule: the default for when clients start and updates are aggregated.
        needs: full name of the trainer that the clients must use; "" = any client will do.
        takes: kinds of uploads that its equations can use.

    Examples:
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
    takes: ClassVar[Sequence[str]] = KINDS

    # Of the last aggregation, for Flower's result; None = means of the clients' metrics.
    _metrics: MetricRecord | None = None

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        """Refuse a run that the algorithm cannot do.

        Args:
            num_versions: greatest number of versions of the run; inf = unknown.
            schedule: of the run.

        Raises:
            ValueError: naming the key, its bound and what would happen.
        """

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
        guard: "Guard | None" = None,
        eval_every: int = 1,
        client_eval_every: int | None = None,
        client_eval_fraction: float = 1.0,
        sinks: Sequence[Sink] = (),
        seed: int = 0,
        output: str | PathLike[str] | None = None,
    ) -> Result:
        """Run asynchronously on real or simulated nodes, in real time.

        The signature is Flower's. `num_rounds` counts published versions. After `timeout` seconds
        another client takes an order's place. Any ClientApp works that receives ``arrays``
        and ``config`` and returns ``arrays`` and ``metrics`` with ``num-examples``. An algorithm
        with client equations (`needs`) requires its trainer: the first other reply ends the run.

        Args:
            grid: reaches the nodes.
            initial_arrays: w_0 by name.
            num_rounds: versions to publish, >= 1.
            timeout: seconds, > 0.
            train_config: sent with every order.
            evaluate_config: sent with every evaluate order; with it clients evaluate.
            evaluate_fn: maps (version, arrays) to metrics.
            schedule: replaces the class's own. A simulation must have at least as many nodes as it
                needs (`min_clients`). Real nodes may still join, so too few only cause a warning.
            guard: bounds on uploads; default none.
            eval_every: versions between evaluations by `evaluate_fn`.
            client_eval_every: versions between evaluations on clients. They receive the model
                between two training orders and return ``metrics`` with ``num-examples``; nothing
                waits for them. None = `eval_every` if there is an `evaluate_config`, else none.
            client_eval_fraction: share of the nodes that evaluate a version, in (0, 1].
            sinks: receive the run's events; they are closed at the end, also after an error.
            seed: of the choice of clients.
            output: folder for the same files that the command line writes: ``events.jsonl``,
                ``metrics.csv``, ``summary.json``, ``model.npz``, ``config.yaml`` and a report for
                the browser, ``report.html``. None = no files.

        Returns:
            The final arrays; by version the clients' metrics in training, their evaluations (both
            means by examples) and the server's. After Ctrl-C they are those of the last version.

        Raises:
            ValueError: an argument is out of its bounds, or `output` holds a run already.
            RunError: the run cannot continue; its files are written.
        """
        # Imported here: a node loads this class for the trainer beside it, and starts no run.
        from fl_app.strategy.start import run

        settings = num_rounds, timeout, train_config, evaluate_config, evaluate_fn, schedule, guard
        evaluation = eval_every, client_eval_every, client_eval_fraction
        return run(self, grid, initial_arrays, *settings, *evaluation, sinks, seed, output)

    # -- Flower's Strategy, in Flower's own synchronous loop --------------------------------------
    # `start` does not call these, and refuses a class that overrides them; Flower's wrappers and
    # users' own round loops call them.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send every node what `dispatch` gives it.

        Raises:
            ValueError: the algorithm exchanges more than models.
        """
        obstacle = ""
        if extra := dict.fromkeys([*self.order_extra, *self.upload_extra]):
            obstacle = f"exchanges more than models ({', '.join(extra)})"
        elif RESIDUAL in self.takes:
            obstacle = "tells its clients which of their uploads arrived"
        if obstacle:
            consequence = "which Flower's own round loop would drop: call start"
            raise ValueError(f"{type(self).__name__} {obstacle}, {consequence}")
        config[names.SERVER_ROUND] = server_round
        layout = Layout.of_arrays(codec.arrays_of(arrays))
        params = codec.from_arrays(arrays, layout)
        model = GlobalModel(params, server_round - 1, num_trainable=layout.num_trainable)
        self._round, messages = (layout, model), []
        for node in grid.get_node_ids():
            vector, client_config = self.dispatch(model, node)
            content = arrays if vector is model.params else codec.record_of(layout.named(vector))
            config_record = codec.config_record({**config, **client_config})
            record = RecordDict({names.ARRAYS: content, names.CONFIG: config_record})
            messages.append(Message(record, message_type=MessageType.TRAIN, dst_node_id=node))
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Aggregate one round, in which every update has age 0."""
        (layout, model), updates = self._round, []
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                if reply.has_error():
                    raise ValueError(reply.error.reason)
                upload = codec.read_upload(reply, layout, self.needs)
                at_least(1).check("num-examples", upload.num_examples, "it would have no weight")
                if problem := check_vector(upload.vector, layout.size):
                    raise ValueError(problem)
                updates.append(Update.of(upload, node, model.version))
            except ValueError as error:
                log.warning("node %d is left out of round %d: %s", node, server_round, error)
        if not updates:
            return None, None
        params = self.aggregate(model, updates)
        if problem := check_returned(f"{type(self).__name__}.aggregate", params, layout.size):
            raise RunError(problem)
        arrays = codec.record_of(layout.named(params))
        return arrays, MetricRecord(mean_metrics(updates, "loss"))

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

    # -- what `start` uses beside the equations ----------------------------------------------------

    @property
    def _label(self) -> str:
        """The algorithm in files and reports; for those of this project, as in `algorithm=`."""
        package, _, file = type(self).__module__.rpartition(".")
        return file if package == "fl_app.algorithms" else type(self).__name__

    def _prepare(self, layout: Layout, train_config: ConfigRecord | None) -> Mapping[str, object]:
        """Prepare a run of `start`; returns what every order carries beside `dispatch`'s config."""
        return dict(train_config or {})

    def summary(self) -> None:
        """Log the algorithm and its hyper-parameters."""
        log.info("%s, asynchronous: %s", type(self).__name__, self._settings())
        if self.needs:
            log.info("Its ClientApp must train with %s", self.needs)

    def _settings(self) -> dict[str, Scalar | None]:
        """The hyper-parameters, by name."""
        own = {k: v for k, v in vars(self).items() if k not in NO_SETTINGS and k[0] != "_"}
        return {name: described(value) for name, value in own.items()}


def mean_metrics(updates: Updates, loss: str = "train_loss") -> dict[str, Any]:
    """Means of clients' metrics, weighted by examples as in Flower: with a NaN the mean is NaN.

    Args:
        updates: of one version.
        loss: name of the mean loss; foreign clients' losses keep their own names.
    """
    samples: dict[str, list[tuple[float, int]]] = {}
    for update in updates:
        sent: dict[str, Any] = {**update.metrics, loss: update.loss}
        if foreign := update.records.get(names.METRICS):
            sent = {k: v for record in foreign.values() for k, v in record.items()}
            sent.pop(names.NUM_EXAMPLES, None)
        for name, value in sent.items():
            if isinstance(value, int | float):
                samples.setdefault(name, []).append((value, update.num_examples))
    return {k: sum(v * n for v, n in s) / sum(n for _, n in s) for k, s in samples.items()}


def described(value: object) -> Scalar | None:
    """A setting for a log or a file; an object is described by its class and settings."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, None | bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if hasattr(value, "__name__"):  # a function or a class
        return str(value.__name__)
    if type(value).__repr__ is not object.__repr__:
        return re.sub(" at 0x[0-9A-F]+", "", repr(value))  # else no second process could resume
    attributes = getattr(value, "__dict__", {})
    settings = [f"{k}={described(v)}" for k, v in attributes.items() if k[0] != "_"]
    return f"{type(value).__name__}({', '.join(settings)})"
