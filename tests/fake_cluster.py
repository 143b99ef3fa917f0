"""A cluster in this process: every call is carried out at once, or never, as a test says."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from fl_app.cluster.crew import Crew
from fl_app.cluster.facts import Facts
from fl_app.cluster.machines import Lost, Machine, Outcome
from fl_app.cluster.mailbox import ClusterMailbox
from fl_app.cluster.parcels import Packed, pack_object
from fl_app.cluster.results import Results
from fl_app.cluster.versions import Versions
from fl_app.cluster.worker import ClusterWorker
from fl_app.engine.worker import Trainer
from fl_app.engine.workers import Inline

NEVER = object()
"""In place of an outcome: there is none."""


@dataclass
class Stored:
    """A reference to a copy of what was put into the store."""

    value: Any


class FakeWorker(ClusterWorker):
    """A worker with a trainer of the test.

    Attributes:
        machine: id of its machine.
        dead: whether it was killed.
    """

    def __init__(self, cluster: "FakeCluster", machine: str) -> None:
        super().__init__()
        self.machine = machine
        self.dead = False
        self._cluster = cluster

    def introduce(self) -> Facts:
        told = self._cluster.told.get(self.machine, {})
        return replace(super().introduce(), machine=self.machine, **told)

    def prepare(self, packed: Packed, task: Packed | None = None) -> str:
        self._cluster.prepared.append((self.machine, task is not None))
        if self.machine in self._cluster.without_data and task is None:
            return "no such file"
        self._inline = Inline(self._cluster.trainer)
        return ""


class FakeCluster:
    """A `fl_app.cluster.machines.Cluster`.

    Args:
        trainer: of all workers.
        rooms: of the machines, by their ids.
        fate: of a call, from the worker, the method and the number of calls before: None = it is
            carried out, else the outcome.

    Attributes:
        told: what the facts of a machine's workers are instead.
        without_data: machines.
        busy: machines whose processors others hold, and where workers come up instead.
        prepared: machine of every preparation, and whether the data came along.
        work: parcels of every call to work.
        puts: references to everything that was put into the store.
    """

    def __init__(
        self,
        trainer: Trainer,
        rooms: Mapping[str, int] | None = None,
        fate: Callable[[FakeWorker, str, int], Any] = lambda worker, method, number: None,
    ) -> None:
        self.trainer = trainer
        self.rooms = dict({"a": 2} if rooms is None else rooms)
        self.fate = fate
        self.told: dict[str, dict[str, Any]] = {}
        self.without_data: set[str] = set()
        self.busy: dict[str, str] = {}
        self.prepared: list[tuple[str, bool]] = []
        self.work: list[Any] = []
        self.puts: list[Stored] = []
        self.workers: list[FakeWorker] = []
        self.closed = False
        self._number = 0

    def machines(self) -> Mapping[str, Machine]:
        return {
            name: Machine(name, room, 10**9, f"{room} CPUs") for name, room in self.rooms.items()
        }

    def start(self, machine: str, *, strictly: bool) -> FakeWorker:
        elsewhere = None if strictly else self.busy.get(machine)
        self.workers.append(FakeWorker(self, elsewhere or machine))
        return self.workers[-1]

    def call(
        self, worker: FakeWorker, method: str, *arguments: Any, then: Callable[[Outcome], None]
    ) -> None:
        fate = self.fate(worker, method, self._number)
        self._number += 1
        if method == "work":
            self.work.append((worker, arguments[0]))
        if worker.dead:
            then(Lost("it was killed before"))
        elif fate is None:
            found = [
                each.value if isinstance(each, Stored) else deepcopy(each) for each in arguments
            ]
            then(getattr(worker, method)(*found))
        elif fate is not NEVER:
            then(fate)

    inline_bytes = 0

    def put(self, value: Any) -> Stored:
        self.puts.append(Stored(deepcopy(value)))
        return self.puts[-1]

    def kill(self, worker: FakeWorker) -> None:
        worker.dead = True

    def close(self) -> None:
        self.closed = True


def mailbox_over(
    cluster: FakeCluster, num_workers: int | None = None, *, patience: float = 60.0, **more: Any
) -> ClusterMailbox:
    """A mailbox whose workers are those of the cluster; `more` is for `Crew`."""
    crew = Crew(cluster, pack_object("setup"), lambda: pack_object("task"), num_workers, **more)
    versions = Versions(cluster.put, 10**9, cluster.inline_bytes)
    mailbox = ClusterMailbox(crew, versions, Results(10**9, 0), patience=patience)
    mailbox.pull(0.0)  # until all workers are ready
    return mailbox
