"""Worker processes that inherit nothing, such as those that train on GPUs."""

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from fl_app.engine.parcel import Parcel
from fl_app.engine.worker import Trainer, work
from fl_app.engine.workers import Processes

SPAWN = multiprocessing.get_context("spawn")


class SpawnedWorkers(Processes):
    """Worker processes that are spawned, and make their trainer themselves, each for its device.

    A process that has begun to use a GPU cannot be forked, and what was forked from it cannot use
    one.

    Args:
        equip: makes a worker's trainer for a device. It is pickled. What it raises ends the run.
        devices: of the workers in turn.
        num_workers: processes, >= 1.
        size: d, entries of a model vector.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.
        batch: largest number of orders that a worker computes together, >= 1.

    Raises:
        ValueError: `equip` cannot be pickled.
    """

    def __init__(
        self,
        equip: Callable[[str], Trainer],
        devices: Sequence[str],
        num_workers: int,
        size: int,
        *,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
        batch: int = 1,
    ) -> None:
        self._parcel = Parcel(equip)
        self._devices = devices
        super().__init__(
            num_workers, size, upload_extra=upload_extra, patience=patience, batch=batch
        )

    def _process(self, place: int, theirs: Connection, ours: Connection) -> BaseProcess:
        del ours  # inherited by nobody
        device = self._devices[place % len(self._devices)]
        equip = partial(_unpacked, self._parcel, device)
        return SPAWN.Process(
            target=work, args=(theirs, (), self._arena, equip, self._upload_extra), daemon=True
        )


def _unpacked(parcel: Parcel, device: str) -> Trainer:
    trainer: Trainer = parcel.open()(device)
    return trainer
