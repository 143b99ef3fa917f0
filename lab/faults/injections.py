"""The faults: how each is injected, and how the run must respond.

Every function injects a fault into a run and returns what it observed. It raises `RunError` if
the run does not respond as it must.
"""

import random
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import psutil

from fl_app.core.errors import RunError
from fl_app.record.history import History, OrderRecord
from lab.faults.field import NODES, SECONDS, Field

CUT = 90.0  # seconds without a link
RESTARTED = "the server was started anew"


def hang_client_app(field: Field, node: int) -> str:
    """SIGSTOP of a ClientApp that trains, until its order has failed."""
    workers, sequence = _training(field, node)
    for worker in workers:
        worker.suspend()
    try:
        order = _failure(field, node, sequence)
    finally:
        for worker in workers:
            with suppress(psutil.NoSuchProcess):
                worker.resume()
    _wait_for_update(field, node, sequence)
    return _story(order)


def kill_client(field: Field, node: int, *, process: str) -> str:
    """SIGKILL of the ClientApp of a node that trains, or of its SuperNode; both start again."""
    _, sequence = _training(field, node)
    start = time.monotonic()
    _kill(field, f"node-{node}", process)
    order = _failure(field, node, sequence)
    delay = time.monotonic() - start
    _wait_for_update(field, node, sequence)
    return (
        f"failure after {delay:.0f} s: {order.reason}; "
        f"answers after {time.monotonic() - start:.0f} s"
    )


def kill_server(field: Field, _: None, *, process: str) -> str:
    """SIGKILL of the ServerApp or the SuperLink; the run's supervisor submits it again."""
    start, before, run_id = time.monotonic(), field.history(), field.supervisor.run_id
    _kill(field, "server", process)
    field.until(lambda: field.supervisor.run_id != run_id, "the run is submitted again")
    delay = time.monotonic() - start
    field.until(lambda: field.history().version > before.version + 1, "the run goes on")
    lost = _lost(field.history()) - _lost(before)
    if lost <= 0:
        raise RunError("the log does not tell which orders were lost")
    return (
        f"killed at version {before.version}, submitted again after {delay:.0f} s, goes on after "
        f"{time.monotonic() - start:.0f} s; {lost} failures: {RESTARTED}"
    )


def cut_link(field: Field, node: int) -> str:
    """The link is cut for `CUT` seconds."""
    _, sequence = _training(field, node)
    field.links[node].cut()
    time.sleep(CUT)
    field.links[node].restore()
    end = time.monotonic()
    order = _outcome(field, node, sequence)
    _wait_for_update(field, node, len(field.orders(node)) - 1)
    return f"{CUT:.0f} s: {_story(order)}; answers {time.monotonic() - end:.0f} s after"


class Fault(NamedTuple):
    """The function that injects a fault, and the node that it affects; None = all nodes."""

    inject: Callable[..., str]
    node: int | None = None


# By name, in the order of injection.
FAULTS = {
    "client-app-hangs": Fault(hang_client_app, 2),
    "link-cut": Fault(cut_link, 3),
    "client-app-killed": Fault(partial(kill_client, process="fl_app.node.worker"), 1),
    "node-killed": Fault(partial(kill_client, process="fl_app.node.warm"), 2),
    "server-app-killed": Fault(partial(kill_server, process="flwr-serverapp")),
    "superlink-killed": Fault(partial(kill_server, process="flower-superlink")),
}


def random_kills(count: int, rng: random.Random) -> dict[str, Fault]:
    """A number of faults by name: each kills a random process at a random moment."""
    kills = [name for name in FAULTS if name.endswith("-killed")]
    faults = {}
    for number in range(1, count + 1):
        name, node, seconds = rng.choice(kills), rng.randrange(NODES), rng.uniform(0, 2 * SECONDS)
        inject, default_node = FAULTS[name]
        inject = partial(_later, inject=inject, seconds=seconds)
        faults[f"{number}-{name}"] = Fault(inject, None if default_node is None else node)
    return faults


def _later(field: Field, node: int | None, inject: Callable[..., str], seconds: float) -> str:
    time.sleep(seconds)
    return inject(field, node)


def _story(order: OrderRecord) -> str:
    """A description of how an order ended."""
    reason = f": {order.reason}" if order.reason else ""
    return f"{order.ended} after {(order.end or order.start) - order.start:.0f} s{reason}"


def _outcome(field: Field, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has ended."""
    description = f"order {sequence} of client {node} ends"
    field.until(lambda: field.orders(node)[sequence].ended != "", description)
    return field.orders(node)[sequence]


def _failure(field: Field, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has failed."""
    order = _outcome(field, node, sequence)
    if order.ended != "failure":
        raise RunError(f"its order ended with {order.ended}")
    return order


def _wait_for_update(field: Field, node: int, sequence: int) -> None:
    """Wait for an update of an order after this one."""
    field.until(
        lambda: any(order.ended == "arrival" for order in field.orders(node)[sequence + 1 :]),
        f"node {node} answers again",
    )


def _training(field: Field, node: int) -> tuple[list[psutil.Process], int]:
    """Wait until a node is in the middle of an order; return its workers and the order's number."""
    count = len(field.orders(node))
    field.until(lambda: len(field.orders(node)) > count, f"node {node} is given an order")
    time.sleep(SECONDS / 4)
    order, workers = field.orders(node)[-1], field.processes(f"node-{node}", "fl_app.node.worker")
    if order.ended or not workers:  # it was lost at once
        return _training(field, node)
    return workers, order.sequence


def _kill(field: Field, role: str, name: str) -> None:
    processes = field.processes(role, name)
    if not processes:
        raise RunError(f"there is no process {name} of {role} to kill")
    for process in processes:
        process.kill()


def _lost(history: History) -> int:
    return sum(trouble.reason == RESTARTED for trouble in history.troubles)
