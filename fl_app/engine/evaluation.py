"""Which versions are evaluated, by the server and on clients, and the accuracy that ends a run."""

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from fl_app.core.events import Evaluated
from fl_app.core.types import Vector
from fl_app.engine.background import Background
from fl_app.engine.checks import require_vector
from fl_app.engine.federation import Federation
from fl_app.engine.outbox import Measurement

Evaluate: TypeAlias = Callable[[int, Vector], Mapping[str, float] | Measurement]


class Evaluation:
    """Evaluates versions of the model.

    Args:
        federation: whose model it is.
        measure: on the server; None = it evaluates nothing. See `Engine`.
        every: versions between evaluations on the server.
    """

    def __init__(self, federation: Federation, measure: Evaluate | None, every: int) -> None:
        self._fed = federation
        self._measure = measure
        self._every = every
        federation.on_clients.told = self._told_by_clients

    def first(self) -> None:
        """Evaluate the first version, unless a run that is resumed has done so."""
        if self._fed.evaluated is None:
            self._on_server()

    def published(self) -> None:
        """Evaluate the version that was just published, where it is due."""
        if self._fed.version % self._every == 0:
            self._on_server()
        if self._fed.on_clients.is_due(self._fed.version):
            self.on_clients()

    def last(self) -> None:
        """Evaluate the last version on the server, unless it has been."""
        if self._fed.evaluated != self._fed.version:
            self._on_server(final=True)

    def close(self) -> None:
        """End the process that measures, if there is one."""
        if isinstance(self._measure, Background):
            self._measure.close()

    def on_clients(self) -> None:
        """Choose the clients that measure the current version; they do so when they are free."""
        fed = self._fed
        model = fed.versions.model
        vector = fed.strategy.to_evaluate(model)
        require_vector(fed.strategy, "to_evaluate", vector, model.params.size)
        fed.on_clients.plan(fed.version, vector, fed.updates)

    def _on_server(self, *, final: bool = False) -> None:
        fed = self._fed
        if self._measure is None:
            return
        metrics = self._measure(fed.version, fed.strategy.to_evaluate(fed.versions.model))
        fed.evaluated = fed.version
        if not final:  # the last one comes after the run's end
            fed.clock.work("evaluation")
        if not isinstance(metrics, Mapping):
            if fed.stop.target_accuracy == math.inf:
                fed.outbox.emit_later(fed.clock.now, fed.version, metrics)
                return
            metrics = metrics.result()  # which may end the run
        fed.emit(Evaluated(fed.clock.now, fed.version, metrics))
        self._look_at(metrics.get("accuracy"))

    def _told_by_clients(self, metrics: Mapping[str, float]) -> None:
        """End the run at the accuracy on clients, if the server measures none."""
        if self._measure is None:
            self._look_at(metrics.get("accuracy_mean"))

    def _look_at(self, accuracy: float | None) -> None:
        if accuracy is not None and accuracy >= self._fed.stop.target_accuracy:
            self._fed.end("target_accuracy")
