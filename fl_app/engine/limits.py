"""When a run ends, and how it ended."""

import math
from dataclasses import dataclass, field

from fl_app.core.errors import RunError
from fl_app.core.hyper import at_least
from fl_app.core.types import Vector


@dataclass(frozen=True)
class Stop:
    """When a run ends: at the first of these limits.

    Attributes:
        num_versions: published model versions, >= 1.
        seconds: time on the run's clock.
        target_accuracy: accuracy of an evaluation, in [0, 1]: on the server, or the mean of one on
            clients if the server evaluates nothing.
        updates: client updates, that is accepted uploads, >= 1.
    """

    num_versions: float = math.inf
    seconds: float = math.inf
    target_accuracy: float = math.inf
    updates: float = math.inf

    def __post_init__(self) -> None:
        bounds = {"num_versions": 1, "seconds": 0, "target_accuracy": 0, "updates": 1}
        for key, bound in bounds.items():
            value = getattr(self, key)
            if value != math.inf:
                at_least(bound).check(key, value, "there would be nothing to run")
        if self.num_versions == self.seconds == self.updates == math.inf:
            raise ValueError(
                "num_versions, seconds and updates are all unlimited: the run would never end"
            )


@dataclass
class Outcome:
    """How a run ended; the run's events tell what happened before.

    Attributes:
        params: the model that the strategy wants tested and saved, shape ``(d,)``.
        version: version of the global model.
        seconds: time on the run's clock; the last evaluation on clients is not part of it.
        stopped: "num_versions", "seconds", "updates", "target_accuracy", "interrupted", or what
            went wrong.
        error: what went wrong, if the run could not go on.
        asked_to_stop: whether `Engine.ask_to_stop` or Ctrl-C asked for the end, perhaps too late.
        totals: numbers of the strategy about the whole run.
    """

    params: Vector
    version: int = 0
    seconds: float = 0.0
    stopped: str = ""
    error: RunError | None = None
    asked_to_stop: bool = False
    totals: dict[str, float] = field(default_factory=dict)
