"""A SuperLink starts behind its gate or not at all; Flower's app is the real one."""

import asyncio
import json
import sqlite3
import sys
from base64 import b64encode
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from fl_app.core.errors import RunError
from fl_app.field import superlink
from fl_app.field.certificates import new_node
from fl_app.field.control import public_bytes
from fl_app.field.gate import NODE, SMALL, STRANGER
from fl_app.field.identity import signed
from fl_app.flower import private

PUSH = "/v1/fleet/push-object"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Start a SuperLink whose server does not listen; returns the app that it would serve."""
    command, extensions = import_module(private.COMMAND), import_module(private.EXTENSIONS)
    served: list[Any] = []

    def start(
        *, flower: Any = None, more: Any = None, told: bool = False, **environment: str
    ) -> Any:
        def listen(app: Any, **options: Any) -> None:
            served.append((app, options))

        def flower_superlink() -> None:
            from flwr.superlink.main import create_app

            command.uvicorn.run(app=create_app(), host="0.0.0.0", port=1, **(more or {}))

        monkeypatch.setattr(command, "uvicorn", SimpleNamespace(run=listen))
        monkeypatch.setattr(command, "flower_superlink", flower or flower_superlink)
        monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
        monkeypatch.setattr(superlink, "_only", lambda port: None)
        monkeypatch.setattr(sys, "argv", ["superlink", "--host", "0.0.0.0"])
        monkeypatch.setattr(superlink, "difference", lambda part: "")
        superlink.main(environment)
        ((app, options),) = served
        assert options["proxy_headers"] is False
        return options if told else app

    return start


def answer(
    app: Any, path: str, client: str = "192.0.2.7", method: str = "GET", **options: Any
) -> httpx.Response:
    async def request() -> httpx.Response:
        transport = httpx.ASGITransport(app=app, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url="https://server") as asks:
            return await asks.request(method, path, **options)

    return asyncio.run(request())


def ask(app: Any, path: str, client: str = "192.0.2.7", method: str = "GET", **options: Any) -> int:
    return answer(app, path, client, method, **options).status_code


def test_a_stranger_gets_nothing_of_flower(started: Any) -> None:
    app = started()
    for path in ("/v1/control/list-runs", "/v1/control/start-run", "/v1/runtime/acquire-task"):
        assert ask(app, path, method="POST") == 403
    for path in ("/docs", "/openapi.json", "/health", NODE):
        assert ask(app, path) == 403
    assert ask(app, "/health", "127.0.0.1") == 200
    assert ask(app, PUSH, method="POST", content=bytes(SMALL + 1)) == 401
    refused = answer(app, PUSH, method="POST", content=b"")
    assert refused.status_code == 401
    assert "fl-app" in refused.text  # by the gate


def test_open_control_is_asked_for(started: Any) -> None:
    assert ask(started(CONTROL="open"), "/health") == 200


def test_the_servers_own_records_are_json_where_it_is_asked_for(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of uvicorn, which has a configuration of its own."""
    config = {"version": 1, "formatters": {"http": {"format": "text"}}}
    monkeypatch.setattr(superlink.json_log, "wanted", lambda environment=None: True)
    monkeypatch.setattr(superlink.json_log, "install", lambda environment: None)
    options = started(more={"log_config": config}, told=True)
    assert options["log_config"]["formatters"]["http"] == {"()": superlink.json_log.JsonFormatter}
    assert config["formatters"] == {"http": {"format": "text"}}


def test_a_registered_node_is_known(started: Any, tmp_path: Any) -> None:
    app = started()
    new_node(tmp_path, "node-0")
    headers = signed(tmp_path / "node.key")
    assert ask(app, NODE, headers=headers) == 404
    state = app.state.linkstate_factory.state()
    node = state.create_node("", "", public_bytes(tmp_path / "node.key.pub"), 0)
    told = answer(app, NODE, headers=headers).json()
    assert told["status"] == "registered"
    assert told["flower"]
    assert ask(app, NODE, headers={**headers, "flwr-timestamp": "2020-01-01T00:00:00+00:00"}) == 403
    state.delete_node("", node)
    assert ask(app, NODE, headers=headers) == 404


