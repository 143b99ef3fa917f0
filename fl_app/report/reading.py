"""Reads the cells of a run from its files, as far as they are written."""

import csv
import json
import math
import re
import shlex
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from yaml import YAMLError

from fl_app.core.errors import require
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
    Rejected,
    to_json,
)
from fl_app.record.log import read_events
from fl_app.report.cells import Cell, Mark, Trouble, Wait
from fl_app.report.naming import name_jobs, settings_of
from fl_app.report.style import ALGORITHMS

MAX_STORY = 8  # events of a client in the story of its trouble
MAX_NOTE = 300  # characters
NOT_NOTED = (
    "kind",
    "t",
    "client",
    "order",
    "base_version",
    "bytes",
    "parts",
    "beside",
)  # keys of events


def read_run(folder: Path, only: Collection[str] = ()) -> list[Cell]:
    """The cells of a run folder.

    Jobs of a sweep come in the order of its command, cells in that of their experiment, others in
    the fixed order of algorithms, then by name.

    Args:
        folder: of the run.
        only: labels of the cells to return, with all of their seeds; empty = all cells.

    Raises:
        ValueError: there is no cell, or none with a label of `only`.
    """
    if is_cell(folder):
        cells = [read_cell(folder, name="")]
    else:
        cells = [_read_below(folder, path) for path in _cells_below(folder)]
        if not cells:
            raise ValueError(
                f"run_folder={folder} must hold events.jsonl or folders that do: nothing to report"
            )
        name_jobs([cell for cell in cells if cell.folder.partition("/")[0].isdigit()])
        cells.sort(key=_order)
    labels = dict.fromkeys(cell.label for cell in cells)
    for label in only:
        among = f"among {', '.join(map(shlex.quote, labels))}"
        require(label in labels, "only", label, among, "there is no such cell")
    return [cell for cell in cells if not only or cell.label in only]


def read_cell(folder: Path, name: str | None = None) -> Cell:
    """Read one cell.

    Files may be missing and their last lines incomplete, as those of a run that still goes on.

    Args:
        folder: of the cell.
        name: of the cell; default: the folder's.

    Raises:
        ValueError: a file is damaged.
    """
    path = folder / "config.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    try:
        config = OmegaConf.create(text)
    except YAMLError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    algorithm = OmegaConf.select(config, "algorithm.name") or folder.name
    if name is None:
        name = folder.name
    cell = Cell(
        name=name or algorithm,
        label=re.sub(r"-seed\d+$", "", name),  # of an experiment's cell
        seed=OmegaConf.select(config, "seed"),
        folder=folder.resolve().name,
        algorithm=algorithm,
        on_wall_clock=OmegaConf.select(config, "runtime.name") == "deployment",
        summary=_summary(folder / "summary.json"),
        task=_task(config),
        experiment=OmegaConf.select(config, "experiment.name") or "",
        config=text,
        overrides=_overrides(folder),
        partition=_partition(folder / "partition.csv"),
    )
    replay = _Replay(cell)
    for event in read_events(folder / "events.jsonl"):
        replay.take(event)
    return cell


def is_cell(folder: Path) -> bool:
    """Whether a folder holds the files of one run."""
    return (folder / "events.jsonl").is_file() or (folder / "summary.json").is_file()


def _task(config: Any) -> str:
    """Name of the data set; of a task without one, the name of its function."""
    data: str | None = OmegaConf.select(config, "task.data")
    return data or (OmegaConf.select(config, "task._target_") or "").rpartition(".")[2]


def _cells_below(folder: Path) -> Iterator[Path]:
    """The folders of a run's cells. Those of a sweep of experiments lie in the jobs' folders."""
    for path in folder.iterdir() if folder.is_dir() else ():
        if is_cell(path):
            yield path
        elif path.name.isdigit() and path.is_dir():
            yield from filter(is_cell, path.iterdir())


def _read_below(folder: Path, path: Path) -> Cell:
    cell = read_cell(path)
    cell.folder = path.relative_to(folder).as_posix()
    return cell


def _overrides(folder: Path) -> dict[str, Any]:
    """The user's overrides by dotted key; empty if they are unknown."""
    # Runs of the first release have only Hydra's file.
    paths = (folder / "overrides.yaml", folder / ".hydra" / "overrides.yaml")
    text = next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "[]")
    given = OverridesParser.create().parse_overrides(list(OmegaConf.create(text)))
    return {each.key_or_group.replace("/", "."): each.value() for each in given}


def _order(cell: Cell) -> tuple[list[int], int, list[str | int]]:
    rank = ALGORITHMS.index(cell.algorithm) if cell.algorithm in ALGORITHMS else len(ALGORITHMS)
    # Text and numbers alternate in the parts of a split name, so they never meet in a comparison.
    parts = re.split(r"(\d+)", cell.folder)
    return _place(cell), rank, [int(part) if part.isdigit() else part for part in parts]


