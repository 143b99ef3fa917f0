"""Flower's own strategies, asynchronously: K arrivals at a time instead of rounds."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg, MultiKrum

from fl_app.core.errors import require
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.schedule import Schedule
from fl_app.strategy import AsyncStrategy

NAME = "model"  # of the one array that the inner strategy sees

# Of Flower's classes, by a part of their names, why they cannot be had here.
REFUSED = {
    "SecAgg": "SecAgg+ needs rounds, in which a cohort answers several times together",
    "DifferentialPrivacy": (
        "Flower's wrapper takes the model it sent last for the one a client started from, so that "
        "it would clip something else than the client's displacement; use algorithm=dp_fedbuff"
    ),
}


class Asynchronous(AsyncStrategy):
    """Runs a strategy of Flower (FedAvg, FedAdam, FedYogi, FedMedian, Krum, ...) on K arrivals.

    The inner strategy sees K replies of one round: the current model plus each client's own
    displacement, ``w_t + (w_i - w_o)``. Flower's strategies replace the global model by what they
    aggregate, so with the clients' stale models themselves (``rebase=False``) a version would undo
    what was published since they started. The two agree when no update is stale.

    Args:
        inner: its aggregation is used, its sampling of nodes is not.
        rebase: put displacements on the current model.
        schedule: instead of the default, K = 1.

    Raises:
        ValueError: `inner` is not based on Flower's FedAvg.
    """

    def __init__(
        self, inner: FedAvg, *, rebase: bool = True, schedule: Schedule | None = None
    ) -> None:
        super().__init__()
        if not isinstance(inner, FedAvg):
            name = type(inner).__name__
            why = next((why for part, why in REFUSED.items() if part in name), "")
            raise ValueError(
                f"inner={name} must be based on flwr.serverapp.strategy.FedAvg: "
                + (why or "its aggregation could not be called")
            )
        self.inner = inner
        self.rebase = rebase
        if schedule is not None:
            self.schedule = schedule  # type: ignore[misc]

    def check(self, num_versions: int, schedule: Schedule) -> None:
        del num_versions
        if isinstance(self.inner, MultiKrum):  # and Krum, which is based on it
            size = getattr(schedule, "buffer_size", 1)
            least = 2 * self.inner.num_malicious_nodes + 2
            require(
                size > least,
                "schedule.buffer_size",
                size,
                f"above 2 x num_malicious_nodes + 2={least}",
                "so many bad uploads that agree could lie closer to each other than the good ones",
            )

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        server_round = model.version + 1
        vars(self.inner).update(self.state.get("inner", {}))
        self._announce(server_round, _record(model.params))
        replies = []
        for update in updates:
            vector = model.params + model.delta(update) if self.rebase else model.local(update)
            replies.append(_reply(update, server_round, vector))
        with _warnings_only():
            arrays, _ = self.inner.aggregate_train(server_round, replies)
        self.state["inner"] = {k: v for k, v in vars(self.inner).items() if _is_learned(v)}
        if arrays is None:
            return model.params
        return np.asarray(arrays[NAME].numpy(), np.float32)

    def _announce(self, server_round: int, arrays: ArrayRecord) -> None:
        """Let the inner strategy note the current model, as its `configure_train` does."""
        fraction, self.inner.fraction_train = self.inner.fraction_train, 0.0  # asks no node
        try:
            self.inner.configure_train(server_round, arrays, ConfigRecord(), None)  # type: ignore[arg-type]
        finally:
            self.inner.fraction_train = fraction


@contextmanager
def _warnings_only() -> Iterator[None]:
    """Without the line in which Flower says that all replies came: the event log says more."""
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.WARNING)
    try:
        yield
    finally:
        log.setLevel(level)


def _is_learned(value: object) -> bool:
    """Whether an attribute of a strategy of Flower's is a momentum or the like."""
    arrays = list(value.values()) if isinstance(value, dict) else value
    return (
        isinstance(arrays, list)
        and len(arrays) > 0
        and all(isinstance(array, np.ndarray) for array in arrays)
    )


def _record(vector: Vector) -> ArrayRecord:
    return ArrayRecord({NAME: Array(vector)})


def _reply(update: Update, server_round: int, vector: Vector) -> Message:
    """The message with which a client of Flower's round loop would have sent `vector`."""
    metrics = MetricRecord({"num-examples": update.num_examples, "loss": update.loss})
    message: Message = Message(  # type: ignore[call-overload]  # Flower's overloads hide `metadata`
        RecordDict({"arrays": _record(vector), "metrics": metrics}),
        metadata=Metadata(
            run_id=0,
            message_id="",
            src_node_id=update.client_id,
            dst_node_id=0,
            reply_to_message_id="",
            group_id=str(server_round),
            created_at=0.0,
            ttl=1.0,
            message_type=MessageType.TRAIN,
        ),
    )
    return message
