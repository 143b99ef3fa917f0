"""Table, page and figures of a run, also while it runs: `python -m fl_app.report`."""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from fl_app.core.extras import lacking
from fl_app.core.hyper import SHARE
from fl_app.report.cells import Cell, read_run
from fl_app.report.table import Table, make_table

__all__ = ["PAGE", "Table", "no_pictures", "where", "write_report"]

log = logging.getLogger(__name__)

TARGET_ACCURACY = 0.9
PAGE = "report.html"


def no_pictures() -> str | None:
    """What to install before a page and figures can be drawn; None if nothing is missing."""
    return lacking("altair", "jinja2", "markupsafe", "vl_convert")


def where(folder: Path) -> str:
    """A line that says where the report of a run's folder is, or why there is none."""
    if missing := no_pictures():
        return f"No report for a browser: {missing}"
    if not (folder / PAGE).exists():
        return f"No report for a browser; python -m fl_app.report {folder} writes it"
    return f"Report, to open in a browser: {folder / PAGE}"


def write_report(
    run_folder: Path,
    target_accuracy: float | None = None,
    *,
    figures: bool = True,
    pdf: bool = False,
    tell: Callable[[Table], object] | None = None,
    must_draw: bool = True,
) -> Table:
    """Write ``table.csv``, ``report.html`` and ``figures/*.png`` into a run folder.

    Without the packages of the extra ``report`` (see `no_pictures`) it writes ``table.csv`` alone.

    Args:
        run_folder: a folder with a folder per cell, or the folder of a single cell.
        target_accuracy: in (0, 1], the accuracy to which times are measured; None = the run's own.
        figures: whether to write the pictures, which takes seconds.
        pdf: whether each picture is also written as PDF.
        tell: receives the table before anything is drawn.
        must_draw: False = if a page or picture fails, only warn; the run's files are complete.

    Returns:
        The table that was written.

    Raises:
        ValueError: the folder holds no cell, or an argument is out of its range.
    """
    cells = read_run(run_folder)
    target = target_of(cells, target_accuracy)
    table = make_table(cells, target)
    table.write(run_folder / "table.csv")
    if tell is not None:
        tell(table)
    if no_pictures() is not None:
        return table
    try:
        from fl_app.report.page import write_figures, write_page  # altair takes a second to import

        charts = write_page(cells, table, run_folder / PAGE)
        if figures:
            write_figures(cells, target, charts, run_folder / "figures", pdf=pdf)
    except Exception as error:  # of libraries and fonts, or a full disk
        if must_draw:
            raise
        log.warning("Pictures are missing in the report: %s: %s", type(error).__name__, error)
    return table


def target_of(cells: Sequence[Cell], override: float | None = None) -> float:
    """The given accuracy, else that of the runs (``experiment.report_accuracy``).

    Raises:
        ValueError: as `require_target`.
    """
    configured = (cell.get("experiment.report_accuracy") for cell in cells)
    target = next(filter(None, configured), TARGET_ACCURACY) if override is None else override
    require_target(target)
    return float(target)


def require_target(accuracy: float, key: str = "target_accuracy") -> None:
    """Refuse a target accuracy outside (0, 1].

    Raises:
        ValueError: naming the key and the value.
    """
    SHARE.check(key, accuracy, "accuracy is a fraction, no run would reach it or every run at once")
