"""The limit: as many processes as cores, each a bare torch loop on one thread, no framework."""

import ctypes
import multiprocessing
from itertools import cycle

import numpy as np
import torch
from torch.nn import functional as F

from fl_app.client.flat import FlatModel
from fl_app.tasks.task import Task
from lab.bench.workloads import LOCAL_LR, Workload

Counters = ctypes.Array[ctypes.c_ulonglong]


class Limit:
    """Processes that do nothing but SGD on the workload's batches.

    Args:
        workload: what is trained.
        task: its data, inherited through fork.
        num_processes: one per core.
    """

    def __init__(self, workload: Workload, task: Task, num_processes: int) -> None:
        context = multiprocessing.get_context("fork")
        self._steps_per_update = workload.steps
        self._steps = context.RawArray(ctypes.c_ulonglong, num_processes)
        self._processes = [
            context.Process(target=_loop, args=(workload, task, self._steps, place), daemon=True)
            for place in range(num_processes)
        ]
        for process in self._processes:
            process.start()

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.pid is not None]

    def updates(self) -> float:
        """Client updates done so far; a step is a fraction of one."""
        return sum(self._steps) / self._steps_per_update

    def close(self) -> None:
        """End the processes at once."""
        for process in self._processes:
            process.kill()
            process.join()


def _loop(workload: Workload, task: Task, steps: Counters, place: int) -> None:
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
        steps[place] += 1
