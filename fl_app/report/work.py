"""Whether a comparison is one of equal work: as many client updates in every cell."""

from collections.abc import Sequence

from fl_app.report.cells import ENDS, Cell
from fl_app.report.naming import settings_of

MATERIAL = 1.1  # times as many client updates, from which on work is unequal
LIMITS = {"seconds": "max_seconds", "updates": "max_updates"}  # by what ended a run


def work_of(cells: Sequence[Cell]) -> str:
    """How much the client updates of cells differ, and whether that is meant, in one sentence.

    Cells that were given the same time are compared fairly, and so are cells that ran until they
    reached their target accuracy. Cells of as many versions are not.

    Args:
        cells: of a run; those that did not run to their end are left out.

    Returns:
        Nothing where the client updates do not differ materially.
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
