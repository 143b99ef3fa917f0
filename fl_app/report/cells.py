"""The cells of a run, read from the files that exist so far."""

import math
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf

from fl_app.client.node_data import kind_of
from fl_app.core.errors import explaining
from fl_app.core.score import Score, score_of
from fl_app.record.folder import read_summary
from fl_app.record.history import Evaluation, History, OrderRecord
from fl_app.record.log import read_events
from fl_app.report.style import ALGORITHMS, Look, looks

# Values of ``stopped`` of a run that reached its end.
ENDS = ("num_versions", "seconds", "updates", "target_accuracy")
RUNNING = "no summary: still running, or killed"  # instead of these
HARMLESS = ("resume", "failures", "checkpoint_every", "runtime")  # keys without effect on results
MAX_REASON = 300  # characters


@dataclass
class Cell:
    """One cell of a run.

    Attributes:
        name: unique among the cells of the run.
        summary: ``summary.json``; empty if the run still goes on, or ended before it was written.
        label: the name without the seed. Cells that differ only in their seed share it.
        folder: of the cell, relative to that of the run.
        config: text of ``config.yaml``.
        overrides: dotted keys that the user gave, and their values as typed.
        partition: text of ``partition.csv``.
        history: of the events, with its orders.
    """

    name: str
    summary: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    folder: str = ""
    config: str = ""
    overrides: dict[str, str] = field(default_factory=dict)
    partition: str = ""
    history: History = field(default_factory=partial(History, keep_orders=True))

    @cached_property
    def settings(self) -> Any:
        """The configuration, as OmegaConf reads it; a missing key is None."""
        return OmegaConf.create(self.config)

    def get(self, key: str) -> Any:
        """The value of a dotted key in the configuration; None if it is missing."""
        value = OmegaConf.select(self.settings, key)
        return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

    @property
    def algorithm(self) -> str:
        """As configured; else the name of the folder."""
        return self.get("algorithm.name") or Path(self.folder).name

    @property
    def seed(self) -> Any:
        """As configured; None if it is unknown."""
        return self.get("seed")

    @property
    def task(self) -> str:
        """Name of the data set; of a task without one, that of its function; may be empty."""
        return kind_of(self.get("task") or {})

    @property
    def on_wall_clock(self) -> bool:
        """Whether seconds are real and not virtual."""
        return bool(self.get("runtime.name") == "deployment")

    @property
    def stopped(self) -> str:
        """What ended the run, as in ``summary.json``; empty if it goes on or was killed."""
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
    def until(self) -> float:
        """When training ended, or the last event so far, seconds.

        The last evaluation on clients comes after the end of training.
        """
        return min(self.history.t, self.summary.get("virtual_seconds", math.inf))

    def end(self, order: OrderRecord) -> float:
        """When an order ended, seconds; that of training if it is under way."""
        return self.until if order.end is None else order.end


class Series(NamedTuple):
    """One cell, or the seeds of a cell, which share a label (the series' name) and a look."""

    name: str
    cells: list[Cell]
    look: Look

    @property
    def ages(self) -> Counter[int]:
        """Age -> number of aggregated updates, over all seeds."""
        return sum((cell.history.ages for cell in self.cells), Counter())


def group(cells: Iterable[Cell]) -> list[Series]:
    """Group the seeds of each cell, in the order of the cells."""
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.label].append(cell)
    styles = looks([members[0].algorithm for members in groups.values()])
    return [Series(*item, look) for item, look in zip(groups.items(), styles, strict=True)]


def scores_of(cells: Iterable[Cell]) -> list[Score]:
    """The metrics by which cells are judged, each once; usually one."""
    return list(dict.fromkeys(cell.score for cell in cells if cell.score is not None))


def headline(reason: str) -> str:
    """The first line of a reason; reasons are counted by it."""
    return next(iter(reason.splitlines()), "")[:MAX_REASON] or "no reason given"


# -- reading ---------------------------------------------------------------------------------------


def read_run(folder: Path) -> list[Cell]:
    """The cells of a run folder.

    Jobs of a sweep come in the order of its command, cells in that of their experiment, others in
    the fixed order of algorithms, then by name.

    Args:
        folder: of the run.

    Raises:
        ValueError: there is no cell.
    """
    if is_cell(folder):
        return [read_cell(folder, name="")]
    cells = []
    # Those of a sweep of experiments lie in the jobs' folders.
    jobs = [path for path in folder.glob("*/*") if path.parent.name.isdigit()]
    for path in filter(is_cell, [*folder.glob("*"), *jobs]):
        cells.append(read_cell(path))
        cells[-1].folder = path.relative_to(folder).as_posix()
    if not cells:
        raise ValueError(
            f"run_folder={folder} must hold events.jsonl or folders that do: nothing to report"
        )
    cells.sort(key=_order)
    _name_jobs([cell for cell in cells if cell.folder.partition("/")[0].isdigit()])
    return cells


