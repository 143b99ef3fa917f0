"""A SuperLink behind a gate: ``python -m fl_app.field.superlink ARGUMENTS``.

It replaces ``flower-superlink``, with the same arguments. The gate (`fl_app.field.gate`) stands
where Flower lets a SuperLink have middleware: `flwr.superlink.extensions.get_middleware`.
``CONTROL=open`` in the environment lets everybody make control and runtime calls, as Flower does.

Where Flower is not as described in `fl_app.flower.private`, or where a stranger's call is not
refused, the server does not start: its port would stand open.
"""

import asyncio
import json
import os
import sys
import threading
import time
from base64 import b64decode
from binascii import Error as NoBase64
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware

from fl_app.core import json_log
from fl_app.core.errors import RunError, require
from fl_app.core.files import atomic_write
from fl_app.field.gate import (
    MIB,
    MOST_MIB,
    NODES,
    STRANGER,
    UPLOAD_MIB,
    Caller,
    Gate,
    Scope,
    is_loopback,
    key_name,
)
from fl_app.flower.private import (
    COMMAND,
    EXTENSIONS,
    bound_database,
    difference,
    known,
    replace,
)

VARIABLE, LOCAL, OPEN = "CONTROL", "local", "open"
BODY, UPLOAD = "BODY_MIB", "UPLOAD_MIB"
ACCOUNTS = "FLWR_OIDC_ENABLED"  # Flower's account authentication
# Flower's old servers, each on a port of its own that no middleware guards.
OTHER_PORTS = "FLWR_INTERNAL_GRPC_CONTROL_API", "FLWR_INTERNAL_GRPC_FLEET_API"
STARTS_WITHIN = 60.0  # seconds
NOT_STARTED = (
    "the SuperLink does not start: {}. Its port would stand open; "
    'CONTROL="open" in server.env starts it nevertheless, and then only a firewall or a VPN keeps '
    "strangers out"
)
# A stranger, with an address that is kept for documentation (RFC 5737), asks for the list of runs.
STRANGERS_CALL: Mapping[str, Any] = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "https",
    "path": "/v1/control/list-runs",
    "raw_path": b"/v1/control/list-runs",
    "query_string": b"",
    "root_path": "",
    "headers": [(b"content-type", b"application/protobuf"), (b"content-length", b"0")],
    "client": ("192.0.2.1", 50000),
    "server": ("192.0.2.2", 8100),
}


def main(environment: Mapping[str, str] = os.environ) -> None:
    """The command line.

    Raises:
        ValueError: a setting has no meaning.
        RunError: the port would stand open.
    """
    json_log.install(environment)
    control = environment.get(VARIABLE) or LOCAL
    require(
        control in (LOCAL, OPEN),
        VARIABLE,
        control,
        f"{LOCAL} or {OPEN}",
        "it decides who may submit runs",
    )
    most = _mebibytes(environment, BODY, MOST_MIB)
    upload = _mebibytes(environment, UPLOAD, UPLOAD_MIB)
    for name in OTHER_PORTS:
        if environment.get(name) == "1" and control == LOCAL:
            raise RunError(NOT_STARTED.format(f"{name}=1 opens a port that has no gate"))
    if found := difference("gate"):
        if control == LOCAL:
            raise RunError(NOT_STARTED.format(f"Flower {version('flwr')}: {found}"))
        print(f"The SuperLink has no gate: Flower {version('flwr')}: {found}", file=sys.stderr)
    else:
        _guard(control == OPEN, most, upload, environment)
    if known("database"):
        bound_database()
    import_module(COMMAND).flower_superlink()


def _mebibytes(environment: Mapping[str, str], name: str, default: int) -> int:
    """The bytes that a setting in MiB names."""
    value = environment.get(name) or str(default)
    require(
        value.isdecimal() and int(value) > 0,
        name,
        value,
        "a whole number of MiB above 0",
        "it bounds the requests of devices",
    )
    return int(value) * MIB


def _guard(opened: bool, most: int, upload: int, environment: Mapping[str, str]) -> None:
    """Let Flower put the gate before its app, and see to it that it does before it listens."""
    command, extensions = import_module(COMMAND), import_module(EXTENSIONS)
    before = extensions.get_middleware
    host = _host(sys.argv)
    options = {
        "identify": identify,
        "own": [] if host in ("0.0.0.0", "::", "") else [host],
        "accounts": environment.get(ACCOUNTS) == "1",
        "opened": opened,
        "most": most,
        "upload": upload,
        "facts": _facts(),
        "note": Notes(Path(NODES)).take,
    }
    gate = Middleware(Gate, **options)  # type: ignore[arg-type]
    extensions.get_middleware = lambda: (gate, *before())  # type: ignore[attr-defined]
    replace(COMMAND, "uvicorn", run=_checked(command.uvicorn.run, opened))


