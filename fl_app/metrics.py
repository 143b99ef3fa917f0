"""What a run is judged by, beside accuracy and loss.

Pure functions of numbers, `Tally`, which counts from a run's events what its clients did, and
`PerClass`, which tests a model class by class. Nothing here is fed back into the run.
"""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_app.core import targets
from fl_app.core.errors import require
from fl_app.core.types import Event

Floats = NDArray[np.float64]

PER_CLASS = ("recall", "clients")
OF_EVERY_AGGREGATION = ("kind", "t", "version")
CONFIGURED = ("_joules_of", "_num_bytes", "_upload_bytes")  # of a tally, not counted by it
COLLAPSED_AT = 0.99  # of the test examples put into one class
STABILITY_WINDOW = 10  # evaluations


def gini(counts: ArrayLike) -> float:
    """Gini coefficient of non-negative counts: 0 = all equal, 1 - 1/n = one has everything.

    Args:
        counts: shape ``(n,)``, n >= 1. If all are 0, they are equal.
    """
    ascending = np.sort(np.asarray(counts, float))
    total = ascending.sum()
    if total == 0:
        return 0.0
    n = ascending.size
    ranks = np.arange(1, n + 1)
    return float(2 * (ranks * ascending).sum() / (n * total) - (n + 1) / n)


def stability(accuracies: Sequence[float]) -> tuple[float, float]:
    """How much the last ten accuracies scatter; the smaller, the steadier the training.

    Returns:
        Population standard deviation of log10(accuracy), which is WKAFL's measure (its Table 3),
        and of the accuracy itself. NaN for fewer than two accuracies; the former also if one is 0.
    """
    last = np.array(accuracies[-STABILITY_WINDOW:], float)
    if last.size < 2:
        return math.nan, math.nan
    log = float(np.log10(last).std()) if (last > 0).all() else math.nan
    return log, float(last.std())


def worst_decile(values: ArrayLike) -> float:
    """Mean of the lowest tenth of the values, rounded up: of 25 values the lowest three."""
    ascending = np.sort(np.asarray(values, float))
    return float(ascending[: math.ceil(ascending.size / 10)].mean())


def expected_accuracy(label_mix: Floats, recall: Floats) -> Floats:
    """Accuracy of every client on fresh examples of its own classes.

    Args:
        label_mix: share of every class in the client's data, shape ``(N, C)``, rows sum to 1.
        recall: share of every class's test examples that the model gets right, shape ``(C,)``.

    Returns:
        Shape ``(N,)``: recall averaged with the client's shares.
    """
    return label_mix @ recall


class Milestone(NamedTuple):
    """An evaluation and what it took to get there.

    Attributes:
        version: of the model.
        t: seconds on the run's clock.
        client_updates: how many had arrived by then.
        accuracy: in [0, 1]; NaN if it is unknown.
    """

    version: int
    t: float
    client_updates: int
    accuracy: float


def first_at(milestones: Sequence[Milestone], accuracy: float, window: int = 1) -> Milestone | None:
    """The first evaluation at which the mean of the last `window` accuracies reaches `accuracy`."""
    number = targets.first_at([m.accuracy for m in milestones], accuracy, window)
    return None if number is None else milestones[number]


def stays_at(milestones: Sequence[Milestone], accuracy: float) -> Milestone | None:
    """The evaluation from which the mean of the last five accuracies stays at `accuracy`."""
    number = targets.stays_at([m.accuracy for m in milestones], accuracy)
    return None if number is None else milestones[number]


@dataclass
class _Work:
    """An order, and what its client had spent on it when it was last heard of."""

    sequence: int
    start: float
    failed: bool = False
    seconds: float = 0.0
    joules: float = 0.0


@dataclass
class _Mean:
    """Mean of numbers that come one by one."""

    total: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        self.total += value
        self.count += 1

    def __float__(self) -> float:
        return self.total / self.count


