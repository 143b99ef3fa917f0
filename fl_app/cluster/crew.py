"""The workers of a run: they come up on machines with room, and others take their places."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from fl_app.cluster.facts import Facts, difference, facts
from fl_app.cluster.machines import Cluster, Lost, Machine, Outcome
from fl_app.cluster.parcels import Packed
from fl_app.core.errors import RunError

log = logging.getLogger(__name__)

REFRESH = 1.0  # seconds between two looks at the machines
MOST_STARTS = 3  # of workers that are lost on a machine one after the other before they can train
PAUSE = 1.0  # seconds before the second of these, twice as many before the next
NO_WORKER_SECONDS = 60.0  # that a run waits once all workers are lost


@dataclass(eq=False)
class Member:
    """A worker.

    Attributes:
        handle: of the cluster.
        machine: id of its machine.
        introduced: whether it has a place, and fits to this process.
        gone: whether it was lost; what it still says does not count.
    """

    handle: Any
    machine: str
    introduced: bool = False
    gone: bool = False


class Crew:
    """Starts workers, prepares them, and replaces those that are lost.

    Results of calls come from other threads. They wait in `inbox` as functions without arguments,
    and whoever owns the crew calls these one after the other.

    Args:
        cluster: has the machines.
        setup: packed `fl_app.cluster.worker.Setup`.
        task: gives the task for machines without the data; it is put into the store once.
        num_workers: on all machines; None = as many as there is room for, also on machines that
            join later.
        shares: runs that share the machines, each with a crew of its own; without `num_workers`,
            every crew takes its share of the room.
        start_seconds: real seconds within which a worker must have its place at the start.
        patience: real seconds that a worker may take to load the data.
        monotonic: tells real time.
    """

    def __init__(
        self,
        cluster: Cluster,
        setup: Packed,
        task: Callable[[], Packed],
        num_workers: int | None = None,
        *,
        shares: int = 1,
        start_seconds: float = 20.0,
        patience: float = 600.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._setup = setup
        self._pack_task = task
        self._task: Any = None  # in the store
        self._num_workers = num_workers
        self._shares = shares
        self._start_seconds = start_seconds
        self._patience = patience
        self._monotonic = monotonic
        self._here = facts()
        self._machines: Mapping[str, Machine] = {}
        self._next_look = -math.inf
        self._starting = True
        self._starts: Counter[str] = Counter()  # by machine, that failed one after the other
        self._not_before: dict[str, float] = {}  # by machine
        self._left_out: dict[str, str] = {}  # machine -> why no worker is started there
        self._processors: set[str] = {self._here.processor}
        self._without_since: float | None = None
        self._last_reason = ""
        self._task_bytes = 0
        self.inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.members: list[Member] = []
        self.ready: list[Member] = []  # those that accept orders

    def gather(self) -> None:
        """Wait until the first workers have their places, and one of them is ready.

        Raises:
            ValueError: no machine has room for a worker, or one has other versions.
            RunError: no worker came up.
        """
        began = self._monotonic()
        self.look()
        if not self.members:
            offers = ", ".join(f"{m.name} has {m.has}" for m in self._machines.values())
            raise ValueError(
                "runtime.cpus_per_worker or runtime.gpus_per_worker is more than any machine of "
                f"the cluster has, so no worker can be placed ({offers or 'no machine is there'}): "
                "lower them, or let a larger machine join"
            )
        while not all(member.introduced for member in self.members) or not self.members:
            left = began + self._start_seconds - self._monotonic()
            if left <= 0:
                break
            self._wait(left)
        missing = [member for member in self.members if not member.introduced]
        if len(missing) == len(self.members):
            raise RunError(self._nobody())
        if missing:
            log.warning(
                "runtime=ray: %d of %d workers have no place yet: other jobs of the cluster may "
                "hold the processors; they join as soon as there is room",
                len(missing),
                len(self.members),
            )
        while not self.ready:
            left = began + self._patience - self._monotonic()
            if left <= 0:
                raise RunError(f"no worker was ready to train after {self._patience:g} s")
            self._wait(left)
        self._starting = False
        machines = Counter(self._machines[member.machine].name for member in self.members)
        places = ", ".join(f"{count} on {name}" for name, count in machines.items())
        log.info("runtime=ray: %d workers: %s", len(self.members), places)

    def look(self) -> list[Member]:
        """Start workers where there is room; returns those whose machines are gone.

        Raises:
            RunError: there has been no worker for too long.
        """
        now = self._monotonic()
        if now < self._next_look:
            return []
        self._next_look = now + REFRESH
        self._machines = self._cluster.machines()
        lost = [member for member in self.members if member.machine not in self._machines]
        for member in lost:
            self.lose(member, "its machine is gone")
        self._fill(now)
        self._give_up(now)
        return lost

    def _fill(self, now: float) -> None:
        """Start workers on the machines that have fewest of them."""
        wanted = self._num_workers
        if wanted is None:
            room = sum(machine.room for machine in self._machines.values())
            wanted = max(room // self._shares, 1)
        counts = Counter(member.machine for member in self.members)
        free = {
            machine: about.room - counts[machine]
            for machine, about in self._machines.items()
            if machine not in self._left_out and now >= self._not_before.get(machine, now)
        }
        while len(self.members) < wanted:
            open_to = [machine for machine, room in free.items() if room > 0]
            if not open_to:
                break
            machine = min(open_to, key=lambda each: (counts[each], each))
            counts[machine] += 1
            free[machine] -= 1
            self._start(machine)

    def seconds_to_look(self) -> float:
        """Until the next look does something."""
        return max(self._next_look - self._monotonic(), 0.0)

    def lose(self, member: Member, reason: str) -> None:
        """Take a worker out of the crew; another takes its place with the next look."""
        if member.gone:
            return
        member.gone = True
        self.members.remove(member)
        self._cluster.kill(member.handle)
        self._last_reason = reason
        self._next_look = -math.inf
        machine = self._machines.get(member.machine)
        where = machine.name if machine else "a machine that is gone"
        log.warning("runtime=ray: a worker on %s is lost: %s", where, reason)
        if member in self.ready:
            self.ready.remove(member)
            return
        self._starts[member.machine] += 1
        starts = self._starts[member.machine]
        self._not_before[member.machine] = self._monotonic() + PAUSE * 2 ** (starts - 1)
        if starts >= MOST_STARTS:
            self._leave_out(member.machine, f"{starts} workers were lost there: {reason}")

    def close(self) -> None:
        """End all workers, and the connection."""
        for member in self.members:
            member.gone = True
            self._cluster.kill(member.handle)
        self.members.clear()
        self.ready.clear()
        self._task = None
        self._cluster.close()

    # -- the start of a worker --------------------------------------------------------------------

    def call(
        self, member: Member, then: Callable[[Outcome], None], method: str, *arguments: Any
    ) -> None:
        """Call a method of a worker; `then` gets the outcome through the inbox."""

        def received(outcome: Outcome) -> None:
            self.inbox.put(partial(then, outcome))

        self._cluster.call(member.handle, method, *arguments, then=received)

    def _start(self, machine: str) -> None:
        # Once a machine is left out, no worker may come up there by chance.
        handle = self._cluster.start(machine, strictly=bool(self._left_out))
        member = Member(handle, machine)
        self.members.append(member)
        self.call(member, partial(self._introduced, member), "introduce")

    def _introduced(self, member: Member, outcome: Outcome) -> None:
        if member.gone or not self._succeeded(member, outcome):
            return
        there: Facts = outcome
        if there.machine in self._machines:
            member.machine = there.machine
        name = self._machines[member.machine].name
        if differs := difference(self._here, there):
            self._refuse(
                member,
                f"{name} has {differs}: results would differ, or objects not be understood; "
                "install the same there, or run on machines that have it",
            )
            return
        if there.processor not in self._processors:
            self._processors.add(there.processor)
            log.warning(
                "runtime=ray: %s has another processor (%s) than this machine (%s): results may "
                "differ in their last bits from those of a run on equal processors",
                *(name, there.processor, self._here.processor),
            )
        member.introduced = True
        self.call(member, partial(self._prepared, member, False), "prepare", self._setup)

    def _prepared(self, member: Member, sent: bool, outcome: Outcome) -> None:
        """The worker has the data, or says why not; `sent` = it was sent them."""
        if member.gone or not self._succeeded(member, outcome):
            return
        if not outcome:
            self.ready.append(member)
            self._without_since = None
            self._starts[member.machine] = 0
            return
        name, store = (getattr(self._machines[member.machine], k) for k in ("name", "store_bytes"))
        if sent:
            self._refuse(member, f"{name} cannot use the data that it was sent: {outcome}")
            return
        if self._task is None:
            packed = self._pack_task()
            self._task_bytes = len(packed[0]) + sum(buffer.nbytes for buffer in packed[1])
            self._task = self._cluster.put(packed)
        if self._task_bytes > store:
            self._refuse(
                member,
                f"{name} has an object store of {store / 1e6:.0f} MB, and the data take "
                f"{self._task_bytes / 1e6:.0f} MB: start it with `ray start "
                f"--object-store-memory={2 * self._task_bytes}`, or put the data there",
            )
            return
        log.info("runtime=ray: %s gets the data: %s", name, outcome)
        self.call(member, partial(self._prepared, member, True), "prepare", self._setup, self._task)

    def _succeeded(self, member: Member, outcome: Outcome) -> bool:
        if isinstance(outcome, Lost):
            self.lose(member, str(outcome))
        elif isinstance(outcome, Exception):
            name = self._machines[member.machine].name
            self._refuse(member, f"a worker on {name} cannot be prepared: {outcome}")
        return not isinstance(outcome, Exception)

    def _refuse(self, member: Member, reason: str) -> None:
        """End the run that has not begun; later, leave out the machine.

        Raises:
            RunError: the run has not begun.
        """
        if self._starting:
            raise RunError(reason)
        self._leave_out(member.machine, reason)
        self.lose(member, reason)

    def _leave_out(self, machine: str, reason: str) -> None:
        if machine not in self._left_out:
            self._left_out[machine] = reason
            log.warning("runtime=ray: a machine gets no more workers: %s", reason)

    # -- no worker --------------------------------------------------------------------------------

    def _wait(self, seconds: float) -> None:
        with suppress(Empty):
            self.inbox.get(timeout=min(seconds, self.seconds_to_look()))()
        self.look()

    def _give_up(self, now: float) -> None:
        """End the run if nobody can carry it on.

        Raises:
            RunError: no worker is left, and none comes.
        """
        if self.ready:
            self._without_since = None
            return
        if not self.members and self._machines and self._left_out.keys() >= self._machines.keys():
            raise RunError(self._nobody())
        if self._without_since is None:
            self._without_since = now
        elif not self._starting and now - self._without_since >= NO_WORKER_SECONDS:
            raise RunError(
                f"no worker was there for {NO_WORKER_SECONDS:g} s ({self._last_reason}): let "
                "machines join the cluster, and go on with resume=auto"
            )

    def _nobody(self) -> str:
        reasons = "; ".join(dict.fromkeys(self._left_out.values())) or self._last_reason
        if reasons:
            return (
                f"no worker stays alive ({reasons}): free memory on the machines, or give "
                "runtime.workers a lower number, so that fewer of them share it"
            )
        offers = ", ".join(f"{m.name} has {m.has}" for m in self._machines.values())
        return (
            f"no worker got a place within {self._start_seconds:g} s ({offers}): other jobs of the "
            "cluster hold the processors (`ray status` shows them): end these, or lower "
            "runtime.cpus_per_worker or runtime.workers"
        )
