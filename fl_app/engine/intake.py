"""What of the clients' uploads reaches the strategy.

The engine asks an intake at three places: whether an upload comes in, which updates of the buffer
may be aggregated now, and what the strategy is shown of them. This one lets every upload in whose
numbers are finite, and shows updates as they came. One that opens sums of masked uploads derives
from it (`fl_app.secure.server`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fl_app.core.types import GlobalModel, Update
from fl_app.engine.checks import overflow


@dataclass(frozen=True)
class Opened:
    """What a strategy is shown of the updates of one aggregation.

    Attributes:
        updates: one for each of those that were to be opened, in their order; empty if there are
            `faults`.
        faults: place -> why this update cannot be opened. The engine drops these and aggregates
            nothing.
    """

    updates: Sequence[Update] = ()
    faults: Mapping[int, str] = field(default_factory=dict)


class Intake:
    """Lets uploads in that are as they should be, and shows them as they are."""

    def refuse(self, model: GlobalModel, update: Update) -> str:
        """Why an upload of the right form cannot come in; "" if it can.

        Args:
            model: w_t and the versions that are cited.
            update: what came.
        """
        if update.seal:
            return "the upload is masked, and nobody could open it"
        return overflow(model, update)

    def eligible(self, buffer: Sequence[Update]) -> Sequence[Update]:
        """The updates of the buffer that may be aggregated now."""
        return buffer

    def open(self, model: GlobalModel, updates: Sequence[Update]) -> Opened:
        """What the strategy is shown of these updates.

        Args:
            model: w_t.
            updates: that the schedule took, oldest arrival first.

        Raises:
            RunError: they cannot be opened, and no single one of them is at fault.
        """
        del model
        return Opened(updates)

    def complete(self, report: dict[str, Any], opened: Opened) -> None:
        """Complete the strategy's report of an aggregation, in place."""

    def totals(self) -> Mapping[str, float]:
        """Numbers about the whole run, for its summary."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know, as plain data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
