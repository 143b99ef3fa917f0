"""What `start` asks of a strategy beside its equations."""

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from flwr.app import ConfigRecord, MetricRecord

from fl_app.core.algorithm import Algorithm
from fl_app.core.layout import Layout
from fl_app.core.types import KINDS, Scalar, Scores
from fl_app.schedule import Buffered, Schedule

log = logging.getLogger("flwr")


class Startable(Algorithm):
    """An algorithm with its own schedule, clients and words for Flower's result.

    Attributes:
        schedule: when clients start and updates are aggregated, unless told otherwise.
        needs: full name of the trainer whose equations the clients must know; "" = any client's
            models will do.
        takes: kinds of uploads that its equations can use.
    """

    schedule: ClassVar[Schedule] = Buffered(concurrency=None, buffer_size=1)
    needs: ClassVar[str] = ""
    takes: ClassVar[Sequence[str]] = KINDS

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        """Refuse a run that the algorithm cannot do.

        Args:
            num_versions: greatest number of versions of the run; inf = unknown.
            schedule: of the run.

        Raises:
            ValueError: naming the key, its bound and what would happen.
        """

    @property
    def _label(self) -> str:
        """The algorithm in files and reports; for those of this project, as in `algorithm=`."""
        package, _, file = type(self).__module__.rpartition(".")
        return file if package == "fl_app.algorithms" else type(self).__name__

    def _train_metrics(self) -> MetricRecord | None:
        """Metrics of the last aggregation for Flower's result; None = the clients' mean loss."""
        return None

    def _evaluate_metrics(
        self, version: int, scores: Mapping[int, Scores], means: Mapping[str, float]
    ) -> MetricRecord:
        """Metrics of an evaluation on clients for Flower's result.

        Args:
            version: of the model.
            scores: by client.
            means: of every metric, weighted by examples.
        """
        del version, scores
        return MetricRecord(dict(means))

    @property
    def _client_eval_fraction(self) -> float:
        """Share of the nodes that evaluate a version unless told otherwise; 0 = nobody does."""
        return 1.0

    def _prepare(self, layout: Layout, train_config: ConfigRecord | None) -> Mapping[str, object]:
        """Prepare a run of `start`; returns what every order carries beside `dispatch`'s config."""
        del layout
        return dict(train_config or {})

    def summary(self) -> None:
        """Log the algorithm and its hyper-parameters."""
        log.info("%s, asynchronous: %s", type(self).__name__, self._settings())
        if self.needs:
            log.info("Its ClientApp must train with %s", self.needs)

    def _settings(self) -> dict[str, Scalar | None]:
        """The hyper-parameters, by name."""
        own = {k: v for k, v in vars(self).items() if k not in ("state", "report") and k[0] != "_"}
        return {name: described(value) for name, value in own.items()}


def described(value: object) -> Scalar | None:
    """A setting for a log or a file; an object is described by its class and settings."""
    if isinstance(value, None | bool | int | float | str):
        return value
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    if hasattr(value, "__name__"):  # a function or a class
        return str(value.__name__)
    if type(value).__repr__ is not object.__repr__:
        return repr(value)
    attributes = getattr(value, "__dict__", {})
    own = [f"{k}={described(v)}" for k, v in attributes.items() if k[0] != "_"]
    return f"{type(value).__name__}({', '.join(own)})"
