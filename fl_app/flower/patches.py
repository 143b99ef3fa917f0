"""The private parts of Flower that this project replaces; the only file that names them.

On a node they are names in modules: `time` of `start_client_internal`, `get_executor` of
`run_superexec`, `flwr_exit` and `install_from_fab` of `run_clientapp`. On both sides, it is how
long the two functions of `inflatable_utils` wait that pull the parts of a message. They are
replaced in the versions of Flower that were tried, `TRIED`. The bound on replies is a wrapper of
`pull_objects` in `http_grid`, in every version that has it.
"""

import logging
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from packaging.specifiers import SpecifierSet

if TYPE_CHECKING:
    from flwr.supercore.superexec.executor import Executor

log = logging.getLogger("flwr")

TRIED = SpecifierSet(">=1.41,<1.43")  # tests run a node with the oldest and the newest
LEAST = 0.03  # seconds
PULL_CAP = 0.5  # seconds between two looks at a part of a message

NODE = "flwr.supernode.start_client_internal"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
HTTP_GRID = "flwr.superlink.grid.http_grid"
PUSH_ERROR = "ObjectPushError"  # the class of the error of a grid that cannot bring an object
SIMULATION_GRID = "InMemoryGrid"  # the class of the grid of Flower's simulation engine
TOO_LARGE = "the reply is larger than"
PULLS = "pull_objects", "pull_and_inflate_object_from_tree"
# As many tries as fit into Flower's own limit of two hours: 500 would be over in 4 minutes.
SOON = {"initial_backoff": LEAST, "backoff_cap": PULL_CAP, "max_tries_per_object": None}


def tried() -> bool:
    """Whether this version of Flower was tried; warns if it was not."""
    known = version("flwr") in TRIED
    if not known:
        log.warning("Flower %s waits as it always does: %s was tried", version("flwr"), TRIED)
    return known


def pull_sooner() -> None:
    """Let this process ask sooner again for what is still being uploaded."""
    for name in PULLS:
        function = getattr(import_module(INFLATABLE), name)
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **SOON}


def wait_with(sleep: Callable[[float], None]) -> None:
    """Let a SuperNode of this process sleep with a function instead of `time.sleep`."""
    time = import_module("time")
    vars(import_module(NODE))["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})


def launch_with(executor: "Executor") -> None:
    """Let a SuperExec of this process start tasks with an executor."""
    vars(import_module(SUPEREXEC))["get_executor"] = lambda *args, **options: executor


class OrderDone(BaseException):
    """Raised where Flower would end the process of an order that was carried out."""


def stay() -> None:
    """Let `run_clientapp` raise `OrderDone` in this process, and unpack an app once.

    After an order that failed, the process ends as in Flower.
    """
    from flwr.cli.install import install_from_fab
    from flwr.supercore.exit import flwr_exit
    from flwr.supercore.exit.exit_handler import trigger_exit_handlers

    def leave(code: int, **options: Any) -> None:
        if code:
            flwr_exit(code, **options)
        for first in (True, False):
            trigger_exit_handlers(run_before_force_exit=first)
        raise OrderDone

    names = {"flwr_exit": leave, "install_from_fab": cache(install_from_fab)}
    vars(import_module(CLIENT_APP)).update(names)


def bound_replies(most: int, grid: Any) -> None:
    """Let this process refuse a reply before it holds more than `most` bytes of it.

    A grid pulls a reply part by part. Without a bound a node could fill the server's memory. What
    is refused is also removed from the SuperLink's database. Flower removes only what was pulled
    whole, and the rest when the run ends, so a node could fill the server's disk.

    Args:
        most: bytes of the parts of one reply.
        grid: pulls the replies.
    """
    inflatable, pulling = import_module(INFLATABLE), import_module(HTTP_GRID)
    pull_all, refused = inflatable.pull_objects, inflatable.ObjectPullError

    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
    ) -> dict[str, bytes]:
        lock, held = threading.Lock(), 0

        def pull(object_id: str) -> bytes:
            nonlocal held
            content = pull_object_fn(object_id)
            with lock:
                held += len(content)
                if held > most:
                    raise refused(object_id, f"{TOO_LARGE} {most} bytes")
            return content

        try:
            found: dict[str, bytes] = pull_all(object_ids, pull, **options)
        except refused:
            _remove(grid, object_ids[-1])  # the message itself: children go before their parents
            raise
        return found

    if hasattr(pulling, "pull_objects"):
        pulling.pull_objects = pull_objects  # type: ignore[attr-defined]
    else:
        log.warning("Flower %s pulls replies in another way: they have no bound", version("flwr"))


def _remove(grid: Any, message_id: str) -> None:
    """Let the SuperLink forget the parts of a reply; those that are still pushed are refused."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    request = ConfirmMessageReceivedRequest(
        node=grid.node, run_id=grid.run.run_id, message_object_id=message_id
    )
    try:
        grid._runtime_client.ConfirmMessageReceived(request)
    except Exception as error:  # the parts stay until the run ends
        log.warning("a refused reply was not removed from the SuperLink: %r", error)