def _place(cell: Cell) -> list[int]:
    """Number of the job, then place of the cell in its experiment; 0 where there is none."""
    job, _, below = f"/{cell.folder}".rpartition("/")
    label = re.sub(r"-seed\d+$", "", below)
    name, at, setting = label.partition("@")
    known = settings_of(cell)
    places = [int(part) for part in (job.strip("/"), below) if part.isdigit()] or [0]
    settings, cells = (
        [key.removeprefix(group) for key in known if key.startswith(group)]
        for group in ("experiment.settings.", "experiment.cells.")
    )
    for words, among in (
        (known.get("experiment.only") or (), (label, name, at + setting)),
        (settings, (setting,)),
        (cells, (name,)),
    ):
        places.append(next((i for i, word in enumerate(words) if word in among), 0))
    return places


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _partition(path: Path) -> dict[str, list[int]]:
    """Columns of the file; empty if it is not there."""
    if not path.is_file():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        names, *counts = csv.reader(file)
    return {name: [int(row[at]) for row in counts] for at, name in enumerate(names)}


class _Replay:
    """Fills a cell from its events, oldest first."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._arrived: Wait | None = None  # by the last event, unless its place is refilled now
        self._waiting: list[Wait] = []
        self._stories: dict[int, deque[Event]] = defaultdict(lambda: deque(maxlen=MAX_STORY))

    def take(self, event: Event) -> None:
        """Take in the next event."""
        history = self._cell.history
        wasted = history.orders_wasted
        history.emit(event)
        match event:
            case Dispatched():
                self._arrived = None
            case Arrived():
                self._leave_empty()
                self._arrived = Wait(event.client, event.t, event.t)
            case Failed() | Rejected():
                self._leave_empty()
                self._tell(event)
                if isinstance(event, Rejected) and history.orders_wasted == wasted:
                    self._mark(event)  # it answers an order that had ended, or none
            case Aggregated():
                self._leave_empty()
                self._end_waits(event.t)
                self._report(event)
            case Clustered():
                if event.dropped:  # these clients train again
                    self._leave_empty()
                    self._end_waits(event.t)
                clusters = dict(zip(event.client, event.cluster, strict=True))
                self._cell.clusters.append((event.t, clusters))
                self._mark(event)
            case Evaluated() | EvaluationOrdered() | ClientEvaluated() | ClientsEvaluated():
                pass
            case _:
                self._mark(event)
        if (client := _client(event)) is not None:
            self._stories[client].append(event)

    def _leave_empty(self) -> None:
        """The place of the client whose update arrived last was not refilled at once."""
        if self._arrived is not None:
            self._waiting.append(self._arrived)
            self._arrived = None

    def _end_waits(self, t: float) -> None:
        self._cell.waits.extend(wait._replace(end=t) for wait in self._waiting if t > wait.start)
        self._waiting.clear()

    def _tell(self, event: Failed | Rejected) -> None:
        cell, client = self._cell, event.client
        cell.reasons[event.kind, _headline(event.reason)] += 1
        past = () if client is None else self._stories[client]
        story = tuple(map(_sentence, past))
        cell.troubles.append(
            Trouble(event.kind, event.t, client, event.base_version, event.reason, story)
        )

    def _report(self, event: Aggregated) -> None:
        self._cell.aggregations.append(event.t)
        for name, value in {"staleness": event.age, **event.report}.items():
            number = _number(value)
            if number is not None:
                self._cell.reports.setdefault(name, []).append((event.version, number))

    def _mark(self, event: Event) -> None:
        self._cell.marks.append(Mark(event.kind, event.t, _client(event), _note(event)))


def _client(event: Event) -> int | None:
    """The client that an event concerns; None if there is not exactly one."""
    client = getattr(event, "client", None)
    return client if isinstance(client, int) else None


def _number(value: Any) -> float | None:
    """A reported number, or the mean of a list of numbers; None if nothing of it is finite."""
    numbers = value if isinstance(value, list) else [value]
    finite = [n for n in numbers if isinstance(n, (int, float)) and math.isfinite(n)]
    return sum(finite) / len(finite) if finite else None


def _headline(reason: str) -> str:
    """The first line of a reason, by which reasons are counted."""
    return next(iter(reason.splitlines()), "")[:MAX_NOTE] or "no reason given"


def _note(event: Event) -> str:
    """What an event says beside its kind, its time and its client."""
    if isinstance(event, Failed | Rejected):
        return _headline(event.reason)
    if isinstance(event, Clustered):
        sizes = [size for _, size in sorted(Counter(event.cluster).items())]
        return f"version {event.version}, clusters of {', '.join(map(str, sizes))} clients"
    flat = to_json(event)
    flat |= flat.pop("metrics", {})
    notes = (
        f"{key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in flat.items()
        if key not in NOT_NOTED and value is not None
    )
    return ", ".join(notes)[:MAX_NOTE]


def _sentence(event: Event) -> str:
    """An event of a client in words."""
    what = "order" if isinstance(event, Dispatched) else event.kind
    base_version = getattr(event, "base_version", None)
    base = "" if base_version is None else f" on version {base_version}"
    note = _note(event)
    return f"{event.t:,.2f} s: {what}{base}{note and ', ' + note}"
