"""What is measured: four sorts of client update on synthetic data, and a crowd of clients."""

from dataclasses import dataclass
from typing import Any

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.client import LocalTrainer, initial_vector
from fl_app.devices import Fleet, UniformRatio
from fl_app.engine.clock import Mailbox
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.schedule import Schedule, k_async
from fl_app.strategy import AsyncStrategy
from fl_app.tasks.made import Synthetic
from fl_app.tasks.partition import Iid
from fl_app.tasks.task import Task

# Small steps and loud noise: no loss comes near 0 however long the measurement takes, for numbers
# next to 0 (denormal ones) would slow down whoever trained more.
LOCAL_LR = 1e-3
NOISE = 5.0


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
        """The data of all clients; seconds of work and some hundred MB."""
        kind = Synthetic(
            model=self.model,
            shape=self.shape,
            num_examples=self.num_clients * self.examples,
            noise=NOISE,
        )
        return kind(partition=Iid(), num_clients=self.num_clients)

    def trainer(self, task: Task) -> LocalTrainer:
        """The client half."""
        return LocalTrainer(
            task,
            upload=self.upload,
            batch_size=self.batch_size,
            local_steps=self.steps,
            local_lr=LOCAL_LR,
        )

    def engine(
        self,
        workers: Mailbox,
        task: Task,
        *,
        strategy: AsyncStrategy | None = None,
        schedule: Schedule | None = None,
        **more: Any,
    ) -> Engine:
        """K-async federated averaging, K = 10, on devices whose slowest is 5 times slower."""
        initial, layout = initial_vector(task, seed=0)
        devices = Fleet(UniformRatio(ratio=5.0, num_clients=self.num_clients))
        return Engine(
            strategy=strategy or FedAvgK(server_lr=LOCAL_LR * self.steps),
            schedule=schedule or k_async(10, self.num_clients),
            clock=VirtualClock(workers, devices, self.num_clients),
            initial=initial,
            num_trainable=layout.num_trainable,
            **{"stop": Stop(num_versions=1e9), **more},
        )


WORKLOADS = (
    Workload("W1", "lenet", (1, 28, 28), 1000, 32, 32, 1, "gradient", 200),
    Workload("W2", "lenet", (1, 28, 28), 100, 500, 50, 10, "pseudo", 40),
    Workload("W3", "lenet", (3, 32, 32), 20, 500, 50, 50, "pseudo", 8),
    Workload("W4", "resnet18", (3, 32, 32), 20, 512, 32, 1, "gradient", 20),
)
CROWD = Workload("M", "lenet", (1, 28, 28), 10_000, 4, 4, 1, "delta", 0)
CROWD_AT_WORK = 1000
