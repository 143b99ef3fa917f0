"""Real nodes on one machine: FedBuff on the wall clock, on a SuperLink and SuperNodes on loopback.

    python -m lab.demo [--nodes 3] [overrides]

It starts the folders of a kit, as on separate machines; only the addresses differ.
"""

import argparse
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from fl_app import Result
from fl_app.cli import compose
from fl_app.core.errors import RunError
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.kit import Kit
from fl_app.field.make import new_kit
from fl_app.field.runs import Supervisor
from lab.faults.link import HOST, Link, free_ports

LIMIT = 600.0  # seconds from start to end
GRACE = 15.0  # seconds from SIGTERM to SIGKILL
TAIL = 25  # lines of a log that are shown after a failure


class Federation:
    """A SuperLink and SuperNodes of a kit, each with its own log.

    Args:
        folder: a new folder for ``logs/``, ``kit/`` and ``run/``.
        nodes: number of SuperNodes.
        limit: seconds from start to end.
        app: folder of the Flower app that runs; None = this project.
        linked: whether every node has a link of its own.

    Attributes:
        kit: the server's folder.
        link: requests to the SuperLink.
        links: of the nodes to the SuperLink.
    """

    _start = 'exec sh "$0"'

    def __init__(
        self,
        folder: Path,
        nodes: int,
        limit: float = LIMIT,
        app: Path | None = None,
        linked: bool = False,
    ) -> None:
        self.folder, self._nodes = folder.resolve(), nodes
        new_kit(self.folder / "kit", nodes=nodes, hosts=[HOST])
        (self.folder / "logs").mkdir()
        (port,) = free_ports(1)
        self.kit = self._kit("server", SUPERLINK=f"{HOST}:{port}")
        self.link = SuperLink(self.kit, app)
        self.links = [Link(port) for _ in range(nodes)] if linked else []
        self._limit, self._until = limit, time.monotonic() + limit
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Every process and its descendants, also those in other process groups, inherit the
        # pipe's write end. The read end reports when the last of them has ended.
        self._gone, self._alive = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        """End every process.

        Raises:
            RunError: one is left.
        """
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # a second one would leave processes
        if not self.stop():
            raise RunError("a process did not end")

    def start(self, node_configs: Sequence[str] = ()) -> None:
        """Start all processes, and wait until all nodes are online.

        Args:
            node_configs: node config of each node beside its partition, such as
                ``state-dir='/path'``; () = none has any.

        Raises:
            RunError: a process ended, or the nodes are not online in time.
        """
        self._spawn("server", self.kit)
        while len(self.statuses()) < self._nodes:  # by start.sh
            self.wait(0.5)
        print(f"SuperLink on {self.kit.address}", flush=True)
        for i, port in enumerate(free_ports(self._nodes)):
            config = f"partition-id={i} num-partitions={self._nodes}"
            if node_configs:
                config += f" {node_configs[i]}"
            address = f"{HOST}:{self.links[i].port}" if self.links else self.kit.address
            settings = {"SUPERLINK": address, "PORT": str(port), "NODE_CONFIG": config}
            self._spawn(f"node-{i}", self._kit(f"node-{i}", **settings))
        online = 0
        while online < self._nodes:
            self.wait(1.0)
            previous, online = online, self.statuses().count("online")
            if online > previous:
                print(f"{online} of {self._nodes} SuperNodes online", flush=True)

    def run(self, output: Path, overrides: Sequence[str]) -> dict[str, Any]:
        """Run an app on the nodes, and show its progress; return its summary.

        Raises:
            RunError: the run or a process failed.
        """
        Supervisor(self.link, pause=self.wait).complete(overrides, output)
        return Result(output).summary

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds, at most one.

        Raises:
            RunError: a process ended, or the federation's time is over.
        """
        time.sleep(min(seconds, 1.0))
        for name, process in self._processes.items():
            if process.poll() is not None:
                tail = self.log(name).splitlines()[-TAIL:]
                raise RunError("\n".join([*tail, f"{name} ended with {process.returncode}"]))
        if time.monotonic() > self._until:
            raise RunError(f"not done within {self._limit:g} s")

    def log(self, name: str) -> str:
        """Output of ``server`` or ``node-<i>``."""
        return (self.folder / "logs" / f"{name}.log").read_text(errors="replace")

    def stop(self) -> bool:
        """End every process and link; return whether no process is left."""
        end(*self._processes.values())
        for link in self.links:
            link.close()
        os.close(self._alive)
        readable, _, _ = select.select([self._gone], [], [], GRACE)
        os.close(self._gone)
        return bool(readable)

    def statuses(self) -> list[str]:
        """Statuses of the nodes; none while the SuperLink starts, or is too busy to answer."""
        with suppress(Unreachable):
            return [*self.link.registered().values()]
        return []

    def _kit(self, name: str, **settings: str) -> Kit:
        return Kit.read(self.folder / "kit" / name, {**os.environ, **settings})

    def _spawn(self, name: str, kit: Kit) -> None:
        with (self.folder / "logs" / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", self._start, str(kit.folder / "start.sh")],
                # The nodes share the cores.
                env={**os.environ, **kit.settings, "VENV": sys.prefix, "OMP_NUM_THREADS": "1"},
                stdin=self._alive,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def new_folder(name: str) -> Path:
    """A folder for a federation's files; afterwards SIGTERM interrupts as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Path(f"outputs/{name}-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()


