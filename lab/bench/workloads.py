"""The workloads: client updates of several kinds on synthetic data.

W is a run against a bare loop, B clients trained together against one at a time, R workers of a
Ray cluster (this machine's) against those of ``runtime=inprocess``.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fl_app.cli import compose
from fl_app.client.build import prepare_process
from fl_app.client.flat import FlatModel
from fl_app.core.errors import RunError
from fl_app.engine.virtual import VirtualClock
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.tasks.partition import Iid
from fl_app.tasks.task import Task
from lab.bench.sides import Count, Side, count_uploads, race

# Small steps and loud noise: no loss comes near 0 however long the measurement takes, for numbers
# next to 0 (denormal ones) would slow down the side that trained more.
NOISE = 5.0
LOCAL_LR = 1e-3
NUM_CLASSES = 10


@dataclass(frozen=True)
class Workload:
    """One kind of client update, and its federation.

    Attributes:
        model: in `fl_app.tasks.models.MODELS`.
        shape: of one image.
        num_clients: registered clients.
        examples: training examples of each client, a multiple of `batch_size`.
        batch_size: of a mini-batch.
        steps: mini-batches of one client update.
        upload: what a client returns.
        warm_up: client updates before anything is measured.
    """

    model: str
    shape: tuple[int, int, int]
    num_clients: int
    examples: int
    batch_size: int
    steps: int
    upload: str
    warm_up: int

    def task(self) -> Task:
        """Images ``template[class] + noise`` of all clients; seconds of work, some hundred MB."""
        rng = np.random.default_rng(0)
        templates = rng.standard_normal((NUM_CLASSES, *self.shape), np.float32)
        labels = np.arange(self.num_clients * self.examples) % NUM_CLASSES
        images = rng.standard_normal((len(labels), *self.shape), np.float32) * np.float32(NOISE)
        for label, template in enumerate(templates):
            images[label::NUM_CLASSES] += template
        task = Task.from_arrays(images, labels, model=self.model)
        return task.with_clients(Iid(), self.num_clients, seed=0)

    def words(self) -> list[str]:
        """Overrides of a run without end; the slowest device is 5 times slower than the fastest."""
        client = {
            "upload": self.upload,
            "batch_size": self.batch_size,
            "local_steps": self.steps,
            "local_lr": LOCAL_LR,
        }
        return [
            *("devices=uniform_5x", f"num_clients={self.num_clients}", "num_versions=1000000000"),
            *(f"algorithm.client.{key}={value}" for key, value in client.items()),
        ]


WORKLOADS = {
    "1": Workload("lenet", (1, 28, 28), 1000, 32, 32, 1, "gradient", 200),
    "2": Workload("lenet", (1, 28, 28), 100, 500, 50, 10, "pseudo", 40),
    "3": Workload("lenet", (3, 32, 32), 20, 500, 50, 50, "pseudo", 8),
    "4": Workload("resnet18", (3, 32, 32), 20, 512, 32, 1, "gradient", 20),
}
# One client update is ten mini-batches of 16.
TOGETHER = {
    "B1": Workload("logistic", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    "B2": Workload("mlp", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
}
# In K-async averaging, all clients are at work, and K = 10.
ALGORITHMS = {
    "fedavg_k": [f"algorithm.strategy.server_lr={LOCAL_LR}"],
    "fedasync": ["algorithm.schedule.concurrency=32", "algorithm.client.proximal=0"],
    "fedbuff": ["algorithm.schedule.concurrency=32"],
}


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Race:
    """Two or three sides that do the same client updates.

    Attributes:
        name: of the race; several may share it.
        workload: what is trained.
        algorithm: of the runs.
        sides: by name, the overrides of a run; None = a bare loop.
    """

    name: str
    workload: Workload
    algorithm: str
    sides: Mapping[str, Sequence[str] | None]


def races(batch: int) -> list[Race]:
    """All races, in some of which `batch` orders are computed in one operation."""
    ours = [f"runtime.workers={cores()}"]
    engine = {"ours": ours, "limit": None}
    batches = {"ours": [*ours, f"runtime.batch={batch}"], "alone": ours, "limit": None}
    cluster = {"ours": ["runtime=ray"], "inprocess": ours}
    return [
        *(Race(f"W{number}", each, "fedavg_k", engine) for number, each in WORKLOADS.items()),
        *(
            Race(name, workload, algorithm, batches)
            for name, workload in TOGETHER.items()
            for algorithm in ("fedasync", "fedbuff")
        ),
        *(Race(f"R{number}", each, "fedavg_k", cluster) for number, each in WORKLOADS.items()),
    ]


def compare(run: Race, repeats: int, seconds: float) -> dict[str, Any]:
    """Updates per second of each side, and the ratios of the first to the others.

    Args:
        run: its sides.
        repeats: of the measurement.
        seconds: of each side in one of them.
    """
    task = run.workload.task()
    prepare_process()  # the bare loop has the allocator of a run, too
    sides: list[Side] = []
    try:
        for words in run.sides.values():
            if words is None:
                jobs = [partial(loop, run.workload, task, place) for place in range(cores())]
            else:
                jobs = [partial(train, run, task, words)]
            sides.append(Side(jobs))
        speeds = race(sides, run.workload.warm_up, repeats, seconds)
    finally:
        for side in sides:
            side.close()
    ours, *rivals = zip(*speeds, strict=True)
    result = {
        "work": run.name,
        "algorithm": run.algorithm,
        "updates_per_second": round(median(ours), 2),
    }
    for rival, theirs in zip([*run.sides][1:], rivals, strict=True):
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        result[f"{rival}_updates_per_second"] = round(median(theirs), 2)
        result[f"ratio_to_{rival}"] = round(median(ratios), 3)
        result[f"spread_to_{rival}"] = [round(min(ratios), 3), round(max(ratios), 3)]
    return result | {"repeats": repeats, "seconds": seconds, "cores": cores()}


def train(run: Race, task: Task, words: Sequence[str], count: Count) -> None:
    """Carry out a run until this process is killed; for `Side`."""
    logging.disable(logging.WARNING)  # that no version is evaluated
    prepare_process()
    overrides = [f"algorithm={run.algorithm}", *ALGORITHMS[run.algorithm], *run.workload.words()]
    engine = build_engine(build_components(compose([*overrides, *words]), task), sinks=())
    assert isinstance(engine.clock, VirtualClock)
    count_uploads(engine.clock.mailbox, count)
    outcome = engine.run()
    raise outcome.error or RunError(outcome.stopped)


def loop(workload: Workload, task: Task, place: int, count: Count) -> None:
    """Nothing but SGD on the workload's batches until this process is killed; for `Side`."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(place)
    model = FlatModel(task.model())  # parameters are views of one vector
    module, params = model.module.train(), tuple(model.params)
    batches = [
        torch.from_numpy(batch)
        for client_id in rng.permutation(workload.num_clients)
        for batch in rng.permutation(task.train_indices(client_id)).reshape(-1, workload.batch_size)
    ]
    inputs, targets = task.inputs, task.targets
    for batch in cycle(batches):
        output = module(inputs.index_select(0, batch))
        loss = F.cross_entropy(output, targets.index_select(0, batch))
        grad = torch.autograd.grad(loss, params)
        with torch.no_grad():
            torch._foreach_add_(params, grad, alpha=-LOCAL_LR)
        count(1 / workload.steps)
