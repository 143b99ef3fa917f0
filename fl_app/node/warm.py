"""A SuperNode that loses less time between two orders: ``python -m fl_app.node.warm``.

It takes the place of ``flower-supernode``, with the same arguments, best with ``resident=true``::

    python -m fl_app.node.warm [--only executor|node] --superlink server.lan:8100 ...

Flower's SuperNode asks for an order every 3 s and looks for the reply every 0.5 s; its SuperExec
looks for work every second and then starts Python, which imports Flower. Instead,

- the executor imports Flower once, forks for every message and unpacks an app once;
- both look again after a tenth of the time that they waited already, and never later than Flower.

Whoever asks for a message that is still being uploaded asks Flower again after 1, 3, 7, ... s. A
warm node asks sooner, and so does the server where ``runtime.warm=true``.

It replaces private functions of Flower (`fl_app.flower.private`). Under another version than 1.41
everything stays as Flower has it, with a warning.
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
SHARE = 0.1  # of the time waited already: little is lost at any scale, as in `engine.grid`


class Pace:
    """Sleeps between two looks: briefly at first, and never longer than asked to.

    Args:
        now: seconds on a clock.
        pause: waits for seconds.
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
        """What follows is another wait."""
        self._since = self._now()

    def sleep(self, seconds: float) -> None:
        """Take the place of `time.sleep`; who asks for other seconds waits for something else."""
        if seconds != self._asked:
            self._asked = seconds
            self.renew()
        self._pause(min(seconds, max(LEAST, SHARE * (self._now() - self._since))))


class ForkServer:
    """A process that has imported Flower and does nothing but fork ClientApps.

    It comes into being before this process has threads, and ends with this process.
    """

    def __init__(self) -> None:
        self._orders, orders = Pipe()
        if os.fork() == 0:
            gc.freeze()  # what is there is shared with all that are forked
            self._orders.close()
            run_client_app(_fork_at(orders))
        orders.close()

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | None":
        """Take the place of `subprocess.Popen`; when this returns, a ClientApp has ended.

        Its Context is read when it starts and written when it ends, so the next one has to wait.
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
    """Fork at every order, one after the other; returns, in the child, what to run."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its parent
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
        with suppress(OSError):  # the parent has ended meanwhile
            orders.send(None)


def run_client_app(command: list[str]) -> NoReturn:
    """Run ``flwr-clientapp`` in this process, which then knows no module of this package.

    The app that the server sent may be another version of it.
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
    from flwr.supernode.runtime import run_clientapp  # here, so that those who are forked know it

    run_clientapp.install_from_fab = install_once  # type: ignore[assignment, attr-defined]
    pull_sooner()  # for ClientApps, which may start before their message is there
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
        only: "executor" or "node", where the other stays as Flower has it.
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