def _checked(run: Callable[..., None], opened: bool) -> Callable[..., None]:
    """`uvicorn.run`, for an app that refuses strangers."""

    def checked(app: Any, **options: Any) -> None:
        if not opened:
            status = asyncio.run(_ask(app))
            if status != 403:
                told = f"Flower {version('flwr')} answers a stranger's control call with {status}"
                raise RunError(NOT_STARTED.format(told))
            port = int(options["port"])
            threading.Thread(target=_only, args=[port], daemon=True).start()
        if json_log.wanted():
            config = options.get("log_config") or {}
            formatters = {key: {"()": json_log.JsonFormatter} for key in config["formatters"]}
            options["log_config"] = {**config, "formatters": formatters}
        # The gate looks at who is connected, not at what a header says.
        run(app=app, **{**options, "proxy_headers": False})

    return checked


async def _ask(app: Any) -> int:
    """The status of an app's answer to a stranger who asks for the list of runs."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Mapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(dict(STRANGERS_CALL), receive, send)
    return statuses[0] if statuses else 0


def _only(port: int) -> None:
    """End this process if it listens to strangers on another port: nothing guards that."""
    until = time.monotonic() + STARTS_WITHIN
    while time.monotonic() < until:
        time.sleep(1.0)
        open_to_others = {
            found.laddr.port
            for found in psutil.Process().net_connections("inet")
            if found.status == psutil.CONN_LISTEN and not is_loopback(found.laddr.ip)
        }
        if others := open_to_others - {port}:
            told = f"it also listens on port {min(others)}, which has no gate"
            print(f"error: {NOT_STARTED.format(told)}", file=sys.stderr, flush=True)
            os._exit(1)


async def identify(scope: Scope, headers: Mapping[str, str]) -> Caller:
    """Who signed a request, as Flower's SuperNodes sign: the time, with the node's key."""
    try:
        public_key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        told = headers[TIMESTAMP_HEADER]
        age = (datetime.now(UTC) - datetime.fromisoformat(told)).total_seconds()
        key = bytes_to_public_key(public_key)
        genuine = (
            isinstance(key, ec.EllipticCurvePublicKey)
            and -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
            and verify_signature(key, told.encode("ascii"), signature)
        )
    except (KeyError, ValueError, TypeError, NoBase64):
        return STRANGER
    if not genuine:
        return STRANGER
    factory = scope["app"].state.linkstate_factory
    status = await run_in_threadpool(_status, factory, public_key)
    return Caller(True, status, key_name(public_key))


class Notes:
    """What nodes have told of themselves, in a file.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._told: dict[str, Mapping[str, str]] = {}
        with suppress(OSError, ValueError):
            self._told = dict(json.loads(path.read_text()))

    def take(self, key: str, told: Mapping[str, str]) -> None:
        """Note what the node with a key tells; a full disk costs the note and nothing else."""
        if self._told.get(key) == told:
            return
        self._told[key] = told
        with suppress(OSError), atomic_write(self._path) as file:
            file.write(json.dumps(self._told, indent=1).encode())


def _status(factory: Any, public_key: bytes) -> str:
    """The status of the node with a public key; "" if it is not registered."""
    state = factory.state()
    node = state.get_node_id_by_public_key(public_key)
    if node is None:
        return ""
    return next((info.status for info in state.get_node_info(node_ids=[node])), "")


def _facts() -> dict[str, str]:
    """What registered nodes may know of this server."""
    facts = {"flower": version("flwr")}
    try:
        facts["project"] = version("fl-app")
    except PackageNotFoundError:  # only copied
        facts["project"] = ""
    return facts


def _host(arguments: list[str]) -> str:
    """The value of ``--host``; "" if there is none."""
    for i, word in enumerate(arguments):
        if word == "--host":
            return arguments[i + 1] if i + 1 < len(arguments) else ""
        if word.startswith("--host="):
            return word.partition("=")[2]
    return ""


if __name__ == "__main__":
    try:
        main()
    except (RunError, ValueError) as error:
        sys.exit(f"error: {error}")
