"""A SuperNode as a process that ends: ``python -m fl_app.field.supernode ARGUMENTS``.

It is warm as far as WARM of the environment and the memory say (`fl_app.node.warm`).

``flower-supernode`` gives up at the first TLS handshake that fails. A handshake fails if the
SuperLink dies during it, or if a proxy accepts connections for a SuperLink that is down. The main
thread of ``flower-supernode`` then ends, but its process does not, because another thread still
listens for ClientApps. Such a process does no work, and no supervisor restarts it.
"""

import os
import sys
import traceback
from collections.abc import Callable
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


if __name__ == "__main__":
    serve(warm.main)
