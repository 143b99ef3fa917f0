"""How much memory a crowd of clients adds to what the same processes take idle."""

import multiprocessing
import os
from typing import Any

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.client.build import prepare_process
from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Event
from fl_app.engine.engine import Stop
from fl_app.engine.workers import Workers
from fl_app.record.history import History
from fl_app.schedule import Buffered
from lab.bench.processes import pss_mb
from lab.bench.workloads import CROWD, CROWD_AT_WORK

SAMPLE_EVERY = 20  # versions


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


def measure(num_versions: int) -> dict[str, Any]:
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
