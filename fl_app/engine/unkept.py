"""Attributes of a strategy or a schedule that change during a run and that no checkpoint holds."""

import hashlib
import logging
import pickle
from collections.abc import Mapping
from typing import Any

from fl_app.core.algorithm import Algorithm
from fl_app.schedule import Schedule

log = logging.getLogger(__name__)

FORMAT = 3  # of `Engine.state_dict`


class UnkeptAttributes:
    """Compares attributes with their values at the start of the run.

    Args:
        strategy: `state`, `report`, its `schedule` and what it lists as `transient` may change.
        schedule: nothing may change if it has no `state_dict` of its own.

    Attributes:
        names: changed attributes, by class and name.
    """

    def __init__(self, strategy: Algorithm, schedule: Schedule) -> None:
        self._strategy = strategy
        self._schedule = schedule
        self._first = self._fingerprints()
        self.names: list[str] = []

    def notice(self) -> list[str]:
        """Warn once about each attribute that has changed; returns all of them."""
        now, before = self._fingerprints(), self._first
        for key in sorted(before.keys() | now.keys()):
            if key not in self.names and before.get(key) != now.get(key):
                self.names.append(key)
                log.warning(
                    "%s has changed since the run began, and no checkpoint holds it: no run can go "
                    "on from this one; keep it in the strategy's self.state, or name it in the "
                    "schedule's `remembers`, or in `transient` if it can be computed again",
                    key,
                )
        return self.names

    def _fingerprints(self) -> dict[str, str]:
        strategy, schedule = self._strategy, self._schedule
        kept = {"state", "report", "schedule", *strategy.transient}
        owners: list[object] = [strategy]
        if type(schedule).state_dict is Schedule.state_dict and not schedule.remembers:
            owners.append(schedule)
        return {
            f"{type(owner).__name__}.{name}": _fingerprint(value)
            for owner in owners
            for name, value in vars(owner).items()
            if owner is schedule or name not in kept
        }


def _fingerprint(value: object) -> str:
    """A digest; another one means that the value has changed."""
    try:
        return hashlib.sha256(pickle.dumps(value)).hexdigest()
    except Exception:  # of any class; another object is noticed all the same
        return f"object {id(value)}"


def check_complete(state: Mapping[str, Any]) -> None:
    """Refuse a state that is none of `Engine.state_dict`, or that lacks changed attributes.

    Raises:
        ValueError: it was written by another version, or attributes have changed that no checkpoint
            holds.
    """
    if state.get("format") != FORMAT:
        raise ValueError(
            "the checkpoint was written by another version of this project, which stores orders "
            "differently: go on with that version, or start anew"
        )
    if unkept := state["unkept"]:
        raise ValueError(
            f"the checkpoint is not complete: {', '.join(unkept)} had changed and is not in it. "
            "Keep what a strategy learns in its self.state, and what a schedule remembers in its "
            "state_dict(), and start anew"
        )
