"""Flower's own strategies, run asynchronously: K arrivals at a time instead of rounds."""

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from types import FunctionType, MethodType
from typing import Any, NamedTuple, NoReturn, cast

import numpy as np
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.exception import AppExitException
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, MultiKrum
from flwr.supercore.task_identity import TaskIdentity

from fl_app.core.errors import RunError, require
from fl_app.core.events import KEYS, Aggregated
from fl_app.core.hyper import COUNT, NON_NEGATIVE
from fl_app.core.layout import Layout
from fl_app.core.snapshot import Remembers
from fl_app.core.types import TRAINED, Config, GlobalModel, Records, Update, Updates, Vector
from fl_app.flower import codec, names
from fl_app.schedule import Schedule, k_async
from fl_app.strategy.strategy import AsyncStrategy

CURRENT = "current_arrays"  # of Flower's strategies: `configure_train` sets them in each round
CODE = (FunctionType, MethodType, partial, type)  # is not kept
NAME = "model"  # the only array that the inner strategy sees, if the model's names are unknown

# Flower's strategies that cannot run asynchronously: part of the class's name -> reason.
UNSUPPORTED = {
    "SecAgg": "SecAgg+ needs rounds, in which a cohort answers several times together",
    "DifferentialPrivacy": (
        "Flower's wrapper adds noise for rounds, in which each of num_sampled_clients uploads "
        "once; a buffer may hold two uploads of one client, so its privacy would be less than "
        "promised; use algorithm=dp_fedbuff"
    ),
    "FedXgb": (
        "its models are trees, which grow and cannot be added: a stale displacement cannot be "
        "applied to the current model"
    ),
}
# Settings of Flower's rounds that have no or less effect here -> what decides instead.
TRAIN = "has no effect: the schedule decides how many clients train (concurrency, buffer_size)"
EVALUATE = "has no effect: client_eval_fraction decides how many clients evaluate"
IGNORED_SETTINGS = {
    "fraction_train": TRAIN,
    "min_train_nodes": TRAIN,
    "min_available_nodes": TRAIN,
    "fraction_evaluate": EVALUATE,
    "min_evaluate_nodes": EVALUATE,
    "weighted_by_key": "weighs training alone: what clients measure is averaged by num-examples",
}
# Methods that are never called here, so that an inner strategy's own ones would be ignored.
UNCALLED = ("start", "configure_evaluate", "aggregate_evaluate")
# Keys that every aggregation's event has.
EVENT_KEYS = ("kind", *KEYS[Aggregated], "weight")
MAX_QUERIES = 10  # queries of the connected nodes in one call of `configure_train`

log = logging.getLogger("flwr")


