"""The state and totals that follow from the events of a run.

One class serves every reader: ``summary.json``, ``metrics.csv``, progress, the report and the
verdicts on injected faults. It takes events live, as a sink, or from ``events.jsonl``
(`fl_app.record.log`), with equal results.
"""

import bisect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, NamedTuple

from fl_app.core.events import (
    Aggregated,
    Arrived,
    ClientEvaluated,
    ClientsEvaluated,
    Clustered,
    Dispatched,
    Evaluated,
    EvaluationOrdered,
    Event,
    Failed,
    Refreshed,
    Rejected,
)

Joules = Callable[..., float]

# Names of a metric in replies of ClientApps that are not this project's.
ALIASES = dict.fromkeys(("eval_acc", "eval_accuracy", "eval-accuracy"), "accuracy")
ALIASES |= dict.fromkeys(("eval_loss", "eval-loss"), "loss")
# Metrics that do not follow from those of parts of the examples, by how their names begin.
OF_ONE_CLIENT = ("r2", "commonest_prediction", "recall_")


@dataclass(slots=True)
class OrderRecord:
    """One order, from its dispatch to the end of its update.

    Attributes:
        number: number of the order.
        client: client of the order.
        sequence: number of orders that this client had before.
        version: base version.
        start: time of its dispatch, seconds.
        end: when it ended, seconds; None while it is under way.
        ended: kind of the event that ended it: ``"arrival"``, ``"failure"`` or ``"reject"``;
            ``""`` while it is under way.
        age: of its update at arrival, versions; None if there is no update.
        loss: mean training loss that the client reported; None if it is unknown.
        reason: why there is no update.
        parts: as of `fl_app.core.events.Dispatched`.
        beside: whether the client trained and transferred at the same time.
        fresh: when the client was sent a fresh model meanwhile, seconds.
        joules: of the client's energy that were added to the totals so far.
    """

    number: int
    client: int
    sequence: int
    version: int
    start: float
    end: float | None = None
    ended: str = ""
    age: int | None = None
    loss: float | None = None
    reason: str = ""
    parts: Sequence[float] | None = None
    beside: bool = False
    fresh: tuple[float, ...] = ()
    joules: float = 0.0

    @property
    def transfers(self) -> bool:
        """Whether its transfers are known to take time."""
        return self.parts is not None and self.parts[0] + self.parts[2] > 0


