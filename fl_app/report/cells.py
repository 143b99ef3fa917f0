"""What a report knows of a run: its cells, and what happened in each."""

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fl_app.record.targets import first_at, stays_at

MAX_TROUBLES = 200  # told one by one, the latest; all are counted
ENDS = ("num_versions", "seconds", "updates", "target_accuracy")  # of a run that is not to go on


class Evaluation(NamedTuple):
    """One evaluation of the global model.

    Attributes:
        t: seconds on the run's clock.
        accuracy: in [0, 1].
        client_updates: how many had arrived by then.
        version: of the model.
        loss: NaN if it is unknown.
    """

    t: float
    accuracy: float
    client_updates: int
    version: int
    loss: float


class Training(NamedTuple):
    """One order as its client lived it, from dispatch to its end.

    Attributes:
        client: client id.
        start: seconds.
        end: seconds; where the log ends if the order was still under way.
        ended: kind of the event that ended it: "arrival", "failure", "reject", or "" if none did.
        version: of the model that the client was given.
        age: of the update that arrived, versions.
        loss: that the client reported.
        reason: why there was no update.
    """

    client: int
    start: float
    end: float
    ended: str
    version: int
    age: int | None = None
    loss: float | None = None
    reason: str = ""


class Wait(NamedTuple):
    """A client that had reported while its place stayed empty until the next aggregation."""

    client: int
    start: float
    end: float


class Mark(NamedTuple):
    """A moment that ends no order: "pause", "refresh", "reject", "checkpoint" or "cluster".

    Attributes:
        kind: of the event.
        t: seconds.
        client: whose; None if it is the server's, or nobody knows.
        note: what else the event said.
    """

    kind: str
    t: float
    client: int | None
    note: str


class Trouble(NamedTuple):
    """A failure or a reject, and what its client did before.

    Attributes:
        kind: "failure" or "reject".
        t: seconds.
        client: None if nobody knows.
        version: of the model that the client had been given; None if nobody knows.
        reason: as logged.
        story: the client's last events, oldest first, one sentence each.
    """

    kind: str
    t: float
    client: int | None
    version: int | None
    reason: str
    story: tuple[str, ...]


@dataclass
class Cell:
    """One cell of a run.

    Attributes:
        name: unlike every other cell's of the run.
        algorithm: as configured.
        task: its data set; empty if nobody knows.
        experiment: whose cell it is; empty if it is of none.
        on_wall_clock: whether seconds are real and not virtual.
        summary: ``summary.json``; empty if the run ended before it was written, or still goes on.
        label: the name without the seed: cells that differ in nothing but their seed share it.
            The name unless it is given.
        seed: as configured; None if nobody knows.
        folder: its folder, from that of the run.
        config: the text of ``config.yaml``.
        overrides: dotted keys that the user gave, and their values; of Hydra's jobs alone.
        metrics: the columns of ``metrics.csv``, each as long as the others.
        aggregations: times at which versions were published, seconds.
        ages: how many aggregated updates were of each age.
        waits: see `Wait`.
        participation: client -> how many of its updates were aggregated with a weight above 0.
        reports: what the strategy reported of its aggregations, by name: versions and numbers. Of a
            list it is the mean. "staleness" is the mean age.
        lost: client -> how many of its orders failed or were rejected.
        reasons: how often what went wrong for which reason, by kind and reason.
        troubles: see `Trouble`.
        seconds: time of the last event.
        version: of the global model in the end.
    """

    name: str
    algorithm: str
    on_wall_clock: bool
    summary: dict[str, Any]
    label: str = ""
    seed: int | None = None
    folder: str = ""
    task: str = ""
    experiment: str = ""
    config: str = ""
    overrides: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[float]] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    trainings: list[Training] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    aggregations: list[float] = field(default_factory=list)
    ages: Counter[int] = field(default_factory=Counter)
    participation: Counter[int] = field(default_factory=Counter)
    reports: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    lost: Counter[int] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    troubles: deque[Trouble] = field(default_factory=lambda: deque(maxlen=MAX_TROUBLES))
    client_updates: int = 0
    failures: int = 0
    rejected: int = 0
    seconds: float = 0.0
    version: int = 0

    def __post_init__(self) -> None:
        self.label = self.label or self.name

    @property
    def stopped(self) -> str:
        """What ended the run, as in ``summary.json``; empty if it did not end, or was killed."""
        return self.summary.get("stopped") or ""

    def first_at(self, accuracy: float) -> Evaluation | None:
        """The first evaluation that reached `accuracy`, or None."""
        number = first_at([e.accuracy for e in self.evaluations], accuracy)
        return None if number is None else self.evaluations[number]

    def stays_at(self, accuracy: float) -> Evaluation | None:
        """The evaluation from which the mean of the last five stays at `accuracy`, or None."""
        number = stays_at([e.accuracy for e in self.evaluations], accuracy)
        return None if number is None else self.evaluations[number]


def mean_age(ages: Counter[int]) -> float:
    """Mean of a count of ages, which must not be empty."""
    return sum(age * count for age, count in ages.items()) / ages.total()
