"""What the cells of ``experiment=pi_rack`` predict, as a table.

    python -m fl_app experiment=pi_rack runtime.train=false target_accuracy=null \\
        hydra.run.dir=FOLDER
    python -m fl_app experiment=pi_rack experiment.only=[@equal-iid] experiment.seeds=[8] \\
        hydra.run.dir=TRAINED
    python -m lab.rack.pi_rack FOLDER --trained TRAINED

Seconds do not depend on what is learned. So cells that were trained only add their accuracies, by
version. Boards decide nothing about a synchronous round of all clients but its length. So FedAvg's
versions are the same on equal and on mixed boards, and one training serves both.

A run counts up to its first evaluation at the accuracy aimed at. One without it counts as many
updates as the seeds of its cell that reached it. Without these it counts up to the client update
that ``UPDATES`` names. On the rack, synchronous rounds and buffers with iid data needed so many.
The others were not measured [A].
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


def predicted(
    events: pd.DataFrame, boards: Sequence[str], updates: int, learned: Scores
) -> dict[str, float]:
    """What a run's log says: some of the table's columns, and the number of updates.

    Args:
        events: the log.
        boards: of every client.
        updates: up to which it counts if it does not reach the target.
        learned: what the run did not measure itself.
    """
    arrived = (events.kind == "arrival").cumsum()
    scores = events.version.map(scores_in(events) | learned)
    reached = events.t[(events.kind == "evaluate") & (scores >= TARGET)]
    made = events[events.kind == "aggregate"]
    if reached.empty:
        made = made[arrived[made.index].shift(fill_value=0) < updates]
    else:
        made = made.loc[: reached.index[0]]
    count = arrived[made.index]
    seconds = made.t.iloc[-1] - made.t.iloc[0]  # after version 1: by then all apps have started
    used = made[["client", "age"]].explode(["client", "age"])
    kinds = used.client.map(dict(enumerate(boards)))
    ages = used.age.astype(float).groupby(kinds).mean()
    found: dict[str, float] = {
        "updates": count.iloc[-1],
        "s": made.t.iloc[-1],
        **ages.add_prefix("age "),
    }
    if len(reached):
        found[REACHED] = reached.iloc[0]
    if seconds:
        found["updates/s"] = (count.iloc[-1] - count.iloc[0]) / seconds
    found |= kinds.value_counts(normalize=True).add_prefix("share ")
    return found


def scores_in(events: pd.DataFrame) -> Scores:
    """Accuracies of the versions from 1 on, as far as the run tested them."""
    if "accuracy" not in events:
        return {}
    tested = events[(events.kind == "evaluate") & (events.version > 0)].dropna(subset="accuracy")
    return dict(zip(tested.version, tested.accuracy, strict=True))


def runs_in(folder: Path) -> dict[Run, pd.DataFrame]:
    """The log of every cell of a folder.

    The folder of a cell that ran with one seed alone does not name it; its configuration does.

    Raises:
        ValueError: there is none, or a folder's name is not that of a cell.
    """
    found = {}
    for path in sorted(folder.glob("*/events.jsonl")):
        if not (name := CELL.fullmatch(path.parent.name)):
            raise ValueError(f"{path.parent} is no cell of experiment=pi_rack")
        algorithm, boards, data, seed = name.groups()
        seed = seed or str(yaml.safe_load((path.parent / "config.yaml").read_text())["seed"])
        found[algorithm, boards, data, seed] = Result(path.parent).events
    if not found:
        raise ValueError(f"{folder} holds no cell with an events.jsonl")
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(prog="python -m lab.rack.pi_rack")
    parser.add_argument("folder", type=Path, help="of the experiment's run")
    parser.add_argument("--trained", nargs="*", type=Path, help="folders with cells that trained")
    given = parser.parse_args(arguments)
    try:
        runs = runs_in(given.folder)
        trained = [runs, *map(runs_in, given.trained or ())]
    except ValueError as error:
        parser.error(str(error))
    learned: dict[Run, Scores] = defaultdict(dict)
    for (algorithm, boards, data, seed), events in chain(*(found.items() for found in trained)):
        for alike in BOARDS if algorithm == SYNCHRONOUS else [boards]:
            learned[algorithm, alike, data, seed] |= scores_in(events)
    titles = ["setting", "runs", "trained", "updates", *FORMS]
    print("|".join(["", *titles, ""]), "|---" * len(titles) + "|", sep="\n")
    for setting in sorted({run[:3] for run in runs}):
        algorithm, boards, data = setting
        kinds, _ = boards_of("pi_rack", BOARDS[boards], 15)
        own = [run for run in runs if run[:3] == setting]
        rows: list[dict[str, float]] = []
        for run in sorted(own, key=lambda run: not learned[run]):
            enough = [row["updates"] for row in rows if REACHED in row]
            enough = enough or [UPDATES.get(f"{algorithm}-{data}", UPDATES[data])]
            rows.append(predicted(runs[run], kinds, round(fmean(enough)), learned[run]))
        found = pd.DataFrame(rows, columns=["updates", *FORMS])
        reached = found[REACHED].dropna()
        texts = [f"{algorithm}@{boards}-{data}", str(len(rows)), str(len(reached) or "")]
        texts += [f"{found.updates.mean():.0f}"]
        texts += [
            shown(reached if column == REACHED else found[column], form)
            for column, form in FORMS.items()
        ]
        print("|".join(["", *texts, ""]))


def shown(values: "pd.Series[float]", form: str) -> str:
    """Mean and standard deviation of the runs; "" if a run has no value."""
    if values.empty or values.hasnans:
        return ""
    mean = format(values.mean(), form)
    return f"{mean} ± {format(values.std(), form)}" if len(values) > 1 else mean


if __name__ == "__main__":
    main()
