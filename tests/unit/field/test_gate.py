"""The gate of a SuperLink's port, without a SuperLink."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from fl_app.field.gate import (
    HELD,
    JOIN,
    NODE,
    REFUSED,
    SMALL,
    STRANGER,
    Caller,
    Gate,
    is_loopback,
)

MOST = 4 * SMALL
CONTROL, RUNTIME = "/v1/control/start-run", "/v1/runtime/pull-task-input"
PUSH = "/v1/fleet/push-object"


class Behind:
    """What is behind the gate: it reads the body, and answers 200."""

    def __init__(self) -> None:
        self.answers = 200
        self.reached: list[str] = []
        self.goes_on = asyncio.Event()
        self.goes_on.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])
        await receive()
        await self.goes_on.wait()
        await send({"type": "http.response.start", "status": self.answers, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Asked:
    """Answers of a gate to requests.

    Args:
        caller: who signed them.
    """

    def __init__(self, caller: Caller = STRANGER, **options: Any) -> None:
        async def identify(scope: Any, headers: Mapping[str, str]) -> Caller:
            return caller

        self.behind = Behind()
        self.gate = Gate(self.behind, identify=identify, most=MOST, **options)
        self.read = 0

    async def ask(self, path: str, client: str | None, body: int = 0, **headers: str) -> Any:
        """Status and text of the answer."""
        sent: list[Any] = []
        told = {"content-length": str(body), **{k.replace("_", "-"): v for k, v in headers.items()}}

        async def receive() -> Any:
            self.read += body
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "client": None if client is None else (client, 1),
            "headers": [(k.encode(), v.encode()) for k, v in told.items() if v != "none"],
        }
        await self.gate(scope, receive, send)
        return sent[0]["status"], sent[1]["body"].decode()


def status(
    path: str, client: str | None = "192.0.2.7", *, caller: Caller = STRANGER, body: int = 0,
    headers: Mapping[str, str] | None = None, **options: Any,
) -> int:  # fmt: skip
    asked = Asked(caller, **options)
    found: int = asyncio.run(asked.ask(path, client, body, **(headers or {})))[0]
    assert (found == 200) == bool(asked.behind.reached or path == NODE)
    return found


@pytest.mark.parametrize("path", [
    CONTROL, RUNTIME, "/docs", "/openapi.json", "/health", "/", "//v1/control/start-run",
    "/v1/fleet", "/V1/FLEET/pull-messages", "/v1/fleet/../control/start-run"[10:],
])  # fmt: skip
def test_a_stranger_is_refused(path: str) -> None:
    assert status(path) == 403


def test_the_server_itself_may_do_everything_and_devices_their_work() -> None:
    for path in (CONTROL, RUNTIME, "/docs"):
        assert status(path, "127.0.0.1") == status(path, "::1") == 200
    assert status("/v1/fleet/pull-messages", caller=Caller(True, "online")) == 200


def test_an_address_of_its_own_is_the_server_itself() -> None:
    assert status(CONTROL, "192.0.2.7", own=["192.0.2.7"]) == 200
    assert status(CONTROL, "192.0.2.8", own=["192.0.2.7"]) == 403


@pytest.mark.parametrize("name", ["x_forwarded_for", "forwarded", "via", "x_real_ip"])
def test_what_a_proxy_on_the_server_passes_on_is_not_the_server_itself(name: str) -> None:
    assert status(CONTROL, "127.0.0.1", headers={name: "127.0.0.1"}) == 403


def test_a_caller_without_an_address_is_a_stranger() -> None:
    assert status(CONTROL, None) == 403


def test_open_control_and_accounts_let_others_in() -> None:
    assert status(CONTROL, opened=True) == status(RUNTIME, opened=True) == 200
    assert status(CONTROL, accounts=True) == 200
    assert status(RUNTIME, accounts=True) == 403  # Flower asks for no account there


@pytest.mark.parametrize(("host", "is_own"), [
    ("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("::ffff:127.0.0.1", True),
    ("::ffff:10.0.0.1", False), ("10.0.0.1", False), ("0.0.0.0", False), ("fe80::1%eth0", False),
    ("localhost", False), ("", False),
])  # fmt: skip
def test_loopback(host: str, is_own: bool) -> None:
    assert is_loopback(host) is is_own


# -- bodies ---------------------------------------------------------------------------------------


def test_a_gigabyte_is_refused_before_it_is_read() -> None:
    asked = Asked(Caller(True, "online"))
    found, text = asyncio.run(asked.ask(PUSH, "127.0.0.1", 10**9))
    assert (found, asked.read, asked.behind.reached) == (413, 0, [])
    assert f"a body of 1000000000 bytes is above the bound of {MOST}" in text


@pytest.mark.parametrize("host", ["192.0.2.7", "127.0.0.1"])
@pytest.mark.parametrize("path", [PUSH, *sorted(JOIN)])
def test_what_nobody_has_signed_does_not_reach_flower(path: str, host: str) -> None:
    assert status(path, host) == 401


def test_a_body_must_be_signed_by_a_registered_key() -> None:
    assert status(PUSH, caller=Caller(True, "")) == 401
    for path in JOIN:  # Flower says why a node may not join
        assert status(path, body=SMALL, caller=Caller(True, "")) == 200
        assert status(path, body=SMALL + 1, caller=Caller(True, "")) == 401
    assert status(PUSH, body=MOST, caller=Caller(True, "online")) == 200
    assert status(PUSH, body=MOST + 1, caller=Caller(True, "online")) == 413


@pytest.mark.parametrize("headers", [
    {"transfer_encoding": "chunked"},
    {"transfer_encoding": "chunked", "content_length": "none"},
    {"content_length": "-1"}, {"content_length": "1e9"}, {"content_length": "\u0661"},
])  # fmt: skip
def test_a_body_of_unknown_length_is_refused(headers: dict[str, str]) -> None:
    assert status(PUSH, caller=Caller(True, "online"), headers=headers) == 411


def test_few_large_bodies_are_read_at_the_same_time() -> None:
    async def crowd() -> list[int]:
        asked = Asked(Caller(True, "online"))
        asked.behind.goes_on.clear()
        tasks = [asyncio.create_task(asked.ask(PUSH, "192.0.2.7", MOST)) for _ in range(HELD + 2)]
        await asyncio.sleep(0)
        while len(asked.behind.reached) < HELD:
            await asyncio.sleep(0)
        asked.behind.goes_on.set()
        answers = [(await task)[0] for task in tasks]
        answers.append((await asked.ask(PUSH, "192.0.2.7", MOST))[0])  # all are read: room again
        return answers

    assert asyncio.run(crowd()) == [200] * HELD + [503, 503, 200]


def test_the_parts_of_one_reply_are_bounded() -> None:
    async def push() -> list[int]:
        asked = Asked(Caller(True, "online"), upload=3 * SMALL)

        async def part(key: str, length: int = SMALL) -> int:
            found: int = (await asked.ask(PUSH, "192.0.2.7", length, flwr_public_key=key))[0]
            return found

        answers = [await part("A") for _ in range(4)]
        answers.append(await part("B"))  # another node's are its own
        await asked.ask("/v1/fleet/push-messages", "192.0.2.7", 1, flwr_public_key="A")
        answers.append(await part("A"))  # of the next reply
        return answers

    assert asyncio.run(push()) == [200, 200, 200, 413, 200, 200]


def test_what_flower_refuses_counts_for_nobody() -> None:
    """Else a stranger could use up another node's bound by naming its key."""

    async def push() -> int:
        asked = Asked(Caller(True, "online"), upload=SMALL)
        asked.behind.answers = 401
        for _ in range(3):
            await asked.ask(PUSH, "192.0.2.7", SMALL, flwr_public_key="A")
        asked.behind.answers = 200
        found: int = (await asked.ask(PUSH, "192.0.2.7", SMALL, flwr_public_key="A"))[0]
        return found

    assert asyncio.run(push()) == 200


