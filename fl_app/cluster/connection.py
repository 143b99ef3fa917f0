"""The connection to a Ray cluster, or a cluster of this machine's own."""

import logging
import math
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from fl_app.core.errors import RunError, error_text
from fl_app.core.extras import require_installed

PROBE_SECONDS = 5.0  # until a server answers at the address; Ray itself waits for minutes


def connect(address: str | None, num_cpus: int) -> bool:
    """Connect this process to a cluster; returns whether it was not connected before.

    Args:
        address: ``"HOST:PORT"`` of a cluster's head, ``"auto"`` for the one that runs on this
            machine or that RAY_ADDRESS names, None to start one on this machine.
        num_cpus: processors of a cluster that is started here.

    Raises:
        ValueError: Ray is not installed, or this process is connected to another cluster.
        RunError: no cluster is at the address, or its Ray or Python is another version.
    """
    require_installed("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
    os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers give way to others
    import ray

    if ray.is_initialized():
        current = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", current):
            raise ValueError(
                f"runtime.address={address} must be {current} or null: this process is connected "
                "to that cluster, and Ray connects to one at a time"
            )
        return False
    settings: dict[str, Any] = {
        "configure_logging": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
    }
    if address is None:
        settings |= {"address": "local", "num_cpus": num_cpus, "include_dashboard": False}
    else:
        # The code of this project goes to the cluster once, and from there to its machines.
        code = {"py_modules": [str(Path(__file__).parents[1])]}
        settings |= {"address": address, "runtime_env": code}
        if address != "auto":
            _require_server(address)
    try:
        with _keep_sigterm_handler(), nullcontext() if address else _children_ignore_sigterm():
            ray.init(**settings)
    except (RuntimeError, OSError, ValueError) as error:
        raise RunError(
            f"no connection to the Ray cluster at runtime.address={address}: {error_text(error)}; "
            "start one with `ray start --head`; its machines need the same Ray and Python"
        ) from error
    return True


def disconnect() -> None:
    """End the connection, and a cluster that was started for it."""
    import ray

    with _keep_sigterm_handler():
        ray.shutdown()


def resources() -> list[dict[str, float]]:
    """The resources of each connected machine, by Ray's names."""
    import ray

    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    return [node["Resources"] for node in nodes if node["Alive"]]


def room(gpus: float) -> int:
    """The number of workers of one processor for which the machines have room.

    Args:
        gpus: of a worker, >= 0.
    """
    offers = [(each.get("CPU", 0.0), each.get("GPU", 0.0)) for each in resources()]
    fits = (min(cpu, gpu / gpus if gpus else math.inf) for cpu, gpu in offers)
    return sum(math.floor(fit + 1e-9) for fit in fits)


def _require_server(address: str) -> None:
    """Refuse an address at which no server listens: Ray would try for minutes.

    Raises:
        RunError: no server listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), PROBE_SECONDS).close()
    except OSError as error:
        raise RunError(
            f"no Ray cluster answers at {address} ({error}): start one there with `ray start "
            f"--head --port={port}`, see that a firewall lets this machine through, and give the "
            "address that `ray start` prints"
        ) from error


@contextmanager
def _keep_sigterm_handler() -> Iterator[None]:
    """A context that restores the handler of SIGTERM, which Ray replaces."""
    try:
        handler = signal.getsignal(signal.SIGTERM)
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray leaves it alone, too
            signal.signal(signal.SIGTERM, handler)


@contextmanager
def _children_ignore_sigterm() -> Iterator[None]:
    """A context whose processes are not ended by SIGTERM.

    A batch system sends it to all processes of a job. Without its cluster, this process would end
    before it has saved a checkpoint. Ray's processes end with this one in any case.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
