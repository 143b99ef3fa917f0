"""When a device trained: trainers that write it down, for processes that nobody can ask."""

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from fl_app.algorithms.overlap_fedavg import OverlapTrainer
from fl_app.client import LocalTrainer
from fl_app.core.types import Upload

VARIABLE = "BENCH_STAMPS"  # names the file

Span = tuple[float, float]  # beginning and end, on the clock that all processes share


def stamp(began: float) -> None:
    """Note that from `began` until now there was training."""
    with Path(os.environ[VARIABLE]).open("a") as file:
        file.write(f"{began!r} {time.monotonic()!r}\n")


def spans(path: Path) -> list[Span]:
    """What was noted, in the order of time."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return sorted((float(began), float(ended)) for began, ended in pairs)


def gaps(trained: list[Span]) -> list[float]:
    """Seconds between two trainings, without those before the second: it comes with the data."""
    return [after[0] - before[1] for before, after in pairwise(trained[1:])]


def busy_share(trained: list[Span]) -> float:
    """Share of the time from the end of the first training to that of the last."""
    return sum(end - start for start, end in trained[1:]) / (trained[-1][1] - trained[0][1])


class Stamped(LocalTrainer):
    """SGD that notes when it begins and ends."""

    def _descend(self, *arguments: Any) -> Upload:
        began = time.monotonic()
        upload = super()._descend(*arguments)
        stamp(began)
        return upload


class StampedOverlap(Stamped, OverlapTrainer):
    """The same while models travel."""
