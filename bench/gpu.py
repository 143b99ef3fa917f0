"""Ways to train many clients on one device, each in processes of its own, one after the other.

The bare loop is what `bench.limit` does, on the device. A way's ratio is its client updates a
second over those of the loop before it.
"""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import nn

from bench.batches import WORKLOADS as SMALL
from bench.workloads import LOCAL_LR, Workload
from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer
from fl_app.client.batchable import obstacle
from fl_app.client.bounds import GROUPED, UNFOLD
from fl_app.client.build import prepare_process
from fl_app.client.gpus import prepare
from fl_app.core.errors import RunError
from fl_app.core.types import Order
from fl_app.tasks.task import Task
from fl_app.tasks.vision import torchvision

CLIENTS = 100
LOOP = "loop"
SPAWN = multiprocessing.get_context("spawn")


def resnet18_groupnorm(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    """ResNet-18 with 32 groups in place of each batch normalisation."""
    model: nn.Module = torchvision().models.resnet18(
        weights=None, num_classes=num_outputs, norm_layer=partial(nn.GroupNorm, 32)
    )
    return model


# One client update is ten mini-batches of 16.
WORKLOADS = (
    *SMALL,
    Workload("R", f"{__name__}:resnet18_groupnorm", (3, 32, 32), CLIENTS, 160, 16, 10, "delta", 0),
)


@dataclass(frozen=True)
class Way:
    """A way to train.

    Attributes:
        name: in the table.
        processes: that share the device.
        together: clients in one operation; 1 = one at a time.
        convolution: form of the convolutions of clients in one operation.
    """

    name: str
    processes: int = 1
    together: int = 1
    convolution: str = GROUPED


def ways(together: int) -> list[Way]:
    """All that are compared; the bare loop is the first."""
    return [
        Way(LOOP),
        *(Way(f"one at a time, processes: {count}", count) for count in (1, 2, 4)),
        *(Way(f"{together} together, {form}", 1, together, form) for form in (GROUPED, UNFOLD)),
    ]


def measure(
    workload: Workload, device: str, together: int, repeats: int, seconds: float
) -> Iterator[dict[str, Any]]:
    """The lines of one workload's table.

    Args:
        workload: what is trained.
        device: torch device.
        together: clients in one operation.
        repeats: measurements of every way.
        seconds: of each.
    """
    loop = 0.0
    for way in ways(together):
        about = {
            "work": f"{workload.work} on {device}",
            "model": workload.model,
            "way": way.name,
        }
        try:
            rates, memory, told = _measured(workload, way, device, repeats, seconds)
        except RunError as error:
            yield {**about, "failed": str(error)}
            continue
        rate = median(rates)
        loop = loop or rate
        yield {
            **about,
            "updates_per_second": round(rate, 1),
            "limit_updates_per_second": round(loop, 1),
            "ratio": round(rate / loop, 2),
            "spread": [round(min(rates) / loop, 2), round(max(rates) / loop, 2)],
            "device_mb": round(memory / 1e6),
            **({"told": told} if told else {}),
            "name": _name(device),
            "repeats": repeats,
            "seconds": seconds,
        }


def _measured(
    workload: Workload, way: Way, device: str, repeats: int, seconds: float
) -> tuple[list[float], float, str]:
    """Client updates a second, bytes of the device's memory at most, and what a trainer told."""
    start = SPAWN.Barrier(way.processes)
    pipes = []
    processes = []
    for _ in range(way.processes):
        ours, theirs = SPAWN.Pipe(duplex=False)
        arguments = (workload, way, device, repeats, seconds, start, theirs)
        processes.append(SPAWN.Process(target=_train, args=arguments, daemon=True))
        processes[-1].start()
        theirs.close()
        pipes.append(ours)
    try:
        answers = [pipe.recv() for pipe in pipes]
    except EOFError as error:
        raise RunError("a process was killed") from error
    finally:
        for process in processes:
            process.kill()
            process.join()
    if failed := [answer for answer in answers if isinstance(answer, str)]:
        raise RunError(failed[0])
    rates = [sum(each) for each in zip(*(rates for rates, _, _ in answers), strict=True)]
    return rates, sum(memory for _, memory, _ in answers), answers[0][2]


def _train(
    workload: Workload,
    way: Way,
    device: str,
    repeats: int,
    seconds: float,
    start: Any,
    pipe: Any,
) -> None:
    """A process: sends its client updates a second, and what else `_measured` returns."""
    try:
        pipe.send(_rates(workload, way, device, repeats, seconds, start))
    except Exception as error:
        start.abort()
        pipe.send(f"{type(error).__name__}: {error}")


def _rates(
    workload: Workload, way: Way, device: str, repeats: int, seconds: float, start: Any
) -> tuple[list[float], int, str]:
    prepare_process()
    prepare(device)
    trainer = LocalTrainer(
        workload.task(),
        upload=workload.upload,
        batch_size=workload.batch_size,
        local_steps=workload.steps,
        local_lr=LOCAL_LR,
        device=device,
    )
    batch = None
    work: Callable[[], int]
    if way.together > 1:
        if reason := obstacle(trainer):
            raise RunError(f"clients cannot be trained together: {reason}")
        batch = BatchTrainer(trainer, way.convolution)
        work = partial(_several, batch, [*_orders(trainer, way.together)])
    elif way.name == LOOP:
        work = _loop(workload, trainer)
    else:
        work = partial(_one, trainer, _orders(trainer))
    work()
    rates = []
    for _ in range(repeats):
        start.wait()
        done, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            done += work()
        rates.append(done / (now - began))
    memory = torch.cuda.max_memory_allocated() if device.startswith("cuda") else 0
    return rates, memory, "" if batch is None else batch.notice()


def _orders(trainer: LocalTrainer, count: int | None = None) -> Iterator[Order]:
    """Orders of the clients in turn; None = without end."""
    start = trainer.model.read()
    for number in itertools.count() if count is None else range(count):
        yield Order(number, number % CLIENTS, number // CLIENTS, 0, start, {}, 0.0)


def _one(trainer: LocalTrainer, orders: Iterator[Order]) -> int:
    trainer.train(next(orders))
    return 1


def _several(batch: BatchTrainer, orders: list[Order]) -> int:
    uploads = batch.train(orders, [None] * len(orders))
    return len(orders) - uploads.count(None)


def _loop(workload: Workload, trainer: LocalTrainer) -> Callable[[], int]:
    """A client update without a framework: steps of SGD on data that lie on the device."""
    task, model, device = trainer.task, trainer.model, trainer.device
    assert isinstance(task, Task)
    indices = np.random.default_rng(0).permutation(workload.num_clients * workload.examples)
    batches = torch.from_numpy(indices.reshape(-1, workload.batch_size)).to(device)
    module, params, place = model.module.train(), tuple(model.params), 0

    def work() -> int:
        nonlocal place
        for _ in range(workload.steps):
            batch = batches[place % len(batches)]
            place += 1
            loss = task.loss(module(task.inputs[batch]), task.targets[batch])
            grad = torch.autograd.grad(loss, params)
            with torch.no_grad():
                torch._foreach_add_(params, grad, alpha=-LOCAL_LR)
        loss.item()  # waits for the device
        return 1

    return work


def _name(device: str) -> str:
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else device