def test_connections_to_the_database_hold_little(
    started: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    sql = import_module(private.DATABASE)
    monkeypatch.setattr(sql, "SQLITE_PRAGMAS", sql.SQLITE_PRAGMAS)
    started()
    connection = sqlite3.connect(tmp_path / "state.db")
    sql._set_sqlite_pragmas(connection, None)
    found = {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in private.PRAGMAS}
    assert found == {"cache_size": -8000, "mmap_size": 0}
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_a_flower_with_another_database_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.difference("database") == ""
    monkeypatch.setattr(import_module(private.DATABASE), "SQLITE_PRAGMAS", (("cache_size", "1"),))
    assert "does not set mmap_size" in private.difference("database")


def test_what_nodes_tell_outlives_the_superlink(tmp_path: Any) -> None:
    path = tmp_path / "nodes.json"
    path.write_text("{damaged")
    notes = superlink.Notes(path)
    notes.take("K", {"torch": "2.9"})
    notes.take("L", {"torch": ""})
    superlink.Notes(path).take("K", {"torch": "2.10"})
    assert json.loads(path.read_text()) == {"K": {"torch": "2.10"}, "L": {"torch": ""}}
    superlink.Notes(tmp_path / "no folder" / "nodes.json").take("K", {"torch": "2.9"})


@pytest.mark.parametrize("change", [
    {"flwr-public-key": "no base64"},
    {"flwr-public-key": b64encode(b"no key").decode()},
    {"flwr-signature": b64encode(b"of nobody").decode()},
    {"flwr-timestamp": "yesterday"},
    {"flwr-timestamp": "2026-01-01T00:00:00"},  # without a zone
    None,
])  # fmt: skip
def test_a_damaged_signature_is_a_strangers(tmp_path: Any, change: dict[str, str] | None) -> None:
    new_node(tmp_path, "node-0")
    headers = {**signed(tmp_path / "node.key"), **change} if change else {}
    assert asyncio.run(superlink.identify({}, headers)) == STRANGER


# -- refusals to start ----------------------------------------------------------------------------


def test_it_does_not_start_where_flower_ignores_the_gate(started: Any) -> None:
    """Flower asks for no middleware of extensions, and serves the app all the same."""

    def flower_superlink() -> None:
        command = import_module(private.COMMAND)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})

        command.uvicorn.run(app=app, host="0.0.0.0", port=1)

    with pytest.raises(
        RunError, match=r"does not start: Flower .* stranger's control call with 200"
    ):
        started(flower=flower_superlink)


def test_it_does_not_start_with_another_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    main = import_module(private.SUPERLINK)
    monkeypatch.setattr(main, "extensions", None)
    with pytest.raises(RunError, match=r"does not start: .* does not import its extensions"):
        superlink.main({})


def test_this_flower_has_what_the_gate_needs() -> None:
    assert private.difference("gate") == ""


@pytest.mark.parametrize(("environment", "refusal"), [
    ({"CONTROL": "closed"}, "CONTROL=closed must be local or open: it decides who may submit"),
    ({"BODY_MIB": "0"}, "BODY_MIB=0 must be a whole number of MiB above 0"),
    ({"BODY_MIB": "1.5"}, "BODY_MIB=1.5 must be a whole number"),
])  # fmt: skip
def test_settings_without_meaning(environment: dict[str, str], refusal: str) -> None:
    with pytest.raises(ValueError, match=refusal):
        superlink.main(environment)


def test_a_second_port_is_refused() -> None:
    with pytest.raises(RunError, match="FLWR_INTERNAL_GRPC_FLEET_API=1 opens a port that has no"):
        superlink.main({"FLWR_INTERNAL_GRPC_FLEET_API": "1"})


@pytest.mark.parametrize(("arguments", "host"), [
    (["--host", "10.0.0.1", "--port", "1"], "10.0.0.1"), (["--host=::1"], "::1"), ([], ""),
    (["--host"], ""),
])  # fmt: skip
def test_the_address_that_it_listens_on(arguments: list[str], host: str) -> None:
    assert superlink._host(["superlink", *arguments]) == host
