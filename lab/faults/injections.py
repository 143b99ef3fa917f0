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
ANEW = "the server was started anew"


def client_app_hangs(field: Field, node: int) -> str:
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
    _answers_again(field, node, sequence)
    return _story(order)


def killed(field: Field, node: int, *, process: str) -> str:
    """SIGKILL of the ClientApp of a node that trains, or of its SuperNode; both start again."""
    _, sequence = _training(field, node)
    began = time.monotonic()
    _kill(field, f"node-{node}", process)
    order = _failure(field, node, sequence)
    missed = time.monotonic() - began
    _answers_again(field, node, sequence)
    return (
        f"failure after {missed:.0f} s: {order.reason}; "
        f"answers after {time.monotonic() - began:.0f} s"
    )


def server_killed(field: Field, _: None, *, process: str) -> str:
    """SIGKILL of the ServerApp or the SuperLink; the run's supervisor submits it again."""
    began, before, run_id = time.monotonic(), field.history(), field.supervisor.run_id
    _kill(field, "server", process)
    field.until(lambda: field.supervisor.run_id != run_id, "the run is submitted again")
    again = time.monotonic() - began
    field.until(lambda: field.history().version > before.version + 1, "the run goes on")
    lost = _lost(field.history()) - _lost(before)
    if lost <= 0:
        raise RunError("the log does not tell which orders were lost")
    return (
        f"killed at version {before.version}, submitted again after {again:.0f} s, goes on after "
        f"{time.monotonic() - began:.0f} s; {lost} failures: {ANEW}"
    )


def link_cut(field: Field, node: int) -> str:
    """The link is cut for `CUT` seconds."""
    _, sequence = _training(field, node)
    field.links[node].cut()
    time.sleep(CUT)
    field.links[node].restore()
    restored = time.monotonic()
    order = _outcome(field, node, sequence)
    _answers_again(field, node, len(field.orders(node)) - 1)
    return f"{CUT:.0f} s: {_story(order)}; answers {time.monotonic() - restored:.0f} s after"


class Fault(NamedTuple):
    """What injects a fault, and the node that it disturbs; None = all of them."""

    inject: Callable[..., str]
    node: int | None = None


# By name, in the order in which they happen.
FAULTS = {
    "client-app-hangs": Fault(client_app_hangs, 2),
    "link-cut": Fault(link_cut, 3),
    "client-app-killed": Fault(partial(killed, process="fl_app.node.worker"), 1),
    "node-killed": Fault(partial(killed, process="fl_app.node.warm"), 2),
    "server-app-killed": Fault(partial(server_killed, process="flwr-serverapp")),
    "superlink-killed": Fault(partial(server_killed, process="flower-superlink")),
}


def random_kills(times: int, rng: random.Random) -> dict[str, Fault]:
    """So many faults by name: a random process is killed at a random moment."""
    kills = [name for name in FAULTS if name.endswith("-killed")]
    drawn = {}
    for number in range(1, times + 1):
        name, node, seconds = rng.choice(kills), rng.randrange(NODES), rng.uniform(0, 2 * SECONDS)
        inject, usual = FAULTS[name]
        inject = partial(_later, inject=inject, seconds=seconds)
        drawn[f"{number}-{name}"] = Fault(inject, None if usual is None else node)
    return drawn


def _later(field: Field, node: int | None, inject: Callable[..., str], seconds: float) -> str:
    time.sleep(seconds)
    return inject(field, node)


def _story(order: OrderRecord) -> str:
    """How an order ended, in words."""
    reason = f": {order.reason}" if order.reason else ""
    return f"{order.ended} after {(order.end or order.start) - order.start:.0f} s{reason}"


def _outcome(field: Field, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has ended."""
    what = f"order {sequence} of client {node} ends"
    field.until(lambda: field.orders(node)[sequence].ended != "", what)
    return field.orders(node)[sequence]


def _failure(field: Field, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has failed."""
    order = _outcome(field, node, sequence)
    if order.ended != "failure":
        raise RunError(f"its order ended with {order.ended}")
    return order


def _answers_again(field: Field, node: int, sequence: int) -> None:
    """Wait for an update of an order after this one."""
    field.until(
        lambda: any(order.ended == "arrival" for order in field.orders(node)[sequence + 1 :]),
        f"node {node} answers again",
    )


def _training(field: Field, node: int) -> tuple[list[psutil.Process], int]:
    """Wait until a node is in the middle of an order: its workers, and the order's number."""
    given = len(field.orders(node))
    field.until(lambda: len(field.orders(node)) > given, f"node {node} is given an order")
    time.sleep(SECONDS / 4)
    order, workers = field.orders(node)[-1], field.processes(f"node-{node}", "fl_app.node.worker")
    if order.ended or not workers:  # it was lost at once
        return _training(field, node)
    return workers, order.sequence


def _kill(field: Field, where: str, name: str) -> None:
    processes = field.processes(where, name)
    if not processes:
        raise RunError(f"there is no process {name} of {where} to kill")
    for process in processes:
        process.kill()


def _lost(history: History) -> int:
    return sum(trouble.reason == ANEW for trouble in history.troubles)
