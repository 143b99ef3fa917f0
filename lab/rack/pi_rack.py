"""What the cells of ``experiment=pi_rack`` predict, as a table.

    python -m fl_app experiment=pi_rack runtime.train=false target_accuracy=null \\
        hydra.run.dir=FOLDER
    python -m fl_app experiment=pi_rack experiment.only=[@equal-iid] experiment.seeds=[8] \\
        hydra.run.dir=TRAINED
    python -m lab.rack.pi_rack FOLDER --trained TRAINED

Seconds do not depend on what is learned. So cells that were trained only add their accuracies, by
version. Boards decide nothing about a synchronous round of all clients but its length. So FedAvg's
versions are the same on equal and on mixed boards, and one training serves both.

A run counts up to its first evaluation at the accuracy aimed at. A run that was not trained counts
as many updates as the trained seeds of its cell. Without these it counts up to the client update
that ``UPDATES`` names. On the rack, synchronous rounds and buffers with iid data needed so many.
The others were not measured [A].
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev

from omegaconf import OmegaConf

from fl_app.core.events import Aggregated, Arrived, Evaluated
from fl_app.devices.table import boards_of
from fl_app.record.log import read_events

TARGET = 0.6
BOARDS = {"equal": {"rpi5": 15}, "mixed": {"rpi5": 10, "rpi4": 5}}
OTHER = {"equal": "mixed", "mixed": "equal"}
UPDATES = {"fedavg-iid": 195, "fedavg-noniid": 425, "iid": 343, "noniid": 750}
COLUMNS = ("s to 60 %", "updates/s", "share rpi4", "age rpi5", "age rpi4")
SYNCHRONOUS = "fedavg"


@dataclass
class Prediction:
    """One run.

    Attributes:
        target: second of the first evaluation at the target; None = it was not reached.
        updates: that count.
        seconds: up to the last of them.
        rate: updates a second after the first version, by when all apps have started; None = there
            is no later one.
        shares: kind of board -> share of the updates that were aggregated.
        ages: kind of board -> mean age of these updates.
    """

    target: float | None
    updates: int
    seconds: float
    rate: float | None
    shares: dict[str, float] = field(default_factory=dict)
    ages: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A run's place in the experiment."""

    algorithm: str
    boards: str
    data: str
    seed: str

    @property
    def setting(self) -> str:
        """Name of the cell without the seed."""
        return f"{self.algorithm}@{self.boards}-{self.data}"


def predicted(
    events: Path,
    kinds: Sequence[str],
    updates: int,
    learned: Mapping[int, float] | None = None,
) -> Prediction:
    """What a run's log says.

    Args:
        events: the log.
        kinds: of every client.
        updates: up to which it counts if it does not reach the target.
        learned: version -> accuracy, which the run did not measure itself.
    """
    target: float | None = None
    arrived, first, last = 0, (0, 0.0), (0, 0.0)
    ages: dict[str, list[int]] = defaultdict(list)
    evaluated = bool(learned) and max((learned or {}).values()) >= TARGET
    for event in read_events(events):
        if isinstance(event, Arrived):
            arrived += 1
        elif isinstance(event, Aggregated):
            for client, age in zip(event.client, event.age, strict=True):
                ages[kinds[client]].append(age)
            last = arrived, event.t
            if event.version == 1:
                first = last
            if arrived >= updates and not evaluated:
                break
        elif isinstance(event, Evaluated):
            evaluated = evaluated or "accuracy" in event.metrics
            accuracy = (learned or {}).get(event.version, event.metrics.get("accuracy", 0.0))
            if accuracy >= TARGET:
                target = event.t
                break
    count = sum(map(len, ages.values()))
    return Prediction(
        target=target,
        updates=last[0],
        seconds=last[1],
        rate=_rate(first, last),
        shares={kind: len(each) / count for kind, each in ages.items()},
        ages={kind: fmean(each) for kind, each in ages.items()},
    )


