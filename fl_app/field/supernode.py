"""A SuperNode as a process that ends: ``python -m fl_app.field.supernode ARGUMENTS``.

It is warm unless WARM=0 in the environment (`fl_app.node.warm`).

``flower-supernode`` gives up at the first TLS handshake that fails. A handshake fails if the
SuperLink dies during it, or if a proxy accepts connections for a SuperLink that is down. The main
thread of ``flower-supernode`` then ends, but its process does not, because another thread still
listens for ClientApps. Such a process does no work, and no supervisor restarts it.

A SuperNode whose key counts as online is refused by Flower with code 2004. If this device crashed,
the server misses its earlier process within a minute, and the SuperNode waits for that. If another
device has the same key, it says so and ends.
"""

import argparse
import logging
import os
import re
import ssl
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NoReturn

import httpx

from fl_app.core import json_log
from fl_app.core.errors import RunError
from fl_app.field.identity import fingerprint, known_to_server
from fl_app.node import warm

PACKAGES = {"fl-app": "project", "flwr": "flower", "torch": "torch"}  # as the gate calls them
LOOK = 5.0  # seconds
AGAIN = 2.0  # seconds until a server that does not answer is asked again
UNTRUSTED = "certificate verify failed"
# Seconds without a heartbeat after which Flower misses a node, and some: after them, a node that is
# online is another device.
MISSED = 75.0
# How Flower's lines about every message begin.
OF_MESSAGES = (
    *("[RUN %s", "Receiving: ", "Received successfully", "Sending: ", "Sent successfully"),
    "Start `flwr-clientapp` process",
)


def wait_for_key(
    status: Callable[[], str | None],
    name: str,
    *,
    pause: Callable[[float], None] = time.sleep,
    tell: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Wait until no node with this device's key counts as online.

    Args:
        status: of the node with the key, as the server tells it; None = it does not.
        name: of the key, for errors.
        pause: waits for a number of seconds.
        tell: reports to the user.

    Raises:
        RunError: another device has the key.
    """
    waited = 0.0
    while status() == "online":
        if waited >= MISSED:
            raise RunError(
                f"another device is online with this device's key, {name}: the server takes one of "
                "them only; give every device a key of its own (docs/edge-operations.md, Devices "
                "that come and go)"
            )
        if not waited:
            tell(f"the key {name} still counts as online: the server misses the process that died")
        pause(LOOK)
        waited += LOOK


class Asks:
    """Asks the server what it knows of the node that Flower's arguments describe.

    Args:
        arguments: of ``flower-supernode``.

    Attributes:
        key: file with the node's key; None = it has none.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        options = ("--superlink", "--root-certificates", "--auth-supernode-private-key")
        for option in (*options, "--node-config"):
            parser.add_argument(option)
        found, _ = parser.parse_known_args(arguments)
        self._address, root, key, config = vars(found).values()
        self.key = Path(key) if self._address and root and key else None
        self._context = ssl.create_default_context(cafile=root) if self.key else None
        mine = re.search(r"\bpartition-id=(\d+)", config or "")
        versions = {name: _version(package) for package, name in PACKAGES.items()}
        self._about = {"client": mine[1] if mine else "", **versions}

    def told(self) -> Mapping[str, str]:
        """What the server tells; nothing if it does not answer, or has no gate."""
        try:
            return self._ask()
        except httpx.HTTPError:  # the SuperNode itself tries again
            return {}

    def wait(
        self,
        pause: Callable[[float], None] = time.sleep,
        tell: Callable[[str], None] = lambda text: print(text, flush=True),
    ) -> None:
        """Wait until the server answers, so that its node knows what it says before it joins.

        Args:
            pause: waits for a number of seconds.
            tell: reports to the user.
        """
        reported = False
        while True:
            try:
                self._ask()
                return
            except httpx.TransportError as error:
                if UNTRUSTED in str(error):
                    return  # the SuperNode itself says so, and ends
                if not reported:
                    tell(f"waiting for the server: {self._address} does not answer: {error}")
                    reported = True
            pause(AGAIN)

    def _ask(self) -> Mapping[str, str]:
        """What the server tells; nothing if it has no gate.

        Raises:
            httpx.HTTPError: it does not answer.
        """
        if self.key is None:
            return {}
        return known_to_server(self._address, self.key, self._context, self._about) or {}

    def other_version(self) -> str:
        """How the server's version of this project differs, in words; "" = it does not."""
        theirs, ours = self.told().get("project", ""), self._about["project"]
        if not theirs or theirs == ours:
            return ""
        return (
            f"this device has version {ours or 'unknown'} of fl-app, and the server {theirs}: "
            "orders may fail until it is updated (docs/edge-operations.md, Updates)"
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def tells(record: logging.LogRecord) -> bool:
    """Whether a record tells more than Flower's nine lines about each message.

    An order has a line of its own (`fl_app.node.handler`), and an error names its message.
    """
    text = str(record.msg)
    return record.levelno != logging.INFO or not (text == "" or text.startswith(OF_MESSAGES))


def _node() -> None:
    json_log.install()
    logging.getLogger(json_log.LOGGER).addFilter(tells)
    asks = Asks(sys.argv[1:])
    if asks.key is not None:
        name = f"{fingerprint(asks.key)} in {asks.key}"
        asks.wait()
        wait_for_key(lambda: asks.told().get("status"), name)
        if differs := asks.other_version():
            print(differs, flush=True)
    warm.main()


def serve(node: Callable[[], None]) -> NoReturn:
    """Run a SuperNode, and end this process with status 1 when the SuperNode returns or raises.

    Args:
        node: runs the SuperNode. If it raises ``SystemExit``, the process ends with that status.
    """
    try:
        node()
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    print("The SuperNode has given up", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    serve(_node)
