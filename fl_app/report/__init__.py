"""Table, page and figures of a run that ended or still goes on: `python -m fl_app.report`.

There are two plot libraries, since each does what the other cannot. A page needs zoom, choices and
text under the mouse, for which plotly draws in the browser. A paper needs PDFs with fonts embedded,
of exact size and equal bytes, which matplotlib writes without a browser. Both draw the same numbers
(`fl_app.report.series`) in the same colours (`fl_app.report.style`).
"""

import time
from collections.abc import Callable, Collection
from pathlib import Path

from fl_app.core.errors import is_number, require, require_positive
from fl_app.core.extras import lacking
from fl_app.core.files import SWEEP_ENDED
from fl_app.report.cells import Cell
from fl_app.report.printing import print_table
from fl_app.report.reading import read_run
from fl_app.report.table import Table, make_table, write_csv

__all__ = ["PAGE", "Table", "no_pictures", "print_table", "watch", "write_report"]

TARGET_ACCURACY = 0.9
PAGE = "report.html"


def no_pictures() -> str | None:
    """What to install before a page and figures can be drawn; None if nothing is missing."""
    return lacking("jinja2", "markupsafe", "matplotlib", "plotly")


def write_report(
    run_folder: Path,
    target_accuracy: float | None = None,
    *,
    figures: bool = True,
    pdf: bool = False,
    span: tuple[float, float] | None = None,
    only: Collection[str] = (),
    shared: Path | None = None,
    tell: Callable[[Table], object] | None = None,
) -> Table:
    """Write ``table.csv``, ``report.html`` and ``figures/*.png`` into a run folder.

    Without the packages of the extra ``report`` (see `no_pictures`) it writes ``table.csv`` alone.

    Args:
        run_folder: a folder with a folder per cell, or the folder of a single cell.
        target_accuracy: in (0, 1], the accuracy to which times are measured; None = 0.9.
        figures: whether to draw the pictures, which takes seconds.
        pdf: whether to write each picture also as PDF, which takes three times as long.
        span: start and end of the page's timelines in seconds; None = as much as a browser draws
            quickly.
        only: names of the cells to report, each with all of its seeds; empty = all cells.
        shared: folder for one copy of the plotting library that many pages load, such as those of a
            sweep's jobs; None = the page contains the library and opens anywhere.
        tell: receives the table before anything is drawn.

    Returns:
        The table that was written.

    Raises:
        ValueError: the folder holds no cell, or none of a given name, or an argument is out of its
            range.
    """
    cells, table = _read(run_folder, target_accuracy, span, only)
    write_csv(table, run_folder / "table.csv")
    if tell is not None:
        tell(table)
    if no_pictures():
        return table
    _write_page(run_folder, cells, table, span, shared=shared)

    if figures:
        from fl_app.report.figures import write_figures  # matplotlib takes a second to import

        write_figures(cells, table.target_accuracy, run_folder / "figures", pdf=pdf)
    return table


def watch(
    run_folder: Path,
    target_accuracy: float | None = None,
    *,
    every: float,
    span: tuple[float, float] | None = None,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Write ``report.html`` repeatedly until the run has ended; until then the page reloads itself.

    Args:
        run_folder: as for `write_report`.
        target_accuracy: as for `write_report`.
        every: seconds between pages, > 0.
        span: as for `write_report`.
        sleep: waits for a number of seconds.

    Raises:
        ValueError: as for `write_report`.
    """
    require_positive("every", every, "the page would never rest")
    ended = False
    while not ended:
        ended = _ended(run_folder)  # before the files are read: the last page must be complete
        cells, table = _read(run_folder, target_accuracy, span)
        _write_page(run_folder, cells, table, span, refresh=None if ended else every)
        if not ended:
            sleep(every)


def require_target(accuracy: float, key: str = "target_accuracy") -> None:
    """Refuse a target accuracy outside (0, 1].

    Raises:
        ValueError: naming the key and the value.
    """
    require(
        is_number(accuracy) and 0 < accuracy <= 1,
        key,
        accuracy,
        "above 0 and at most 1",
        "accuracy is a fraction, no run would reach it or every run at once",
    )


def _read(
    run_folder: Path,
    target_accuracy: float | None,
    span: tuple[float, float] | None,
    only: Collection[str] = (),
) -> tuple[list[Cell], Table]:
    target = TARGET_ACCURACY if target_accuracy is None else target_accuracy
    require_target(target)
    require(
        span is None or 0 <= span[0] < span[1],
        "span",
        span,
        "two times, the first at least 0 and before the second",
        "a timeline would have no length",
    )
    cells = read_run(run_folder, only)
    return cells, make_table(cells, target)


def _write_page(
    run_folder: Path,
    cells: list[Cell],
    table: Table,
    span: tuple[float, float] | None,
    refresh: float | None = None,
    shared: Path | None = None,
) -> None:
    from fl_app.report.page import write_page  # plotly takes a tenth of a second to import

    write_page(cells, table, run_folder / PAGE, span=span, refresh=refresh, shared=shared)


def _ended(run_folder: Path) -> bool:
    """Whether a file that is written at the end of a run or sweep is newer than all event logs."""
    logs = [run_folder / "events.jsonl", *run_folder.glob("*/events.jsonl")]
    newest = max((log.stat().st_mtime for log in logs if log.is_file()), default=0.0)
    last = [run_folder / name for name in ("table.csv", "summary.json", SWEEP_ENDED)]
    return any(path.is_file() and path.stat().st_mtime >= newest for path in last)