def test_a_bound_that_admits_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="most=0 must be an integer >= 1: no device could send"):
        Gate(Behind(), identify=None, most=0)  # type: ignore[arg-type]


# -- what a node is told --------------------------------------------------------------------------


def test_only_a_registered_node_is_told_of_the_server() -> None:
    def told(caller: Caller) -> Any:
        asked = Asked(caller, facts={"flower": "1.41.0"})
        found, text = asyncio.run(asked.ask(NODE, "192.0.2.7"))
        return found, json.loads(text)

    assert told(STRANGER) == (403, {"detail": REFUSED})
    assert told(Caller(True, "")) == (404, {"detail": "fl-app: this key is not registered"})
    assert told(Caller(True, "online")) == (200, {"flower": "1.41.0", "status": "online"})


@pytest.mark.parametrize(("text", "told"), [
    ('{"torch": "2.9", "client": 3, "more": "x"}', {"torch": "2.9", "client": "3"}),
    ('{"torch": "' + "9" * 500 + '"}', {"torch": "9" * 40}),
    ('{"torch": "' + "9" * 2000 + '"}', {}),
    ("[1]", {}), ("{", {}), ("", {}),
])  # fmt: skip
def test_what_a_node_tells_of_itself(text: str, told: dict[str, str]) -> None:
    noted = []
    for caller in (Caller(True, "online", "K"), Caller(True, "", "L"), STRANGER):
        asked = Asked(caller, note=lambda *each: noted.append(each))
        asyncio.run(asked.ask(NODE, "192.0.2.7", fl_app_about=text))
    assert noted == ([("K", told)] if told else [])


def test_other_protocols() -> None:
    asked, sent = Asked(), []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(asked.gate({"type": "websocket", "path": PUSH}, None, send))  # type: ignore[arg-type]
    assert sent == [{"type": "websocket.close", "code": 1008}]
    assert asked.behind.reached == []
