"""A SuperNode that loses less time between two orders: ``python -m fl_app.node.warm``.

It replaces ``flower-supernode``, with the same arguments::

    python -m fl_app.node.warm [--only executor|node] --superlink server.lan:8100 ...

Flower's SuperNode asks for an order every 3 s and looks for the reply every 0.5 s. Its SuperExec
looks for work every second and then starts Python, which imports Flower. A warm node differs:

- The executor imports Flower once, forks for every message and unpacks an app once.
- Node and executor look again after a tenth of the time that they have waited already, and never
  later than Flower.
- The node drops a reply whose content does not come, and an order whose run has ended, where
  Flower's waits for ever. This also holds with ``WARM=0``.

If a message is still being uploaded, Flower asks for it again after 1, 3, 7, ... s. A warm node
asks sooner, and so does the server with ``runtime.warm=true``.

``WARM=auto`` of the environment, which is the default, lets the node decide from the memory that is
free (`fl_app.node.room`) what stays between two orders. ``WARM=1`` turns all of it on, and
``WARM=0`` lets it wait as Flower's own SuperNode does.

It replaces private functions of Flower (`fl_app.flower.private`). Where Flower differs from what is
known of it, it replaces nothing and warns.
"""

import argparse
import gc
import logging
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from itertools import count
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fl_app.flower.private import (
    LAUNCHER,
    LEAST,
    NODE,
    SUPEREXEC,
    known,
    pull_sooner,
    replace,
    replace_installation,
)
from fl_app.node import forks, room
from fl_app.node.patience import Patience
from fl_app.node.room import Way
from fl_app.node.watch import Watch, end_client_apps

