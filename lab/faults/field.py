"""A federation on one machine, under the supervisors of the edge kit; every node has a link."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fl_app.core.errors import RunError
from fl_app.core.events import Arrived, Event
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.kit import Kit
from fl_app.field.make import new_kit
from fl_app.field.processes import end
from fl_app.field.runs import Supervisor
from fl_app.record.log import read_events
from lab.faults.link import HOST, Link, Way, free_ports

APP = Path(__file__).with_name("app")
NODES = 5
PATIENCE = 240.0  # seconds to wait for anything


class Disappointed(Exception):
    """An expected event did not happen."""


class Field:
    """A SuperLink and SuperNodes, each kept running by ``python -m fl_app.field keep``.

    Args:
        folder: new; for the kit, the nodes' instructions and the logs.
        nodes: number of SuperNodes.
    """

    def __init__(self, folder: Path, nodes: int = NODES) -> None:
        self.folder = folder.resolve()
        self.links: list[Link] = []
        self._nodes = nodes
        self._keepers: dict[str, subprocess.Popen[bytes]] = {}
        self._leaving = threading.Event()

    def start(self, *, keys: bool) -> None:
        """Start all processes, and wait until all nodes are online.

        Args:
            keys: whether there are certificates, and a key for every node. Otherwise connections
                are not encrypted, and any node may join.

        Raises:
            Disappointed: the nodes are not online in time.
        """
        self.folder.mkdir(parents=True)
        port, link, *node_ports = free_ports(2 + self._nodes)
        kit, superlink = self.folder / "kit", {"SUPERLINK": f"{HOST}:{link}"}
        reached = port if shutil.which("caddy") else link
        new_kit(
            kit,
            nodes=self._nodes,
            hosts=[HOST],
            port=port,
            insecure=not keys,
        )
        self.give(range(self._nodes), seconds=0.0)
        self._keep("server", superlink)
        self._control = SuperLink(Kit.read(kit / "server", superlink), app=APP)
        for node, node_port in enumerate(node_ports):
            self.links.append(Link(reached))
            config = (
                f"partition-id={node} num-partitions={self._nodes} orders='{self._orders(node)}'"
            )
            mine = {"SUPERLINK": f"{HOST}:{self.links[node].port}", "PORT": str(node_port)}
            self._keep(f"node-{node}", {**mine, "NODE_CONFIG": config})
        wait_for(lambda: self.online() == self._nodes, f"{self._nodes} nodes are online")

    def kit(self, name: str) -> Path:
        """A folder of the kit."""
        return self.folder / "kit" / name

    def online(self) -> int:
        """How many nodes are online."""
        try:
            return self._control.online()
        except Unreachable:
            return 0

    def give(self, nodes: Sequence[int], *, seconds: float, faults: Sequence[str] = ()) -> None:
        """Set how long the next orders of nodes take, and which faults they have."""
        for node in nodes:
            path = self._orders(node)
            draft = path.with_suffix(".new")
            draft.write_text(json.dumps({"seconds": seconds, "faults": [*faults]}))
            draft.replace(path)

    def done(self, node: int) -> list[dict[str, object]]:
        """The notes of a node's client, one for every order that it began."""
        path = self._orders(node).with_suffix(".done")
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def processes(self, where: str, name: str) -> list[psutil.Process]:
        """Processes of ``server`` or ``node-<i>`` whose command line holds `name`."""
        home = str(self.folder / "kit" / where / "flower")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if (
                    any(name in word for word in process.cmdline())
                    and process.environ().get("FLWR_HOME") == home
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def log(self, name: str) -> str:
        """Output of a supervised process."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def mend(self) -> None:
        """Remove the faults of every link."""
        for link in self.links:
            link.up, link.down = Way(), Way()
            link.restore()

    def submit(self, overrides: Sequence[str], output: Path) -> "Run":
        """Start a run under a supervisor; returns when the first update has arrived."""
        return Run(self, self._control, self._pause, overrides, output.resolve())

    def stop(self) -> bool:
        """End all processes; returns False if one had to be killed."""
        self._leaving.set()
        for name, keeper in self._keepers.items():
            for process in self.processes(name, ""):
                with suppress(psutil.Error):
                    process.send_signal(signal.SIGCONT)
            keeper.send_signal(signal.SIGTERM)
        for keeper in self._keepers.values():
            end(keeper)
        for link in self.links:
            link.close()
        try:
            wait_for(
                lambda: not any(self.processes(name, "") for name in self._keepers),
                "all have ended",
                20.0,
            )
        except Disappointed:
            for name in self._keepers:
                for process in self.processes(name, ""):
                    process.kill()
            return False
        return True

    def _orders(self, node: int) -> Path:
        return self.folder / f"orders-{node}.json"

    def _keep(self, name: str, settings: Mapping[str, str]) -> None:
        environment = {
            **os.environ,
            **settings,
            "OMP_NUM_THREADS": "1",  # the nodes share this machine's cores
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self._keepers[name] = subprocess.Popen(
                [sys.executable, "-m", "fl_app.field", "keep", str(self.folder / "kit" / name)],
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _pause(self, seconds: float) -> None:
        if self._leaving.wait(seconds):
            raise RunError("the federation is being ended")


class Run:
    """A run under a supervisor in a thread, which submits it until it has ended.

    Args:
        field: in which it runs.
        link: the SuperLink.
        pause: sleeps for a number of seconds.
        overrides: as of ``python -m fl_app``.
        output: folder of the run.
    """

    def __init__(
        self,
        field: Field,
        link: SuperLink,
        pause: Callable[[float], None],
        overrides: Sequence[str],
        output: Path,
    ) -> None:
        self.field = field
        self.output = output
        self._offset = float("inf")  # the run's second 0 on this machine's clock
        self._problems: list[BaseException] = []
        self._told = ""
        supervisor = Supervisor(link, pause=pause, tell=self._tell)

        def complete() -> None:
            try:
                supervisor.complete(overrides, output)
            except BaseException as error:  # raised in the main thread
                self._problems.append(error)

        self._thread = threading.Thread(target=complete, daemon=True)
        self._thread.start()
        self.until(lambda: any(isinstance(e, Arrived) for e in self.events()), "an update arrives")

    def events(self) -> list[Event]:
        """The event log so far."""
        events = list(read_events(self.output / "events.jsonl"))
        if events:
            self._offset = min(self._offset, time.monotonic() - events[-1].t)
        return events

    def now(self) -> float:
        """Seconds on the run's clock."""
        self.events()
        return time.monotonic() - self._offset

    def answered(self) -> set[int]:
        """Clients with at least one arrived update."""
        return {event.client for event in self.events() if isinstance(event, Arrived)}

    def submitted(self) -> int:
        """How often the supervisor has submitted the run."""
        return self._told.count(" submitted: ")

    def until(self, true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        """Wait until a condition is true.

        Raises:
            Disappointed: it is not true in time, or the run failed.
        """

        def settled() -> bool:
            self.events()
            if true():
                return True
            if not self._thread.is_alive():
                raise Disappointed(f"the run ended before {what}: {self._problems}")
            return False

        wait_for(settled, what, seconds)

    def wait(self, seconds: float) -> None:
        """Wait for so many seconds, or until the run ends."""
        until = time.monotonic() + seconds
        with suppress(Disappointed):
            self.until(lambda: time.monotonic() > until, "time has passed")

    def finish(self) -> None:
        """Wait for the end of the run.

        Raises:
            Disappointed: the run failed, or its log does not grow any more.
        """
        known, since = 0, time.monotonic()
        while self._thread.is_alive():
            self._thread.join(1.0)
            if (told := len(self.events())) != known:
                known, since = told, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise Disappointed(f"nothing happened for {PATIENCE:g} s")
        if self._problems:
            raise Disappointed(f"the run failed: {self._problems[0]}")

    def _tell(self, text: str) -> None:
        self._told += text + "\n"
        print(f"  {text}", flush=True)


def wait_for(true: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Wait until a condition is true.

    Raises:
        Disappointed: it is not true in time.
    """
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            raise Disappointed(f"not within {seconds:g} s: {what}")
        time.sleep(0.5)
