"""How a server's learning rate changes over a run."""

from dataclasses import dataclass

from fl_app.core.hyper import COUNT, UNIT_INTERVAL, Checked, bounded


@dataclass(frozen=True)
class LinearDecay(Checked):
    """A factor that falls linearly from 1 at version 0 to `to` at version `versions`, then stays.

    Attributes:
        to: fraction that is left at the end, in [0, 1]; 1 = constant.
        versions: length of the fall, usually that of the run, >= 1; None where nothing falls.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "algorithm.strategy.lr_schedule"

    to: float = bounded(1.0, UNIT_INTERVAL, "it is a fraction")
    versions: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.to < 1 or self.versions is not None:
            reason = "the rate falls over so many (with num_versions=null the key must be set)"
            COUNT.check("algorithm.strategy.lr_schedule.versions", self.versions, reason)

    def factor(self, version: int) -> float:
        """What the rate is multiplied by in the update of this version, in [0, 1]."""
        return 1.0 - (1.0 - self.to) * min(version / (self.versions or 1), 1.0)
