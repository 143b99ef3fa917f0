"""Client updates per second of the engine and of the limit, in turns of half a second each.

Both stay alive all the time, and whoever is not measured is frozen. So they meet the same weather
on a noisy machine, nothing is warmed up twice, and an update that a turn interrupts goes on in the
next one: what is counted are completions, whenever the engine gets round to them in virtual time.
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from bench.limit import Limit
from bench.processes import cpu_seconds, freeze, pss_mb, thaw
from bench.workloads import Workload
from fl_app.client.build import prepare_process
from fl_app.core.errors import RunError
from fl_app.core.types import Reply
from fl_app.engine.workers import Trainer, Workers
from fl_app.record.history import History

TURN = 0.5  # seconds


@dataclass
class Tally:
    """What one side did in the turns of a repeat."""

    updates: float = 0.0
    seconds: float = 0.0
    cpu: float = 0.0

    @property
    def speed(self) -> float:
        """Client updates per second."""
        return self.updates / self.seconds

    @property
    def cost(self) -> float:
        """Milliseconds of processor time per client update, of all processes."""
        return self.cpu / self.updates * 1e3


class MeasureOver(RunError):
    """Ends the engine's run."""


class Metered(Workers):
    """Workers that report how many orders were completed, as soon as they are.

    Args:
        trainer: as for `Workers`.
        num_workers: as for `Workers`.
        size: as for `Workers`.
        on_completion: called with the number of replies that came in.
    """

    def __init__(
        self, trainer: Trainer, num_workers: int, size: int, on_completion: Callable[[int], None]
    ) -> None:
        super().__init__(trainer, num_workers, size)
        self._on_completion = on_completion

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        replies = list(super().pull(timeout))
        self._on_completion(len(replies))
        return replies


class Race:
    """Runs engine and limit in turns, driven by the engine's completions.

    Args:
        workload: what is raced on.
        repeats: paired measurements.
        seconds: how long each side runs in one of them.
    """

    def __init__(
        self, workload: Workload, repeats: int, seconds: float, *, same_allocator: bool = False
    ) -> None:
        self._workload = workload
        self._same_allocator = same_allocator
        self._repeats = repeats
        self._seconds = seconds
        self._completed = 0
        self._turn: Tally | None = None  # where the engine stood when its turn began
        self.results: list[tuple[Tally, Tally]] = []
        self.memory: dict[str, float] = {}

    def run(self, num_processes: int) -> None:
        """Fill `results`, engine's and limit's tally for every repeat, and `memory`."""
        task = self._workload.task()
        # First, for the plain limit is to know nothing of how a run prepares its process.
        if self._same_allocator:
            prepare_process()
        self._limit = Limit(self._workload, task, num_processes)
        try:
            prepare_process()
            trainer = self._workload.trainer(task)
            workers = Metered(
                trainer, num_processes, trainer.model.layout.size, self._on_completion
            )
            children = {child.pid for child in multiprocessing.active_children() if child.pid}
            self._workers = sorted(children - set(self._limit.pids))
            while self._limit.updates() < num_processes:
                time.sleep(0.1)
            freeze(self._limit.pids)
            history = History()
            outcome = self._workload.engine(workers, task, sinks=[history]).run()
            if not isinstance(outcome.error, MeasureOver):
                raise outcome.error or KeyboardInterrupt
            if history.failures or history.rejected:
                raise RunError(f"{history.failures} failures, {history.rejected} rejected updates")
        finally:
            self._limit.close()

    def _on_completion(self, count: int) -> None:
        self._completed += count
        if self._turn is None:
            if self._completed >= self._workload.warm_up:
                self.results.append((Tally(), Tally()))
                self._turn = self._standing()
        elif time.perf_counter() - self._turn.seconds >= TURN:
            ours, theirs = self.results[-1]
            _add(ours, self._turn, self._standing())
            freeze(self._workers)
            self._run_limit(theirs)
            if ours.seconds >= self._seconds:
                if len(self.results) == self._repeats:
                    self._limit.close()
                    self.memory = pss_mb([os.getpid(), *self._workers])
                    raise MeasureOver
                self.results.append((Tally(), Tally()))
            thaw(self._workers)
            self._turn = self._standing()

    def _run_limit(self, tally: Tally) -> None:
        pids = self._limit.pids
        before = Tally(self._limit.updates(), time.perf_counter(), cpu_seconds(pids))
        thaw(pids)
        time.sleep(TURN)
        freeze(pids)
        after = Tally(self._limit.updates(), time.perf_counter(), cpu_seconds(pids))
        _add(tally, before, after)

    def _standing(self) -> Tally:
        cpu = cpu_seconds([os.getpid(), *self._workers])
        return Tally(self._completed, time.perf_counter(), cpu)


def _add(tally: Tally, before: Tally, after: Tally) -> None:
    tally.updates += after.updates - before.updates
    tally.seconds += after.seconds - before.seconds
    tally.cpu += after.cpu - before.cpu


def measure(
    workload: Workload, repeats: int, seconds: float, same_allocator: bool
) -> dict[str, Any]:
    """One line of the benchmark: the medians over `repeats` paired measurements.

    Args:
        workload: what to measure.
        repeats: paired measurements.
        seconds: of each side in one of them.
        same_allocator: give the limit the allocator settings of a run, too; a run's own setting of
            them (`fl_app.client.build.prepare_process`) then counts for nothing.
    """
    cores = len(os.sched_getaffinity(0))
    race = Race(workload, repeats, seconds, same_allocator=same_allocator)
    race.run(cores)
    ratios = [ours.speed / theirs.speed for ours, theirs in race.results]
    overheads = [ours.cost - theirs.cost for ours, theirs in race.results]
    return {
        "work": workload.work,
        "limit": "same allocator" if same_allocator else "plain",
        "updates_per_second": round(median(ours.speed for ours, _ in race.results), 2),
        "limit_updates_per_second": round(median(theirs.speed for _, theirs in race.results), 2),
        "ratio": round(median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "cpu_ms_per_update": round(median(ours.cost for ours, _ in race.results), 3),
        "limit_cpu_ms_per_update": round(median(theirs.cost for _, theirs in race.results), 3),
        "overhead_ms_per_update": round(median(overheads), 3),
        "rss_mb": round(race.memory["Pss"]),
        "rss_is": "proportional set size of engine and workers",
        "repeats": repeats,
        "seconds": seconds,
        "cores": cores,
    }
