"""What is measured alone: pauses (X), FedHist's server step (S), and a crowd's memory (M)."""

import multiprocessing
import os
import time
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.fedhist import FedHist
from fl_app.client.build import prepare_process
from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Event
from fl_app.core.types import GlobalModel, Order, Scores, Update, Upload
from fl_app.devices import Fleet, UniformRatio
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline, Workers
from fl_app.record.history import History
from fl_app.schedule import Buffered, k_async
from lab.bench.sides import pss_mb
from lab.bench.workloads import CROWD, CROWD_AT_WORK

EXCHANGE, STEP = "X", "S"
SAMPLE_EVERY = 20  # versions
VERSIONS = 300
SIZES = LENET, RESNET = 61_706, 11_169_162  # parameters of LeNet and of ResNet_R
NUM_CLIENTS = 100
K = 10
LENGTH = 10  # h, rounds that FedHist's buffers remember


class Resting:
    """A trainer whose clients return at once, after a pause or without one."""

    def __init__(self, pauses: bool) -> None:
        self._pauses = pauses
        self._nothing = np.zeros(LENET, np.float32)
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


def exchange(repeats: int) -> dict[str, Any]:
    """Milliseconds that a pause and its answer add to an order, in the main process alone.

    Args:
        repeats: of a run with pauses and one without.
    """
    pairs = [(_run(pauses=True), _run(pauses=False)) for _ in range(repeats)]
    # Processor time, so that it matters little what else is running.
    costs = [(more - less) * 1e3 for (more, _), (less, _) in pairs]
    return {
        "work": EXCHANGE,
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
        initial=np.zeros(LENET, np.float32),
        stop=Stop(num_versions=VERSIONS),
        sinks=[history],
    )
    began = time.process_time()
    outcome = engine.run()
    seconds = time.process_time() - began
    if outcome.stopped != "num_versions" or history.failures or history.rejected:
        raise outcome.error or RunError(outcome.stopped)
    return seconds / history.client_updates, trainer.fresh / history.client_updates


def server_step(repeats: int) -> dict[str, Any]:
    """Milliseconds of processor time on one thread, and times the product, medians.

    Args:
        repeats: steps, after the buffers are full; ten times as many of the small model.
    """
    with threadpool_limits(1):
        small, large = SIZES
        steps = {small: _steps(small, 10 * repeats), large: _steps(large, repeats)}
    return {
        "work": STEP,
        "algorithm": "fedhist",
        "K": K,
        "h": LENGTH,
        "params": list(steps),
        "step_ms": [round(1e3 * median(step for step, _ in pairs), 3) for pairs in steps.values()],
        "ratio": [round(median(step / one for step, one in pairs), 2) for pairs in steps.values()],
        "repeats": repeats,
    }


def _steps(size: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds of every step, and of K x h cosines among vectors as long."""
    random = np.random.default_rng(0)
    common = random.standard_normal(size, np.float32)
    uploads = [
        np.float32(0.3) * common + random.standard_normal(size, np.float32) for _ in range(2 * K)
    ]
    here, before = np.stack(uploads[:K]), np.stack(uploads[K:])
    for upload in uploads:
        upload.flags.writeable = False
    strategy, params = FedHist(buffer_length=LENGTH), np.zeros(size, np.float32)
    given = dict.fromkeys(range(NUM_CLIENTS), 0)
    pairs = []
    for version in range(LENGTH + 2 + repeats):
        clients = random.choice(NUM_CLIENTS, K, replace=False).tolist()
        updates = [
            Update(client, given[client], uploads[(3 * version + i) % (2 * K)], "pseudo", 10, 0.1)
            for i, client in enumerate(clients)
        ]
        began = time.thread_time()
        strategy.aggregate(GlobalModel(params, version), updates)
        ended = time.thread_time()
        here @ before.T
        pairs.append((ended - began, time.thread_time() - ended))
        given.update(dict.fromkeys(clients, version + 1))
    return pairs[LENGTH + 2 :]


class Samples:
    """A sink that looks at the memory of all processes every few versions."""

    def __init__(self) -> None:
        self.pids = [os.getpid(), *(p.pid for p in multiprocessing.active_children() if p.pid)]
        self.idle = pss_mb(self.pids)
        self.added: dict[int, dict[str, float]] = {}

    def emit(self, event: Event) -> None:
        if isinstance(event, Aggregated) and event.version % SAMPLE_EVERY == 0:
            sample = pss_mb(self.pids)
            self.added[event.version] = {name: sample[name] - self.idle[name] for name in sample}

    def close(self) -> None: ...


def memory(num_versions: int) -> dict[str, Any]:
    """Memory of FedBuff with 1,000 of 10,000 clients at work, until version 3 `num_versions`.

    Args:
        num_versions: a multiple of `SAMPLE_EVERY` and long enough for the slowest client to have
            reported once, so that as many versions are kept as ever will be.
    """
    prepare_process()
    task = CROWD.task()
    trainer = CROWD.trainer(task)
    cores = len(os.sched_getaffinity(0))
    workers = Workers(trainer, cores, trainer.model.layout.size)
    samples, history = Samples(), History()
    outcome = CROWD.engine(
        workers,
        task,
        strategy=FedBuff(),
        schedule=Buffered(concurrency=CROWD_AT_WORK, buffer_size=10),
        stop=Stop(num_versions=3 * num_versions),
        sinks=[history, samples],
    ).run()
    if outcome.stopped != "num_versions":
        raise outcome.error or RunError(outcome.stopped)
    once, thrice = samples.added[num_versions], samples.added[3 * num_versions]
    peak = max(samples.added.values(), key=lambda sample: sample["Pss"])
    return {
        "work": CROWD.work,
        "clients": CROWD.num_clients,
        "clients_at_work": CROWD_AT_WORK,
        "versions": [num_versions, 3 * num_versions],
        "max_staleness": max(history.ages),
        "idle_mb": round(samples.idle["Pss"]),
        "rss_mb": round(samples.idle["Pss"] + thrice["Pss"]),
        "rss_is": "proportional set size of engine and workers",
        "added_mb": round(peak["Pss"], 1),
        "added_at_end_mb": round(thrice["Pss"], 1),
        "of_it": {name: round(mb, 1) for name, mb in thrice.items() if name != "Pss"},
        "growth_mb": round(thrice["Pss"] - once["Pss"], 1),
        "cores": cores,
    }
