"""A SuperNode that loses less time between two orders: ``python -m fl_app.node.warm``.

It replaces ``flower-supernode``, with the same arguments, of which it sets ``--isolation``::

    python -m fl_app.node.warm --superlink server.lan:8100 ...

Flower's SuperNode asks for an order every 3 s and looks for the reply every 0.5 s. Its SuperExec
looks for work every second, and starts a process for each order, which imports torch and loads the
data. Here one process stays and carries out all orders of an app (`fl_app.node.worker`)::

    SuperNode ... SuperExec with a StayingExecutor ... worker: ClientApp, torch, data, model

SuperNode and SuperExec look again after a tenth of the time that they have waited already, and
never later than Flower.

``flower-supernode`` gives up at the first TLS handshake that fails, as one does while the server
goes down. Its main thread then ends, but not its process, because another thread still listens for
ClientApps, and no supervisor would restart it. So this module ends the process with status 1.

``WARM=0`` in the environment starts Flower's SuperNode unchanged. So does a version of Flower that
was not tried (`fl_app.flower.patches`), with a warning in the log.
"""

import argparse
import logging
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from flwr.supercore.address import resolve_bind_address
from flwr.supercore.constant import SUPERNODE_UVICORN_DEFAULT_PORT, UVICORN_DEFAULT_HOST, TaskType
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supercore.superexec.run_superexec import run_superexec
from flwr.supernode.cli import flower_supernode

from fl_app.core.errors import require
from fl_app.flower.patches import launch_with, pull_sooner, push_late_replies, tried, wait_with

log = logging.getLogger("flwr")

VARIABLE = "WARM"
POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds, of Flower's SuperExec
SHORTEST = 0.03  # seconds between two looks
SHARE = 0.1  # of the time waited already: a look is late by at most this share
WORK = 1.0  # seconds between two looks for work, as in Flower
GRACE = 10.0  # seconds that the next order waits for the end of the one before it

# How Flower's lines about every message begin.
OF_MESSAGES = (
    *("[RUN %s", "Receiving: ", "Received successfully", "Sending: ", "Sent successfully"),
    "Start `flwr-clientapp` process",
)


