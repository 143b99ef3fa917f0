"""Requests to a running SuperLink about its nodes and its runs, and the output of `field status`.

The requests use Flower's client for the SuperLink's control interface, as Flower's commands do. The
commands themselves print nodes without their keys, and each takes seconds of a core.
"""

import hashlib
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_PATIENCE,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run
from flwr.proto.transport_pb2 import Scalar
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.core.errors import RunError, explaining
from fl_app.core.events import Failed, Rejected
from fl_app.field.kit import Kit
from fl_app.field.project import app_folder, own_modules
from fl_app.record.history import History
from fl_app.record.log import read_events

# Seconds after its last heartbeat.
OFFLINE_AFTER = float(HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL)
AHEAD = float(SYSTEM_TIME_TOLERANCE)  # seconds that a node's clock may be ahead of the server's
BEHIND = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)  # seconds that it may be behind
LATEST = 100  # newest runs that `under_way` searches
COMMANDS = Path(sys.executable).parent  # of Flower
NO_TLS = "WRONG_VERSION_NUMBER"  # OpenSSL's name for an answer without TLS
FOREIGN = (
    "another program than the kit's holds its port, or speaks no TLS: "
    "`sudo ss -ltnp 'sport = :{port}'` there names it"
)


class Unreachable(ConnectionError):
    """The SuperLink does not answer at the moment."""


class SuperLink:
    """The running SuperLink of a kit.

    Args:
        kit: the server's folder.
        app: folder of the Flower app that `submit` runs; None = this project.

    Raises:
        ValueError: it is another folder of the kit.
    """

    def __init__(self, kit: Kit, app: Path | None = None) -> None:
        if kit.role != "server":
            owner = "a device's" if kit.role == "node" else f"the {kit.role}'s"
            raise ValueError(f"{kit.folder} is {owner} folder ({kit.role}.env): give the server's")
        self._kit, self._app = kit, app

    def registered(self) -> dict[bytes, str]:
        """Return the status, such as "online", of each node by its public key (`public_bytes`).

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        nodes = {node.public_key: node.status for node in self._nodes()}
        return {key: status for key, status in nodes.items() if status != "unregistered"}

    def _nodes(self) -> Sequence[NodeInfo]:
        with self._client() as client:
            return list(client.ListNodes(ListNodesRequest()).nodes_info)

    def register(self, public_key: Path) -> bool:
        """Allow a node to join; return False if it was allowed already.

        Args:
            public_key: file in OpenSSH's format.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request, or the key was unregistered.
            ValueError: the file holds no key on a NIST curve.
        """
        public = public_bytes(public_key)
        statuses = {node.public_key: node.status for node in self._nodes()}
        if statuses.get(public) == "unregistered":
            reason = "was unregistered, and Flower never takes it again: make a new key"
            raise RunError(f"{public_key} {reason}")
        if public in statuses:
            return False
        with self._client() as client:
            client.RegisterNode(RegisterNodeRequest(public_key=public, name=public_key.stem))
        return True

    def under_way(self, output: Path) -> tuple[int, list[str]] | None:
        """Return id and overrides of the unfinished run that writes to a folder, if any.

        Args:
            output: the run's folder.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        for run_id, run in self.runs().items():
            if self._folder(run_id, run) == output and _is_unfinished(run):
                return int(run_id), shlex.split(run.override_config["overrides"].string)
        return None

    def latest(self, output: Path | None = None) -> tuple[Path, str] | None:
        """Return folder and status of the unfinished run, else of the newest one; None = no run.

        Args:
            output: only of runs in this folder; None = of all.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        candidates = []
        for run_id, run in self.runs().items():
            folder, state = self._folder(run_id, run), f"run {run_id}: {_state(run)}"
            if output in (None, folder):
                candidates.append((_is_unfinished(run), run.pending_at, folder, state))
        return max(candidates)[2:] if candidates else None

    def _folder(self, run_id: int, run: Run) -> Path:
        output = run.override_config["output"].string
        return self._kit.folder / (output or f"outputs/flower-{run_id}")  # as `fl_app.server_app`

    def runs(self) -> dict[int, Run]:
        """The newest runs by their ids; raises as `registered`."""
        with self._client() as client:
            return dict(client.ListRuns(ListRunsRequest(limit=LATEST)).run_dict)

    def submit(self, overrides: Sequence[str], output: Path) -> int:
        """Submit a run of the app and return its id.

        Args:
            overrides: as after ``python -m fl_app``.
            output: the run's folder.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the run.
            ValueError: the overrides name a module of the user's own that cannot be found.
        """
        # A service has no working folder, so files are also looked up in the server's folder.
        modules = own_modules(overrides, [Path.cwd(), self._kit.folder])
        with nullcontext(self._app) if self._app else app_folder(modules) as app:
            bundle = build_fab_from_disk(app)
        config = {"overrides": shlex.join(overrides), "output": str(output)}
        request = StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(bundle).hexdigest(), content=bundle),
            override_config={key: Scalar(string=value) for key, value in config.items()},
        )
        with self._client() as client:
            answer = client.StartRun(request)
        if not answer.HasField("run_id"):
            raise RunError(f"{self._kit.address} starts no run: its log says why")
        return int(answer.run_id)

    def status(self, run_id: int) -> tuple[str, str]:
        """Return a run's status, such as "running" or "finished:completed", and details.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        run = self.runs().get(run_id)
        if run is None:
            return "finished:unknown", "the SuperLink has lost its database"
        return _state(run), run.status.details

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        address, root = self._kit.address, (self._kit.folder / "ca.crt").read_bytes()
        try:
            with ControlHttpClient.from_server_address(address, False, root, ()) as client:
                yield client
        except httpx.TransportError as error:
            reason = (
                FOREIGN.format(port=address.rpartition(":")[2]) if NO_TLS in str(error) else error
            )
            raise Unreachable(f"{address} does not answer: {reason}") from error
        except httpx.HTTPStatusError as error:
            if error.response.is_server_error:
                raise Unreachable(f"{address} answers with an error: {error}") from error
            refusal = FlowerError.from_json(error.response.text)
            raise RunError(f"{address} refuses: {refusal.message if refusal else error}") from error


