"""What a running SuperLink is asked: nodes and their keys, runs and how they are.

Flower's commands print nodes without their keys, and take seconds of a core for every question, so
questions go over Flower's own client for the interface that its commands use.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, RegisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fl_app.core.errors import RunError
from fl_app.field.kit import Kit

OFFLINE_AFTER = float(HEARTBEAT_PATIENCE * HEARTBEAT_DEFAULT_INTERVAL)  # seconds without heartbeat
AHEAD = float(SYSTEM_TIME_TOLERANCE)  # seconds that a node's clock may be ahead of the server's
BEHIND = float(TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)  # ... and behind it
LATEST = 100  # runs among which one that is under way is looked for
SUBMISSION = 300.0  # seconds that `flwr run` may take, on a slow card
COMMANDS = Path(sys.executable).parent
APP = Path(__file__).resolve().parents[2]  # where pyproject.toml lies


class Unreachable(ConnectionError):
    """The SuperLink does not answer, or not now."""


class SuperLink:
    """The running SuperLink of a kit.

    Args:
        kit: the server's, or a device's where only nodes are asked for.
        app: folder of the app that runs are of.
    """

    def __init__(self, kit: Kit, app: Path = APP) -> None:
        self._kit = kit
        self._app = app

    def registered(self) -> dict[bytes, str]:
        """The nodes' public keys, as `public_bytes` gives them, and "online", "offline" or so.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses.
        """
        with self._client() as client:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
        return {node.public_key: node.status for node in nodes if node.status != "unregistered"}

    def online(self) -> int:
        """How many nodes are online.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses.
        """
        with self._client() as client:
            nodes = client.ListNodes(ListNodesRequest()).nodes_info
        return sum(node.status == "online" for node in nodes)

    def register(self, public_key: Path) -> bool:
        """Allow a node to join; False if it was allowed already.

        Args:
            public_key: file in OpenSSH's format.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses.
            ValueError: the file holds no such key.
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
        """The run that was submitted with this folder and has not ended; None if there is none.

        Args:
            output: a run's folder.

        Returns:
            Its id and its overrides.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses.
        """
        with self._client() as client:
            runs = client.ListRuns(ListRunsRequest(limit=LATEST)).run_dict
        for run_id, run in runs.items():
            told = {key: value.string for key, value in run.override_config.items()}
            if told.get("output") == str(output) and run.status.status != "finished":
                return int(run_id), shlex.split(told.get("overrides", ""))
        return None

    def submit(self, overrides: Sequence[str], output: Path) -> int:
        """Submit a run of the app; its id.

        Args:
            overrides: as after ``python -m fl_app``.
            output: the run's folder.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses, or went away meanwhile.
        """
        self.registered()  # Flower's command would take seconds to see that nobody answers
        words, folder = json.dumps(shlex.join(overrides)), json.dumps(str(output))
        command = [
            *(str(COMMANDS / "flwr"), "run", str(self._app), "field", "--format", "json"),
            *("--run-config", f"overrides={words} output={folder}"),
        ]
        path = f"{COMMANDS}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        with tempfile.TemporaryDirectory() as home:
            Path(home, "config.toml").write_text(self._connection())
            env = {**os.environ, "PATH": path, "FLWR_HOME": home}
            try:
                result = subprocess.run(
                    command, env=env, capture_output=True, text=True, timeout=SUBMISSION
                )
            except subprocess.TimeoutExpired:
                raise RunError(f"`flwr run` did not end within {SUBMISSION:g} s") from None
        answer = json.loads(result.stdout or "{}")
        if not answer.get("success"):
            raise RunError(f"`flwr run`: {answer.get('error-message') or result.stderr.strip()}")
        return int(answer["run-id"])

    def status(self, run_id: int) -> tuple[str, str]:
        """A run's status, such as "running" or "finished:completed", and Flower's details of it.

        Raises:
            Unreachable: the SuperLink does not answer.
            RunError: it refuses.
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
        """For Flower's commands."""
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
                raise Unreachable(f"{self._kit.address} is in trouble: {error}") from error
            known = FlowerError.from_json(error.response.text)
            reason = error if known is None else known.message
            raise RunError(f"{self._kit.address} refuses: {reason}") from error


def public_bytes(path: Path) -> bytes:
    """A public key's bytes as Flower keeps them.

    Args:
        path: file in OpenSSH's format.

    Raises:
        ValueError: it holds no key on a NIST curve.
    """
    key = serialization.load_ssh_public_key(path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} must hold a key on a NIST curve: Flower takes no other")
    return public_key_to_bytes(key)


def _code(error: httpx.HTTPStatusError) -> int | None:
    """Flower's own number of an error."""
    known = FlowerError.from_json(error.response.text)
    return None if known is None else known.code
