"""Ray: the connection to a cluster, or a cluster of this machine's own."""

import logging
import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import fl_app
from fl_app.cluster.facts import Facts
from fl_app.cluster.machines import Lost, Machine, Outcome
from fl_app.cluster.worker import ClusterWorker
from fl_app.core.errors import RunError
from fl_app.core.extras import require_installed

PROBE_SECONDS = 5.0  # for an answer at the address; Ray itself would wait for minutes
REFRESH = 1.0  # seconds between two questions for the machines
CLOSE_SECONDS = 5.0  # for the last workers to be ended; Ray ends them with the connection, too
MOST_LETTERS = 300  # of Ray's reasons
LEAST_STORE = 100 << 20  # bytes; Ray takes none smaller than 75 MiB
# What travels within a call, and not through the store. An object in the store costs the processes
# of a machine 1 to 5 ms together, and a copy of a megabyte in a call less than one.
INLINE = 90 << 10  # bytes of an object; Ray's own limit is 100 KiB with what is around it
OWN_INLINE = 8 << 20  # in a cluster of this machine's own
OWN_INLINE_CALL = 64 << 20  # of all objects of a call


class RayWorker(ClusterWorker):
    """A worker that knows where Ray has put it."""

    def introduce(self) -> Facts:
        import ray

        return replace(super().introduce(), machine=ray.get_runtime_context().get_node_id())


class RayCluster:
    """A `Cluster` of Ray; the methods are described there.

    Args:
        address: ``"HOST:PORT"`` of a cluster's head, ``"auto"`` for the one that runs on this
            machine or that RAY_ADDRESS names, None to start one on this machine.
        num_workers: that are to have room on a cluster of this machine's own; None = one for each
            processor.
        cpus: processors of a worker, > 0; a fraction shares one.
        gpus: GPUs of a worker, >= 0.
        store_bytes: that a cluster of this machine's own needs in its store.

    Raises:
        ValueError: Ray is not installed, or this process is connected to another cluster.
        RunError: there is no cluster at the address, or one of another Ray or Python.
    """

    def __init__(
        self,
        address: str | None,
        *,
        num_workers: int | None = None,
        cpus: float = 1,
        gpus: float = 0,
        store_bytes: int = 0,
    ) -> None:
        require_installed("ray")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
        import ray

        self._ray = ray
        self._cpus = cpus
        self._gpus = gpus
        self._owned = not ray.is_initialized()
        # Of an array: a call and its result carry several.
        self.inline_bytes = OWN_INLINE // 8 if self._owned and address is None else INLINE
        if self._owned:
            with _handlers_kept():
                self._connect(address, num_workers, store_bytes)
        elif address not in (None, "auto", ray.get_runtime_context().gcs_address):
            raise ValueError(
                f"runtime.address={address} must be {ray.get_runtime_context().gcs_address} or "
                "null: this process is connected to that cluster, and Ray connects to one at a time"
            )
        self._worker = ray.remote(RayWorker)
        # What waits for an answer of the cluster's head has a thread of its own: the head may be
        # slow to answer when a machine is lost, and training goes on meanwhile.
        self._machines = self._ask_for_machines()
        self._errands: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run_errands, daemon=True)
        self._thread.start()

    def machines(self) -> Mapping[str, Machine]:
        return self._machines

    def _ask_for_machines(self) -> Mapping[str, Machine]:
        found = {}
        for node in self._ray.nodes():  # type: ignore[no-untyped-call]
            offers = node["Resources"]
            if not node["Alive"] or not offers:
                continue
            cpus, gpus = offers.get("CPU", 0.0), offers.get("GPU", 0.0)
            room = math.floor(cpus / self._cpus + 1e-9)
            if self._gpus:
                room = min(room, math.floor(gpus / self._gpus + 1e-9))
            name, address = node["NodeManagerHostname"], node["NodeManagerAddress"]
            found[node["NodeID"]] = Machine(
                name=name if name == address else f"{name} ({address})",
                room=room,
                store_bytes=int(offers.get("object_store_memory", 0)),
                has=f"{cpus:g} CPUs and {gpus:g} GPUs",
            )
        return found

    def start(self, machine: str, *, strictly: bool) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        options = self._worker.options(
            num_cpus=self._cpus,
            num_gpus=self._gpus,
            # Orders of a lost worker are given to others: the cluster must repeat nothing.
            max_restarts=0,
            max_task_retries=0,
            # Other runs of the cluster may hold the processors of this machine.
            scheduling_strategy=NodeAffinitySchedulingStrategy(
                machine, soft=not strictly, _spill_on_unavailable=not strictly
            ),
        )
        return options.remote()

    def call(
        self, worker: Any, method: str, *arguments: Any, then: Callable[[Outcome], None]
    ) -> None:
        # A future, and no `ray.wait`, whose time grows with the number of calls.
        future = getattr(worker, method).remote(*arguments).future()
        future.add_done_callback(lambda done: then(_outcome(done)))

    def put(self, value: Any) -> Any:
        try:
            return self._ray.put(value)
        except (
            self._ray.exceptions.ObjectStoreFullError,
            self._ray.exceptions.OutOfDiskError,
        ) as error:
            told = _one_line(error)[:MOST_LETTERS]
            raise RunError(
                f"the object store of this machine is full ({told}): start Ray with a larger "
                "--object-store-memory"
            ) from error

    def kill(self, worker: Any) -> None:
        self._errands.put(lambda: self._ray.kill(worker, no_restart=True))

    def _run_errands(self) -> None:
        while True:
            with suppress(Exception):  # the worker may be dead, and so may the cluster
                try:
                    errand = self._errands.get(timeout=REFRESH)
                except Empty:
                    self._machines = self._ask_for_machines()
                    continue
                if errand is None:
                    return
                errand()

    def close(self) -> None:
        self._errands.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._owned:
            with _handlers_kept():
                self._ray.shutdown()
            self._owned = False

    def _connect(self, address: str | None, num_workers: int | None, store_bytes: int) -> None:
        common: dict[str, Any] = {
            "configure_logging": False,
            "log_to_driver": False,
            "logging_level": logging.ERROR,
        }
        if address is None:
            os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's workers give way to others
            cores = len(os.sched_getaffinity(0))
            cpus = cores if num_workers is None else max(cores, math.ceil(num_workers * self._cpus))
            with _children_ignore_sigterm():
                self._ray.init(
                    address="local",
                    num_cpus=cpus,
                    include_dashboard=False,
                    object_store_memory=max(LEAST_STORE, store_bytes),
                    _system_config={
                        "max_direct_call_object_size": OWN_INLINE,
                        "task_rpc_inlined_bytes_limit": OWN_INLINE_CALL,
                    },
                    **common,
                )
            return
        where = _resolved(address)
        _require_head(where)
        # The code of this project goes to the cluster once, and from there to its machines.
        code = {"py_modules": [str(Path(fl_app.__file__).parent)]}
        try:
            self._ray.init(address=where, runtime_env=code, **common)
        except (RuntimeError, OSError, ValueError) as error:
            raise RunError(
                f"no connection to the Ray cluster at {where}: {_one_line(error)}; "
                "machines of a cluster need the same Ray and the same Python"
            ) from error


