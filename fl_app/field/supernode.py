"""Flower's SuperNode as a process that ends: ``python -m fl_app.field.supernode ARGUMENTS``.

``flower-supernode`` gives up at the first TLS handshake that fails. A handshake fails if the
SuperLink dies during it, or if a proxy accepts connections for a SuperLink that is down. The main
thread of ``flower-supernode`` then ends, but its process does not, because another thread still
listens for ClientApps. Such a process does no work, and no supervisor restarts it.
"""

import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import NoReturn

from fl_app.node import warm


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


def chosen(environment: Mapping[str, str]) -> Callable[[], None]:
    """Return Flower's SuperNode, or a warm one (`fl_app.node.warm`) if WARM=1."""
    from flwr.supernode.cli import flower_supernode

    return warm.main if environment.get("WARM") == "1" else flower_supernode


if __name__ == "__main__":
    serve(chosen(os.environ))
