"""Groups of faults: each is injected into one federation and one run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lab.faults.field import NODES
from lab.faults.injections import (
    SECONDS,
    UPDATES,
    Injection,
    bad_updates,
    client_app_hangs,
    client_app_killed,
    late,
    link_cut,
    node_killed,
    server_killed,
    slow_uplink,
    upload_disturbed,
)

ALL = range(NODES)
CYCLE = 8.5  # least seconds of an order: the client sleeps for 8
EACH = 2  # updates in a version


@dataclass(frozen=True)
class Group:
    """Faults of one run.

    Attributes:
        name: of the group.
        keys: whether its federation has certificates and keys.
        deadline: of an order, seconds.
        estimate: expected duration in seconds, from which the number of versions is computed.
        injections: in the order in which they happen.
    """

    name: str
    keys: bool
    deadline: float
    estimate: float
    injections: Sequence[Injection]

    @property
    def faults(self) -> list[str]:
        """Names of the faults."""
        return [name for injection in self.injections for name in injection.names]

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of the run."""
        versions = round(self.estimate * NODES / CYCLE / EACH)
        concurrency = f"algorithm.schedule.concurrency={NODES}"
        return [
            *("algorithm=fedbuff", "runtime=deployment", "partition=iid"),
            f"num_clients={NODES}",
            *("task=synthetic", "task.model=lenet", "task.num_examples=500", "task.num_test=100"),
            *(concurrency, f"algorithm.schedule.buffer_size={EACH}"),
            *("algorithm.client.local_epochs=1", "eval_every=1000", "checkpoint_every=1"),
            *(f"num_versions={versions}", f"deadline={self.deadline}", "tensorboard=false"),
            *("guard.max_norm_ratio=10", "guard.max_examples=100000"),
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
        estimate=360.0,
        injections=[
            bad_updates(list(UPDATES), nodes=[3, 4]),
            late(1, seconds=50.0),
            client_app_hangs(2),
            upload_disturbed(0),
        ],
    ),
    Group(
        "links",
        keys=False,
        deadline=60.0,
        estimate=240.0,
        injections=[slow_uplink(2, seconds=20.0, count=2), link_cut(3, seconds=90.0)],
    ),
    Group(
        "processes",
        keys=True,
        deadline=80.0,
        estimate=420.0,
        injections=[
            client_app_killed(1),
            node_killed(2, "node-killed"),
            server_killed("server-app-killed", "flwr-serverapp", ALL),
            server_killed("superlink-killed", "flower-superlink", ALL),
        ],
    ),
)

__all__ = ["GROUPS", "SECONDS", "Group"]
