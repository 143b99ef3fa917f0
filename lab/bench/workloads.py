"""What is measured: client updates of several sorts on made-up data.

W is the engine against a bare loop, B clients trained together against one at a time, R workers of
a Ray cluster (this machine's) against those of ``runtime=inprocess``.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from fl_app.algorithms.fedasync import FedAsync
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.cli import compose
from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.build import Recipe, prepare_process
from fl_app.client.flat import FlatModel
from fl_app.client.initial import build_model
from fl_app.cluster.connection import connect
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.core.errors import RunError
from fl_app.devices.compute import UniformRatio
from fl_app.devices.fleet import Fleet
from fl_app.engine.clock import Mailbox
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Workers
from fl_app.schedule import Buffered, Schedule, fully_async, k_async
from fl_app.strategy import AsyncStrategy
from fl_app.tasks.partition import Iid
from fl_app.tasks.task import Task
from lab.bench.sides import Count, Side, counted, race

# Small steps and loud noise: no loss comes near 0 however long the measurement takes, for numbers
# next to 0 (denormal ones) would slow down whoever trained more.
NOISE = 5.0
NUM_CLASSES, NUM_TESTS = 10, 1000
AT_WORK = 32  # clients, where some train together
LOCAL_LR = 1e-3


@dataclass(frozen=True)
class Workload:
    """One sort of client update, and the federation that it is part of.

    Attributes:
        work: its name.
        model: in `fl_app.tasks.models.MODELS`.
        shape: of one image.
        num_clients: registered clients.
        examples: training examples of each client, a multiple of `batch_size`.
        batch_size: of a mini-batch.
        steps: mini-batches of one client update.
        upload: what a client returns.
        warm_up: client updates before anything is measured.
    """

    work: str
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

        def drawn(count: int) -> tuple[Any, Any]:
            labels = np.arange(count) % NUM_CLASSES
            images = rng.standard_normal((count, *self.shape), np.float32) * np.float32(NOISE)
            for label, template in enumerate(templates):
                images[label::NUM_CLASSES] += template
            return images, labels

        train, test = drawn(self.num_clients * self.examples), drawn(NUM_TESTS)
        task = Task.from_arrays(*train, *test, model=self.model)
        return task.with_clients(Iid(), self.num_clients, seed=0)

    def trainer(self, task: Task, **settings: Any) -> LocalTrainer:
        """The client half; settings of a configuration are passed over."""
        return LocalTrainer(
            task,
            upload=self.upload,
            batch_size=self.batch_size,
            local_steps=self.steps,
            local_lr=LOCAL_LR,
        )

    def engine(
        self, workers: Mailbox, task: Task, strategy: AsyncStrategy, schedule: Schedule
    ) -> Engine:
        """A federation on devices whose slowest is 5 times slower."""
        model = build_model(task, seed=0)
        devices = Fleet(UniformRatio(ratio=5.0, num_clients=self.num_clients))
        return Engine(
            strategy=strategy,
            schedule=schedule,
            clock=VirtualClock(workers, devices, self.num_clients),
            initial=model.read(),
            num_trainable=model.layout.num_trainable,
            stop=Stop(num_versions=1e9),
        )


WORKLOADS = (
    Workload("W1", "lenet", (1, 28, 28), 1000, 32, 32, 1, "gradient", 200),
    Workload("W2", "lenet", (1, 28, 28), 100, 500, 50, 10, "pseudo", 40),
    Workload("W3", "lenet", (3, 32, 32), 20, 500, 50, 50, "pseudo", 8),
    Workload("W4", "resnet18", (3, 32, 32), 20, 512, 32, 1, "gradient", 20),
)
# One client update is ten mini-batches of 16.
TOGETHER = (
    Workload("B1", "logistic", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
    Workload("B2", "mlp", (1, 8, 8), 100, 160, 16, 10, "delta", 1000),
)

Mailer = Callable[[Workload, Task], Mailbox]
"""Makes the mailbox of a workload."""


def in_processes(workload: Workload, task: Task, batch: int = 1) -> Mailbox:
    """As of ``runtime=inprocess``, with a worker for each core, and `batch` orders an operation."""
    trainer = workload.trainer(task)
    whole = BatchTrainer(trainer, batch) if batch > 1 else trainer
    return Workers(whole, cores(), trainer.model.layout.size)


def on_cluster(workload: Workload, task: Task) -> Mailbox:
    """As of ``runtime=ray``, with a worker for each core."""
    connect(None, cores())
    recipe = Recipe(compose(["runtime=ray"]), task, workload.trainer)
    return ClusterMailbox(recipe, disconnects=True)


def cores() -> int:
    """Of this machine, those that this process may use."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Race:
    """Two or three sides that do the same client updates.

    Attributes:
        name: of the race; several may share it.
        workload: what is trained.
        algorithm: "fedavg_k", "fedasync" or "fedbuff".
        sides: by name, the mailbox of a federation; None = a bare loop.
    """

    name: str
    workload: Workload
    algorithm: str
    sides: dict[str, Mailer | None]

    def rules(self) -> tuple[AsyncStrategy, Schedule]:
        """Strategy and schedule; of K-async averaging all clients are at work, and K = 10."""
        match self.algorithm:
            case "fedasync":
                return FedAsync(), fully_async(AT_WORK)
            case "fedbuff":
                return FedBuff(), Buffered(AT_WORK, 10)
        lr = LOCAL_LR * self.workload.steps
        return FedAvgK(server_lr=lr), k_async(10, self.workload.num_clients)


