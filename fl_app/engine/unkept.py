"""Attributes of a strategy or a schedule that change during a run and that no checkpoint holds."""

import logging
from typing import Any

from fl_app.core.algorithm import Algorithm
from fl_app.core.snapshot import fingerprints
from fl_app.schedule import Schedule

log = logging.getLogger(__name__)


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
        self._first = fingerprints(self._attributes())
        self.names: list[str] = []

    def notice(self) -> list[str]:
        """Warn once about each attribute that has changed; returns all of them."""
        now = fingerprints({k: v for k, v in self._attributes().items() if k not in self.names})
        before = {k: v for k, v in self._first.items() if k not in self.names}
        of_strategy = f"{type(self._strategy).__name__}."
        for key in sorted(before.keys() | now.keys()):
            if before.get(key) != now.get(key):
                self.names.append(key)
                name = key.removeprefix(of_strategy)
                log.warning(
                    "%s has changed since the run began, and no checkpoint holds it: no run can go "
                    "on from this one; %s",
                    key,
                    f'keep it as self.state["{name}"], or list it in `transient` if it can be '
                    "computed again"
                    if name != key
                    else "write its state_dict and load_state_dict",
                )
        return self.names

    def _attributes(self) -> dict[str, Any]:
        strategy, schedule = self._strategy, self._schedule
        held = {"state", "report", "schedule", *strategy.transient}
        attributes = {
            f"{type(strategy).__name__}.{name}": value
            for name, value in vars(strategy).items()
            if name not in held
        }
        if type(schedule).state_dict is Schedule.state_dict:
            name = type(schedule).__name__
            attributes |= {f"{name}.{key}": value for key, value in vars(schedule).items()}
        return attributes
