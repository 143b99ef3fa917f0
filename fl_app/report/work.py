"""Whether the cells of a comparison did equal work: equally many client updates."""

from collections.abc import Sequence

from fl_app.report.cells import ENDS, Cell
from fl_app.report.naming import settings_of

MATERIAL = 1.1  # ratio of client updates above which work is unequal
LIMITS = {"seconds": "max_seconds", "updates": "max_updates"}  # ``stopped`` -> key


def work_of(cells: Sequence[Cell]) -> str:
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
