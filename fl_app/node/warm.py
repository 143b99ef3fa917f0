"""A SuperNode that loses less time between two orders: ``python -m fl_app.node.warm``.

It replaces ``flower-supernode``, with the same arguments; use it with ``resident=true``::

    python -m fl_app.node.warm [--only executor|node] --superlink server.lan:8100 ...

Flower's SuperNode asks for an order every 3 s and looks for the reply every 0.5 s. Its SuperExec
looks for work every second and then starts Python, which imports Flower. A warm node differs:

- The executor imports Flower once, forks for every message and unpacks an app once.
- Node and executor look again after a tenth of the time that they have waited already, and never
  later than Flower.

If a message is still being uploaded, Flower asks for it again after 1, 3, 7, ... s. A warm node
asks sooner, and so does the server with ``runtime.warm=true``.

It replaces private functions of Flower (`fl_app.flower.private`). With another version of Flower
than 1.41 it replaces nothing and warns.
"""

import argparse
import gc
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fl_app.flower.private import (
    LAUNCHER,
    LEAST,
    NODE,
    SUPEREXEC,
    install_once,
    known,
    pull_sooner,
    replace,
)

log = logging.getLogger("flwr")
SHARE = 0.1  # of the time waited already: the loss is small at any scale, as in `flower.grid`


class Pace:
    """Sleeps between two looks: briefly at first, and never longer than requested.

    Args:
        now: returns the seconds on a clock.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now, self._pause = now, pause
        self._asked: float | None = None
        self.renew()

    def renew(self) -> None:
        """Start a new wait."""
        self._since = self._now()

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep`. A request for another duration starts a new wait."""
        if seconds != self._asked:
            self._asked = seconds
            self.renew()
        self._pause(min(seconds, max(LEAST, SHARE * (self._now() - self._since))))


class ForkServer:
    """A process that has imported Flower and forks ClientApps.

    Create it before this process has threads. It ends with this process.
    """

    def __init__(self) -> None:
        self._orders, orders = Pipe()
        if os.fork() == 0:
            gc.freeze()  # forked processes then share the memory of all objects
            self._orders.close()
            run_client_app(_fork_at(orders))
        orders.close()

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | None":
        """Replace `subprocess.Popen`; return after the ClientApp has ended.

        A ClientApp reads its Context when it starts and writes it when it ends, so the next one has
        to wait.
        """
        if command[0] == "flwr-clientapp" and not options:
            try:
                self._orders.send(command)
            except OSError:
                log.warning("the fork server has ended: ClientApps start as Flower starts them")
            else:
                with suppress(EOFError, OSError):
                    self._orders.recv()
                return None
        return subprocess.Popen(command, **options)


def _fork_at(orders: Connection) -> list[str]:
    """Fork for every order, one after the other; return its command in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork server ends with its parent
    while True:
        try:
            command: list[str] = orders.recv()
        except EOFError:
            os._exit(0)
        child = os.fork()
        if child == 0:
            orders.close()
            return command
        os.waitpid(child, 0)
        with suppress(OSError):  # the parent may have ended meanwhile
            orders.send(None)


def run_client_app(command: list[str]) -> NoReturn:
    """Run ``flwr-clientapp`` in this process, without the loaded modules of this package.

    The server may have sent an app with another version of the package.
    """
    from flwr.supernode.cli import flwr_clientapp

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in [name for name in sys.modules if name.partition(".")[0] == "fl_app"]:
        del sys.modules[name]
    sys.argv = command
    flwr_clientapp()
    sys.exit()


def run_super_exec() -> None:
    """Run ``flower-superexec`` in this process, with forked ClientApps."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supernode.runtime import run_clientapp  # here, so that forked processes have it

    run_clientapp.install_from_fab = install_once  # type: ignore[assignment, attr-defined]
    pull_sooner()  # ClientApps may start before their message has arrived
    server, pace = ForkServer(), Pace()

    def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | None":
        process = server.start(command, **options)
        pace.renew()
        return process

    replace(LAUNCHER, "subprocess", Popen=start)
    replace(SUPEREXEC, "time", sleep=pace.sleep)
    flower_superexec()


def run_super_node(only: str | None) -> None:
    """Run ``flower-supernode`` in this process.

    Args:
        only: "executor" or "node": the other one runs unchanged; None = both are warm.
    """
    from flwr.supernode.cli import flower_supernode

    if known():
        if only != "node":
            replace(NODE, "subprocess", Popen=_start_super_exec)
        if only != "executor":
            replace(NODE, "time", sleep=Pace().sleep)
            pull_sooner()
    flower_supernode()


def _start_super_exec(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "fl_app.node.warm", *command])


def main() -> None:
    """The command line."""
    if sys.argv[1:2] == ["flower-superexec"]:
        sys.argv = sys.argv[1:]
        run_super_exec()
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only", choices=("executor", "node"))
    options, arguments = parser.parse_known_args()
    sys.argv = ["flower-supernode", *arguments]
    run_super_node(options.only)


if __name__ == "__main__":
    main()
