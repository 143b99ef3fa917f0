"""Real nodes on one machine: FedBuff on the wall clock, on a SuperLink and SuperNodes on loopback.

    python -m fl_app.field.demo [--nodes 3] [--versions 4] [overrides]

It uses Flower's commands, as a federation of machines does; only the addresses differ. The nodes
are warm, unless WARM=0 in the environment (`fl_app.node.warm`).

``flwr run`` exits with 0 even if the ServerApp crashed. The demo therefore checks the run's status
and the summary that the run wrote.
"""

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from fl_app.core.events import to_json
from fl_app.field.control import COMMANDS, SuperLink, Unreachable
from fl_app.field.kit import OFFLINE, Kit
from fl_app.field.processes import HOST, end, free_ports
from fl_app.record.log import Log

APP = Path(__file__).resolve().parents[2]  # where pyproject.toml lies
LIMIT = 600.0  # seconds from start to end
GRACE = 10.0  # seconds from SIGTERM to SIGKILL
TAIL = 25  # lines of a log that are shown after a failure
# Keys of an event that are printed.
SHOWN = ("client", "version", "base_version", "age", "accuracy", "reason")


class FederationError(Exception):
    """The federation or its run failed; `log` is the log of the process concerned."""

    def __init__(self, reason: str, log: Path) -> None:
        super().__init__(reason)
        self.log = log


