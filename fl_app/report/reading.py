"""Reads the cells of a run: what its files say, as far as they were written."""

import csv
import json
import math
import re
import shlex
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from fl_app.core.errors import require
from fl_app.report.cells import Cell, Evaluation, Mark, Training, Trouble, Wait
from fl_app.report.naming import name_jobs
from fl_app.report.style import ALGORITHMS

MAX_STORY = 8  # events of a client that are told with its trouble
MAX_NOTE = 300  # characters of what an event says beside the usual
NOTED_ELSEWHERE = ("kind", "t", "client", "order", "base_version", "bytes")


def read_run(folder: Path, only: Collection[str] = ()) -> list[Cell]:
    """The cells of a run folder, in the fixed order of algorithms, then by name.

    Args:
        folder: of the run.
        only: labels of the cells to read, each for all of its seeds; none = all.

    Raises:
        ValueError: there is no cell, or not one that is named.
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
    """Read one cell; missing files and torn last lines are what a run leaves that still goes on.

    Args:
        folder: of the cell.
        name: default the folder's.
    """
    path = folder / "config.yaml"
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    config = OmegaConf.create(text)
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
        metrics=_metrics(folder / "metrics.csv"),
    )
    _Replay(cell).run(_events(folder / "events.jsonl"))
    return cell


def is_cell(folder: Path) -> bool:
    """Whether a folder holds what one run writes."""
    return (folder / "events.jsonl").is_file() or (folder / "summary.json").is_file()


def _task(config: Any) -> str:
    """The data set's name; that of the task's function where it stands for one."""
    data: str | None = OmegaConf.select(config, "task.data")
    return data or (OmegaConf.select(config, "task._target_") or "").rpartition(".")[2]


def _cells_below(folder: Path) -> Iterator[Path]:
    """The folders of a run's cells; in a sweep of experiments these lie in the jobs' folders."""
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
    """What the user gave; nothing if nobody knows."""
    # Hydra's is of runs that were made before the run wrote its own.
    paths = (folder / "overrides.yaml", folder / ".hydra" / "overrides.yaml")
    text = next((path.read_text(encoding="utf-8") for path in paths if path.is_file()), "[]")
    given = OverridesParser.create().parse_overrides(list(OmegaConf.create(text)))
    return {each.key_or_group.replace("/", "."): each.value() for each in given}


def _order(cell: Cell) -> tuple[int, list[str | int]]:
    rank = ALGORITHMS.index(cell.algorithm) if cell.algorithm in ALGORITHMS else len(ALGORITHMS)
    # Text and numbers alternate in the parts of a split name, so they never meet in a comparison.
    parts = re.split(r"(\d+)", cell.folder)
    return rank, [int(part) if part.isdigit() else part for part in parts]


def _summary(path: Path) -> dict[str, Any]:
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return summary if isinstance(summary, dict) else {}


def _metrics(path: Path) -> dict[str, list[float]]:
    if not path.is_file():
        return {}
    columns: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if None in row.values():
                break  # torn
            for name, text in row.items():
                columns.setdefault(name, []).append(float(text) if text else math.nan)
    return columns


def _events(path: Path) -> Iterator[dict[str, Any]]:
    if not path.is_file():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:
                continue  # torn when the run was killed
            yield event


class _Replay:
    """Fills a cell from its events."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        # By client: version and time of every order that is under way, oldest first.
        self._under_way: dict[int, list[tuple[int, float]]] = defaultdict(list)
        self._reported: Wait | None = None  # by the last event: does anybody take the place now?
        self._waiting: list[Wait] = []
        self._stories: dict[int, deque[dict[str, Any]]] = defaultdict(
            lambda: deque(maxlen=MAX_STORY)
        )

    def run(self, events: Iterable[dict[str, Any]]) -> None:
        cell = self._cell
        for event in events:
            cell.seconds = event["t"]
            match event["kind"]:
                case "dispatch":
                    self._under_way[event["client"]].append((event["version"], event["t"]))
                    self._remember(event)
                    self._reported = None
                case "arrival" | "failure" | "reject":
                    self._end(event)
                case "aggregate":
                    self._aggregate(event)
                case "evaluate":
                    self._evaluate(event)
                case kind:
                    client = event.get("client")
                    if isinstance(client, int):
                        self._remember(event)
                    else:
                        client = None
                    if event.get("dropped"):  # what clusters were formed of; they train again
                        self._leave_empty()
                        self._end_waits(event["t"])
                    cell.marks.append(Mark(kind, event["t"], client, _note(event)))
        for client, orders in self._under_way.items():
            for version, start in orders:
                cell.trainings.append(Training(client, start, cell.seconds, "", version))

    def _end(self, event: dict[str, Any]) -> None:
        cell, kind, t = self._cell, event["kind"], event["t"]
        client, version = event.get("client"), event.get("base_version")
        self._leave_empty()
        if kind == "arrival":
            cell.client_updates += 1
            self._reported = Wait(event["client"], t, t)
        else:
            cell.failures += kind == "failure"
            cell.rejected += kind == "reject"
            reason = event.get("reason", "")
            cell.reasons[kind, _headline(reason)] += 1
            story = tuple(_sentence(past) for past in self._stories.get(client, ()))  # type: ignore[arg-type]
            cell.troubles.append(Trouble(kind, t, client, version, reason, story))
        order = None if client is None else self._order(client, version, kind)
        if client is not None:
            self._remember(event)
        if order is not None:
            given, start = order
            cell.trainings.append(
                Training(
                    client=event["client"],
                    start=start,
                    end=t,
                    ended=kind,
                    version=given,
                    age=event.get("age"),
                    loss=event.get("loss"),
                    reason=event.get("reason", ""),
                )
            )
            if kind != "arrival":
                cell.lost[event["client"]] += 1
        elif kind == "reject":
            cell.marks.append(Mark(kind, t, client, _note(event)))

    def _order(self, client: int, version: int | None, kind: str) -> tuple[int, float] | None:
        """Take the order that an event ended from those under way."""
        orders = self._under_way.get(client, [])
        for place, (given, _) in enumerate(orders):
            if given == version:
                return orders.pop(place)
        # A client that was refreshed may cite the version it was refreshed with. But a reject may
        # concern an order that ended before (late) or none (duplicate).
        return orders.pop(0) if orders and kind != "reject" else None

    def _aggregate(self, event: dict[str, Any]) -> None:
        cell, t, version = self._cell, event["t"], event["version"]
        self._leave_empty()
        cell.version = version
        cell.aggregations.append(t)
        cell.ages.update(event["age"])
        self._end_waits(t)
        weights = event.get("weight") or [1.0] * len(event["client"])
        cell.participation.update(
            c for c, weight in zip(event["client"], weights, strict=False) if weight != 0
        )
        for key, value in {"staleness": event["age"], **event}.items():
            if key in ("kind", "t", "version", "client", "age"):
                continue
            number = _number(value)
            if number is not None:
                cell.reports.setdefault(key, []).append((version, number))

    def _end_waits(self, t: float) -> None:
        self._cell.waits.extend(wait._replace(end=t) for wait in self._waiting if t > wait.start)
        self._waiting.clear()

    def _evaluate(self, event: dict[str, Any]) -> None:
        cell, loss = self._cell, event.get("loss")
        if event.get("accuracy") is None:
            return
        cell.evaluations.append(
            Evaluation(
                t=event["t"],
                accuracy=event["accuracy"],
                client_updates=cell.client_updates,
                version=event["version"],
                loss=math.nan if loss is None else loss,
            )
        )

    def _leave_empty(self) -> None:
        """Nobody took the place of the client that had just reported."""
        if self._reported is not None:
            self._waiting.append(self._reported)
            self._reported = None

    def _remember(self, event: dict[str, Any]) -> None:
        self._stories[event["client"]].append(event)


