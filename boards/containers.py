"""Parts ``containers``, ``memory``, ``on-torch``: the federation in containers."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from boards import images
from boards.kits import ONLINE, make_kit, online, own, told
from boards.podman import Container, Podman
from boards.row import Disappointed, Row, attempt, wait_for
from fl_app.core.events import Arrived
from fl_app.record.log import read_events

PART = "containers"
NODES = 2
SERVER = "superlink"  # a name that the server's certificate always has
RUN = [
    *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment", "eval_every=5"),
    *(f"num_clients={NODES}", "deadline=300", "checkpoint_every=1", "num_versions=8"),
    "algorithm.schedule.buffer_size=1",
]
TOGETHER = f"algorithm.schedule.concurrency={NODES}"
IN_TURN = ["algorithm.schedule.concurrency=1", "seed=7"]
LONG = ["num_versions=null", "max_seconds=180"]  # a node that died is missed for up to 75 s
LENET = [
    *("task=synthetic", "task.model=lenet", "task.num_examples=400", "task.num_test=100"),
    "num_versions=4",
]
NO_TORCH = {"node-1": images.SMALL}
SECONDS = 900.0  # that a run may take
BACK = 300.0  # seconds after its death in which a node must have trained again
# A federation of processes: the same kit and the same commands, in one container. With two devices,
# which of them is given an order would depend on which was there first.
PROCESSES = """
set -e
python -m fl_app.field keep /kit/node-0 >/kit/node-0/log 2>&1 &
python -m fl_app.field keep /kit/server >/kit/server/log 2>&1 &
until [ "$(python -c "$1" /kit/server)" = 1 ]; do sleep 1; done
shift
exec python -m fl_app.field run /kit/server "$@"
"""


def first(podman: Podman) -> list[tuple[str, Callable[[], str]]]:
    """What every part tries first: the base and the images on it."""
    return [
        ("a base made of Debian's packages", partial(images.make_base, podman)),
        ("docker/Dockerfile", partial(images.build, podman)),
    ]


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        field = Field(podman, work)
        yield from attempt(
            PART,
            [
                *first(podman),
                ("the kit in containers of 1 GiB", partial(field.federate, "1g")),
                ("a node that is killed comes back", field.kill),
                ("one order at a time: the same model as that of processes", field.compare),
            ],
        )


def run_small(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried with little memory.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        field = Field(podman, work)
        yield from attempt(
            "memory",
            [
                *first(podman),
                ("docker/Dockerfile, TORCH=none", partial(images.build_small, podman)),
                *(
                    (
                        f"LeNet in containers of {memory} MiB, node-1 without torch",
                        partial(field.federate, f"{memory}m", NO_TORCH, LENET),
                    )
                    for memory in (400, 512)
                ),
            ],
        )


def run_on_torch(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried on a base with a torch of its own.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        field = Field(podman, work)
        yield from attempt(
            "on-torch",
            [
                *first(podman),
                (
                    "docker/Dockerfile on a base with a torch",
                    partial(images.build_on_torch, podman),
                ),
                ("the kit on it", partial(field.federate, "1g", {"node-0": images.ON_TORCH})),
            ],
        )


class Field:
    """A federation of containers in a network of their own.

    Args:
        podman: that runs them.
        work: folder for the kit.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._kit = work / "kit"
        self._processes = work / "processes"
        self._containers: dict[str, Container] = {}

    def federate(
        self, memory: str, others: Mapping[str, str] = {}, words: Sequence[str] = ()
    ) -> str:
        """Start the federation and complete a run.

        Args:
            memory: of each node, as ``podman run --memory`` takes it. The server has 1 GiB.
            others: images of nodes, by name, if not that of a device with torch.
            words: of the run, beside `RUN`.
        """
        self._start(memory, others)
        run = self._complete(f"run-{memory}-{len(others)}", [TOGETHER, *words])
        nodes = [
            f"{name}: at most {each.peak():.0f} MiB with caches, {each.killed()} processes killed "
            f"for memory"
            for name, each in self._containers.items()
            if name != "server"
        ]
        return "; ".join([told(run), *nodes])

    def kill(self) -> str:
        """Kill a node in the middle of a run."""
        run = self._kit / "server" / "run-killed"
        self._begin(run, [TOGETHER, *LONG])
        wait_for(lambda: arrivals(run, 1) > 0, "node 1 has trained", SECONDS)
        self._containers["node-1"].crash()
        before = arrivals(run, 1)
        seconds = wait_for(lambda: arrivals(run, 1) > before, "node 1 has trained again", BACK)
        wait_for((run / "summary.json").exists, "the run ends", SECONDS)
        return f"trained again {seconds:.0f} s after its death; {told(run)}"

    def compare(self) -> str:
        """Give one device one order at a time: in a container, and as a process."""
        words = [*RUN, *IN_TURN]
        self._start("1g", nodes=1)
        ours = self._complete("run-in-turn", IN_TURN) / "model.npz"
        self._podman.once(
            images.SUPERLINK,
            *("sh", "-c", PROCESSES, "sh", ONLINE, *words),
            options=["--init", f"--add-host={SERVER}:127.0.0.1", *mounted(self._processes)],
            seconds=SECONDS,
        )
        theirs = self._processes / "server" / "run" / "model.npz"
        if ours.read_bytes() != theirs.read_bytes():
            raise Disappointed(f"{ours} differs from {theirs}")
        return f"{ours.stat().st_size} equal bytes"

    def _start(self, memory: str, others: Mapping[str, str] = {}, nodes: int = NODES) -> None:
        """Start it anew with the first nodes, and wait until they are online."""
        if not self._kit.exists():
            make_kit(self._kit, SERVER, nodes=NODES)
            shutil.copytree(self._kit, self._processes)
            for folder in (self._kit, self._processes):
                own(folder)
        self._podman.clear()
        self._containers = {}
        network = self._podman.network()
        for name in ("server", *(f"node-{i}" for i in range(nodes))):
            server = name == "server"
            self._containers[name] = self._podman.start(
                name,
                images.SUPERLINK if server else others.get(name, images.SUPERNODE),
                options=[
                    *("--init", "--restart=unless-stopped", network),
                    *("--memory", "1g" if server else memory),
                    *([f"--network-alias={SERVER}"] if server else []),
                    *mounted(self._kit / name),
                ],
            )
        link = self._containers["server"]
        wait_for(lambda: online(link, "/kit") == nodes, "all nodes are online", 400.0, every=3.0)

    def _begin(self, run: Path, words: Sequence[str]) -> None:
        """Begin a run, whose folder is `run` on this machine."""
        self._containers["server"].ask(*typed(run, words), options=["--detach"])

    def _complete(self, name: str, words: Sequence[str]) -> Path:
        """Complete a run; return its folder on this machine."""
        run = self._kit / "server" / name
        self._containers["server"].ask(*typed(run, words), seconds=SECONDS)
        return run


def typed(run: Path, words: Sequence[str]) -> list[str]:
    """The command of a run."""
    output = ["--output", f"/kit/{run.name}", "/kit"]
    return ["python", "-m", "fl_app.field", "run", *output, *RUN, *words]


def arrivals(run: Path, client: int) -> int:
    """How many updates of a client have arrived."""
    events = read_events(run / "events.jsonl")
    return sum(isinstance(event, Arrived) and event.client == client for event in events)


def mounted(folder: Path) -> list[str]:
    """Options for a container whose folder of the kit is `folder`."""
    return [f"--volume={folder}:/kit"]
