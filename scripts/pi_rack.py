"""What the cells of ``experiment=pi_rack`` predict, as a table with room for what was measured.

    python -m fl_app experiment=pi_rack runtime.train=false target_accuracy=null \\
        hydra.run.dir=FOLDER
    python -m scripts.pi_rack FOLDER

A run counts up to its first evaluation at the accuracy aimed at. Without such an evaluation it
counts up to the client update that ``UPDATES`` names. On the rack, synchronous rounds and buffers
with iid data needed so many (the means of ``calibration.csv``). The others were not measured [A].
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from fl_app.core.events import Aggregated, Arrived, Evaluated
from fl_app.devices.boards import boards_of
from fl_app.record.log import read_events

TARGET = 0.6
BOARDS = {"equal": {"rpi5": 15}, "mixed": {"rpi5": 10, "rpi4": 5}}
UPDATES = {"fedavg-iid": 195, "fedavg-noniid": 425, "iid": 343, "noniid": 750}
MEASURED = ("s to 60 %", "updates/s", "share rpi4", "age rpi5", "age rpi4")


@dataclass
class Prediction:
    """One run.

    Attributes:
        target: second of the first evaluation at the target; None = it was not reached.
        updates: that count.
        seconds: up to the last of them.
        rate: updates a second after the first version, by when all apps have started.
        shares: kind of board -> share of the updates that were aggregated.
        ages: kind of board -> mean age of these updates.
    """

    target: float | None
    updates: int
    seconds: float
    rate: float
    shares: dict[str, float]
    ages: dict[str, float]


def predicted(events: Path, kinds: Sequence[str], updates: int) -> Prediction:
    """What a run's log says.

    Args:
        events: the log.
        kinds: of every client.
        updates: up to which it counts if it does not reach the target.
    """
    target, evaluated = None, False
    arrived, first, last = 0, (0, 0.0), (0, 0.0)
    ages: dict[str, list[int]] = defaultdict(list)
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
        elif isinstance(event, Evaluated) and "accuracy" in event.metrics:
            evaluated = True
            if event.metrics["accuracy"] >= TARGET:
                target = event.t
                break
    count = sum(map(len, ages.values()))
    return Prediction(
        target=target,
        updates=last[0],
        seconds=last[1],
        rate=(last[0] - first[0]) / (last[1] - first[1]),
        shares={kind: len(each) / count for kind, each in ages.items()},
        ages={kind: fmean(each) for kind, each in ages.items()},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(prog="python -m scripts.pi_rack")
    parser.add_argument("folder", type=Path, help="of the experiment's run")
    parser.add_argument("--updates", type=int, help="count every run up to this client update")
    given = parser.parse_args(arguments)
    cells: dict[str, list[Prediction]] = defaultdict(list)
    for events in sorted(given.folder.glob("*/events.jsonl")):
        name = events.parent.name.partition("-seed")[0]
        algorithm, _, setting = name.partition("@")
        boards, _, data = setting.partition("-")
        if boards not in BOARDS or data not in UPDATES:
            print(f"error: {events.parent} is no cell of experiment=pi_rack", file=sys.stderr)
            return 2
        kinds, _ = boards_of("pi_rack", BOARDS[boards], 15)
        updates = given.updates or UPDATES.get(f"{algorithm}-{data}", UPDATES[data])
        cells[name].append(predicted(events, kinds, updates))
    if not cells:
        print(f"error: {given.folder} holds no cell with an events.jsonl", file=sys.stderr)
        return 2
    columns = [
        "setting",
        "runs",
        "updates",
        "s",
        *MEASURED,
        *(f"{name} measured" for name in MEASURED),
    ]
    print("|".join(["", *columns, ""]))
    print("|---" * len(columns) + "|")
    for name, runs in cells.items():
        values = [
            shown([run.target for run in runs], ",.0f"),
            shown([run.rate for run in runs], ".3f"),
            shown([run.shares.get("rpi4") for run in runs], ".1%"),
            *(shown([run.ages.get(kind) for run in runs], ".2f") for kind in ("rpi5", "rpi4")),
        ]
        updates = f"{fmean(run.updates for run in runs):.0f}"
        seconds = shown([run.seconds for run in runs], ",.0f")
        cells_of = [name, str(len(runs)), updates, seconds, *values, *("" for _ in MEASURED)]
        print("|".join(["", *cells_of, ""]))
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
