"""How much of the updates is old, and how much of the weight old updates have.

    python -m fl_app experiment=fmnist_haa hydra.run.dir=FOLDER
    python -m scripts.weight_of_age FOLDER --older 20

It prints a line for each cell, all its seeds together. The strategy must report ``weight``.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from fl_app.core.events import Aggregated, Event
from fl_app.record.log import read_events


def shares(events: Iterable[Event], older: int) -> tuple[float, float]:
    """The share of the updates that are old, and their share of the weight, both in [0, 1].

    Args:
        events: of one or more runs.
        older: updates of a larger age, in versions, are old.

    Raises:
        ValueError: no version reports weights.
    """
    ages: list[int] = []
    weights: list[float] = []
    for event in events:
        if isinstance(event, Aggregated) and "weight" in event.report:
            ages += event.age
            weights += event.report["weight"]
    if not weights:
        raise ValueError("no version reports weights")
    old = [weight for age, weight in zip(ages, weights, strict=True) if age > older]
    return len(old) / len(ages), sum(old) / sum(weights)


def main() -> int:
    """The command line; returns 0, or 1 if there is nothing to print."""
    parser = argparse.ArgumentParser(prog="python -m scripts.weight_of_age", description=__doc__)
    parser.add_argument("folder", type=Path, help="of an experiment")
    parser.add_argument("--older", type=int, default=20, metavar="VERSIONS")
    options = parser.parse_args()
    cells: dict[str, list[Path]] = defaultdict(list)
    for log in sorted(options.folder.glob("*/events.jsonl")):
        cells[log.parent.name.partition("-seed")[0]].append(log)
    for cell, logs in cells.items():
        try:
            number, weight = shares((e for log in logs for e in read_events(log)), options.older)
        except ValueError as error:
            print(f"{cell}: {error}")
            continue
        print(f"{cell}: {number:.1%} of the updates, {weight:.2%} of the weight")
    return 0 if cells else 1


if __name__ == "__main__":
    sys.exit(main())
