"""What it costs the simulation that clients pause for a fresh model; they do not train at all."""

import time
from statistics import median
from typing import Any

import numpy as np

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.core.errors import RunError
from fl_app.core.types import Order, Scores, Upload
from fl_app.devices import Fleet, UniformRatio
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.record.history import History
from fl_app.schedule import k_async

WORK = "X"
NUM_CLIENTS = 100
VERSIONS = 300
SIZE = 61_706  # LeNet's


class Resting:
    """A trainer whose clients return at once, after a pause or without one."""

    def __init__(self, pauses: bool) -> None:
        self._pauses = pauses
        self._nothing = np.zeros(SIZE, np.float32)
        self._nothing.flags.writeable = False
        self.fresh = 0

    def train(self, order: Order) -> Upload:
        if self._pauses and "continues" not in order.config:
            kept = {"paused": order.vector}
            none = self._nothing[:0]
            return Upload(none, "delta", 1, 0.0, done=False, progress=0.5, state=kept)
        self.fresh += "fresh_version" in order.config
        return Upload(self._nothing, "delta", 1, 0.0)

    def score(self, order: Order) -> Scores:
        raise NotImplementedError  # no run here evaluates on clients


def measure(repeats: int) -> dict[str, Any]:
    """Milliseconds that a pause and its answer add to an order, in the main process alone.

    Args:
        repeats: of a run with pauses and one without.
    """
    pairs = [(_run(pauses=True), _run(pauses=False)) for _ in range(repeats)]
    # Processor time, so that it matters little what else is running.
    costs = [(more - less) * 1e3 for (more, _), (less, _) in pairs]
    return {
        "work": WORK,
        "overhead_ms_per_pause": round(median(costs), 3),
        "spread": [round(min(costs), 3), round(max(costs), 3)],
        "ms_per_update": round(median(less for _, (less, _) in pairs) * 1e3, 3),
        "refreshed": round(median(fresh for (_, fresh), _ in pairs), 3),
        "repeats": repeats,
    }


def _run(*, pauses: bool) -> tuple[float, float]:
    """Seconds per client update, and the share of orders that got a fresh model."""
    trainer, history = Resting(pauses), History()
    clock = VirtualClock(
        Inline(trainer),
        Fleet(UniformRatio(ratio=5.0, num_clients=NUM_CLIENTS)),
        NUM_CLIENTS,
        epochs=2,
        pauses=pauses,
    )
    engine = Engine(
        strategy=FedAvgK(server_lr=1.0),
        schedule=k_async(10, NUM_CLIENTS),
        clock=clock,
        initial=np.zeros(SIZE, np.float32),
        stop=Stop(num_versions=VERSIONS),
        sinks=[history],
    )
    began = time.process_time()
    outcome = engine.run()
    seconds = time.process_time() - began
    if outcome.stopped != "num_versions" or history.failures or history.rejected:
        raise outcome.error or RunError(outcome.stopped)
    return seconds / history.client_updates, trainer.fresh / history.client_updates
