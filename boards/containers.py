"""Part ``containers``: the kit's federation, with every process in a container of its own."""

import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from boards import images
from boards.podman import PROJECT, Container, Podman, ask
from boards.row import Disappointed, Row, attempt, wait_for
from fl_app.core.events import Arrived, Event
from fl_app.record.log import read_events

PART = "containers"
NODES = 2
SERVER = "superlink"  # a name that the server's certificate always has
UID = 1000  # the images' user, who owns the folders
RUN = [
    *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment", "eval_every=5"),
    *(f"num_clients={NODES}", "deadline=300", "checkpoint_every=1", "num_versions=8"),
    "algorithm.schedule.buffer_size=1",
]
TOGETHER = f"algorithm.schedule.concurrency={NODES}"
IN_TURN = ["algorithm.schedule.concurrency=1", "seed=7"]
LONG = ["num_versions=null", "max_seconds=240"]  # a node that died is missed for up to 75 s
SECONDS = 900.0  # that a run may take
BACK = 300.0  # seconds after its death in which a node must have trained again
# A federation of processes: the same kit and the same commands, in one container.
PROCESSES = """
set -e
for node in /kit/node-*; do python -m fl_app.field keep "$node" >"$node/log" 2>&1 & done
python -m fl_app.field keep /kit/server >/kit/server/log 2>&1 &
until [ "$(python -c "$1" /kit/server)" = "$2" ]; do sleep 1; done
shift 2
exec python -m fl_app.field run /kit/server "$@"
"""
# How many nodes are online; the SuperLink may not listen yet.
ONLINE = """
import sys
from pathlib import Path
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.kit import Kit
try:
    print(SuperLink(Kit.read(Path(sys.argv[1]))).online())
except Unreachable:
    print(0)
"""


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
                ("a base made of Debian's packages", partial(images.make_base, podman)),
                ("docker/Dockerfile", partial(images.build, podman)),
                ("the kit in containers of 1 GiB", partial(field.federate, "1g")),
                ("a node that is killed comes back", field.kill),
                ("one order at a time: the same model as that of processes", field.compare),
            ],
        )
        yield from attempt(
            PART, [("nodes in containers of 512 MiB", partial(field.federate, "512m"))]
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

    def federate(self, memory: str) -> str:
        """Start the federation and complete a run.

        Args:
            memory: of each node, as ``podman run --memory`` takes it. The server has 1 GiB.
        """
        self._start(memory)
        run = self._complete(f"run-{memory}", [TOGETHER])
        peaks = [f"{name} {each.peak():.0f} MiB" for name, each in self._containers.items()]
        return f"{told(run)}; most memory, with caches: {', '.join(peaks)}"

    def kill(self) -> str:
        """Kill a node in the middle of a run."""
        run = self._kit / "server" / "run-killed"
        self._containers["server"].ask(
            *("python", "-m", "fl_app.field", "run", "--output", f"/kit/{run.name}", "/kit"),
            *(*RUN, TOGETHER, *LONG),
            options=["--detach"],
        )

        def arrivals() -> int:
            events = read_events(run / "events.jsonl")
            return sum(isinstance(event, Arrived) and event.client == 1 for event in events)

        wait_for(lambda: arrivals() > 0, "node 1 has trained", SECONDS)
        self._containers["node-1"].crash()
        before = arrivals()
        seconds = wait_for(lambda: arrivals() > before, "node 1 has trained again", BACK)
        wait_for((run / "summary.json").exists, "the run ends", SECONDS)
        return f"trained again {seconds:.0f} s after its death; {told(run)}"

    def compare(self) -> str:
        """Give one order at a time: to containers, and to processes."""
        words = [*RUN, *IN_TURN]
        self._start("1g")
        ours = self._complete("run-in-turn", IN_TURN) / "model.npz"
        self._podman.once(
            images.SUPERLINK,
            *("sh", "-c", PROCESSES, "sh", ONLINE, NODES, *words),
            options=["--init", f"--add-host={SERVER}:127.0.0.1", *mounted(self._processes)],
            seconds=SECONDS,
        )
        theirs = self._processes / "server" / "run" / "model.npz"
        if ours.read_bytes() != theirs.read_bytes():
            raise Disappointed(f"{ours} differs from {theirs}")
        return f"{ours.stat().st_size} equal bytes"

    def _start(self, memory: str) -> None:
        """Start it anew, and wait until all nodes are online."""
        if not self._kit.exists():
            make_kit(self._kit, SERVER)
            shutil.copytree(self._kit, self._processes)
            for folder in (self._kit, self._processes):
                own(folder)
        self._podman.clear()
        network = self._podman.network()
        for name in ("server", *(f"node-{i}" for i in range(NODES))):
            server = name == "server"
            self._containers[name] = self._podman.start(
                name,
                images.SUPERLINK if server else images.SUPERNODE,
                options=[
                    *("--init", "--restart=unless-stopped", network),
                    *("--memory", "1g" if server else memory),
                    *([f"--network-alias={SERVER}"] if server else []),
                    *mounted(self._kit / name),
                ],
            )
        wait_for(self._all_online, "all nodes are online", 400.0, every=3.0)

    def _all_online(self) -> bool:
        said = self._containers["server"].ask("python", "-c", ONLINE, "/kit")
        return said.strip() == str(NODES)

    def _complete(self, name: str, words: Sequence[str]) -> Path:
        """Complete a run; return its folder on this machine."""
        self._containers["server"].ask(
            *("python", "-m", "fl_app.field", "run", "--output", f"/kit/{name}", "/kit"),
            *(*RUN, *words),
            seconds=SECONDS,
        )
        return self._kit / "server" / name


def make_kit(out: Path, host: str, *words: str, nodes: int = NODES) -> None:
    """Write a kit with the project's command.

    Args:
        out: new folder.
        host: name of the server.
        words: further options of ``init``.
        nodes: number of devices.
    """
    command = [sys.executable, "-m", "fl_app.field", "init", f"--nodes={nodes}"]
    ask([*command, f"--host={host}", *words, str(out)], cwd=PROJECT, seconds=300)


def own(folder: Path) -> None:
    """Give a folder to the images' user."""
    ask(["chown", "-R", f"{UID}:{UID}", str(folder)])


def mounted(folder: Path) -> list[str]:
    """Options for a container whose folder of the kit is `folder`."""
    return [f"--volume={folder}:/kit"]


def told(run: Path) -> str:
    """What a run came to.

    Raises:
        Disappointed: it did not end as it should.
    """
    summary = json.loads((run / "summary.json").read_text())
    if summary["stopped"] not in ("num_versions", "max_seconds"):
        raise Disappointed(f"{run} stopped with {summary['stopped']}")
    events: list[Event] = list(read_events(run / "events.jsonl"))
    arrived = [event for event in events if isinstance(event, Arrived)]
    if not arrived:
        raise Disappointed(f"no update arrived in {run}")
    return (
        f"{summary['num_versions']} versions from {len(arrived)} updates in "
        f"{events[-1].t:.0f} s, {summary['failures']} failures"
    )