class Asynchronous(AsyncStrategy):
    """Runs a strategy of Flower (FedAvg, FedAdam, FedYogi, FedMedian, Krum, ...) on K arrivals.

    The inner strategy sees K replies of one round: the current model plus each client's
    displacement, ``w_t + (w_i - w_o)``. Flower's strategies replace the global model by their
    aggregate. An aggregate of the clients' stale models would undo what was published since those
    clients started. If no update is stale, the replies hold the clients' models.

    `configure_train` and `aggregate_train` of the inner strategy are called once per version, as in
    Flower's loop. Its config is sent to every client that starts from the version. Replies keep all
    their metrics and records.

    Args:
        inner: Flower's strategy. Its sampling of nodes is not used. Metrics of evaluations on
            clients are averaged by examples.

    Raises:
        ValueError: `inner` is not based on Flower's FedAvg, or cannot run asynchronously.
    """

    # `state` holds what the inner strategy has learned, and the config.
    transient = ("inner", "_layout", "_current", "_metrics")
    takes = TRAINED
    schedule = k_async(10)  # with a buffer of one, stale displacements would add up undamped

    looks_at = "every client's arrays, as Flower's strategies do"

    def __init__(self, inner: FedAvg) -> None:
        super().__init__()
        bound = "an instance: FedAdam(), not FedAdam"
        require(not isinstance(inner, type), "inner", inner, bound, "it has no values")
        name = type(inner).__name__
        bases = " ".join(base.__name__ for base in type(inner).__mro__)
        reason = next((reason for part, reason in UNSUPPORTED.items() if part in bases), "")
        if reason:
            raise ValueError(f"inner={name} cannot be run asynchronously: {reason}")
        if not isinstance(inner, FedAvg):
            raise ValueError(
                f"inner={name} must be based on flwr.serverapp.strategy.FedAvg: "
                "its aggregation could not be called"
            )
        prefix = "algorithm.strategy.inner."
        for key, value in (("arrayrecord_key", names.ARRAYS), ("configrecord_key", names.CONFIG)):
            actual, why = getattr(inner, key), "clients look for the records of Flower's convention"
            require(actual == value, prefix + key, actual, repr(value), why)
        share = inner.fraction_train
        require(share > 0, f"{prefix}fraction_train", share, "above 0", "no client would train")
        plain = FedAvg()
        for key, effect in IGNORED_SETTINGS.items():
            if (value := getattr(inner, key)) != getattr(plain, key):
                log.warning("%s%s=%s %s", prefix, key, value, effect)
        custom = [key for key in UNCALLED if getattr(type(inner), key) is not getattr(FedAvg, key)]
        if inner.evaluate_metrics_aggr_fn is not plain.evaluate_metrics_aggr_fn:
            custom.append("evaluate_metrics_aggr_fn")
        if custom:
            raise ValueError(
                f"inner={name} must have no {custom[0]} of its own, which would never be called: "
                "there are no rounds, and what clients measure is averaged by examples"
            )
        # Flower's classes check none of these.
        for key in ("server_learning_rate", "eta", "tau", "server_momentum", "num_malicious_nodes"):
            number = getattr(inner, key, 0)
            NON_NEGATIVE.check(prefix + key, number, "its equations would change their sign")
        for key in ("beta_1", "beta_2"):
            number = getattr(inner, key, 0)
            require(0 <= number < 1, prefix + key, number, "in [0, 1)", "its means would grow")
        selected = getattr(inner, "num_nodes_to_select", 1)
        COUNT.check(f"{prefix}num_nodes_to_select", selected, "no upload would be left")
        self.inner = inner
        self._layout: Layout | None = None
        self.state["config"] = {}  # the user's; a strategy may change it for good
        self._current: _Round | None = None

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        size = getattr(schedule, "buffer_size", 1)
        faults, beta = (getattr(self.inner, key, 0) for key in ("num_malicious_nodes", "beta"))
        smallest = {  # of a buffer; Krum is based on MultiKrum, Bulyan would skip smaller ones
            MultiKrum: 2 * faults + 3,
            Bulyan: 4 * faults + 3,
            FedMedian: 3,
            FedTrimmedAvg: beta and math.ceil(1 / beta),
        }
        for kind, minimum in smallest.items():
            fits, bound = size >= minimum, f"at least {minimum} with {kind.__name__}"
            key, effect = "algorithm.schedule.buffer_size", "it would not keep out bad uploads"
            require(fits or not isinstance(self.inner, kind), key, size, bound, effect)

    def summary(self) -> None:
        super().summary()
        self.inner.summary()

    def state_dict(self) -> dict[str, Any]:
        # If a round is under way, the state before it: after a restart the round begins again.
        inner = self._current.inner_state if self._current else self._inner_state()
        return super().state_dict() | {"state": {**self.state, "inner": inner}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        vars(self.inner).update(_copy(self.state.pop("inner", {})))

    def _inner_state(self) -> dict[str, Any]:
        kept = Remembers.state_dict(cast(Any, self.inner))  # without its class's `transient`
        kept.pop(CURRENT, None)
        return {key: _copy(value) for key, value in kept.items() if not isinstance(value, CODE)}

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        return model.params, self._begin_round(model).client_config

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        started = self._begin_round(model)
        self._current = None
        assert self._layout is not None
        server_round = model.version + 1
        rebased = [self._arrays(model.params + model.delta(update)) for update in updates]
        replies = [_reply(u, a) for u, a in zip(updates, rebased, strict=True)]
        try:
            with _warnings_only():
                arrays, self._metrics = self.inner.aggregate_train(server_round, replies)
        except AppExitException as error:
            text = f"{self._label} cannot aggregate version {server_round}: {error}"
            raise RunError(text) from error
        self.state["config"] = started.config
        for name, value in (self._metrics or {}).items():
            if isinstance(value, int | float) and math.isfinite(value):
                self.report[f"train_{name}" if name in EVENT_KEYS else name] = value
        if arrays is None:
            return model.params
        try:
            # Averages of integers, such as BatchNorm's counters, are floats.
            by_name = codec.arrays_of(arrays)
            return self._layout.flatten([by_name[name] for name in self._layout.names])
        except (KeyError, ValueError) as error:
            text = f"{self._label} aggregated arrays that do not fit the model: {error}"
            raise RunError(text) from error

    @property
    def _label(self) -> str:
        return type(self.inner).__name__

    # -- what the inner strategy sends to clients --------------------------------------------------

    def _prepare(self, layout: Layout, train_config: ConfigRecord | None) -> dict[str, Any]:
        self._layout, self._current = layout, None
        self.state["config"] = dict(train_config or {})
        return {}  # the inner strategy's config contains it

    def _begin_round(self, model: GlobalModel) -> "_Round":
        """Call `configure_train` once a version, as Flower's loop does between two aggregations."""
        started = self._current
        if started and started.version == model.version and started.params is model.params:
            return started
        inner_state = self._inner_state()
        self._layout = self._layout or Layout.of_arrays({NAME: model.params})
        record = ConfigRecord(dict(self.state["config"]))
        arrays, server_round = self._arrays(model.params), model.version + 1
        before = {name: id(array.data) for name, array in arrays.items()}
        _identify()
        grid = SeenNodes(max(2, self.inner.min_train_nodes, self.inner.min_available_nodes))
        with _warnings_only():
            messages = self.inner.configure_train(server_round, arrays, record, grid)
            orders = [self._config(message, before, server_round) for message in messages]
        if not orders:
            self._refuse("sends no message")
        if any(config != orders[0] for config in orders):
            self._refuse("tells clients different things: a version has one config for all")
        self._current = _Round(model.version, model.params, orders[0], dict(record), inner_state)
        return self._current

    def _config(self, message: Message, before: Mapping[str, int], server_round: int) -> Config:
        """The config in a message to a client."""
        content, kind = message.content, message.metadata.message_type
        if kind != MessageType.TRAIN or content.keys() != {names.ARRAYS, names.CONFIG}:
            self._refuse(f"sends a {kind!r} message with the records {', '.join(content)}")
        config: dict[str, Any] = dict(content.config_records[names.CONFIG])
        reserved = [key for key in names.RESERVED if key in config]
        if config.pop(names.SERVER_ROUND, server_round) != server_round:  # every order carries it
            reserved.append(names.SERVER_ROUND)
        if reserved:
            self._refuse(f"sets config[{reserved[0]!r}], which asynchronous orders use themselves")
        arrays = content.array_records[names.ARRAYS]
        if before != {name: id(array.data) for name, array in arrays.items()}:
            self._refuse("sends other arrays than the model's, which displacements start from")
        return config

    def _refuse(self, action: str) -> NoReturn:
        raise ValueError(
            f"inner={type(self.inner).__name__} cannot be run asynchronously: its configure_train "
            + action
        )

    # -- models as the inner strategy sees them ---------------------------------------------------

    def _arrays(self, vector: Vector) -> ArrayRecord:
        assert self._layout is not None
        return codec.record_of(self._layout.named(vector))


class _Round(NamedTuple):
    """A version for which the inner strategy has configured the training.

    Attributes:
        params: of the version, shape ``(d,)``.
        client_config: sent to every client that starts from the version.
        config: the user's config, as `configure_train` left it.
        inner_state: the inner strategy's state before the round, for a checkpoint.
    """

    version: int
    params: Vector
    client_config: Config
    config: dict[str, Any]
    inner_state: dict[str, Any]


class SeenNodes(Grid):
    """The grid that an inner strategy sees; its nodes are placeholders for all clients."""

    def __init__(self, count: int) -> None:
        self._nodes = range(count)
        self._queries = 0

    def get_node_ids(self) -> Iterable[int]:
        self._queries += 1
        if self._queries > MAX_QUERIES:
            raise ValueError(
                "the inner strategy's configure_train waits for more nodes: asynchronously, "
                "clients start one by one"
            )
        return self._nodes

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise ValueError(
            "the inner strategy's configure_train sends messages itself: asynchronously, it can "
            "only return messages for the nodes that it sees"
        )

    run = property(_refuse)
    set_run = create_message = push_messages = pull_messages = send_and_receive = _refuse


def _identify() -> None:
    """Set the process's identity, which Message needs and only ServerApps have."""
    try:
        _ = TaskIdentity.run_id
    except RuntimeError:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 0


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Suppress Flower's log line on received replies: the event log says more."""
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _copy(value: Any) -> Any:
    """A copy with its own containers; arrays are shared, because they are not written to."""
    if type(value) is dict:
        return {key: _copy(item) for key, item in value.items()}
    if type(value) in (list, set, tuple):
        return type(value)(_copy(item) for item in value)
    return value if isinstance(value, np.ndarray) else deepcopy(value)


def _reply(update: Update, arrays: ArrayRecord) -> Message:
    """The message of a client that sends `arrays` in Flower's round loop.

    Its group id is the round of its base version, from which a strategy can compute its age.
    """
    plain = {names.NUM_EXAMPLES: update.num_examples, names.LOSS: update.loss}
    records: Records = update.records or {
        names.METRICS: {names.METRICS: {**update.metrics, **plain}}
    }
    content = RecordDict({name: arrays for name in records.get(names.ARRAYS, (names.ARRAYS,))})
    for name, numbers in records[names.METRICS].items():
        content[name] = MetricRecord(dict(numbers))
    for name, values in records.get(names.CONFIG, {}).items():
        content[name] = ConfigRecord(dict(values))
    sender, kind = update.client_id, MessageType.TRAIN
    metadata = Metadata(0, "", sender, 0, "", str(update.base_version + 1), 0.0, 1.0, kind)
    return Message(content, metadata=metadata)  # type: ignore[call-overload]