def wait_for(true: Callable[[], bool], event: str, seconds: float, interval: float = 1.0) -> float:
    """Wait until a condition is true; return the seconds that it took.

    Raises:
        RunError: it is not true in time.
    """
    start = time.monotonic()
    while not true():
        if time.monotonic() - start > seconds:
            raise RunError(f"not within {seconds:g} s: {event}")
        time.sleep(interval)
    return time.monotonic() - start


@contextmanager
def running(command: Sequence[str], **settings: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process that leads its process group; the block's end ends both.

    Args:
        command: and its arguments.
        settings: of `subprocess.Popen`.
    """
    process = subprocess.Popen(
        command,
        **{"stdin": subprocess.DEVNULL, **settings},
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            end(process)


def end(*processes: "subprocess.Popen[bytes]", grace: float = GRACE) -> None:
    """End processes and their process groups, with SIGTERM and then SIGKILL.

    Args:
        processes: each leads its process group.
        grace: seconds from SIGTERM to SIGKILL.
    """
    for ending in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, ending)
        until = time.monotonic() + grace
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - time.monotonic(), 0.0))


def main() -> int:
    """Run the command line; return 0 if the run succeeded, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.demo",
        description="Run FedBuff on a SuperLink and SuperNodes that are processes on this machine.",
    )
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes to start (3)")
    parser.add_argument("overrides", nargs="*", help="more keys, as after `python -m fl_app`")
    arguments = parser.parse_args()
    if arguments.nodes < 1:
        parser.error("--nodes must be at least 1")
    overrides = [
        *("algorithm=fedbuff", "runtime=deployment", "partition=iid", "eval_every=1"),
        *("num_versions=4", f"num_clients={arguments.nodes}"),
        f"algorithm.schedule.concurrency={arguments.nodes}",
        f"algorithm.schedule.buffer_size={min(2, arguments.nodes)}",
        *arguments.overrides,
    ]
    try:
        compose(overrides)
    except ValueError as error:
        parser.error(str(error))
    folder, status = new_folder("superlink-demo"), 1
    try:
        with Federation(folder, arguments.nodes) as federation:
            federation.start()
            summary = federation.run(folder / "run", overrides)
        if summary["failures"]:
            raise RunError(f"{summary['failures']} orders failed")
        print(
            f"{summary['algorithm']} on {arguments.nodes} nodes: "
            f"{summary['num_versions']} versions from {summary['client_updates']} client updates "
            f"in {summary['wall_seconds']:.0f} s, accuracy {summary['final_accuracy']:.1%}, "
            f"mean staleness {summary['mean_staleness']:.1f}, no failures"
        )
        status = 0
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    print(f"Files: {folder}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
