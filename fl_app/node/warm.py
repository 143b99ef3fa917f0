"""A SuperNode that loses less time between two orders: ``python -m fl_app.node.warm``.

It replaces ``flower-supernode``, with the same arguments, of which it sets ``--isolation``::

    python -m fl_app.node.warm --superlink server.lan:8100 ...

Flower's SuperNode asks for an order every 3 s and looks for the reply every 0.5 s. Its SuperExec
looks for work every second, and starts a process for each order, which imports torch and loads the
data. Here one process stays and carries out all orders of an app (`fl_app.node.worker`)::

    SuperNode ... SuperExec with a StayingExecutor ... worker: ClientApp, torch, data, model

SuperNode and SuperExec look again after a tenth of the time that they have waited already, and
never later than Flower.

``WARM=0`` of the environment starts Flower's SuperNode as it is. So does a Flower that was not
tried (`fl_app.flower.patches`), which the log says.
"""

import argparse
import ctypes
import json
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pipe

from flwr.supercore.address import resolve_bind_address
from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import (
    SUPERNODE_UVICORN_DEFAULT_PORT,
    UVICORN_DEFAULT_HOST,
    TaskType,
)
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supernode.cli import flower_supernode

from fl_app.core.errors import require
from fl_app.flower.patches import known, launch_with, pull_sooner, wait_with

log = logging.getLogger("flwr")

