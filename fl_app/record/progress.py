"""Shows on the console how far a run is."""

import math
import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fl_app.core.events import Event
from fl_app.record.files import _of
from fl_app.record.history import History

REFRESH_EVERY = 0.1  # wall seconds between redraws of a progress bar
LINE_EVERY = 10.0  # wall seconds between lines where a bar cannot be drawn


class Progress:
    """Shows on the console how far a run is: a bar, or now and then a line where there is none.

    Redrawn by hand as events come: a run forks worker processes, so no thread may draw.

    Args:
        history: of the run; takes in every event before this sink does.
        total_versions: versions to publish; inf where something else ends the run.
        label: what runs, such as the cell's name.
        updates: client updates after which the run ends; inf = never.
        seconds: on the run's clock, after which it ends; inf = never.
        console: where to; default standard output.
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
        console: Console | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._history = history
        self._total = total_versions
        self._total_updates = updates
        self._total_seconds = seconds
        self._label = label
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
        """Redraw if it is time."""
        del event
        if self._wall() >= self._due:
            self._show()
            self._due = self._wall() + self._every

    def close(self) -> None:
        """Show the last state and leave it standing."""
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
        """Of the way to that end of the run which is nearest."""
        return max(
            self._history.version / self._total,
            self._history.client_updates / self._total_updates,
            self._history.t / self._total_seconds,
        )

    def _status(self) -> str:
        history = self._history
        updates = history.client_updates
        rate = (updates - self._before) / max(self._wall() - self._began, 1e-9)
        last = history.evaluations[-1].accuracy if history.evaluations else math.nan
        accuracy = f"{last:.1%}" if math.isfinite(last) else "-"
        done = f"{history.version}{_of(self._total, '.0f')}"
        work = f"{updates:,}{_of(self._total_updates, ',.0f')} updates at {rate:,.0f}/s"
        limit = _of(self._total_seconds, ",.1f")
        time = f"  {history.t:,.1f}{limit} s" if limit else ""
        return f"{done:>9} versions {work:>24}{time}  acc {accuracy:>6}"
