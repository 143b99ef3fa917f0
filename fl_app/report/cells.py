"""What a report knows of a run: its cells, and what happened in each."""

import math
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from fl_app.record.history import Evaluation, History, OrderRecord
from fl_app.record.score import Score, score_of

MAX_TROUBLES = 200  # the latest ones, listed one by one; all are counted
# Values of ``stopped`` of a run that reached its end.
ENDS = ("num_versions", "seconds", "updates", "target_accuracy")


class Wait(NamedTuple):
    """A client whose update arrived, while its place stayed empty until the next aggregation."""

    client: int
    start: float
    end: float


class Mark(NamedTuple):
    """A moment that ends no order.

    Attributes:
        kind: of the event: "pause", "refresh", "recall", "reject", "checkpoint" or "cluster".
        t: seconds.
        client: None if the event concerns the server, or if the client is unknown.
        note: what else the event says.
    """

    kind: str
    t: float
    client: int | None
    note: str


class Trouble(NamedTuple):
    """A failure or a rejected reply, and what its client did before.

    Attributes:
        kind: "failure" or "reject".
        t: seconds.
        client: None if it is unknown.
        version: of the model that the client was given; None if it is unknown.
        reason: as logged.
        story: the client's last events, oldest first, one sentence each.
    """

    kind: str
    t: float
    client: int | None
    version: int | None
    reason: str
    story: tuple[str, ...]


def scores_of(cells: Iterable["Cell"]) -> list[Score]:
    """The metrics by which cells are judged, each once; usually one."""
    return list(dict.fromkeys(cell.score for cell in cells if cell.score is not None))


def common_score(cells: Iterable["Cell"]) -> Score:
    """The metric by which all cells are judged.

    Raises:
        ValueError: nothing was evaluated, or cells are judged by different metrics.
    """
    scores = scores_of(cells)
    if not scores:
        raise ValueError("no cell was evaluated: there is nothing to compare")
    if len(scores) > 1:
        names = ", ".join(score.name for score in scores)
        raise ValueError(f"cells are judged by {names}: compare those of one task, with --only")
    return scores[0]


@dataclass
class Cell:
    """One cell of a run.

    Attributes:
        name: unique among the cells of the run.
        algorithm: as configured.
        on_wall_clock: whether seconds are real and not virtual.
        summary: ``summary.json``; empty if the run still goes on, or ended before it was written.
        label: the name without the seed. Cells that differ only in their seed share it. Default:
            the name.
        seed: as configured; None if it is unknown.
        folder: of the cell, relative to that of the run.
        task: name of the data set; empty if it is unknown.
        experiment: that the cell belongs to; empty if it belongs to none.
        config: text of ``config.yaml``.
        overrides: dotted keys that the user gave, and their values.
        partition: columns of ``partition.csv``: class -> its examples on each client.
        history: what the events add up to, with its orders.
        waits: see `Wait`.
        marks: see `Mark`.
        clusters: times at which the strategy put clients into clusters, and client -> cluster.
        aggregations: times at which versions were published, seconds.
        reports: name -> versions and values of what the strategy reported of its aggregations. The
            value of a list is its mean. "staleness" is the mean age.
        reasons: kind and reason of failures and rejected replies -> how often they occurred.
        troubles: see `Trouble`.
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
    partition: dict[str, list[int]] = field(default_factory=dict)
    history: History = field(default_factory=partial(History, keep_orders=True))
    waits: list[Wait] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    clusters: list[tuple[float, dict[int, int]]] = field(default_factory=list)
    aggregations: list[float] = field(default_factory=list)
    reports: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    troubles: deque[Trouble] = field(default_factory=lambda: deque(maxlen=MAX_TROUBLES))

    def __post_init__(self) -> None:
        self.label = self.label or self.name

    @property
    def stopped(self) -> str:
        """What ended the run, as in ``summary.json``; empty if it did not end, or was killed."""
        return self.summary.get("stopped") or ""

    @property
    def score(self) -> Score | None:
        """The metric by which the run is judged; None if nothing was evaluated.

        A run without a summary is judged by its accuracy or, if it has none, by its loss.
        """
        if not self.history.evaluations:
            return None
        if name := self.summary.get("score"):
            return Score(name, self.summary["higher_is_better"])
        return score_of(evaluation.metrics for evaluation in self.history.evaluations)

    @property
    def evaluations(self) -> list[Evaluation]:
        """Those with a known score."""
        score = self.score
        if score is None:
            return []
        return [e for e in self.history.evaluations if not math.isnan(e.value(score.name))]

    @property
    def on_clients(self) -> bool:
        """Whether clients evaluated."""
        return bool(self.history.client_evaluations)

    @property
    def scores(self) -> list[float]:
        """The score of each of the `evaluations`."""
        name = self.score.name if self.score else ""
        return [evaluation.value(name) for evaluation in self.evaluations]

    @property
    def until(self) -> float:
        """When training ended, or the last event so far, seconds.

        The last evaluation on clients comes after the end of training.
        """
        ended: float = self.summary.get("virtual_seconds", math.inf)
        return min(self.history.t, ended)

    def end(self, order: OrderRecord) -> float:
        """When an order ended, seconds; that of training if it is under way."""
        return self.until if order.end is None else order.end
