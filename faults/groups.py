"""Groups of faults: each is injected into one federation and one run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from faults import garbage
from faults.disks import missing
from faults.doors import NOT_ALLOWED, other_version, second_device, stranger
from faults.field import NODES
from faults.full import COUNTING, node_disk_full, restored, server_disk_full
from faults.injections import (
    SECONDS,
    UPDATES,
    Injection,
    bad_updates,
    client_app_hangs,
    client_app_killed,
    duplicates,
    late,
    latency,
    link_cut,
    node_killed,
    server_killed,
    slow_uplink,
    upload_disturbed,
)

ALL = range(NODES)
CYCLE = 8.5  # least seconds of an order: the client sleeps for 8
EACH = 2  # updates in a version
BENCH_AFTER = 4  # refused replies of a client
UNTESTED = {
    "packet-loss": "needs netem in the kernel: a proxy in user space works above TCP, which "
    "resends lost packets, so a loss would only be more latency"
}


@dataclass(frozen=True)
class Group:
    """Faults of one run.

    Attributes:
        name: of the group.
        keys: whether its federation has certificates and keys.
        deadline: of an order, seconds.
        estimate: expected duration in seconds, from which the number of versions is computed.
        injections: in the order in which they happen.
        real: index of the node that trains; None = no node.
        nodes: how many there are.
        more: overrides of the run, beside those of every group.
        disks: name of a folder of the kit -> MiB of a disk of its own.
        server: settings of the server.
        missing: says why the faults cannot be injected on this machine; "" = they can.
    """

    name: str
    keys: bool
    deadline: float
    estimate: float
    injections: Sequence[Injection]
    real: int | None = None
    nodes: int = NODES
    more: Sequence[str] = ()
    disks: Mapping[str, int] = field(default_factory=dict)
    server: Mapping[str, str] = field(default_factory=dict)
    missing: Callable[[], str] = lambda: ""

    @property
    def faults(self) -> list[str]:
        """Names of the faults."""
        return [name for injection in self.injections for name in injection.names]

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of the run."""
        versions = round(self.estimate * self.nodes / CYCLE / EACH)
        concurrency = f"algorithm.schedule.concurrency={self.nodes}"
        return [
            *("algorithm=fedbuff", "runtime=deployment", "partition=iid"),
            f"num_clients={self.nodes}",
            *("task=synthetic", "task.model=lenet", "task.num_examples=500", "task.num_test=100"),
            *(concurrency, f"algorithm.schedule.buffer_size={EACH}"),
            *("algorithm.client.local_epochs=1", "eval_every=1000", "checkpoint_every=1"),
            *(f"num_versions={versions}", f"deadline={self.deadline}", "tensorboard=false"),
            *("guard.max_norm_ratio=10", "guard.max_examples=100000"),
            *self.more,
        ]

    def only(self, names: Sequence[str]) -> "Group":
        """This group with only the faults in `names`."""
        chosen = []
        for injection in self.injections:
            if set(injection.names) <= UPDATES.keys():
                kinds = [name for name in injection.names if name in names]
                chosen += [bad_updates(kinds, injection.nodes)] if kinds else []
            elif set(injection.names) & set(names):
                chosen.append(injection)
        spent = self.estimate * len(chosen) / len(self.injections)
        return replace(self, injections=chosen, estimate=spent)


GROUPS = (
    Group(
        "clients",
        keys=False,
        deadline=40.0,
        estimate=420.0,
        injections=[
            bad_updates(list(UPDATES), nodes=[3, 4]),
            late(1, seconds=50.0),
            client_app_hangs(2),
            duplicates(3),
            upload_disturbed(0),
            node_killed(4, "node-killed-without-key"),
        ],
    ),
    Group(
        "links",
        keys=False,
        deadline=60.0,
        estimate=360.0,
        injections=[
            latency(1, seconds=0.2, count=3),
            slow_uplink(2, seconds=20.0, count=2),
            link_cut(3, seconds=90.0),
        ],
    ),
    Group(
        "processes",
        keys=True,
        deadline=80.0,
        estimate=420.0,
        real=0,
        injections=[
            client_app_killed(1),
            node_killed(2, "node-killed"),
            server_killed("server-app-killed", "flwr-serverapp", ALL),
            server_killed("superlink-killed", "fl_app.field.superlink", ALL),
        ],
    ),
    Group(
        "doors",
        keys=True,
        deadline=60.0,
        estimate=240.0,
        nodes=3,
        server={"NODE_VERSIONS": NOT_ALLOWED},
        injections=[other_version(0), stranger(), second_device(1)],
    ),
    Group(
        "disks",
        keys=True,
        deadline=80.0,
        estimate=420.0,
        nodes=3,
        real=0,
        more=[COUNTING],
        disks={"server": 256, "node-0": 256},
        missing=missing,
        injections=[node_disk_full(0), restored(0), server_disk_full([0, 1, 2], seconds=70.0)],
    ),
    Group(
        "garbage",
        keys=True,
        deadline=90.0,
        estimate=140.0,  # most nodes are benched soon
        nodes=garbage.NODES,
        more=[f"guard.bench_after={BENCH_AFTER}"],
        injections=[garbage.garbage(seconds=60.0)],
    ),
)

QUICK = (
    Group(
        "quick",
        keys=False,
        deadline=40.0,
        estimate=240.0,
        injections=[
            bad_updates(list(UPDATES), nodes=[2, 3, 4]),
            client_app_killed(1),
            link_cut(2, seconds=20.0),
            node_killed(3, "node-killed-without-key"),
            server_killed("superlink-killed", "fl_app.field.superlink", ALL),
        ],
    ),
)

__all__ = ["GROUPS", "QUICK", "SECONDS", "UNTESTED", "Group"]
