"""Shows the progress of a run on the console."""

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fl_app.core.events import Event
from fl_app.record.history import History
from fl_app.record.score import ACCURACY, Score

REFRESH_EVERY = 0.1  # wall seconds between redraws of a progress bar
LINE_EVERY = 10.0  # wall seconds between lines where a bar cannot be drawn


class Progress:
    """Sink that shows the progress of a run: a bar on a terminal, otherwise a line now and then.

    It is drawn when events come, and not by a thread, since a run forks worker processes.

    Args:
        history: of the run; takes in every event before this sink does.
        total_versions: versions after which the run ends; inf = no limit.
        label: of the run, such as the name of its cell.
        updates: client updates after which the run ends; inf = no limit.
        seconds: on the run's clock, after which the run ends; inf = no limit.
        score: metric to show; None = accuracy.
        console: to draw on; default standard output.
        wall: seconds of the wall clock.
    """

    def __init__(
        self,
        history: History,
        total_versions: float,
        label: str,
        *,
        updates: float = math.inf,
        seconds: float = math.inf,
        score: Score | None = None,
        console: Console | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._total = total_versions
        self._total_updates = updates
        self._total_seconds = seconds
        self._label = label
        self._score = score or ACCURACY
        self._console = console or Console()
        self._wall = wall
        self._began = wall()
        self._before = history.client_updates  # of a run that is resumed
        self._bar: RichProgress | None = None
        self._every = LINE_EVERY
        if self._console.is_interactive:
            self._every = REFRESH_EVERY
            self._bar = RichProgress(
                TextColumn("{task.description:12}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[status]}", markup=False),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self._console,
                expand=True,
                auto_refresh=False,
                get_time=wall,
            )
            ends = any(map(math.isfinite, (total_versions, updates, seconds)))
            self._task = self._bar.add_task(
                label, total=1.0 if ends else None, status=self._status()
            )
            self._bar.start()
        self._due = wall() + self._every

    def emit(self, event: Event) -> None:
        """Draw if enough time has passed."""
        del event
        if self._wall() >= self._due:
            self._show()
            self._due = self._wall() + self._every

    def close(self) -> None:
        """Draw the last state, which stays on the console."""
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task, completed=self._share(), status=self._status(), refresh=True
            )
        else:
            line = " ".join(f"{self._label}: {self._status()}".split())
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _share(self) -> float:
        """Share of the run that is done, by the limit that it reaches first."""
        return max(
            self._history.version / self._total,
            self._history.client_updates / self._total_updates,
            self._history.t / self._total_seconds,
        )

    def _status(self) -> str:
        history = self._history
        updates = history.client_updates
        rate = (updates - self._before) / max(self._wall() - self._began, 1e-9)
        name, evaluations = self._score.name, history.evaluations
        last = evaluations[-1].value(name) if evaluations else math.nan
        score = self._score.form.format(last) if math.isfinite(last) else "-"
        title = "acc" if self._score == ACCURACY else name
        done = f"{history.version}{_of(self._total, '.0f')}"
        work = f"{updates:,}{_of(self._total_updates, ',.0f')} updates at {rate:,.0f}/s"
        limit = _of(self._total_seconds, ",.1f")
        time = f"  {history.t:,.1f}{limit} s" if limit else ""
        return f"{done:>9} versions {work:>24}{time}  {title} {score:>6}"


def _of(total: float, form: str) -> str:
    """A total behind a slash; empty if there is no limit."""
    return f"/{total:{form}}" if math.isfinite(total) else ""
