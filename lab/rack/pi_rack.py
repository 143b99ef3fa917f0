"""A table of the predictions of the cells of ``experiment=pi_rack``.

    python -m fl_app experiment=pi_rack runtime.train=false target_accuracy=null \\
        hydra.run.dir=FOLDER
    python -m fl_app experiment=pi_rack experiment.only=[@equal-iid] experiment.seeds=[8] \\
        hydra.run.dir=TRAINED
    python -m lab.rack.pi_rack FOLDER --trained TRAINED

Seconds do not depend on the training. So trained cells only add their accuracies, by version.
Boards only affect the length of a synchronous round of all clients. So FedAvg's versions are the
same on equal and on mixed boards, and one training serves both.

A run counts up to its first evaluation at the target accuracy. If it has none, it counts up to the
mean number of updates of the cell's seeds that reached the target or, without these, up to the
client update in ``UPDATES``. On the rack, synchronous rounds and buffers with iid data needed that
many; the others were not measured [A].
"""

import argparse
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

import pandas as pd
import yaml

from fl_app import Result
from fl_app.devices.table import boards_of

TARGET = 0.6
BOARDS = {"equal": {"rpi5": 15}, "mixed": {"rpi5": 10, "rpi4": 5}}
UPDATES = {"fedavg-iid": 195, "fedavg-noniid": 425, "iid": 343, "noniid": 750}
CELL = re.compile(r"(.+)@(equal|mixed)-(iid|noniid)(?:-seed(.+))?")
REACHED = "s to 60 %"
FORMS = {
    **{"s": ",.0f", REACHED: ",.0f", "updates/s": ".3f", "share rpi4": ".1%"},
    **{"age rpi5": ".2f", "age rpi4": ".2f"},
}
SYNCHRONOUS = "fedavg"

Run = tuple[str, str, str, str]  # algorithm, boards, data, seed
Scores = dict[int, float]  # version -> accuracy


def prediction(
    events: pd.DataFrame, boards: Sequence[str], updates: int, extra: Scores
) -> dict[str, float]:
    """Some of the table's columns from a run's log, and the number of updates.

    Args:
        events: the log.
        boards: of every client.
        updates: number up to which it counts if it does not reach the target.
        extra: of versions that the run did not evaluate itself.
    """
    arrivals = (events.kind == "arrival").cumsum()
    scores = events.version.map(scores_in(events) | extra)
    reached = events.t[(events.kind == "evaluate") & (scores >= TARGET)]
    versions = events[events.kind == "aggregate"]
    if reached.empty:
        versions = versions[arrivals[versions.index].shift(fill_value=0) < updates]
    else:
        versions = versions.loc[: reached.index[0]]
    count = arrivals[versions.index]
    seconds = versions.t.iloc[-1] - versions.t.iloc[0]  # from version 1, when all apps have started
    pairs = versions[["client", "age"]].explode(["client", "age"])
    kinds = pairs.client.map(dict(enumerate(boards)))
    ages = pairs.age.astype(float).groupby(kinds).mean()
    row: dict[str, float] = {
        "updates": count.iloc[-1],
        "s": versions.t.iloc[-1],
        **ages.add_prefix("age "),
    }
    if len(reached):
        row[REACHED] = reached.iloc[0]
    if seconds:
        row["updates/s"] = (count.iloc[-1] - count.iloc[0]) / seconds
    row |= kinds.value_counts(normalize=True).add_prefix("share ")
    return row


def scores_in(events: pd.DataFrame) -> Scores:
    """Accuracies of the versions from 1 on that the run evaluated."""
    if "accuracy" not in events:
        return {}
    rows = events[(events.kind == "evaluate") & (events.version > 0)].dropna(subset="accuracy")
    return dict(zip(rows.version, rows.accuracy, strict=True))


def runs_in(folder: Path) -> dict[Run, pd.DataFrame]:
    """The log of every cell of a folder.

    With a single seed, the folder of a cell does not name the seed; its configuration does.

    Raises:
        ValueError: there is none, or a folder's name is not that of a cell.
    """
    runs = {}
    for path in sorted(folder.glob("*/events.jsonl")):
        if not (name := CELL.fullmatch(path.parent.name)):
            raise ValueError(f"{path.parent} is no cell of experiment=pi_rack")
        algorithm, boards, data, seed = name.groups()
        seed = seed or str(yaml.safe_load((path.parent / "config.yaml").read_text())["seed"])
        runs[algorithm, boards, data, seed] = Result(path.parent).events
    if not runs:
        raise ValueError(f"{folder} holds no cell with an events.jsonl")
    return runs


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.pi_rack")
    parser.add_argument("folder", type=Path, help="of the experiment's run")
    parser.add_argument("--trained", nargs="*", type=Path, help="folders with cells that trained")
    args = parser.parse_args(arguments)
    try:
        runs = runs_in(args.folder)
        sources = [runs, *map(runs_in, args.trained or ())]
    except ValueError as error:
        parser.error(str(error))
    scores: dict[Run, Scores] = defaultdict(dict)
    for (algorithm, boards, data, seed), events in chain(*(table.items() for table in sources)):
        for same_boards in BOARDS if algorithm == SYNCHRONOUS else [boards]:
            scores[algorithm, same_boards, data, seed] |= scores_in(events)
    titles = ["setting", "runs", "trained", "updates", *FORMS]
    print("|".join(["", *titles, ""]), "|---" * len(titles) + "|", sep="\n")
    for setting in sorted({run[:3] for run in runs}):
        algorithm, boards, data = setting
        kinds, _ = boards_of("pi_rack", BOARDS[boards], 15)
        runs_of_setting = [run for run in runs if run[:3] == setting]
        rows: list[dict[str, float]] = []
        for run in sorted(runs_of_setting, key=lambda run: not scores[run]):
            counts = [row["updates"] for row in rows if REACHED in row]
            counts = counts or [UPDATES.get(f"{algorithm}-{data}", UPDATES[data])]
            rows.append(prediction(runs[run], kinds, round(fmean(counts)), scores[run]))
        table = pd.DataFrame(rows, columns=["updates", *FORMS])
        times = table[REACHED].dropna()
        texts = [f"{algorithm}@{boards}-{data}", str(len(rows)), str(len(times) or "")]
        texts += [f"{table.updates.mean():.0f}"]
        texts += [
            mean_text(times if column == REACHED else table[column], form)
            for column, form in FORMS.items()
        ]
        print("|".join(["", *texts, ""]))


def mean_text(values: "pd.Series[float]", form: str) -> str:
    """Mean and standard deviation of the runs; "" if a run has no value."""
    if values.empty or values.hasnans:
        return ""
    mean = format(values.mean(), form)
    return f"{mean} ± {format(values.std(), form)}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
