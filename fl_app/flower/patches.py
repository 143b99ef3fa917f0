"""The private parts of Flower that this project replaces; the only file that names them.

On a node they are attributes of modules: `time` and `_pull_and_store_message` of
`start_client_internal`, whose stored messages are read as well, `get_executor` of `run_superexec`,
`flwr_exit` and `install_from_fab` of `run_clientapp`. On both sides, they are the waiting times of
the two functions of `inflatable_utils` that pull the parts of a message. They are replaced only in
the versions of Flower that were tried, `TRIED`.
"""

import logging
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
MIN_SLEEP = 0.03  # seconds
PULL_CAP = 0.5  # seconds between two looks at a part of a message

NODE = "flwr.supernode.start_client_internal"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
PUSH_ERROR = "ObjectPushError"  # the class of the error of a grid that cannot bring an object
SIMULATION_GRID = "InMemoryGrid"  # the class of the grid of Flower's simulation engine
PULLS = "pull_objects", "pull_and_inflate_object_from_tree"
# As many tries as fit into Flower's own limit of two hours: 500 would be over in 4 minutes.
SOON = {"initial_backoff": MIN_SLEEP, "backoff_cap": PULL_CAP, "max_tries_per_object": None}


def tried() -> bool:
    """Whether this version of Flower was tried; warns if it was not."""
    known = version("flwr") in TRIED
    if not known:
        log.warning("Flower %s waits as it always does: %s was tried", version("flwr"), TRIED)
    return known


def pull_sooner() -> None:
    """Let this process poll more often for objects that are still being uploaded."""
    for name in PULLS:
        function = getattr(import_module(INFLATABLE), name)
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **SOON}


def wait_with(sleep: Callable[[float], None]) -> None:
    """Let a SuperNode of this process sleep with a function instead of `time.sleep`."""
    time = import_module("time")
    vars(import_module(NODE))["time"] = SimpleNamespace(**{**vars(time), "sleep": sleep})


def push_late_replies() -> None:
    """Let a SuperNode of this process also send replies to orders whose run has ended.

    Flower sends one reply for each order that it pulled in full. A late reply would be sent in
    place of the next one. From then on, the node would be one order behind and would train no more.
    """
    node = vars(import_module(NODE))
    pull = node["_pull_and_store_message"]

    def pull_or_push(**options: Any) -> int | None:
        run_id: int | None = pull(**options)
        messages = [*options["state"].msg_store.values()]
        late = any(m.message.metadata.reply_to_message_id and not m.is_retrieved for m in messages)
        if run_id is None and late:
            log.warning("a reply to an order of a run that has ended is sent now")
            return 0  # the id of no run: the caller sends the replies that it has
        return run_id

    node["_pull_and_store_message"] = pull_or_push


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
