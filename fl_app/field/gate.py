"""The gate of a SuperLink's port: who may call what, and how large a request may be.

Flower serves SuperNodes, its commands and its apps on one port. Without the gate, whoever reaches
the port can submit a run, and with it run code on the server and on every device.

The gate is ASGI middleware before everything of Flower:

| caller | may call |
|---|---|
| a program on the server itself (loopback) | everything |
| a registered key | the calls of SuperNodes, ``/v1/fleet/...``; ``/fl-app/node`` |
| another key | the calls by which a SuperNode joins, `JOIN`: Flower says why it may not |
| anybody else | nothing |

SuperNodes sign the time, in headers. So the gate refuses a request before it reads its body. A body
must tell its length, which may be `SMALL` for a key that is not registered, and else `most`. So a
stranger occupies no memory.
"""

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from hashlib import sha256
from ipaddress import IPv6Address, ip_address
from typing import Any

from fl_app.core.errors import require_count

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
ACCOUNTS = "/v1/control/"  # calls that Flower's account authentication can protect
NODE = "/fl-app/node"
ABOUT = "fl-app-about"  # header in which a node tells of itself, as JSON
TOLD = ("client", "flower", "torch", "project")  # its client id, and versions
LONGEST = 1024  # letters
NODES = "nodes.json"  # in the server's folder: what its nodes have told of themselves
MIB = 2**20
JOIN = frozenset({"/v1/fleet/register-node", "/v1/fleet/activate-node"})
SMALL = 64 * 1024  # bytes of a body that is small: of any by which a node joins
MOST_MIB = 64  # of one body: Flower sends arrays in parts of at most 5 MiB
UPLOAD_MIB = 1024  # of all bodies by which a node hands over the parts of one reply
PUSH_REPLY, PUSH_PART = "/v1/fleet/push-messages", "/v1/fleet/push-object"
KEY = "flwr-public-key"  # header in which a SuperNode names its key
HELD = 8  # bodies of the largest size that may be read at the same time
REFUSED = "fl-app: only devices reach this port; other calls are answered on the server itself"
# Headers of a request that another program passed on, perhaps for a stranger.
PASSED_ON = frozenset({"forwarded", "via", "x-forwarded-for", "x-real-ip"})


@dataclass(frozen=True, slots=True)
class Caller:
    """Who signed a request.

    Args:
        signed: whether the signature is that of the public key, and of now.
        status: of the node with this key, such as "online"; "" = the key is not registered.
        key: name of the key (`key_name`).
    """

    signed: bool
    status: str
    key: str = ""


STRANGER = Caller(False, "")
Identify = Callable[[Scope, Mapping[str, str]], Awaitable[Caller]]


