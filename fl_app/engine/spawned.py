"""Worker processes that inherit nothing, such as those that train on GPUs."""

import multiprocessing
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import TypeVar

from fl_app.core.errors import RunError
from fl_app.engine.parcel import Parcel
from fl_app.engine.worker import Equipment, work
from fl_app.engine.workers import Processes

SPAWN = multiprocessing.get_context("spawn")
T = TypeVar("T")


class SpawnedWorkers(Processes):
    """Worker processes that are spawned, and make their trainer themselves, each for its device.

    A process that has begun to use a GPU cannot be forked, and what was forked from it cannot use
    one.

    Args:
        equip: makes a worker's trainer, and what trains several clients in one operation (or None),
            for a device. It is pickled. What it raises ends the run.
        devices: of the workers in turn.
        num_workers: processes, >= 1.
        size: d, entries of a model vector.
        upload_extra: names of the extra vectors of an upload.
        patience: seconds of real time that one order may take.

    Raises:
        ValueError: `equip` cannot be pickled.
    """

    def __init__(
        self,
        equip: Callable[[str], Equipment],
        devices: Sequence[str],
        num_workers: int,
        size: int,
        *,
        upload_extra: Sequence[str] = (),
        patience: float = 600.0,
    ) -> None:
        self._parcel = Parcel(equip)
        self._devices = devices
        super().__init__(num_workers, size, upload_extra=upload_extra, patience=patience)

    def _process(self, place: int, theirs: Connection, ours: Connection) -> BaseProcess:
        del ours  # inherited by nobody
        device = self._devices[place % len(self._devices)]
        equip = partial(_unpacked, self._parcel, device)
        return SPAWN.Process(
            target=work, args=(theirs, (), self._arena, equip, self._upload_extra), daemon=True
        )


def _unpacked(parcel: Parcel, device: str) -> Equipment:
    equipment: Equipment = parcel.open()(device)
    return equipment


def in_spawned_process(function: Callable[[], T]) -> T:
    """What a function returns in a process of its own, which then ends.

    Args:
        function: it is pickled, and so is what it returns.

    Raises:
        ValueError: the function cannot be pickled.
        RunError: the function raised an error, or the process ended.
    """
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_call, args=(Parcel(function), theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        result, error = ours.recv()
    except EOFError:
        result, error = None, "it ended"
    finally:
        ours.close()
        process.join()
    if error:
        raise RunError(f"a process that measures could not: {error}")
    answer: T = result
    return answer


def _call(parcel: Parcel, pipe: Connection) -> None:
    try:
        pipe.send((parcel.open()(), ""))
    except Exception as error:
        pipe.send((None, f"{type(error).__name__}: {error}"))