def cells_in(folder: Path) -> dict[Cell, Path]:
    """The log of every cell of a folder.

    The folder of a cell that ran with one seed alone does not name it; its configuration does.

    Raises:
        ValueError: there is none, or a folder's name is not that of a cell.
    """
    cells = {}
    for events in sorted(folder.glob("*/events.jsonl")):
        name, _, seed = events.parent.name.partition("-seed")
        algorithm, _, setting = name.partition("@")
        boards, _, data = setting.partition("-")
        if boards not in BOARDS or data not in UPDATES:
            raise ValueError(f"{events.parent} is no cell of experiment=pi_rack")
        if not seed:
            seed = str(OmegaConf.load(events.parent / "config.yaml").seed)
        cells[Cell(algorithm, boards, data, seed)] = events
    if not cells:
        raise ValueError(f"{folder} holds no cell with an events.jsonl")
    return cells


def accuracies(cells: Mapping[Cell, Path]) -> dict[Cell, dict[int, float]]:
    """Of every trained cell, version -> accuracy, from version 1 on.

    Synchronous rounds are those of both kinds of boards.
    """
    found: dict[Cell, dict[int, float]] = {}
    for cell, events in cells.items():
        learned = {
            event.version: event.metrics["accuracy"]
            for event in read_events(events)
            if isinstance(event, Evaluated) and event.version and "accuracy" in event.metrics
        }
        if learned:
            found[cell] = learned
    for cell, learned in list(found.items()):
        if cell.algorithm == SYNCHRONOUS:
            found.setdefault(replace(cell, boards=OTHER[cell.boards]), learned)
    return found


def predictions(
    cells: Mapping[Cell, Path],
    trained: Mapping[Cell, Mapping[int, float]],
) -> dict[str, dict[str, Prediction]]:
    """Of every setting, seed -> its run; trained seeds first."""
    found: dict[str, dict[str, Prediction]] = defaultdict(dict)
    for cell in sorted(cells, key=lambda cell: (cell.setting, cell not in trained)):
        kinds, _ = boards_of("pi_rack", BOARDS[cell.boards], 15)
        runs = found[cell.setting]
        reached = [run.updates for run in runs.values() if run.target is not None]
        until = UPDATES.get(f"{cell.algorithm}-{cell.data}", UPDATES[cell.data])
        if reached:
            until = round(fmean(reached))
        runs[cell.seed] = predicted(cells[cell], kinds, until, trained.get(cell))
    return found


def _rate(first: tuple[int, float], last: tuple[int, float]) -> float | None:
    seconds = last[1] - first[1]
    return (last[0] - first[0]) / seconds if seconds > 0 else None


# -- the table ------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.pi_rack")
    parser.add_argument("folder", type=Path, help="of the experiment's run")
    parser.add_argument("--trained", nargs="*", type=Path, help="folders with cells that trained")
    given = parser.parse_args(arguments)
    try:
        cells = cells_in(given.folder)
        folders = [cells_in(folder) for folder in given.trained or ()]
    except ValueError as error:
        parser.error(str(error))
    trained = accuracies({k: v for folder in (cells, *folders) for k, v in folder.items()})
    titles = ["setting", "runs", "trained", "updates", "s", *COLUMNS]
    print("|".join(["", *titles, ""]), "|---" * len(titles) + "|", sep="\n")
    for setting, found in predictions(cells, trained).items():
        runs = list(found.values())
        values = [
            *(setting, str(len(runs)), str(sum(run.target is not None for run in runs) or "")),
            f"{fmean(run.updates for run in runs):.0f}",
            shown([run.seconds for run in runs], ",.0f"),
            shown([run.target for run in runs if run.target is not None], ",.0f"),
            shown([run.rate for run in runs], ".3f"),
            shown([run.shares.get("rpi4") for run in runs], ".1%"),
            *(shown([run.ages.get(kind) for run in runs], ".2f") for kind in ("rpi5", "rpi4")),
        ]
        print("|".join(["", *values, ""]))
    return 0


def shown(values: Sequence[float | None], form: str) -> str:
    """Mean and standard deviation of the runs; "" if a run has no value."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return ""
    mean = format(fmean(known), form)
    return f"{mean} ± {format(stdev(known), form)}" if len(known) > 1 else mean


if __name__ == "__main__":
    sys.exit(main())