class Gate:
    """ASGI middleware that lets devices do a device's work, and nobody else anything.

    Args:
        app: what is behind the gate.
        identify: says who signed a request, from its scope and its headers.
        own: the server's own addresses beside loopback, such as the one that it listens on.
        accounts: whether Flower asks for an account before it answers control calls.
        opened: whether anybody may make control and runtime calls.
        most: bytes of one body; a larger one is refused.
        upload: bytes of the parts of one reply; what exceeds them is refused.
        facts: what registered nodes may know of the server, such as its version of Flower.
        note: is given the name of a node's key and what the node tells of itself.

    Raises:
        ValueError: `most` or `upload` is not a whole number above 0.
    """

    def __init__(
        self,
        app: App,
        *,
        identify: Identify,
        own: Collection[str] = (),
        accounts: bool = False,
        opened: bool = False,
        most: int = MOST_MIB * MIB,
        upload: int = UPLOAD_MIB * MIB,
        facts: Mapping[str, str] | None = None,
        note: Callable[[str, Mapping[str, str]], None] = lambda key, told: None,
    ) -> None:
        require_count("most", most, "no device could send an update")
        require_count("upload", upload, "no device could send an update")
        self._app = app
        self._identify = identify
        self._own = frozenset(own)
        self._accounts = accounts
        self._opened = opened
        self._most = most
        self._facts = dict(facts or {})
        self._note = note
        self._upload = upload
        self._pushed: dict[str, int] = {}  # by registered key, since its last reply was announced
        self._held = 0  # bytes of large bodies that are under way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # Flower has no other calls
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        path: str = scope["path"]
        if path == NODE:
            await self._tell(scope, headers, send)
        elif path.startswith(FLEET):
            await self._fleet(scope, headers, receive, send)
        elif self._is_local(scope, headers) or self._opened or self._has_account(path):
            await self._app(scope, receive, send)
        else:
            await _answer(send, 403, {"detail": REFUSED})

    def _has_account(self, path: str) -> bool:
        """Whether Flower itself asks for an account before it answers a call."""
        return self._accounts and path.startswith(ACCOUNTS)

    def _is_local(self, scope: Scope, headers: Mapping[str, str]) -> bool:
        """Whether a program on this machine sent the request, and for itself."""
        client = scope.get("client")
        if client is None or not PASSED_ON.isdisjoint(headers):
            return False
        return client[0] in self._own or is_loopback(client[0])

    async def _tell(self, scope: Scope, headers: Mapping[str, str], send: Send) -> None:
        """Tell a node what the server knows of it."""
        caller = await self._registered(scope, headers, send)
        if caller is not None:
            if told := about(headers.get(ABOUT, "")):
                self._note(caller.key, told)
            await _answer(send, 200, {**self._facts, "status": caller.status})

    async def _registered(
        self, scope: Scope, headers: Mapping[str, str], send: Send
    ) -> Caller | None:
        """Who signed a request, if it is a registered node; others are refused here."""
        caller = await self._identify(scope, headers)
        if caller.signed and caller.status:
            return caller
        if caller.signed:
            await _answer(send, 404, {"detail": "fl-app: this key is not registered"})
        else:
            await _answer(send, 403, {"detail": REFUSED})
        return None

    async def _fleet(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: Send
    ) -> None:
        told = headers.get("content-length", "" if "transfer-encoding" in headers else "0")
        if not (told.isascii() and told.isdecimal()) or "transfer-encoding" in headers:
            await _answer(send, 411, {"detail": "fl-app: a request must tell its length"})
            return
        length = int(told)
        if length > self._most:
            text = f"fl-app: a body of {length} bytes is above the bound of {self._most}"
            await _answer(send, 413, {"detail": text})
            return
        key = headers.get(KEY, "")
        if scope["path"] == PUSH_PART and self._pushed.get(key, 0) + length > self._upload:
            text = f"fl-app: the parts of this reply have more than {self._upload} bytes"
            await _answer(send, 413, {"detail": text})
            return
        caller = await self._identify(scope, headers)
        joins = caller.signed and scope["path"] in JOIN and length <= SMALL
        if not (caller.status or joins):
            await _answer(send, 401, {"detail": "fl-app: no registered key has signed this"})
            return
        if length <= SMALL:
            await self._pass_on(scope, receive, send, key, length)
            return
        if self._held + length > HELD * self._most:
            detail = "fl-app: too much is under way; come again"
            await _answer(send, 503, {"detail": detail}, {"retry-after": "1"})
            return
        self._held += length
        try:
            await self._pass_on(scope, receive, send, key, length)
        finally:
            self._held -= length

    async def _pass_on(
        self, scope: Scope, receive: Receive, send: Send, key: str, length: int
    ) -> None:
        """Let Flower answer, and count what it accepts: then the key is genuine."""
        accepted = False

        async def look(message: Message) -> None:
            nonlocal accepted
            if message["type"] == "http.response.start":
                accepted = message["status"] == 200
            await send(message)

        await self._app(scope, receive, look)
        if accepted and scope["path"] == PUSH_REPLY:
            self._pushed[key] = 0
        elif accepted and scope["path"] == PUSH_PART:
            self._pushed[key] = self._pushed.get(key, 0) + length


def key_name(public_key: bytes) -> str:
    """A short name of a node's public key, as Flower stores it."""
    return sha256(public_key).hexdigest()[:16]


def about(text: str) -> dict[str, str]:
    """What a node tells of itself; nothing if it is not in order."""
    if len(text) > LONGEST:
        return {}
    try:
        told = json.loads(text)
    except ValueError:
        return {}
    if not isinstance(told, dict):
        return {}
    return {name: str(told[name])[:40] for name in TOLD if name in told}


def is_loopback(host: str) -> bool:
    """Whether an address is one under which a machine reaches only itself."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


async def _answer(
    send: Send, status: int, told: Mapping[str, str], more: Mapping[str, str] | None = None
) -> None:
    """Answer without reading the request's body."""
    body = json.dumps(told).encode()
    headers = {
        "content-type": "application/json",
        "content-length": str(len(body)),
        "connection": "close",  # the body is not read, so no other request can follow
        **(more or {}),
    }
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
