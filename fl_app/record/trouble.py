"""One sentence about the orders that failed and the replies that were rejected."""

from collections.abc import Mapping
from typing import Any

from fl_app.core.events import Failed, Rejected


def first_trouble(event: Failed | Rejected) -> str:
    """A failure or a rejection in words."""
    who = "" if event.client is None else f"client {event.client}: "
    return f"{who}{event.reason}"


def told_of_trouble(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """How many orders failed and replies were rejected in all runs, and the first of each.

    Args:
        summaries: contents of ``summary.json`` by the names of the runs; "" is a single one.

    Returns:
        A sentence; "" if there was no trouble.
    """
    runs = {name: each for name, each in summaries.items() if "orders" in each}
    told = []
    total = sum(each["orders"] for each in runs.values())
    for key, first, what in (
        ("failures", "first_failure", f"of {total:,} orders failed"),
        ("rejected", "first_rejection", "replies were rejected"),
    ):
        if count := sum(each[key] for each in runs.values()):
            name, reason = next((name, each[first]) for name, each in runs.items() if each[key])
            told.append(f"{count:,} {what}, first: {name}{name and ', '}{reason}")
    return "; ".join(told)