class Federation:
    """Flower's processes, each with its own log.

    Args:
        folder: a new folder for ``logs/``, ``flower/`` (Flower's home) and ``run/``.
        limit: seconds from start to end.

    Attributes:
        address: of the SuperLink, which Flower's commands know as ``demo``.
        link: requests to it.
    """

    def __init__(self, folder: Path, limit: float = LIMIT) -> None:
        self.logs, self.home = folder / "logs", folder / "flower"
        self.logs.mkdir(parents=True)
        self.home.mkdir()
        self.address = f"{HOST}:{free_ports(1)[0]}"
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "demo"\n\n'
            f'[superlink.demo]\naddress = "{self.address}"\ninsecure = true\n'
        )
        self.link = SuperLink(Kit(folder, "server", {"SUPERLINK": self.address, "INSECURE": "1"}))
        self._limit = limit
        self._until = time.monotonic() + limit
        self._environment = {
            **os.environ,
            "PATH": f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(self.home),
            **OFFLINE,
            "OMP_NUM_THREADS": "1",  # the nodes share this machine's cores
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # Every process and its descendants, also those in other process groups, inherit the
        # pipe's write end. The read end reports the end of the last of them.
        self._gone, self._alive = os.pipe()

    def start(
        self,
        num_nodes: int,
        node_config: str | Sequence[str] = "",
        supernode: Sequence[str] = ("flower-supernode",),
    ) -> None:
        """Start a SuperLink and `num_nodes` SuperNodes, and wait until all are online.

        Args:
            num_nodes: number of SuperNodes.
            node_config: node config beside the partition, such as ``state-dir='/path'``; of all
                nodes, or one for each.
            supernode: the command that starts a node, without its arguments.

        Raises:
            FederationError: a process ended, or the nodes are not online in time.
        """
        port = self.address.rpartition(":")[2]
        self.spawn("superlink", "flower-superlink", "--insecure", "--host", HOST, "--port", port)
        while self.online() is None:
            self.wait(0.5)
        print(f"SuperLink on {self.address}", flush=True)
        more = [node_config] * num_nodes if isinstance(node_config, str) else node_config
        for i, own in enumerate(free_ports(num_nodes)):
            partition = f"partition-id={i} num-partitions={num_nodes} {more[i]}"
            node = ["--insecure", "--superlink", self.address, "--host", HOST, "--port", str(own)]
            self.spawn(f"node-{i}", *supernode, *node, "--node-config", partition)
        online = 0
        while online < num_nodes:
            self.wait(1.0)
            joined, online = online, self.online() or 0
            if online > joined:
                print(f"{online} of {num_nodes} SuperNodes online", flush=True)

    def online(self) -> int | None:
        """How many nodes are online; None while the SuperLink starts, or is too busy to answer."""
        with suppress(Unreachable):
            return self.link.online()
        return None

    def spawn(self, name: str, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of Flower's commands in its own process group."""
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [COMMANDS / command, *arguments],
                env=self._environment,
                stdin=self._alive,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._processes[name]

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.logs / f"{name}.log"

    def wait(self, seconds: float) -> None:
        """Wait for a number of seconds.

        Raises:
            FederationError: the SuperLink or a node ended, or the federation's time is over.
        """
        time.sleep(seconds)
        for name, process in self._processes.items():
            if name != "run" and process.poll() is not None:
                raise FederationError(f"{name} ended with {process.returncode}", self.log(name))
        if time.monotonic() > self._until:
            last = list(self._processes)[-1]
            raise FederationError(f"not done within {self._limit:g} s", self.log(last))

    def stop(self) -> bool:
        """End every process; return whether none is left."""
        end(*self._processes.values(), grace=GRACE)
        os.close(self._alive)
        ended, _, _ = select.select([self._gone], [], [], GRACE)
        os.close(self._gone)
        return bool(ended)


def run_on(
    federation: Federation, output: Path, overrides: Sequence[str], app: Path = APP
) -> dict[str, Any]:
    """Run an app on the federation's nodes and print its events.

    Returns:
        The run's summary.

    Raises:
        FederationError: the run failed.
    """
    words = " ".join(overrides)
    print(f"flwr run . demo --run-config \"overrides='{words}'\"", flush=True)
    run_config = f"overrides={json.dumps(words)} output={json.dumps(str(output))}"
    run = federation.spawn(
        "run", "flwr", "run", str(app), "demo", "--stream", "--run-config", run_config
    )
    events = Log(output / "events.jsonl")
    while run.poll() is None:
        federation.wait(0.5)
        _print(events)
    _print(events)
    log = federation.log("run")
    if run.returncode:
        raise FederationError("`flwr run` could not submit the run", log)
    status, details = federation.link.status(max(federation.link.runs()))
    if status != "finished:completed":
        raise FederationError(f"the run is {status}: {details}", log)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    return summary


def main() -> int:
    """Run the command line; return 0 if the run succeeded, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(
        prog="python -m fl_app.field.demo",
        description="Run FedBuff on a SuperLink and SuperNodes that are processes on this machine.",
    )
    parser.add_argument("--nodes", type=int, default=3, help="SuperNodes to start (3)")
    parser.add_argument("--versions", type=int, default=4, help="model versions to publish (4)")
    parser.add_argument("overrides", nargs="*", help="more keys, as after `python -m fl_app`")
    arguments = parser.parse_args()
    if arguments.nodes < 1 or arguments.versions < 1:
        parser.error("--nodes and --versions must be at least 1")
    overrides = [
        *("algorithm=fedbuff", "runtime=deployment", "partition=iid", "eval_every=1"),
        f"num_clients={arguments.nodes}",
        f"num_versions={arguments.versions}",
        f"algorithm.schedule.concurrency={arguments.nodes}",
        f"algorithm.schedule.buffer_size={min(2, arguments.nodes)}",
        *arguments.overrides,
    ]
    folder = Path(f"outputs/superlink-demo-{time.strftime('%Y-%m-%d-%H-%M-%S')}").resolve()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    federation = Federation(folder)
    status = 1
    try:
        federation.start(arguments.nodes, supernode=[sys.executable, "-m", "fl_app.node.warm"])
        summary = run_on(federation, folder / "run", overrides)
        if summary["failures"]:
            reason = f"{summary['failures']} orders failed"
            raise FederationError(reason, federation.log("run"))
        print(
            f"{summary['algorithm']} on {arguments.nodes} nodes: "
            f"{summary['num_versions']} versions from {summary['client_updates']} client updates "
            f"in {summary['wall_seconds']:.0f} s, accuracy {summary['final_accuracy']:.1%}, "
            f"mean staleness {summary['mean_staleness']:.1f}, no failures"
        )
        status = 0
    except FederationError as error:
        text = error.log.read_text(errors="replace") if error.log.exists() else ""
        print(f"--- the end of {error.log}", *text.splitlines()[-TAIL:], sep="\n", file=sys.stderr)
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        status = 130
    finally:
        for disturbance in (signal.SIGINT, signal.SIGTERM):
            signal.signal(disturbance, signal.SIG_IGN)  # a second one would leave processes
        if not federation.stop():
            print("error: a process did not end", file=sys.stderr)
            status = 1
        shutil.rmtree(federation.home, ignore_errors=True)
        print(f"Files: {folder}", flush=True)
    return status


def _print(events: Log) -> None:
    """Print the events that are new since the last call."""
    for event in events.read():
        flat = to_json(event)
        what = "  ".join(f"{key} {_short(flat[key])}" for key in SHOWN if key in flat)
        print(f"{event.t:7.1f} s  {event.kind:10} {what}", flush=True)


def _short(value: Any) -> Any:
    return f"{value:.3f}" if isinstance(value, float) else value


if __name__ == "__main__":
    sys.exit(main())