class Pace:
    """Sleeps between two looks: briefly at first, and never longer than requested."""

    def __init__(self) -> None:
        self._requested, self._since = math.nan, 0.0

    def renew(self) -> None:
        """Start a new wait."""
        self._requested = math.nan

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep`. A request for another duration starts a new wait."""
        if seconds != self._requested:
            self._requested, self._since = seconds, time.monotonic()
        time.sleep(min(seconds, max(SHORTEST, SHARE * (time.monotonic() - self._since))))


class StayingExecutor(SubprocessExecutor):
    """Flower's interface for starting ClientApps: one worker carries out all orders of an app.

    Apps whose dependencies Flower installs have processes of their own, as in Flower.
    """

    def __init__(self) -> None:
        self._pace = Pace()
        self._worker: tuple[subprocess.Popen[bytes], Connection] | None = None
        self._app: str | None = None
        self._busy = False

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Let the worker carry out an order.

        A SuperNode has one order at a time. So a worker that is still busy works on an abandoned
        one, and is replaced.
        """
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        if not self._is_free(GRACE) or self._app != spec.fab_hash:
            self.close()
        task = spec.runtime_api_address, spec.token, spec.insecure, spec.root_certificates_path
        try:
            self._worker = self._worker or self._start()
            self._worker[1].send(task)
        except OSError as error:  # it was killed while it waited, or no process can be started
            self.close()
            return LaunchResult.failed(f"its process cannot be used: {error}")
        self._app, self._busy = spec.fab_hash, True
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Wait for the end of the order, or else before the next look for one."""
        if not self._busy:
            self._pace.sleep(WORK)
        elif self._is_free(WORK):
            self._pace.renew()  # the next order may come soon

    def close(self) -> None:
        """Kill the worker; its files are written atomically."""
        if self._worker is not None:
            process, orders = self._worker
            orders.close()
            process.kill()
            process.wait()
        self._worker, self._busy = None, False

    def _start(self) -> tuple["subprocess.Popen[bytes]", Connection]:
        ours, orders = Pipe()
        with orders:
            command = [sys.executable, "-m", "fl_app.node.worker", str(orders.fileno())]
            return subprocess.Popen(command, pass_fds=[orders.fileno()]), ours

    def _is_free(self, seconds: float) -> bool:
        """Whether no order is under way after some seconds; a dead worker has none.

        Raises:
            SystemExit: the worker was killed. It may have announced a reply, for whose content the
                SuperNode would wait for ever.
        """
        try:
            if self._busy and self._worker and self._worker[1].poll(seconds):
                self._worker[1].recv()
                self._busy = False
        except (EOFError, OSError):
            status = self._worker[0].wait() if self._worker else 0
            self.close()
            if status < 0:
                log.error("the process of an order was killed: %s", signal.strsignal(-status))
                sys.exit(1)
        return not self._busy


def run_executor(runtime: dict[str, Any], node: int) -> None:
    """Run Flower's SuperExec in this process.

    Args:
        runtime: arguments of `run_superexec`.
        node: id of the SuperNode's process.
    """
    os.environ.setdefault(POLL_INTERVAL, str(SHORTEST))
    launch_with(StayingExecutor())
    run_superexec(**runtime, parent_pid=node)


def runtime_of(arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of `run_superexec` for a SuperNode with these arguments."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default=UVICORN_DEFAULT_HOST)
    parser.add_argument("--port", default=SUPERNODE_UVICORN_DEFAULT_PORT)
    parser.add_argument("--ssl-ca-certfile")
    parser.add_argument("--allow-runtime-dependency-installation", action="store_true")
    options, _ = parser.parse_known_args(arguments)
    host = f"[{options.host}]" if ":" in options.host else options.host
    return {
        "runtime_api_address": resolve_bind_address(f"{host}:{options.port}"),
        "insecure": not options.ssl_ca_certfile,
        "root_certificates_path": options.ssl_ca_certfile,
        "runtime_dependency_install": options.allow_runtime_dependency_installation,
    }


def supernode() -> None:
    """Run a SuperNode in this process, and its executor in another one.

    Raises:
        ValueError: WARM of the environment has no meaning.
    """
    warm = os.environ.get(VARIABLE) or "1"
    require(warm in ("0", "1"), VARIABLE, warm, "1 or 0", "it decides whether a process stays")
    known = tried()
    if known:
        push_late_replies()
    if warm == "0":
        log.info("WARM=0: the node waits as Flower does, and no process stays")
    elif known:
        context = multiprocessing.get_context("fork")  # shares the memory of all that is imported
        runtime = runtime_of(sys.argv[1:])
        executor = context.Process(target=run_executor, args=[runtime, os.getpid()], daemon=True)
        executor.start()
        pull_sooner()
        pace = Pace()

        def sleep(seconds: float) -> None:
            if not executor.is_alive():
                log.error("the executor has ended, and so does this node: start it again")
                signal.raise_signal(signal.SIGTERM)
            pace.sleep(seconds)

        wait_with(sleep)
        sys.argv += ["--isolation", "process"]
    flower_supernode()


def is_informative(record: logging.LogRecord) -> bool:
    """Whether a record says more than Flower's nine lines about each message.

    An order has a line of its own (`fl_app.node.handler`), and an error names its message.
    """
    text = str(record.msg)
    return record.levelno != logging.INFO or not (text == "" or text.startswith(OF_MESSAGES))


def main(node: Callable[[], None] = supernode) -> NoReturn:
    """Run a SuperNode, and end this process when the SuperNode returns or raises.

    Call it before this process has threads: it forks.

    Args:
        node: runs the SuperNode. If it raises ``SystemExit``, the process ends with that status.
    """
    log.addFilter(is_informative)
    try:
        node()
    except Exception:
        traceback.print_exc()
    print("The SuperNode has given up", file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