VARIABLE = "WARM"
POLL_INTERVAL = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"  # seconds, of Flower's SuperExec
SHORTEST = 0.03  # seconds between two looks
SHARE = 0.1  # of the time waited already: the loss is small at any scale
WORK = 1.0  # seconds between two looks for work, as in Flower
GRACE = 10.0  # seconds that the next order waits for the end of the one before it
IDLE = 1.0  # seconds: a SuperNode that sleeps longer has no order
# Seconds after the death of a worker. Within 60 s Flower replies for it with an error. A SuperNode
# that waits still had the announcement of a reply, and waits for its content.
LIMIT = 120.0


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a node is to be warm, as WARM says; it is if there is none.

    Raises:
        ValueError: WARM has no meaning.
    """
    value = environment.get(VARIABLE) or "1"
    require(value in ("0", "1"), VARIABLE, value, "1 or 0", "it decides whether a process stays")
    return value == "1"


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
        self._pause(min(seconds, max(SHORTEST, SHARE * (self._now() - self._since))))


class Worker:
    """A process that carries out the orders of one app, one at a time.

    Attributes:
        app: hash of the app; None = unknown.
        busy: whether it carries out an order.
    """

    def __init__(self, app: str | None) -> None:
        self.app, self.busy = app, False
        self._orders, orders = Pipe()
        with orders:
            command = [sys.executable, "-m", "fl_app.node.worker", str(orders.fileno())]
            self._process = subprocess.Popen(command, pass_fds=[orders.fileno()])

    def start(self, spec: ExecutionSpec) -> None:
        """Give it an order.

        Raises:
            OSError: it has ended.
        """
        task = {
            "runtime_api_address": spec.runtime_api_address,
            "token": spec.token,
            "insecure": spec.insecure,
            "root_certificates_path": spec.root_certificates_path,
        }
        self._orders.send_bytes(json.dumps(task).encode())
        self.busy = True

    def is_free(self, seconds: float) -> bool:
        """Whether it has no order any more, after waiting at most some seconds for that.

        Raises:
            EOFError: it has ended.
            OSError: likewise.
        """
        if self.busy and self._orders.poll(seconds):
            self._orders.recv_bytes()
            self.busy = False
        return not self.busy

    def end(self) -> None:
        """Kill it; its files are written atomically."""
        self._orders.close()
        self._process.kill()
        self._process.wait()


class StayingExecutor(SubprocessExecutor):
    """Flower's interface to what starts ClientApps: one worker carries out all orders of an app.

    Apps whose dependencies Flower installs have processes of their own, as in Flower.

    Args:
        lost: when a worker died in the middle of an order, on the clock of `time.monotonic`; 0 =
            none did. It is shared with the SuperNode's process.
        pace: of the looks for work.
    """

    def __init__(self, lost: ctypes.c_double, pace: Pace | None = None) -> None:
        self._lost, self._pace = lost, pace or Pace()
        self._worker: Worker | None = None

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Let the worker carry out an order.

        A SuperNode has one order at a time. So a worker that is still busy has one that was given
        up, and is replaced.
        """
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        if not self._is_free(GRACE) or (self._worker and self._worker.app != spec.fab_hash):
            self.close()
        self._lost.value = 0.0
        try:
            self._worker = self._worker or Worker(spec.fab_hash)
            self._worker.start(spec)
        except OSError as error:  # it was killed while it waited, or no process can be started
            self.close()
            return LaunchResult.failed(f"its process cannot be used: {error}")
        return LaunchResult.accepted()

    def reconcile(self) -> None:
        """Wait for the end of the order, or else before the next look for one."""
        if self._worker is None or not self._worker.busy:
            self._pace.sleep(WORK)
        elif self._is_free(WORK):
            self._pace.renew()  # the next order may be there soon

    def close(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _is_free(self, seconds: float) -> bool:
        """Whether there is no order under way after some seconds; a dead worker has none."""
        try:
            return self._worker is None or self._worker.is_free(seconds)
        except (EOFError, OSError):
            log.warning("the process that carried out an order was killed: the order is lost")
            self._lost.value = time.monotonic()
            self.close()
            return True


class Patience:
    """Sleeps for a SuperNode, and gives up a reply whose content does not come.

    A ClientApp first announces its reply and then hands over the content. If it is killed in
    between, Flower's SuperNode waits for ever, and carries out no further order.

    Args:
        lost: as of `StayingExecutor`.
        alive: whether the executor's process runs.
        pace: of the looks for an order and for its reply.
        now: returns the seconds on the clock of `time.monotonic`.
    """

    def __init__(
        self,
        lost: ctypes.c_double,
        alive: Callable[[], bool],
        pace: Pace | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lost, self._alive, self._pace, self._now = lost, alive, pace or Pace(), now

    def sleep(self, seconds: float) -> None:
        """Replace `time.sleep`; ends the SuperNode if it has no executor any more.

        Raises:
            TimeoutError: the worker died `LIMIT` seconds ago, and the reply's content is missing.
        """
        if not self._alive():
            log.error("the executor has ended, and so does this node")
            signal.raise_signal(signal.SIGTERM)
        if seconds > IDLE:
            self._lost.value = 0.0
        elif self._lost.value and self._now() - self._lost.value > LIMIT:
            self._lost.value = 0.0
            raise TimeoutError("the content of the reply is missing: its ClientApp was killed")
        self._pace.sleep(seconds)


def run_executor(words: list[str], lost: ctypes.c_double) -> None:
    """Run ``flower-superexec`` in this process.

    Args:
        words: its arguments.
        lost: as of `StayingExecutor`.
    """
    os.environ.setdefault(POLL_INTERVAL, str(SHORTEST))
    launch_with(StayingExecutor(lost))
    sys.argv = ["flower-superexec", *words]
    flower_superexec()


def executor_arguments(arguments: list[str]) -> list[str]:
    """The arguments of ``flower-superexec`` that fit those of a SuperNode."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default=UVICORN_DEFAULT_HOST)
    parser.add_argument("--port", default=SUPERNODE_UVICORN_DEFAULT_PORT)
    parser.add_argument("--ssl-ca-certfile")
    parser.add_argument("--allow-runtime-dependency-installation", action="store_true")
    found, _ = parser.parse_known_args(arguments)
    host = f"[{found.host}]" if ":" in found.host else found.host
    words = ["--runtime-api-address", resolve_bind_address(f"{host}:{found.port}")]
    words += ["--parent-pid", str(os.getpid())]
    if found.ssl_ca_certfile:
        words += ["--root-certificates", found.ssl_ca_certfile]
    else:
        words += ["--insecure"]
    if found.allow_runtime_dependency_installation:
        words += ["--allow-runtime-dependency-installation"]
    return words


def main() -> None:
    """Run a SuperNode in this process, and its executor in another one.

    Call it before this process has threads: it forks.

    Raises:
        ValueError: WARM of the environment has no meaning.
    """
    arguments = sys.argv[1:]
    sys.argv = ["flower-supernode", *arguments]
    if not wanted():
        log.info("WARM=0: the node waits as Flower does, and no process stays")
    elif known("node"):
        context = multiprocessing.get_context("fork")  # shares the memory of all that is imported
        lost = context.RawValue(ctypes.c_double)
        executor = context.Process(
            target=run_executor, args=[executor_arguments(arguments), lost], daemon=True
        )
        executor.start()
        pull_sooner()
        wait_with(Patience(lost, executor.is_alive).sleep)
        sys.argv += ["--isolation", "process"]
    flower_supernode()


if __name__ == "__main__":
    main()
