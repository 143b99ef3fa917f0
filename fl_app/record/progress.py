"""Shows the progress of a run on the console."""

import html
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from fl_app.core.events import Event
from fl_app.record.history import History
from fl_app.record.score import ACCURACY, LOSS, Score

REFRESH_EVERY = 0.1  # wall seconds between redraws of a progress bar
MESSAGE_EVERY = 0.5  # wall seconds between redraws in a notebook, each of which is a message
FIRST_LINE = 2.0  # wall seconds until the first line where a bar cannot be drawn
LINE_EVERY = 10.0  # wall seconds between lines where a bar cannot be drawn


class Progress:
    """Sink that shows the progress of a run: a bar on a terminal or in a notebook, or else lines.

    It is drawn when events come, and not by a thread, since a run forks worker processes.

    Args:
        history: of the run; takes in every event before this sink does.
        total_versions: versions after which the run ends; inf = no limit.
        label: of the run, such as the name of its cell.
        updates: client updates after which the run ends; inf = no limit.
        seconds: on the run's clock, after which the run ends; inf = no limit.
        score: metric to show; None = accuracy or, if it was not measured, another one.
        every: wall seconds between lines where a bar cannot be drawn.
        console: to draw on; default standard output.
        draw: called in place of drawing, with the share that is done (None = unknown) and the
            status in words.
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
        every: float = LINE_EVERY,
        console: Console | None = None,
        draw: Callable[[float | None, str], None] | None = None,
        wall: Callable[[], float] = time.monotonic,
    ) -> None:
        self._draw = draw
        self._history = history
        self._total = total_versions
        self._total_updates = updates
        self._total_seconds = seconds
        self._label = label
        self._score = score
        self._console = console or Console()
        self._wall = wall
        self._began = wall()
        self._before = history.client_updates  # of a run that is resumed
        self._bar: RichProgress | None = None
        self._every = every
        self._output = _Output() if draw is None and self._console.is_jupyter else None
        if draw is not None or self._output is not None:
            self._every = MESSAGE_EVERY
            self._show()
        elif self._console.is_interactive:
            self._every = REFRESH_EVERY
            self._bar = _bars(self._console, wall)
            self._task = self._bar.add_task(
                label, total=1.0 if self._ends else None, status=self._status()
            )
            self._bar.start()
        self._due = wall() + min(self._every, FIRST_LINE)

    def emit(self, event: Event) -> None:
        """Draw if enough time has passed."""
        del event
        self.look()

    def look(self) -> None:
        """Draw if enough time has passed, also if no event has come."""
        if self._wall() >= self._due:
            self._show()
            self._due = self._wall() + self._every

    def close(self) -> None:
        """Draw the last state, which stays on the console."""
        self._show()
        if self._bar is not None:
            self._bar.stop()

    def _show(self) -> None:
        if self._draw is not None:
            self._draw(self._share() if self._ends else None, self._status())
            return
        line = " ".join(f"{self._label}: {self._status()}".split())
        if self._output is not None:
            self._output.show(line, self._share() if self._ends else None)
        elif self._bar is not None:
            self._bar.update(
                self._task, completed=self._share(), status=self._status(), refresh=True
            )
        else:
            self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    @property
    def _ends(self) -> bool:
        """Whether the run has a limit by which its share can be told."""
        return any(map(math.isfinite, (self._total, self._total_updates, self._total_seconds)))

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
        shown = self._score or ACCURACY
        last = math.nan
        if history.evaluations:
            evaluation = history.evaluations[-1]
            shown = self._score or _measured(evaluation.metrics)
            last = evaluation.value(shown.name)
        score = shown.form.format(last) if math.isfinite(last) else "-"
        title = "acc" if shown == ACCURACY else shown.name
        done = f"{history.version}{_of(self._total, '.0f')}"
        work = f"{updates:,}{_of(self._total_updates, ',.0f')} updates at {_rate(rate)}"
        limit = _of(self._total_seconds, ",.1f")
        time = f"  {history.t:,.1f}{limit} s" if limit else ""
        failed = f"  {history.failures:,} failed" if history.failures else ""
        rejected = f"  {history.rejected:,} rejected" if history.rejected else ""
        return f"{done:>9} versions {work:>24}{time}  {title} {score:>6}{failed}{rejected}"


class Board:
    """Shows the progress of several runs at a time: a bar for each, or lines where there are none.

    Args:
        console: to draw on; default standard output.
        wall: seconds of the wall clock.
    """

    def __init__(
        self, console: Console | None = None, wall: Callable[[], float] = time.monotonic
    ) -> None:
        self._console = console or Console()
        self._wall = wall
        self._bars = _bars(self._console, wall) if self._console.is_interactive else None
        self._runs: dict[str, TaskID] = {}
        self._latest: dict[str, str] = {}
        self._due: dict[str, float] = {}
        if self._bars is not None:
            self._bars.start()

    def show(self, label: str, share: float | None, status: str) -> None:
        """Show how far a run is.

        Args:
            label: of the run.
            share: that is done, in [0, 1]; None = unknown.
            status: in words.
        """
        self._latest[label] = status
        if self._bars is not None:
            if label not in self._runs:
                total = None if share is None else 1.0
                self._runs[label] = self._bars.add_task(label, total=total, status=status)
            self._bars.update(self._runs[label], completed=share, status=status, refresh=True)
        elif self._wall() >= self._due.setdefault(label, self._wall() + LINE_EVERY):
            self._due[label] = self._wall() + LINE_EVERY
            self._print(label)

    def end(self, label: str, told: str = "") -> None:
        """Show the last state of a run in a line that stays, after what the run printed."""
        if label in self._runs and self._bars is not None:
            self._bars.remove_task(self._runs.pop(label))
        if told:
            self._console.print(told.rstrip(), markup=False, highlight=False, soft_wrap=True)
        if label in self._latest:
            self._print(label)

    def close(self) -> None:
        """Leave the console to others."""
        if self._bars is not None:
            self._bars.stop()

    def _print(self, label: str) -> None:
        line = " ".join(f"{label}: {self._latest[label]}".split())
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def _bars(console: Console, wall: Callable[[], float]) -> RichProgress:
    return RichProgress(
        TextColumn("{task.description:12}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[status]}", markup=False),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        console=console,
        expand=True,
        auto_refresh=False,
        get_time=wall,
    )


class _Output:
    """One output of a notebook's cell, which is replaced and not repeated.

    NOTE: rich would need ipywidgets here, whose state a notebook on a page does not have.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str, share: float | None) -> None:
        """Show a line and, if the share that is done is known, a bar."""
        from IPython.display import display  # where there is a notebook, there is IPython

        value = "" if share is None else f' value="{min(share, 1.0):.4f}"'
        bar = f'<progress max="1"{value} style="width: 12em"></progress>'
        data = {"text/plain": line, "text/html": f"{bar} <code>{html.escape(line)}</code>"}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(data, raw=True)


def _measured(metrics: Mapping[str, Any]) -> Score:
    """The score to show of an evaluation whose task is not known."""
    if ACCURACY.name in metrics:
        return ACCURACY
    return Score(next((name for name in metrics if name != LOSS.name), LOSS.name))


def _rate(per_second: float) -> str:
    """Updates per second or, of devices that take long, per minute."""
    return f"{per_second:,.0f}/s" if per_second >= 0.5 else f"{60 * per_second:,.0f}/min"


def _of(total: float, form: str) -> str:
    """A total behind a slash; empty if there is no limit."""
    return f"/{total:{form}}" if math.isfinite(total) else ""
