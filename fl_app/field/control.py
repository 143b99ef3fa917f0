"""Requests to a running SuperLink about its nodes and its runs.

The requests use Flower's client for the SuperLink's control interface, as Flower's commands do. The
commands themselves print nodes without their keys, and each takes seconds of a core.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
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
)
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fl_app.core.errors import RunError
from fl_app.field.kit import Kit
from fl_app.field.project import app_folder, own_modules

# Seconds after its last heartbeat.
OFFLINE_AFTER = float(HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL)
AHEAD = float(SYSTEM_TIME_TOLERANCE)  # seconds that a node's clock may be ahead of the server's
BEHIND = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)  # seconds that it may be behind
LATEST = 100  # newest runs, among which `under_way` looks for a run
STARTS_WITHIN = 60.0  # seconds
SUBMISSION = 300.0  # seconds that `flwr run` may take, with a slow memory card
COMMANDS = Path(sys.executable).parent


class Unreachable(ConnectionError):
    """The SuperLink does not answer at the moment."""


class SuperLink:
    """The running SuperLink of a kit.

    Args:
        kit: the server's folder; a device's folder suffices for requests about nodes.
        app: folder of the Flower app that `submit` runs; None = this project.
        commands: folder of Flower's commands.
        limit: seconds that ``flwr run`` may take.
    """

    def __init__(
        self,
        kit: Kit,
        app: Path | None = None,
        *,
        commands: Path = COMMANDS,
        limit: float = SUBMISSION,
    ) -> None:
        self._kit = kit
        self._app = app
        self._commands = commands
        self._limit = limit

    def registered(self) -> dict[bytes, str]:
        """Return the status, such as "online", of each node by its public key (`public_bytes`).

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        nodes = {node.public_key: node.status for node in self._nodes()}
        return {key: status for key, status in nodes.items() if status != "unregistered"}

    def statuses(self) -> Counter[str]:
        """How many nodes have each status; raises as `registered`."""
        return Counter(node.status for node in self._nodes())

    def online(self) -> int:
        """Return the number of nodes that are online; raises as `registered`."""
        return self.statuses()["online"]

    def wait(self) -> None:
        """Wait until the SuperLink answers.

        Raises:
            Unreachable: it does not within `STARTS_WITHIN` seconds.
            RunError: the SuperLink refuses the request.
        """
        until = time.monotonic() + STARTS_WITHIN
        while True:
            try:
                self._nodes()
                return
            except Unreachable:
                if time.monotonic() > until:
                    raise
            time.sleep(0.5)

    def _nodes(self) -> Sequence[NodeInfo]:
        with self._client() as client:
            return list(client.ListNodes(ListNodesRequest()).nodes_info)

    def register(self, public_key: Path) -> bool:
        """Allow a node to join; return False if it was allowed already.

        Args:
            public_key: file in OpenSSH's format.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
            ValueError: the file holds no key on a NIST curve.
        """
        request = RegisterNodeRequest(public_key=public_bytes(public_key), name=public_key.stem)
        with self._client() as client:
            try:
                client.RegisterNode(request)
            except httpx.HTTPStatusError as error:
                if _code(error) == ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                    return False
                raise
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
            if run.override_config["output"].string == str(output) and _goes_on(run):
                return int(run_id), shlex.split(run.override_config["overrides"].string)
        return None

    def latest_output(self) -> Path | None:
        """Return the folder of the unfinished run, else of the newest one; None if there is none.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        runs = self.runs()
        if not runs:
            return None
        run_id = max(runs, key=lambda each: (_goes_on(runs[each]), runs[each].pending_at))
        named = runs[run_id].override_config["output"].string
        return self._kit.folder / (named or f"outputs/flower-{run_id}")  # as `fl_app.server_app`

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
            RunError: the SuperLink refuses the run, or dies during the request.
            ValueError: the overrides name a module of the user's own that cannot be found.
        """
        self.registered()  # reports a SuperLink that is down at once; `flwr run` takes seconds
        # A service has no folder of its own, and finds the files in that of the server.
        modules = own_modules(overrides, [Path.cwd(), self._kit.folder])
        words, folder = json.dumps(shlex.join(overrides)), json.dumps(str(output))
        path = f"{self._commands}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        source = nullcontext(self._app) if self._app else app_folder(modules)
        with tempfile.TemporaryDirectory() as home, source as app:
            Path(home, "config.toml").write_text(self._connection())
            command = [
                *(str(self._commands / "flwr"), "run", str(app), "field", "--format", "json"),
                *("--run-config", f"overrides={words} output={folder}"),
            ]
            env = {**os.environ, "PATH": path, "FLWR_HOME": home}
            try:
                result = subprocess.run(
                    command, env=env, capture_output=True, text=True, timeout=self._limit
                )
            except subprocess.TimeoutExpired:
                raise RunError(f"`flwr run` did not end within {self._limit:g} s") from None
        answer = json.loads(result.stdout or "{}")
        if not answer.get("success"):
            raise RunError(f"`flwr run`: {answer.get('error-message') or result.stderr.strip()}")
        return int(answer["run-id"])

    def status(self, run_id: int) -> tuple[str, str]:
        """Return a run's status, such as "running" or "finished:completed", and details.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: the SuperLink refuses the request.
        """
        with self._client() as client:
            try:
                status = client.ListRuns(ListRunsRequest(run_id=run_id)).run_dict[run_id].status
            except httpx.HTTPStatusError as error:
                if _code(error) == ApiErrorCode.RUN_ID_NOT_FOUND:
                    return "finished:unknown", "the SuperLink has lost its database"
                raise
        return ":".join(filter(None, (status.status, status.sub_status))), status.details

    def _connection(self) -> str:
        """Return a ``config.toml`` for Flower's commands."""
        root = self._kit.root_certificate
        trust = f"root-certificates = {json.dumps(str(root))}" if root else "insecure = true"
        return f'[superlink.field]\naddress = "{self._kit.address}"\n{trust}\n'

    @contextmanager
    def _client(self) -> Iterator[ControlHttpClient]:
        root = self._kit.root_certificate
        try:
            with ControlHttpClient.from_server_address(
                self._kit.address, self._kit.insecure, root.read_bytes() if root else None, []
            ) as client:
                yield client
        except httpx.TransportError as error:
            raise Unreachable(f"{self._kit.address} does not answer: {error}") from error
        except httpx.HTTPStatusError as error:
            if error.response.is_server_error:
                raise Unreachable(f"{self._kit.address} answers with an error: {error}") from error
            known = FlowerError.from_json(error.response.text)
            reason = error if known is None else known.message
            raise RunError(f"{self._kit.address} refuses: {reason}") from error


def public_bytes(path: Path) -> bytes:
    """Return the bytes of a public key as Flower stores them.

    Args:
        path: file in OpenSSH's format.

    Raises:
        ValueError: the file holds no key on a NIST curve.
    """
    key = serialization.load_ssh_public_key(path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} must hold a key on a NIST curve: Flower takes no other")
    return public_key_to_bytes(key)


def _goes_on(run: Run) -> bool:
    return run.status.status != "finished"


def _code(error: httpx.HTTPStatusError) -> int | None:
    """Return Flower's number of an error; None if the response has none."""
    known = FlowerError.from_json(error.response.text)
    return None if known is None else known.code
