"""What a SuperLink or SuperNode says of itself over HTTP, without Flower's own client."""

import http.client
import json
import ssl
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from fl_app.field.kit import Kit

PATIENCE = 5.0  # seconds


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer: the server's time, with its fraction of a second cut off, and the body."""

    date: datetime | None
    body: bytes

    def json(self) -> Any:
        """The body, as JSON.

        Raises:
            ValueError: it is none.
        """
        return json.loads(self.body)


def ask(address: str, path: str, context: ssl.SSLContext | None) -> Answer:
    """GET a path.

    Args:
        address: host:port.
        path: such as ``/health``.
        context: whom to trust; None speaks without TLS.

    Raises:
        OSError: no connection; ``ssl.SSLError`` where only TLS failed.
        http.client.HTTPException: the answer is none, or not "200 OK".
    """
    host, port = split(address)
    connection = (
        http.client.HTTPConnection(host, port, timeout=PATIENCE)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    )
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"{path}: {response.status} {response.reason}")
        date = response.headers["Date"]
        return Answer(parsedate_to_datetime(date) if date else None, response.read())
    finally:
        connection.close()


def healthy(kit: Kit) -> bool:
    """Whether the SuperLink of a server's kit, or the SuperNode of a device's, answers."""
    server = kit.role == "server"
    address = kit.address if server else f"127.0.0.1:{kit.settings['PORT']}"
    try:
        ask(address, "/health", trusting(kit) if server else None)
    except (OSError, http.client.HTTPException):
        return False
    return True


def trusting(kit: Kit) -> ssl.SSLContext | None:
    """Trust the kit's authority alone; None if the kit is insecure.

    Raises:
        OSError: its certificate cannot be read.
    """
    root = kit.root_certificate
    return ssl.create_default_context(cafile=root) if root else None


def split(address: str) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port of an address host:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def any_server() -> ssl.SSLContext:
    """Trust nobody in particular: to look at a server, never to tell it anything."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