def _resolved(address: str) -> str:
    """The address as HOST:PORT."""
    if address != "auto":
        return address
    from ray._private.services import canonicalize_bootstrap_address

    try:
        found = os.environ.get("RAY_ADDRESS") or canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if not found:
        raise RunError(
            "runtime.address=auto: no Ray cluster runs on this machine: start one with `ray start "
            "--head`, name one with runtime.address=HOST:PORT, or leave runtime.address=null, "
            "which starts one for this run"
        )
    return str(found)


def _require_head(address: str) -> None:
    """Refuse an address at which no head of a Ray cluster answers: Ray would try for minutes.

    Raises:
        RunError: nobody does.
    """
    import grpc

    # Directly, as Ray does, whatever proxy the environment names.
    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:
        cluster_id = channel.unary_unary("/ray.rpc.NodeInfoGcsService/GetClusterId")
        try:
            cluster_id(b"", timeout=PROBE_SECONDS)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNAUTHENTICATED:
                return  # it is there, and Ray's own error says what it wants
            told = str(error.details()) or error.code().name
            raise RunError(
                f"no Ray cluster answers at {address} ({told}): start one there with `ray start "
                f"--head --port={address.rpartition(':')[2]}`, see that a firewall lets this "
                "machine through, and give the address that `ray start` prints"
            ) from error


def _outcome(done: Any) -> Outcome:
    """What a finished call came to, as `Cluster.call` tells it."""
    from ray import exceptions

    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, exceptions.RayTaskError):  # raised by the method itself
        return RuntimeError(_one_line(getattr(error, "cause", None) or error))
    if isinstance(error, exceptions.RayError):
        others = (
            exceptions.NodeDiedError,
            exceptions.ObjectLostError,
            exceptions.LocalRayletDiedError,
        )
        machine = isinstance(error, others) or "its node has died" in str(error)
        return Lost(_reason(error), alone=not machine)
    return error


def _reason(error: BaseException) -> str:
    """Why a worker is gone, without what Ray adds about causes that there may be."""
    told = _one_line(error)
    if "low on memory" in told:
        return "its machine was short of memory, so Ray ended it"
    why = told.partition("because ")[2].partition(" Some common causes")[0]
    return (why or told)[:MOST_LETTERS]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """A context after which SIGTERM is handled as before: Ray handles it anew."""
    try:
        before = signal.getsignal(signal.SIGTERM)
        yield
    finally:
        with suppress(ValueError):  # not in the main thread, where Ray leaves it alone, too
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _children_ignore_sigterm() -> Iterator[None]:
    """A context whose processes are not ended by SIGTERM.

    A batch system sends it to all processes of a job. Without its cluster, this one would end
    before it has saved a checkpoint. Ray's processes end with it all the same.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
