"""A federation of processes on one machine: a SuperLink and SuperNodes on loopback.

It uses Flower's commands, as a federation of machines does; only the addresses differ.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

HOST = "127.0.0.1"
COMMANDS = Path(sys.executable).parent
LIMIT = 600.0  # seconds from start to end
GRACE = 10.0  # seconds from SIGTERM to SIGKILL


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
        commands: folder of Flower's commands.
    """

    def __init__(self, folder: Path, limit: float = LIMIT, commands: Path = COMMANDS) -> None:
        self.logs, self.home = folder / "logs", folder / "flower"
        self.logs.mkdir(parents=True)
        self.home.mkdir()
        self._commands = commands
        self._limit = limit
        self._until = time.monotonic() + limit
        self._environment = {
            **os.environ,
            "PATH": f"{commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(self.home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",  # all dependencies are installed
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
        port, *node_ports = free_ports(1 + num_nodes)
        address = f"{HOST}:{port}"
        (self.home / "config.toml").write_text(
            '[superlink]\ndefault = "demo"\n\n'
            f'[superlink.demo]\naddress = "{address}"\ninsecure = true\n'
        )
        link = ["--insecure", "--host", HOST, "--port", str(port)]
        self.spawn("superlink", "flower-superlink", *link)
        while not _listens(port):
            self.wait(0.2)
        print(f"SuperLink on {address}", flush=True)
        more = [node_config] * num_nodes if isinstance(node_config, str) else node_config
        for i, node_port in enumerate(node_ports):
            partition = f"partition-id={i} num-partitions={num_nodes} {more[i]}"
            node = ["--insecure", "--superlink", address, "--host", HOST, "--port", str(node_port)]
            self.spawn(f"node-{i}", *supernode, *node, "--node-config", partition)
        online = 0
        while online < num_nodes:
            self.wait(2.0)  # each question takes core time that the nodes need to start
            try:
                nodes = self.ask("supernode", "list", "demo")["nodes"]
            except FederationError as error:  # the machine is busy while nodes start
                print(f"{error}; asking again", flush=True)
                continue
            joined, online = online, sum(node["status"] == "online" for node in nodes)
            if online > joined:
                print(f"{online} of {num_nodes} SuperNodes online", flush=True)

    def spawn(self, name: str, command: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start one of Flower's commands in its own process group."""
        with self.log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [self._commands / command, *arguments],
                env=self._environment,
                stdin=self._alive,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self._processes[name]

    def ask(self, *arguments: str) -> Any:
        """Return the answer of a ``flwr`` command.

        Raises:
            FederationError: the command failed, or did not answer in time.
        """
        command = [str(self._commands / "flwr"), *arguments, "--format", "json"]
        left = max(self._until - time.monotonic(), 1.0)
        try:
            result = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, timeout=left
            )
        except subprocess.TimeoutExpired:
            raise FederationError(
                f"flwr {' '.join(arguments)}: no answer within {self._limit:g} s",
                self.log("superlink"),
            ) from None
        answer = json.loads(result.stdout or "{}")
        if not answer.get("success"):
            problem = answer.get("error-message") or result.stderr
            raise FederationError(f"flwr {' '.join(arguments)}: {problem}", self.log("superlink"))
        return answer

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
        for ending in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes.values():
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, ending)
            until = time.monotonic() + GRACE
            while time.monotonic() < until and None in [
                process.poll() for process in self._processes.values()
            ]:
                time.sleep(0.05)
        os.close(self._alive)
        ended, _, _ = select.select([self._gone], [], [], GRACE)
        os.close(self._gone)
        return bool(ended)


def free_ports(count: int) -> list[int]:
    """Return `count` different free ports of this machine."""
    with ExitStack() as stack:  # all are bound at the same time, so they differ
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0
