"""The events of a run, and their form in ``events.jsonl``.

All reports of a run are computed from its events (`fl_app.record.history`).
`kind` is the name of a kind of events in the log. `t` is the time in seconds on the run's clock.
Where an event has them, `client` is the id of its client, `order` the number of its order, and
`version` that of the global model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol

from fl_app.core.errors import RunError


@dataclass(frozen=True, slots=True)
class Event:
    """What happened in a run.

    Attributes:
        kind: in the log.
        t: seconds.
    """

    kind: ClassVar[str]
    t: float


@dataclass(frozen=True, slots=True)
class OfOrder(Event):
    """What happened to an order.

    Attributes:
        client: client id.
        order: the order's number.
    """

    client: int
    order: int


@dataclass(frozen=True, slots=True)
class OfVersion(Event):
    """What happened to a version.

    Attributes:
        version: of the global model.
    """

    version: int


@dataclass(frozen=True, slots=True)
class Dispatched(OfOrder):
    """An order was given to a client.

    Attributes:
        version: of the model that the client receives.
        bytes: sent to the client.
        parts: seconds of download, training and upload, as planned; None where they are unknown, or
            where transfers take no time and the device's power is unknown.
        beside: True where the client trains and transfers at the same time; else None.
    """

    kind = "dispatch"
    version: int
    bytes: int = 0
    parts: Sequence[float] | None = None
    beside: bool | None = None


@dataclass(frozen=True, slots=True)
class Paused(OfOrder):
    """A client asks for a fresh model in the middle of its order.

    Attributes:
        base_version: of the model that the client started from.
        progress: share of the order's training that is done, in (0, 1).
    """

    kind = "pause"
    base_version: int
    progress: float


@dataclass(frozen=True, slots=True)
class Refreshed(OfOrder):
    """A paused client was sent a fresh model.

    Attributes:
        version: of the fresh model.
        bytes: sent to the client.
    """

    kind = "refresh"
    version: int
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Recalled(OfOrder):
    """A client was asked for its update at the end of the local epoch under way.

    Attributes:
        version: of the global model.
    """

    kind = "recall"
    version: int


@dataclass(frozen=True, slots=True)
class Arrived(OfOrder):
    """An update was accepted into the buffer.

    Attributes:
        base_version: of the model that the client started from.
        age: versions published since, >= 0.
        loss: mean training loss of the order; None if it is unknown.
        bytes: received from the client.
    """

    kind = "arrival"
    base_version: int
    age: int
    loss: float | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Failed(OfOrder):
    """An order ended without an update.

    Attributes:
        base_version: of the model that the client was given.
        reason: what went wrong.
        raised: whether the client's code raised an error (`fl_app.core.bugs`).
    """

    kind = "failure"
    base_version: int
    reason: str = ""
    raised: bool = False


@dataclass(frozen=True, slots=True)
class Rejected(Event):
    """A reply was refused: what was wrong with it, or that it came too late.

    Attributes:
        client: None if it is unknown; then `order` and `base_version` are None too.
        base_version: of the model that the client was given.
        reason: why.
    """

    kind = "reject"
    client: int | None = None
    order: int | None = None
    base_version: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Clustered(OfVersion):
    """The strategy put the clients into clusters.

    Attributes:
        version: of the global model.
        client: clients, each once.
        cluster: of each of these clients, numbered from 0.
        dropped: clients whose updates left the buffer unused.
        order: the orders of these updates.
    """

    kind = "cluster"
    client: Sequence[int]
    cluster: Sequence[int]
    dropped: Sequence[int]
    order: Sequence[int]


@dataclass(frozen=True, slots=True)
class Aggregated(OfVersion):
    """A version was published.

    Attributes:
        version: the new one.
        client: the clients of its updates, oldest arrival first.
        order: the orders that these updates answer.
        age: versions between the model that each client started from and the one before this.
        report: what the strategy reported, such as ``weight``, one number per update.
    """

    kind = "aggregate"
    client: Sequence[int]
    order: Sequence[int]
    age: Sequence[int]
    report: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_own_keys(self, self.report, "the strategy's report")


@dataclass(frozen=True, slots=True)
class Evaluated(OfVersion):
    """The global model was tested.

    Attributes:
        metrics: by name, ``"accuracy"`` and ``"loss"`` among them where the task has them.
    """

    kind = "evaluate"
    metrics: Mapping[str, Any]

    def __post_init__(self) -> None:
        _refuse_own_keys(self, self.metrics, "the result of the evaluation on the server")


@dataclass(frozen=True, slots=True)
class EvaluationOrdered(OfOrder):
    """A client was asked to measure a version on its own data.

    An order that brings no scores ends with `Failed`.

    Attributes:
        version: of the model.
        bytes: sent to the client.
        parts: as of `Dispatched`, if the device's power is known; training is the measurement.
        beside: as of `Dispatched`.
    """

    kind = "evaluate_order"
    version: int
    bytes: int = 0
    parts: Sequence[float] | None = None
    beside: bool | None = None


@dataclass(frozen=True, slots=True)
class ClientEvaluated(OfOrder):
    """A client's scores of a version arrived.

    Attributes:
        version: of the model.
        num_examples: that the client measured on; of 0 there are no metrics.
        metrics: by name.
        bytes: received from the client.
    """

    kind = "client_evaluate"
    version: int
    num_examples: int
    metrics: Mapping[str, Any]
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class ClientsEvaluated(OfVersion):
    """All scores of a version that will come have come.

    Attributes:
        version: of the model.
        since: when the version was published, seconds.
        client_updates: that had arrived by then.
        clients: number of clients that sent scores, >= 1.
        num_examples: of all of them.
        metrics: for every metric ``<metric>_mean`` (weighted by examples; RMSE and perplexity are
            pooled), ``<metric>_std`` (over the clients) and ``<metric>_worst_decile`` (mean over
            the worst tenth of the clients).
    """

    kind = "clients_evaluate"
    since: float
    client_updates: int
    clients: int
    num_examples: int
    metrics: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Checkpointed(OfVersion):
    """A scheduled checkpoint was written."""

    kind = "checkpoint"


class Sink(Protocol):
    """Receives the events of a run in their order, and returns nothing."""

    def emit(self, event: Event) -> None:
        """Receive one event."""

    def close(self) -> None:
        """Write what is left; called once, also after errors."""


# The field whose entries become keys of the event in the log.
OPEN = {Aggregated: "report", Evaluated: "metrics", ClientsEvaluated: "metrics"}
# All classes above that have a kind.
CLASSES = {each.kind: each for each in [*vars().values()] if hasattr(each, "kind")}
KEYS = {c: tuple(f.name for f in fields(c) if f.name != OPEN.get(c)) for c in CLASSES.values()}


def _refuse_own_keys(event: Event, numbers: Mapping[str, Any], where: str) -> None:
    """Refuse numbers that would replace the event's own values in the log."""
    if taken := {"kind", *KEYS[type(event)]} & numbers.keys():
        raise RunError(
            f"{min(taken)!r} in {where} must have another name: an event in events.jsonl has a "
            "value of its own under it"
        )


def to_json(event: Event) -> dict[str, Any]:
    """The event as one flat JSON object, `kind` and `t` first.

    None is left out of `Rejected` and of orders, and a `raised` that is false out of `Failed`.
    """
    cls = type(event)
    flat: dict[str, Any] = {"kind": cls.kind}
    flat |= {key: getattr(event, key) for key in KEYS[cls]}
    if isinstance(event, Failed) and not event.raised:
        del flat["raised"]
    if cls in (Dispatched, EvaluationOrdered, Rejected):
        flat = {key: value for key, value in flat.items() if value is not None}
    if cls in OPEN:
        flat.update(getattr(event, OPEN[cls]))
    return flat


def from_json(flat: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`.

    Raises:
        KeyError: the kind is unknown.
        TypeError: a key that it needs is missing.
    """
    cls: type[Event] = CLASSES[flat["kind"]]
    values = {key: flat[key] for key in KEYS[cls] if key in flat}
    if cls in OPEN:
        values[OPEN[cls]] = {k: v for k, v in flat.items() if k != "kind" and k not in values}
    return cls(**values)