def races(batch: int) -> list[Race]:
    """All races, in some of which `batch` orders are computed in one operation."""
    together = partial(in_processes, batch=batch)
    alone: dict[str, Mailer | None] = {"alone": in_processes, "limit": None}
    both: dict[str, Mailer | None] = {"ours": on_cluster, "inprocess": in_processes}
    return [
        *(Race(w.work, w, "fedavg_k", {"ours": in_processes, "limit": None}) for w in WORKLOADS),
        *(
            Race(w.work, w, algorithm, {"ours": together, **alone})
            for w in TOGETHER
            for algorithm in ("fedasync", "fedbuff")
        ),
        *(Race(f"R{w.work[1:]}", w, "fedavg_k", both) for w in WORKLOADS),
    ]


def compare(run: Race, repeats: int, seconds: float) -> dict[str, Any]:
    """Updates per second of each side, and how many times as many the first has.

    Args:
        run: its sides.
        repeats: of the measurement.
        seconds: of each side in one of them.
    """
    task = run.workload.task()
    prepare_process()  # the bare loop has the allocator of a run, too
    sides: list[Side] = []
    try:
        for mailer in run.sides.values():
            if mailer is None:
                jobs = [partial(loop, run.workload, task, place) for place in range(cores())]
            else:
                jobs = [partial(train, run, task, mailer)]
            sides.append(Side(jobs))
        speeds = race(sides, run.workload.warm_up, repeats, seconds)
    finally:
        for each in sides:
            each.close()
    ours, *others = zip(*speeds, strict=True)
    told = {
        "work": run.name,
        "algorithm": run.algorithm,
        "updates_per_second": round(median(ours), 2),
    }
    for other, theirs in zip([*run.sides][1:], others, strict=True):
        ratios = [one / two for one, two in zip(ours, theirs, strict=True)]
        told[f"{other}_updates_per_second"] = round(median(theirs), 2)
        told[f"ratio_to_{other}"] = round(median(ratios), 3)
        told[f"spread_to_{other}"] = [round(min(ratios), 3), round(max(ratios), 3)]
    return told | {"repeats": repeats, "seconds": seconds, "cores": cores()}


def train(run: Race, task: Task, mailer: Mailer, count: Count) -> None:
    """Run a federation without evaluation until this process is killed; for `Side`."""
    prepare_process()
    mailbox = counted(mailer(run.workload, task), count)
    outcome = run.workload.engine(mailbox, task, *run.rules()).run()
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