class Wait(NamedTuple):
    """A client whose update arrived, while its place stayed empty until the next aggregation."""

    client: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One evaluation, with its time and cost.

    Attributes:
        version: of the model.
        t: seconds.
        client_updates: updates that had arrived by then.
        metrics: by name.
    """

    version: int
    t: float
    client_updates: int
    metrics: Mapping[str, Any]

    @property
    def accuracy(self) -> float:
        """In [0, 1]; NaN if it is unknown."""
        return self.value("accuracy")

    def value(self, name: str) -> float:
        """A metric; NaN if it is unknown."""
        value = self.metrics.get(name)
        return math.nan if value is None else float(value)


@dataclass(frozen=True, slots=True)
class EvaluationOnClients(Evaluation):
    """A completed evaluation on clients.

    Its `t` is when the version was published. Its `metrics` are ``<metric>_mean``,
    ``<metric>_std`` and ``<metric>_worst_decile`` (`fl_app.core.events.ClientsEvaluated`).

    Attributes:
        clients: number of clients that sent scores.
        num_examples: of all of them.
    """

    clients: int
    num_examples: int

    @property
    def names(self) -> list[str]:
        """The metrics that clients measured."""
        return [key.removesuffix("_mean") for key in self.metrics if key.endswith("_mean")]

    @property
    def as_evaluation(self) -> Evaluation:
        """What the server would have measured on the examples of all clients."""
        known = [name for name in self.names if not name.startswith(OF_ONE_CLIENT)]
        means = {name: self.metrics[f"{name}_mean"] for name in known}
        for alias in filter(means.__contains__, ALIASES):
            means.setdefault(ALIASES[alias], means[alias])
        return Evaluation(self.version, self.t, self.client_updates, means)


class History:
    """Sink that adds up the events of a run.

    The work of an order is wasted if the order fails, if its update is rejected, or if its update
    is aggregated with weight 0. Updates that wait in the buffer when the run ends are neither used
    nor wasted, and so are orders under way.

    Events of a damaged log may be missing: an update that arrived without a dispatch, or that was
    aggregated without an arrival, is counted as one that took no time.

    Args:
        joules: energy of the first ``elapsed`` seconds of an order, by (parts, beside, elapsed);
            None = unknown (`fl_app.devices.fleet.Energy.joules`).
        keep_orders: whether to fill `orders` and the attributes after it, which a report draws.
            This costs memory in a long run.

    Attributes:
        t: time of the last event, seconds.
        version: of the global model.
        server_evaluations: those on the server's test set, oldest first.
        client_evaluations: the completed ones on clients, by version.
        client_updates: updates that arrived.
        num_orders: orders given, including evaluate orders.
        failures: orders that failed.
        first_failure: the first error in a client's code or, without one, the first failure.
        rejected: replies that were rejected.
        first_rejection: the first one.
        arrivals: client -> how many of its updates arrived.
        lost: client -> how many of its orders failed or were rejected.
        ages: age -> how many aggregated updates had it.
        bytes_down: sent to clients.
        bytes_up: received in updates that arrived.
        orders_wasted: orders whose work was wasted.
        sequences: client -> how many orders it was given.
        reported: name -> total of a number that the strategy reports of its aggregations, and their
            number.
        current: client -> its last order, until its update arrives.
        waiting: number -> order whose update is in the buffer.
        orders: every order, in the sequence in which they were given.
        waits: see `Wait`.
        marks: moments that end no order: a fresh model, a late reply, clusters, a checkpoint.
        clusters: times at which the strategy put clients into clusters, and client -> cluster.
        aggregations: times at which versions were published, seconds.
        troubles: failures and rejected replies.
    """

    def __init__(self, *, joules: Joules | None = None, keep_orders: bool = False) -> None:
        self.t = 0.0
        self.version = 0
        self.server_evaluations: list[Evaluation] = []
        self.client_evaluations: list[EvaluationOnClients] = []
        self.client_updates = 0
        self.num_orders = 0
        self.failures = 0
        self.first_failure: Failed | None = None
        self.rejected = 0
        self.first_rejection: Rejected | None = None
        self.arrivals: Counter[int] = Counter()
        self.lost: Counter[int] = Counter()
        self.ages: Counter[int] = Counter()
        self.bytes_down = 0
        self.bytes_up = 0
        self.orders_wasted = 0
        self.sequences: Counter[int] = Counter()
        self.reported: dict[str, tuple[float, int]] = {}
        self.current: dict[int, OrderRecord] = {}
        self.waiting: dict[int, OrderRecord] = {}
        self.orders: list[OrderRecord] = []
        self.waits: list[Wait] = []
        self.marks: list[Event] = []
        self.clusters: list[tuple[float, dict[int, int]]] = []
        self.aggregations: list[float] = []
        self.troubles: list[Failed | Rejected] = []
        self._empty: list[Arrived] = []  # updates whose places wait for the next aggregation
        self._last_is_arrival = False  # if so, its place may be refilled now
        self._evaluating: dict[int, OrderRecord] = {}  # client -> its last evaluate order
        self._keep_orders = keep_orders
        self._joules = joules
        self._joules_spent = 0.0

    @property
    def evaluations(self) -> list[Evaluation]:
        """Evaluations on the server or, without a test set there, means of those on clients."""
        return self.server_evaluations or [e.as_evaluation for e in self.client_evaluations]

    @property
    def joules(self) -> float | None:
        """Spent on all orders that ended, wasted or not; None if that is unknown."""
        return None if self._joules is None else self._joules_spent

    def emit(self, event: Event) -> None:
        """Process one event."""
        self.t, wasted_before = event.t, self.orders_wasted
        match event:
            case Dispatched():
                self._dispatch(event)
            case Arrived():
                self._arrive(event)
            case Aggregated():
                self._aggregate(event)
            case Failed():
                self.failures += 1
                first = self.first_failure
                if first is None or (event.raised and not first.raised):
                    self.first_failure = event
                self._lose(event, event.client)
            case Rejected():
                self.rejected += 1
                self.first_rejection = self.first_rejection or event
                if event.client is not None:
                    self._lose(event, event.client)
            case Evaluated():
                self.version = event.version
                self.server_evaluations.append(
                    Evaluation(event.version, event.t, self.client_updates, _numbers(event.metrics))
                )
            case EvaluationOrdered():
                self._evaluating[event.client] = self._record(event)
            case ClientEvaluated():
                self.bytes_up += event.bytes
                self._end_evaluation(event)
            case ClientsEvaluated():
                values = event.version, event.since, event.client_updates, _numbers(event.metrics)
                evaluation = EvaluationOnClients(*values, event.clients, event.num_examples)
                bisect.insort(self.client_evaluations, evaluation, key=lambda item: item.version)
            case Refreshed():
                self.bytes_down += event.bytes
                if order := self.current.get(event.client):
                    order.fresh += (event.t,)
            case Clustered():
                for number in event.order:  # the clusters were formed from these updates
                    self.waiting.pop(number, None)
        if self._keep_orders:
            self._keep(event, wasted=self.orders_wasted > wasted_before)

    def close(self) -> None:
        """Nothing to do."""

    def _keep(self, event: Event, wasted: bool) -> None:
        """Record what a report draws besides the orders."""
        match event:
            case Dispatched():
                if self._last_is_arrival:
                    self._empty.pop()
                self._last_is_arrival = False
            case Arrived():
                self._empty.append(event)
                self._last_is_arrival = True
            case Failed() | Rejected():
                self._last_is_arrival = False
                self.troubles.append(event)
                if isinstance(event, Rejected) and not wasted:
                    self.marks.append(event)  # it answers an order that had ended, or none
            case Aggregated():
                self._end_waits(event.t)
                self.aggregations.append(event.t)
            case Clustered():
                if event.dropped:  # these clients train again
                    self._end_waits(event.t)
                self.clusters.append((event.t, dict(zip(event.client, event.cluster, strict=True))))
                self.marks.append(event)
            case Evaluated() | EvaluationOrdered() | ClientEvaluated() | ClientsEvaluated():
                pass
            case _:
                self.marks.append(event)

    def _end_waits(self, t: float) -> None:
        self._last_is_arrival = False
        self.waits += [Wait(each.client, each.t, t) for each in self._empty if t > each.t]
        self._empty.clear()

    def _record(self, event: Dispatched | EvaluationOrdered) -> OrderRecord:
        """Count a new order, to train or to evaluate."""
        self.num_orders += 1
        self.bytes_down += event.bytes
        client = event.client
        order = OrderRecord(event.order, client, self.sequences[client], event.version, event.t)
        order.parts, order.beside = event.parts, bool(event.beside)
        return order

    def _dispatch(self, event: Dispatched) -> OrderRecord:
        order = self._record(event)
        self.sequences[event.client] += 1
        self.current[event.client] = order
        if self._keep_orders:
            self.orders.append(order)
        return order

    def _arrive(self, event: Arrived) -> None:
        order = self.current.get(event.client)
        if order is None or order.number != event.order:
            dispatch = Dispatched(event.t, event.client, event.order, event.base_version)
            order = self._dispatch(dispatch)
        del self.current[event.client]
        order.end, order.ended = event.t, event.kind
        order.age, order.loss = event.age, event.loss
        self._spend(order, event.t)
        self.waiting[event.order] = order
        self.arrivals[event.client] += 1
        self.client_updates += 1
        self.bytes_up += event.bytes

    def _end_evaluation(self, event: ClientEvaluated | Failed | Rejected) -> bool:
        """Account for the end of an evaluate order; return whether it was one."""
        order = None if event.client is None else self._evaluating.get(event.client)
        if order is None or order.number != event.order:
            return False
        self._spend(order, event.t)
        return True

    def _lose(self, event: Failed | Rejected, client: int) -> None:
        if self._end_evaluation(event):
            return
        order = self.current.get(client)
        waiting = None if event.order is None else self.waiting.get(event.order)
        # The update was accepted first, and refused at its aggregation.
        if waiting is not None and waiting.client == client:
            del self.waiting[waiting.number]
            self.orders_wasted += 1
            return
        if order is None or order.number != event.order:
            return  # a reply to an order that had arrived: its work is counted
        if not order.ended:
            order.end, order.ended, order.reason = event.t, event.kind, event.reason
            self.lost[client] += 1
            self.orders_wasted += 1
        self._spend(order, event.t)  # after its deadline, the client may have gone on

    def _aggregate(self, event: Aggregated) -> None:
        self.version = event.version
        self.ages.update(event.age)
        for number in event.order:
            self.waiting.pop(number, None)
        self.orders_wasted += [*event.report.get("weight", ())].count(0)
        for name, value in event.report.items():
            # Numbers of NumPy, too, but none that is null in a log.
            if isinstance(value, Real) and math.isfinite(value):
                total, count = self.reported.get(name, (0.0, 0))
                self.reported[name] = total + float(value), count + 1

    def _spend(self, order: OrderRecord, now: float) -> None:
        """Account for the energy of an order up to `now`."""
        if self._joules is None or order.parts is None:
            return
        elapsed = now - order.start
        download, training, upload = order.parts
        download *= 1 + len(order.fresh)
        # Less if it was recalled; then its wait for the server is included.
        if order.ended == "arrival" and not order.beside:
            training = min(training, max(elapsed - download - upload, 0.0))
        joules = self._joules((download, training, upload), order.beside, elapsed)
        self._joules_spent += joules - order.joules
        order.joules = joules


def _numbers(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics with NaN where a log has null, which stands for a number that is not finite."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}