class Tally:
    """Sink that adds up what clients did, and what of it was in vain.

    In vain are orders that failed (also those given up or cut short), updates that were refused,
    and those that were aggregated with weight 0, where the strategy reports weights. Updates that
    wait in the buffer when the run ends, and orders still under way, are neither used nor wasted.

    Args:
        num_clients: N, of which all count in the spread of participation; None = as many as appear.
        num_bytes: size of an order, and of the answer to a pause.
        upload_bytes: size of an upload; None = that of an order.
        joules: energy of the first ``elapsed`` seconds of an order, by (client, order number, time
            given, elapsed); None = unknown (`fl_app.devices.Fleet.joules`).

    Attributes:
        milestones: the evaluations.
        participation: client -> how many of its updates were used.
        seconds_used: of orders whose updates were used, also for forming clusters.
        seconds_wasted: of orders in vain.
        orders_wasted: how many.
        reported: name -> values that the strategy reported of an aggregation, numbers only.
    """

    def __init__(
        self,
        *,
        num_clients: int | None,
        num_bytes: int,
        upload_bytes: int | None = None,
        joules: Callable[[int, int, float, float], float | None] | None = None,
    ) -> None:
        self.milestones: list[Milestone] = []
        self.participation: Counter[int] = Counter()
        self.seconds_used = 0.0
        self.seconds_wasted = 0.0
        self.orders_wasted = 0
        self.reported: dict[str, _Mean] = defaultdict(_Mean)
        self._num_clients = num_clients
        self._num_bytes = num_bytes
        self._upload_bytes = num_bytes if upload_bytes is None else upload_bytes
        self._joules_of = joules
        self._joules = 0.0
        self._knows_joules = joules is not None and joules(0, 0, 0.0, 0.0) is not None
        self._client_updates = 0
        self._orders: Counter[int] = Counter()  # client -> orders given
        self._refreshes = 0
        self._open: dict[int, _Work] = {}  # what each client works on
        # By client and the version it started from: what waits to be aggregated.
        self._arrived: dict[tuple[int, int], deque[_Work]] = defaultdict(deque)

    @property
    def joules(self) -> float | None:
        """Spent on all orders that ended, in vain or not; None if that is unknown."""
        return self._joules if self._knows_joules else None

    @property
    def gini(self) -> float:
        """Spread of the used updates over the clients (`gini`)."""
        idle = (self._num_clients or len(self._orders)) - len(self.participation)
        return gini([*self.participation.values(), *[0] * max(idle, 0)] or [0])

    def emit(self, event: Event) -> None:
        """Count one event."""
        match event["kind"]:
            case "dispatch":
                client = event["client"]
                self._open[client] = _Work(self._orders[client], event["t"])
                self._orders[client] += 1
            case "arrival":
                client = event["client"]
                work = self._open.pop(client)
                self._spend(client, work, event["t"])
                self._arrived[client, event["base_version"]].append(work)
                self._client_updates += 1
            case "refresh":
                self._refreshes += 1
            case "failure" | "reject":
                self._waste(event)
            case "aggregate":
                self._use(event)
                for name, value in event.items():
                    if name not in OF_EVERY_AGGREGATION and isinstance(value, int | float):
                        self.reported[name].add(value)
            case "cluster":
                for client in event["dropped"]:  # what they trained told the clusters
                    self.seconds_used += self._leave(client, event["version"]).seconds
            case "evaluate":
                accuracy = event.get("accuracy", math.nan)
                self.milestones.append(
                    Milestone(event["version"], event["t"], self._client_updates, accuracy)
                )

    def close(self) -> None:
        """Nothing to do."""

    def snapshot(self) -> dict[str, Any]:
        """What `restore` needs."""
        return {k: v for k, v in vars(self).items() if k not in CONFIGURED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be as when `state` was taken."""
        vars(self).update(state)

    def columns(self) -> dict[str, float]:
        """What has come together so far, as further columns of ``metrics.csv``."""
        columns: dict[str, float] = {
            "client_updates": self._client_updates,
            "bytes_down": (self._orders.total() + self._refreshes) * self._num_bytes,
            "bytes_up": self._client_updates * self._upload_bytes,
            "orders_wasted": self.orders_wasted,
            "seconds_wasted": self.seconds_wasted,
            "participation_gini": self.gini,
        }
        if self.joules is not None:
            columns["joules"] = self.joules
        return columns

    def _spend(self, client: int, work: _Work, now: float) -> float:
        """Account for the work up to `now`; the seconds that were not accounted for before."""
        elapsed = now - work.start
        seconds, work.seconds = elapsed - work.seconds, elapsed
        if self._knows_joules and self._joules_of is not None:
            joules = self._joules_of(client, work.sequence, work.start, elapsed) or 0.0
            self._joules += joules - work.joules
            work.joules = joules
        return seconds

    def _waste(self, event: Event) -> None:
        # A client whose order expired goes on; the rest of its time is known when it is back and
        # its reply is rejected. So the order stays open.
        work = self._open.get(event.get("client"))  # type: ignore[arg-type]
        if work is None:
            return  # a duplicate: the work was counted
        self.orders_wasted += not work.failed
        work.failed = True
        self.seconds_wasted += self._spend(event["client"], work, event["t"])

    def _leave(self, client: int, base_version: int) -> _Work:
        """The oldest work of a client that waits, which leaves the buffer."""
        works = self._arrived[client, base_version]
        work = works.popleft()
        if not works:
            del self._arrived[client, base_version]
        return work

    def _use(self, event: Event) -> None:
        clients, ages = event["client"], event["age"]
        weights = event.get("weight", [1.0] * len(clients))
        for client, age, weight in zip(clients, ages, weights, strict=True):
            work = self._leave(client, event["version"] - 1 - age)
            if weight == 0:
                self.orders_wasted += 1
                self.seconds_wasted += work.seconds
            else:
                self.participation[client] += 1
                self.seconds_used += work.seconds


def of_run(tally: Tally, target_accuracy: float) -> dict[str, Any]:
    """What ``summary.json`` says beside the engine's own counts; None is unknown or never happened.

    Args:
        tally: of the whole run.
        target_accuracy: to which time and updates are counted, in [0, 1].

    Returns:
        ``last10_log10_accuracy_std`` and ``last10_accuracy_std`` (`stability`); ``report_accuracy``
        (the target) with ``seconds_to_target``, ``updates_to_target``, ``versions_to_target`` (of
        the first evaluation there) and ``versions_to_target_smoothed`` (of the first mean of five
        evaluations there); ``seconds_to_stay_at_target`` and so on (`stays_at`); ``joules``;
        ``orders_wasted``, ``seconds_wasted`` and ``wasted_share`` of all seconds that ended used or
        wasted; ``participation_gini``; ``aggregation``, by name the mean of every number that the
        strategy reported of its aggregations.
    """
    log, plain = stability([m.accuracy for m in tally.milestones])
    reached = first_at(tally.milestones, target_accuracy)
    smoothed = first_at(tally.milestones, target_accuracy, targets.WINDOW)
    stays = stays_at(tally.milestones, target_accuracy)
    ended = tally.seconds_used + tally.seconds_wasted
    return {
        "last10_log10_accuracy_std": _known(log),
        "last10_accuracy_std": _known(plain),
        "report_accuracy": target_accuracy,
        "seconds_to_target": reached and reached.t,
        "updates_to_target": reached and reached.client_updates,
        "versions_to_target": reached and reached.version,
        "versions_to_target_smoothed": smoothed and smoothed.version,
        "seconds_to_stay_at_target": stays and stays.t,
        "updates_to_stay_at_target": stays and stays.client_updates,
        "versions_to_stay_at_target": stays and stays.version,
        "joules": tally.joules,
        "orders_wasted": tally.orders_wasted,
        "seconds_wasted": tally.seconds_wasted,
        "wasted_share": tally.seconds_wasted / ended if ended else None,
        "participation_gini": tally.gini,
        "aggregation": {name: float(mean) for name, mean in tally.reported.items()},
    }


def of_last_evaluation(metrics: Mapping[str, float]) -> dict[str, Any]:
    """What ``summary.json`` says of an evaluation where its metrics hold it.

    Returns:
        ``collapsed``, whether the model's weights are finite and yet it answers (nearly) always the
        same class, which no check of numbers sees; ``final_perplexity``; ``recall``, a list over
        the classes; ``client_accuracy_mean`` and ``client_accuracy_worst_decile``.
    """
    summary: dict[str, Any] = {}
    if "commonest_prediction" in metrics:
        summary["collapsed"] = metrics["commonest_prediction"] >= COLLAPSED_AT and math.isfinite(
            metrics["loss"]
        )
    if "perplexity" in metrics:
        summary["final_perplexity"] = _known(metrics["perplexity"])
    recall = [_known(value) for key, value in metrics.items() if key.startswith("recall_")]
    if recall:
        summary["recall"] = recall
    for key in ("client_accuracy_mean", "client_accuracy_worst_decile"):
        if key in metrics:
            summary[key] = _known(metrics[key])
    return summary


class ClassTask(Protocol):
    """A task whose test set has classes (`fl_app.tasks.Task`)."""

    @property
    def num_classes(self) -> int: ...

    @property
    def num_clients(self) -> int: ...

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: the task is one of sequences, whose tokens nobody counts by class.
        """
        ...

    def test(self, model: Any, *, recall: bool = False) -> Mapping[str, float]:
        """Metrics; with `recall` also ``recall_0`` ... ``recall_<C-1>``."""
        ...


class PerClass:
    """Tests a model class by class.

    A client's accuracy is that on test examples mixed as the classes of its own training data:
    the mean recall with the client's shares as weights. It costs one matrix product however many
    clients there are. What sets clients apart within a class, such as handwriting, it cannot see.

    Args:
        task: has classes.
        metrics: ``"recall"`` of every class and ``"clients"``, mean and worst decile of the
            clients' accuracies, or one of these.

    Raises:
        ValueError: the task is one of sequences, or ``"clients"`` is asked for and a class has no
            test examples.
    """

    def __init__(self, task: ClassTask, metrics: Sequence[str]) -> None:
        self._task = task
        self._recall = "recall" in metrics
        self._mix: Floats | None = None
        missing = np.flatnonzero(task.label_counts() == 0).tolist()
        if "clients" in metrics:
            require(
                not missing,
                "metrics",
                list(metrics),
                f"without clients, for there are no test examples of the classes {missing}",
                "nobody could say how well these are known",
            )
            counts = np.stack([task.label_counts(i) for i in range(task.num_clients)])
            self._mix = counts / counts.sum(axis=1, keepdims=True)

    def __call__(self, model: Any) -> dict[str, float]:
        """The task's metrics and those asked for."""
        metrics = dict(self._task.test(model, recall=True))
        keys = [f"recall_{label}" for label in range(self._task.num_classes)]
        if self._mix is not None:
            accuracies = expected_accuracy(self._mix, np.array([metrics[key] for key in keys]))
            metrics["client_accuracy_mean"] = float(accuracies.mean())
            metrics["client_accuracy_worst_decile"] = worst_decile(accuracies)
        if not self._recall:
            for key in keys:
                del metrics[key]
        return metrics


def _known(value: float) -> float | None:
    """None for what is not finite, since JSON knows no NaN."""
    return value if math.isfinite(value) else None