def read_cell(folder: Path, name: str | None = None) -> Cell:
    """Read one cell.

    Files may be missing and their last lines incomplete, as those of a run that still goes on.

    Args:
        folder: of the cell.
        name: of the cell; default: the folder's.

    Raises:
        ValueError: a file is damaged.
    """
    cell = Cell("", folder=folder.resolve().name, config=_text(folder / "config.yaml"))
    with explaining(f"{folder / 'config.yaml'} is damaged"):
        algorithm = cell.algorithm
    cell.name = name or (folder.name if name is None else algorithm)
    cell.label = label_of(cell.name)
    cell.summary = read_summary(folder)
    words: Any = OmegaConf.to_container(OmegaConf.create(_text(folder / "overrides.yaml") or "[]"))
    pairs = (word.lstrip("+").partition("=") for word in words)
    cell.overrides = {key.replace("/", "."): value for key, _, value in pairs}
    cell.partition = _text(folder / "partition.csv")
    for event in read_events(folder / "events.jsonl"):
        cell.history.emit(event)
    found = cell.history.client_updates
    if (expected := cell.summary.get("client_updates", found)) != found:
        counts = f"{found:,} of the {expected:,} client updates in summary.json"
        warnings.warn(f"{folder / 'events.jsonl'} has {counts}: it was cut", stacklevel=2)
    return cell


def label_of(name: str) -> str:
    """The name of an experiment's cell without its seed."""
    return re.sub(r"(?<=.)-seed\d+$", "", name)


def is_cell(folder: Path) -> bool:
    """Whether a folder holds the files of one run."""
    return (folder / "events.jsonl").is_file() or (folder / "summary.json").is_file()


def _text(path: Path) -> str:
    """The contents of a file; empty if it is not there."""
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _order(cell: Cell) -> tuple[int, list[int], list[str | int]]:
    """The sort key: number of the job, places in the lists of experiment and algorithms, folder."""
    job = cell.folder.partition("/")[0]
    name, mark, setting = cell.label.partition("@")
    lists: list[tuple[Collection[str] | None, tuple[str, ...]]] = [
        (cell.get("experiment.only"), (cell.label, name, mark + setting)),
        (cell.get("experiment.settings"), (setting,)),
        (cell.get("experiment.cells"), (name,)),
        (ALGORITHMS, (cell.algorithm,)),
    ]
    matches = ([*(entry in keys for entry in order or ()), True] for order, keys in lists)
    places = [each.index(True) for each in matches]
    # Text and numbers alternate in the parts of a split name, so they never meet in a comparison.
    parts = [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", cell.folder)]
    return int(job) if job.isdigit() else 0, places, parts


def _name_jobs(jobs: Sequence[Cell]) -> None:
    """Set the names and labels of a sweep's jobs, such as ``fedasync local_lr=0.1``.

    A label begins with the algorithm or, if each job is an experiment, with the cell. It has every
    varied key but the seed, by its last part where that is unique. A name is the label, with the
    seed where jobs share it. Jobs with equal names, or with unknown overrides, are numbered. What
    a resumed sweep's command adds is left out if it changes no result.
    """
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    added = [key for key in keys if not all(key in job.overrides for job in jobs)]
    unnamed = {"algorithm", "seed", *(key for key in added if key.partition(".")[0] in HARMLESS)}
    varying = [
        key
        for key in keys
        if key not in unnamed and len({job.overrides.get(key) for job in jobs}) > 1
    ]
    last_parts = Counter(key.rpartition(".")[2] for key in varying)
    for job in jobs:
        words = [job.label if "/" in job.folder else job.algorithm]
        for key in filter(job.overrides.__contains__, varying):
            last_part = key.rpartition(".")[2]
            words.append(f"{last_part if last_parts[last_part] == 1 else key}={job.overrides[key]}")
        if not job.overrides:
            words.append(job.folder)
        job.label = " ".join(words)
    labels = Counter(job.label for job in jobs)
    for job in jobs:
        job.name = job.label if labels[job.label] == 1 else f"{job.label} seed={job.seed}"
    names = Counter(job.name for job in jobs)
    for job in jobs:
        if names[job.name] > 1:
            job.label = job.name = f"{job.label} {job.folder}"