def _number(value: Any) -> float | None:
    """What can be drawn of a reported value: a finite number, or the mean of a list's."""
    numbers = value if isinstance(value, list) else [value]
    finite = [n for n in numbers if isinstance(n, (int, float)) and math.isfinite(n)]
    return sum(finite) / len(finite) if finite else None


def _headline(reason: str) -> str:
    """The first line of a reason, by which reasons are counted."""
    return next(iter(reason.splitlines()), "")[:MAX_NOTE] or "no reason given"


def _note(event: dict[str, Any]) -> str:
    """What an event says beside what, when and who."""
    if "reason" in event:
        return _headline(event["reason"])
    if event["kind"] == "cluster":
        sizes = [size for _, size in sorted(Counter(event["cluster"]).items())]
        return f"version {event['version']}, clusters of {', '.join(map(str, sizes))} clients"
    told = (
        f"{key.replace('_', ' ')} {f'{value:.4g}' if isinstance(value, float) else value}"
        for key, value in event.items()
        if key not in NOTED_ELSEWHERE and value is not None
    )
    return ", ".join(told)[:MAX_NOTE]


def _sentence(event: dict[str, Any]) -> str:
    what = "order" if event["kind"] == "dispatch" else event["kind"]
    given = f" on version {event['base_version']}" if "base_version" in event else ""
    note = _note(event)
    return f"{event['t']:,.2f} s: {what}{given}{note and ', ' + note}"
