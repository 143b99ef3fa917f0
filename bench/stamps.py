"""When a device trained: trainers that write it down, for processes that nobody can ask."""

import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.algorithms.overlap_fedavg import OverlapTrainer
from fl_app.client import LocalTrainer
from fl_app.core.types import Upload

VARIABLE = "BENCH_STAMPS"  # names the file


class Span(NamedTuple):
    """One training.

    Attributes:
        began: seconds on the clock that all processes share.
        ended: likewise.
        steps: mini-batches.
    """

    began: float
    ended: float
    steps: int


def spans(path: Path) -> list[Span]:
    """What was noted, in the order of time."""
    lines = (line.split() for line in path.read_text().splitlines())
    return sorted(Span(float(began), float(ended), int(steps)) for began, ended, steps in lines)


def gaps(trained: list[Span]) -> list[float]:
    """Seconds between two trainings, without those before the second: it comes with the data."""
    return [after.began - before.ended for before, after in pairwise(trained[1:])]


def busy_share(trained: list[Span]) -> float:
    """Share of the time from the end of the first training to that of the last."""
    busy = sum(span.ended - span.began for span in trained[1:])
    return busy / (trained[-1].ended - trained[0].ended)


def step_seconds(trained: list[Span]) -> float:
    """Mean seconds of a mini-batch."""
    return sum(span.ended - span.began for span in trained) / sum(span.steps for span in trained)


class Stamped(LocalTrainer):
    """SGD that notes when it begins and ends."""

    def _descend(self, *arguments: Any) -> Upload:
        began = time.monotonic()
        upload = super()._descend(*arguments)
        steps = round(upload.rate_sum / self.local_lr)
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(f"{began!r} {time.monotonic()!r} {steps}\n")
        return upload


class StampedOverlap(Stamped, OverlapTrainer):
    """The same while models travel."""
