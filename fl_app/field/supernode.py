"""A SuperNode as a process that ends: ``python -m fl_app.field.supernode ARGUMENTS``.

It is warm unless WARM=0 in the environment (`fl_app.node.warm`).

``flower-supernode`` gives up at the first TLS handshake that fails. A handshake fails if the server
goes down during it. The main thread of ``flower-supernode`` then ends, but its process does not,
because another thread still listens for ClientApps. Such a process does no work, and no supervisor
restarts it.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from fl_app.core import json_log
from fl_app.node import warm

# How Flower's lines about every message begin.
OF_MESSAGES = (
    *("[RUN %s", "Receiving: ", "Received successfully", "Sending: ", "Sent successfully"),
    "Start `flwr-clientapp` process",
)


def tells(record: logging.LogRecord) -> bool:
    """Whether a record tells more than Flower's nine lines about each message.

    An order has a line of its own (`fl_app.node.handler`), and an error names its message.
    """
    text = str(record.msg)
    return record.levelno != logging.INFO or not (text == "" or text.startswith(OF_MESSAGES))


def serve(node: Callable[[], None]) -> NoReturn:
    """Run a SuperNode, and end this process with status 1 when the SuperNode returns or raises.

    Args:
        node: runs the SuperNode. If it raises ``SystemExit``, the process ends with that status.
    """
    try:
        node()
    except Exception:
        traceback.print_exc()
    print("The SuperNode has given up", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    json_log.install()
    logging.getLogger(json_log.LOGGER).addFilter(tells)
    serve(warm.main)