def public_bytes(path: Path) -> bytes:
    """Return the bytes of a public key as Flower stores them.

    Args:
        path: file in OpenSSH's format.

    Raises:
        ValueError: the file holds no key on a NIST curve.
    """
    with explaining(f"{path} must hold a public key in OpenSSH's format"):
        key = serialization.load_ssh_public_key(path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} must hold a key on a NIST curve: Flower takes no other")
    return public_key_to_bytes(key)


def _is_unfinished(run: Run) -> bool:
    return run.status.status != "finished"


def _state(run: Run) -> str:
    return ":".join(filter(None, (run.status.status, run.status.sub_status)))


# -- what is shown ---------------------------------------------------------------------------------

COLUMNS = ("client", "last order", "since", "updates", "failures", "last failure")


def show_status(kit: Kit, output: Path | None) -> None:
    """Print which nodes are online, and a table of the run's clients.

    Args:
        kit: the server's folder.
        output: the run's folder; None = that of the unfinished run, else of the newest one.

    Raises:
        OSError: the SuperLink does not answer.
    """
    link = SuperLink(kit)
    names = {public_bytes(path): path.stem for path in (kit.folder / "keys").glob("*.pub")}
    nodes = [
        f"{names.get(node.public_key, '?')} {node.status} ({node.node_id})"
        for node in link._nodes()
        if node.status != "unregistered"
    ]
    print(f"nodes: {', '.join(sorted(nodes)) or 'none'}")
    latest, state = link.latest(output) or (kit.folder / "run", "")
    output = output or latest
    if state:
        print(state)
    if (output / "events.jsonl").exists():
        Console().print(clients(output / "events.jsonl", under_way="finished" not in state))
    else:
        print(f"no run in {output} yet")


def clients(log: Path, *, under_way: bool = True) -> Table:
    """A table of what each client of a run does, from the run's event log.

    Args:
        log: path of the event log.
        under_way: whether the run goes on.
    """
    history, reasons = History(), dict[int | None, str]()
    for event in read_events(log):
        history.emit(event)
        if isinstance(event, Failed | Rejected):
            reasons[event.client] = event.reason
    now = history.t
    if under_way and log.exists():
        now += max(time.time() - log.stat().st_mtime, 0.0)
    table = Table(title=escape(f"{log.parent}, version {history.version}"), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, overflow="fold")
    waiting = "under way" if under_way else "not aggregated"
    last = {order.client: order for order in history.waiting.values()} | history.current
    for client in sorted(history.sequences):
        order = last.get(client)
        state, since = "aggregated", ""
        if order is not None:
            state = f"version {order.version}, {order.ended or waiting}"
            since = f"{now - (order.end or order.start):.0f} s"
        row = (client, state, since, history.arrivals[client], history.lost[client])
        table.add_row(*map(str, row), escape(reasons.get(client, "")))
    return table
