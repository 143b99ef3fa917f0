"""Shows the progress of a run on the console."""

import math
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fl_app.core.events import Event
from fl_app.core.score import ACCURACY, Score, score_of
from fl_app.record.history import History

REFRESH_EVERY = 0.1  # wall seconds between redraws of a progress bar
FIRST_LINE = 2.0  # wall seconds until the first line where a bar cannot be drawn
LINE_EVERY = 10.0  # wall seconds between lines where a bar cannot be drawn


@dataclass(eq=False)
class Progress:
    """Sink that shows the progress of a run: a bar on a terminal, or else lines.

    One of several processes writes lines, since the bars of all would overwrite each other. It is
    drawn when events come, and not by a thread, since a run forks worker processes.

    Args:
        history: of the run; receives every event before this sink does.
        label: of the run, such as the name of its cell.
        limits: versions, client updates, and seconds on the run's clock after which the run ends;
            None = no limit.
        score: metric to show; None = accuracy or, if it was not measured, the loss.
        every: wall seconds between lines where a bar cannot be drawn.
        console: to draw on; default standard output.
        wall: seconds of the wall clock.
    """

    history: History
    label: str
    limits: Sequence[float | None]
    _: KW_ONLY
    score: Score | None = None
    every: float = LINE_EVERY
    console: Console = field(default_factory=Console)
    wall: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self._ends = [math.inf if limit is None else limit for limit in self.limits]
        self._start = self.wall()
        self._updates_before = self.history.client_updates  # of a run that is resumed
        self._bar: RichProgress | None = None
        if self.console.is_interactive and multiprocessing.parent_process() is None:
            self.every = REFRESH_EVERY
            self._bar = RichProgress(
                TextColumn("{task.description:12}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[status]}", markup=False),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self.console,
                expand=True,
                auto_refresh=False,
                get_time=self.wall,
            )
            self._task = self._bar.add_task(
                self.label, total=1.0 if min(self._ends) < math.inf else None, status=self._status()
            )
            self._bar.start()
        self._due = self.wall() + min(self.every, FIRST_LINE)

    def emit(self, event: Event) -> None:
        """Draw if enough time has passed."""
        self.look()

    def look(self) -> None:
        """Draw if enough time has passed, also if no event has come."""
        if self.wall() >= self._due:
            self._show()
            self._due = self.wall() + self.every

    def close(self) -> None:
        """Draw the last state, which stays on the console."""
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        status = self._status()
        if self._bar is not None:
            counts = self.history.version, self.history.client_updates, self.history.t
            # Of the limit that it will reach first.
            share = max(value / limit for value, limit in zip(counts, self._ends, strict=True))
            self._bar.update(self._task, completed=share, status=status, refresh=True)
        else:
            line = " ".join(f"{self.label}: {status}".split())
            self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _status(self) -> str:
        history = self.history
        updates = history.client_updates
        rate = (updates - self._updates_before) / max(self.wall() - self._start, 1e-9)
        last = history.evaluations[-1:]
        shown = self.score or score_of(each.metrics for each in last) or ACCURACY
        value = last[0].value(shown.name) if last else math.nan
        score = shown.form.format(value) if math.isfinite(value) else "-"
        title = "acc" if shown == ACCURACY else shown.name
        versions, max_updates, seconds = self._ends
        progress = f"{history.version}{_of(versions, '.0f')}"
        work = f"{updates:,}{_of(max_updates, ',.0f')} updates at {_rate(rate)}"
        limit = _of(seconds, ",.1f")
        time = f"  {history.t:,.1f}{limit} s" if limit else ""
        failed = f"  {history.failures:,} failed" if history.failures else ""
        rejected = f"  {history.rejected:,} rejected" if history.rejected else ""
        return f"{progress:>9} versions {work:>24}{time}  {title} {score:>6}{failed}{rejected}"


def _rate(per_second: float) -> str:
    """Updates per second or, of devices that take long, per minute."""
    return f"{per_second:,.0f}/s" if per_second >= 0.5 else f"{60 * per_second:,.0f}/min"


def _of(total: float, form: str) -> str:
    """A total after a slash; empty if there is no limit."""
    return f"/{total:{form}}" if math.isfinite(total) else ""
