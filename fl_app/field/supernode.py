"""Flower's SuperNode as a process that ends: ``python -m fl_app.field.supernode ARGUMENTS``.

``flower-supernode`` gives up at the first TLS handshake that fails, as when the SuperLink dies
meanwhile, or stands behind a proxy that still takes connections. Its main thread then ends, but its
process does not: a thread of it goes on to listen for ClientApps, so that it does nothing for ever
and nobody who watches over it can see that.
"""

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from fl_app.node import warm


def serve(node: Callable[[], None]) -> NoReturn:
    """Run a SuperNode, and end this process with status 1 when it returns or raises.

    Args:
        node: runs it; when it exits by itself, that is its own way.
    """
    try:
        node()
    except Exception:
        traceback.print_exc()
    print("The SuperNode has given up", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


def main() -> NoReturn:
    """The command; with WARM=1 in the environment a warm one, see `fl_app.node.warm`."""
    from flwr.supernode.cli import flower_supernode

    serve(warm.main if os.environ.get("WARM") == "1" else flower_supernode)


if __name__ == "__main__":
    main()
