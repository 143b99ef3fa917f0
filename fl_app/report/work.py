"""Whether the cells of a comparison did equal work, in all and for an update."""

from collections.abc import Sequence

import numpy as np

from fl_app.report.cells import ENDS, Cell
from fl_app.report.naming import settings_of

MATERIAL = 1.1  # ratio of client updates above which work is unequal
LIMITS = {"seconds": "max_seconds", "updates": "max_updates"}  # ``stopped`` -> key


def at_work(cell: Cell) -> int | None:
    """The most clients that were at work at one time; None if none ever was."""
    orders = cell.history.orders
    starts = np.sort([order.start for order in orders])
    ends = np.sort([np.inf if order.end is None else order.end for order in orders])
    ended = np.searchsorted(ends, starts, side="right")
    return max((np.arange(1, len(orders) + 1) - ended).tolist(), default=None)


def work_of(cells: Sequence[Cell]) -> str:
    """Sentences on how unequal the cells' work was; empty if it was not, materially."""
    return "\n".join(filter(None, (_per_update(cells), _in_all(cells))))


def _per_update(cells: Sequence[Cell]) -> str:
    works = dict.fromkeys(w for c in cells if (w := c.summary.get("work_per_update")))
    places = [number for cell in cells if (number := at_work(cell)) is not None]
    told = []
    if len(works) > 1:
        told.append(f"in what they do per update: {', '.join(works)}")
    if places and max(places) > MATERIAL * min(places):
        told.append(f"in how many clients are at work: {min(places):,} to {max(places):,}")
    if not told:
        return ""
    own = any(settings_of(cell).get("compare.name") == "own" for cell in cells)
    remedy = "; compare=equal makes equal what their equations allow" if own else ""
    return f"Cells differ {', and '.join(told)}{remedy}."


def _in_all(cells: Sequence[Cell]) -> str:
    """A sentence on how much the cells' client updates differ, and whether that is intended.

    A comparison is fair if all cells were given the same time, or ran until their target accuracy.
    It is not fair if they only published equally many versions.

    Args:
        cells: of a run; those that did not reach their end are left out.

    Returns:
        Empty if the client updates do not differ materially.
    """
    ended = [cell for cell in cells if cell.stopped in ENDS]
    counts = [cell.history.client_updates for cell in ended]
    if not counts or max(counts) <= MATERIAL * min(counts):
        return ""
    span = f"{min(counts):,} to {max(counts):,} client updates a cell"
    stops = {cell.stopped for cell in ended} - {"target_accuracy"}
    if not stops:
        return f"Every cell ended at its target accuracy, after different work: {span}."
    key = LIMITS.get(stops.pop()) if len(stops) == 1 else None
    limits = {settings_of(cell).get(key) for cell in ended} if key else set()
    if len(limits) == 1:
        return f"Every cell had {key}={limits.pop()}, and did different work: {span}."
    return (
        f"Unequal work: {span}; compare at equal updates with max_updates={max(counts)} "
        "num_versions=null."
    )
