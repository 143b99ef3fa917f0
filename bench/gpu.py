"""Ways to train many clients on one device, each in processes of its own, one after the other.

The bare loop is what `bench.limit` does, on the device. A way's ratio is its client updates a
second over those of the loop before it.

Steps of clients together may be compiled (`torch.compile`): forward and backward pass, with mode
"reduce-overhead" as CUDA graphs on a GPU. That is no option of a run, because a compiled form is
made for one shape. Clients with unequal numbers of examples have hundreds of shapes, each compiled
for seconds; and with one form for several shapes, or torch's limit of 8, the last bits of a result
would depend on which shapes its process had seen before.
"""

import itertools
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bench.batches import WORKLOADS as SMALL
from bench.workloads import LOCAL_LR, Workload
from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer, Losses
from fl_app.client.batchable import obstacle
from fl_app.client.build import prepare_process
from fl_app.client.gpus import prepare
from fl_app.client.settings import BFLOAT16, FLOAT32, GROUPED, UNFOLD
from fl_app.core.errors import RunError
from fl_app.core.types import Order
from fl_app.tasks.task import Task
from fl_app.tasks.vision import torchvision

CLIENTS = 100
LOOP = "bare loop"
# Modes of torch.compile, by their names in the table.
MODES = {"compiled": "default", "CUDA graphs": "reduce-overhead"}
PATIENCE = 300.0  # seconds for the preparation of a way; compilation takes up to a minute or two
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
        mode: of `torch.compile` for clients in one operation; "" = their steps are not compiled.
        precision: of products.
    """

    name: str
    processes: int = 1
    together: int = 1
    convolution: str = GROUPED
    mode: str = ""
    precision: str = FLOAT32


def ways(together: int) -> list[Way]:
    """All that are compared; the bare loop is the first.

    Args:
        together: clients in one operation.
    """
    many = f"{together} together"
    half = max(2, together // 2)
    return [
        Way(LOOP),
        *(Way(f"one at a time, processes: {count}", count) for count in (1, 2, 4)),
        Way("one at a time, bfloat16", precision=BFLOAT16),
        Way(f"{half} together, grouped, processes: 2", 2, half),
        *(
            Way(
                ", ".join(filter(None, (many, form, name, low))), 1, together, form, mode, precision
            )
            for form in (GROUPED, UNFOLD)
            for low, precision in (("", FLOAT32), (BFLOAT16, BFLOAT16))
            for name, mode in (("", ""), *MODES.items())
        ),
    ]


COLUMNS = ("", "model", "way", "updates/s", "of the bare loop", "from - to", "device MB", "note")


def table(
    workloads: Sequence[Workload], device: str, together: int, repeats: int, seconds: float
) -> Iterator[str]:
    """The lines of a table in Markdown, each when it is known; of each workload the fastest way.

    A way that cannot be measured has a line that says why.

    Args:
        workloads: what is trained.
        device: torch device.
        together: clients in one operation.
        repeats: measurements of every way.
        seconds: of each.
    """
    yield f"{_name(device)}, torch {torch.__version__}, {repeats} times {seconds:g} s of each way\n"
    yield _row(COLUMNS)
    yield _row(["---"] * len(COLUMNS))
    fastest = []
    for workload in workloads:
        loop, best, name = 0.0, 0.0, ""
        for way in ways(together):
            about = (workload.work, workload.model.rpartition(":")[2], way.name)
            try:
                rates, memory, told = _measured(workload, way, device, repeats, seconds)
            except RunError as error:
                reason = " ".join(str(error).split()).replace("|", "/")
                yield _row((*about, "", "", "", "", f"failed: {reason[:300]}"))
                continue
            rate = median(rates)
            loop = rate if way.name == LOOP else loop
            if rate > best:
                best, name = rate, way.name
            compared = ("", "")
            if loop:
                compared = (
                    f"{rate / loop:.2f}",
                    f"{min(rates) / loop:.2f} - {max(rates) / loop:.2f}",
                )
            yield _row((*about, f"{rate:.1f}", *compared, f"{memory / 1e6:.0f}", told))
        if best:
            times = f", {best / loop:.2f} times the bare loop" if loop else ""
            fastest.append(f"{workload.work}: fastest is {name}{times}")
    yield "\n" + "\n".join(fastest)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


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
        end = time.monotonic() + PATIENCE + 2 * repeats * seconds
        for pipe in pipes:
            if not pipe.poll(max(0.0, end - time.monotonic())):
                raise RunError(f"no answer after {PATIENCE:g} s beside the measurements")
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
    # Else torch compiles in further processes, which would outlive one that is killed.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    prepare_process()
    prepare(device)
    trainer = LocalTrainer(
        workload.task(),
        upload=workload.upload,
        batch_size=workload.batch_size,
        local_steps=workload.steps,
        local_lr=LOCAL_LR,
        device=device,
        precision=way.precision,
    )
    batch = None
    work: Callable[[], int]
    if way.together > 1:
        if reason := obstacle(trainer):
            raise RunError(f"clients cannot be trained together: {reason}")
        batch = BatchTrainer(trainer, way.convolution)
        if way.mode:
            batch.losses = compiled(batch.losses, mode=way.mode)
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


def compiled(losses: Losses, **options: Any) -> Losses:
    """The same losses, whose forward and backward pass are compiled for every shape they get.

    What torch cannot compile as a whole is an error.

    Args:
        losses: of stacked models.
        options: of `torch.compile`.
    """
    function = torch.compile(losses, dynamic=False, fullgraph=True, **options)

    def marked(params: Sequence[Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        # What a graph returned before is not used any more.
        torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        return function(params, inputs, target)

    return marked


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
    task, model, device = trainer.task, trainer.model, trainer.processor.device
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
