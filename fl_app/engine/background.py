"""Evaluation of the global model in a process of its own, while the engine goes on."""

import logging
from collections.abc import Callable, Mapping

from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import Mailbox

log = logging.getLogger(__name__)

SERVER = -1  # in place of a client


class Background:
    """Measures versions of the model, one at a time; called like a function that measures.

    Args:
        mailbox: of one worker, which measures the model of an evaluate order.
        instead: measures where the worker could not; None = the run ends.
    """

    def __init__(
        self, mailbox: Mailbox, instead: Callable[[int, Vector], Mapping[str, float]] | None
    ) -> None:
        self._mailbox = mailbox
        self._instead = instead

    def __call__(self, version: int, vector: Vector) -> "Measuring":
        """Begin with a version; the one before is measured."""
        order = Order(version, SERVER, 0, version, vector, {}, 0.0, evaluates=True)
        self._mailbox.push(order)
        return Measuring(self._mailbox, order, self._instead)

    def close(self) -> None:
        """End the process at once."""
        self._mailbox.close()


class Measuring:
    """A `fl_app.engine.outbox.Measurement` by another process.

    Args:
        mailbox: will give the reply.
        order: that it was given.
        instead: see `Background`.
    """

    def __init__(
        self,
        mailbox: Mailbox,
        order: Order,
        instead: Callable[[int, Vector], Mapping[str, float]] | None,
    ) -> None:
        self._mailbox = mailbox
        self._order = order
        self._instead = instead
        self._reply: Reply | None = None

    def done(self) -> bool:
        self._look(0.0)
        return self._reply is not None

    def result(self) -> Mapping[str, float]:
        while self._reply is None:
            self._look(None)
        if self._reply.scores is not None:
            return self._reply.scores.metrics
        version, reason = self._order.base_version, self._reply.error
        if self._instead is None:
            raise RunError(f"version {version} could not be evaluated: {reason}")
        log.warning("version %s is evaluated in the main process: %s", version, reason)
        return self._instead(version, self._order.vector)

    def _look(self, timeout: float | None) -> None:
        if self._reply is None:
            for reply in self._mailbox.pull(timeout):
                assert isinstance(reply, Reply)
                self._reply = reply