log = logging.getLogger("flwr")
WARM = (sys.executable, "-m", "fl_app.node.warm")  # before the words of Flower's executor
GRACE = 10.0  # seconds that a ClientApp waits for the end of the one before it
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
        self._begun = self._ended = 0  # numbers of ClientApps, from 1
        if os.fork() == 0:
            gc.freeze()  # forked processes then share the memory of all objects
            self._orders.close()
            run_client_app(_fork_at(orders))
        orders.close()

    @property
    def busy(self) -> bool:
        """Whether the latest ClientApp was still running when `wait` looked."""
        return self._begun > self._ended

    def start(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | None":
        """Replace `subprocess.Popen`.

        A ClientApp reads its Context when it starts and writes it when it ends. So the next one
        waits for its end, but not longer than `GRACE`: Flower has given up one that hangs.
        """
        if command[0] == "flwr-clientapp" and not options:
            self.wait(GRACE)
            try:
                self._orders.send(command)
            except OSError:
                log.warning("the fork server has ended: ClientApps start as Flower starts them")
            else:
                self._begun += 1
                return None
        return subprocess.Popen(command, **options)

    def wait(self, seconds: float) -> bool:
        """Wait for the latest ClientApp, but not longer than `seconds`; whether it has ended."""
        until = time.monotonic() + seconds
        try:
            while self.busy and self._orders.poll(max(until - time.monotonic(), 0.0)):
                self._ended = max(self._ended, self._orders.recv())
        except (EOFError, OSError):  # the fork server has ended
            self._ended = self._begun
        return not self.busy


def _fork_at(orders: Connection) -> list[str]:
    """Fork for every order and report the end of every child; return its command in the child."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the fork server ends with its parent
    children: dict[int, int] = {}  # process id -> number of its order
    ends, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    for number in count(1):
        while orders.fileno() not in select.select([orders.fileno(), ends], [], [])[0]:
            os.read(ends, 512)
            while children and (child := os.waitpid(-1, os.WNOHANG)[0]):
                with suppress(OSError):  # the parent may have ended meanwhile
                    orders.send(children.pop(child))
        try:
            command: list[str] = orders.recv()
        except EOFError:
            break
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (ends, told):
                os.close(descriptor)
            orders.close()
            return command
        children[child] = number
    os._exit(0)


def run_client_app(command: list[str]) -> NoReturn:
    """Run ``flwr-clientapp`` in this process, without the loaded modules of this package.

    The server may have sent an app with another version of the package.
    """
    from flwr.supernode.cli import flwr_clientapp

    signal.signal(signal.SIGINT, signal.default_int_handler)
    forks.rename(command)  # the node ends it by this name if its run has ended
    reserve = forks.Reserve(run_resident)  # as long as this process has no threads
    reserve.offer()
    forks.forget()
    sys.argv = command
    status = 0
    try:
        flwr_clientapp()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        reserve.dismiss()
    sys.stdout.flush()
    sys.stderr.flush()
    # Flower has done what it does at the end. Python would look at all objects once more, and so
    # copy the memory that this process shares.
    os._exit(status)


def run_resident(words: list[str], descriptors: list[int]) -> None:
    """Run the training process that a ClientApp starts, in this process.

    Args:
        words: as of `fl_app.node.resident`; the first is the folder of its code.
        descriptors: that it is given.
    """
    os.setsid()
    forks.forget()
    code, *_, idle = words
    sys.path.insert(0, code)
    listener, *parents = map(str, descriptors)
    sys.argv = ["resident", listener, idle, *parents]
    import_module("fl_app.node.resident").main()


def run_super_exec() -> None:
    """Run ``flower-superexec`` in this process, with forked ClientApps."""
    from flwr.supercore.cli import flower_superexec

    if known("executor"):
        replace_installation()  # here, so that forked processes have it
        pull_sooner()  # ClientApps may start before their message has arrived
        server, pace = ForkServer(), Pace()

        def sleep(seconds: float) -> None:
            if not server.busy:
                pace.sleep(seconds)
            elif server.wait(seconds):
                pace.renew()  # the next order may be there soon

        replace(LAUNCHER, "subprocess", Popen=server.start)
        replace(SUPEREXEC, "time", sleep=sleep)
        log.info("the executor forks ClientApps")
    flower_superexec()


def run_super_node(
    way: Way, only: str | None = None, beside: Callable[[bool], None] = lambda busy: None
) -> None:
    """Run ``flower-supernode`` in this process.

    Args:
        way: what it does between two orders.
        only: "executor" or "node": the other one runs unchanged; None = both as `way` says.
        beside: called again and again, with whether an order is under way, if Flower is as known.
    """
    from flwr.supernode.cli import flower_supernode

    log.info(way.why)
    if not way.stays:
        os.environ[room.VARIABLE] = room.OFF  # ClientApps decide whether a training process stays
    if way.fast and only != "node" and known("starts"):
        replace(NODE, "subprocess", Popen=_executor())
    often = way.fast and only != "executor" and known("waits")
    if often:
        pull_sooner()
    pause = Pace().sleep if often else time.sleep
    if known("orders"):
        watch = Watch(end_client_apps, beside=beside)
        replace(NODE, "time", sleep=Patience(pause, look=watch.look).sleep)
    elif often:
        replace(NODE, "time", sleep=Patience(pause).sleep)
    flower_supernode()


def _executor() -> Callable[..., "subprocess.Popen[bytes] | None"]:
    """Replaces `subprocess.Popen` in this process, which then forks its executor.

    The executor is forked now, while this process has no threads.
    """
    known("executor")  # imports what the executor needs
    forks.settle()
    reserve = forks.Reserve(_become_super_exec)

    def start(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes] | None":
        if command[0] == "flower-superexec":
            with suppress(OSError):  # the reserve may have ended
                reserve.start([*WARM, *command])
                return None
        return _start_super_exec(command, **options)

    return start


def _start_super_exec(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    if command[0] == "flower-superexec":
        command = [*WARM, *command]
    return subprocess.Popen(command, **options)


def _become_super_exec(words: list[str], descriptors: list[int]) -> None:
    del descriptors
    sys.argv = words[len(WARM) :]
    run_super_exec()


def main(beside: Callable[[bool], None] = lambda busy: None) -> None:
    """The command line.

    Args:
        beside: as of `run_super_node`.

    Raises:
        ValueError: WARM of the environment has no meaning.
    """
    if sys.argv[1:2] == ["flower-superexec"]:
        sys.argv = sys.argv[1:]
        run_super_exec()
        return
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--only", choices=("executor", "node"))
    options, arguments = parser.parse_known_args()
    sys.argv = ["flower-supernode", *arguments]
    # What the imports of this process have taken is a part of what a node needs.
    free = room.free() + room.held()
    run_super_node(room.choose(room.setting(), free), options.only, beside)


if __name__ == "__main__":
    main()
