"""The faults: how each is injected, and how the run must respond.

Every injection acts on a run and returns what it observed. It raises `Disappointed` if the run does
not respond as it must.
"""

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from fl_app.core.events import Aggregated, Event, Failed
from fl_app.record.history import History, OrderRecord
from lab.demo import Disappointed
from lab.faults.field import NODES, Run

SECONDS = 8.0  # of an order: long enough that clients' rates do not depend on the processor

ANEW = "the server was started anew"


@dataclass(frozen=True)
class Injection:
    """A fault of one node, one link or the server.

    Attributes:
        name: of the fault.
        inject: injects it; returns what was observed.
        nodes: that are disturbed; all of them by a fault of the server.
    """

    name: str
    inject: Callable[[Run], str]
    nodes: Sequence[int]


# -- processes ------------------------------------------------------------------------------------


def client_app_killed(node: int) -> Injection:
    """SIGKILL of a ClientApp that trains."""

    def inject(run: Run) -> str:
        process, sequence = _training(run, node)
        process.kill()
        order = outcome(run, node, sequence)
        if order.ended != "failure":
            raise Disappointed(f"its order ended with {order.ended}")
        answers_again(run, node, sequence)
        return _story(order)

    return Injection("client-app-killed", inject, [node])


def client_app_hangs(node: int) -> Injection:
    """SIGSTOP of a ClientApp that trains, until the order's deadline has passed."""

    def inject(run: Run) -> str:
        process, sequence = _training(run, node)
        process.suspend()
        try:
            order = outcome(run, node, sequence)
            expect(order, "failure", "deadline passed")
        finally:
            with suppress(psutil.NoSuchProcess):
                process.resume()
        answers_again(run, node, sequence)
        return _story(order)

    return Injection("client-app-hangs", inject, [node])


def node_killed(node: int) -> Injection:
    """SIGKILL of a SuperNode, which is started again."""

    def inject(run: Run) -> str:
        _, sequence = _training(run, node)
        began = time.monotonic()
        _kill(run, f"node-{node}", "fl_app.node.warm")
        order = outcome(run, node, sequence)
        if order.ended != "failure":
            raise Disappointed(f"its order ended with {order.ended}")
        missed = time.monotonic() - began
        answers_again(run, node, sequence)
        return (
            f"failure after {missed:.0f} s: {order.reason}; "
            f"answers after {time.monotonic() - began:.0f} s"
        )

    return Injection("node-killed", inject, [node])


def server_killed(name: str, process: str) -> Injection:
    """SIGKILL of the ServerApp or the SuperLink; the run's supervisor submits it again."""

    def inject(run: Run) -> str:
        began, version = time.monotonic(), version_of(run)
        submitted, lost = run.submitted(), _lost(run)
        _kill(run, "server", process)
        run.until(lambda: run.submitted() > submitted, "the run is submitted again")
        again = time.monotonic() - began
        run.until(lambda: version_of(run) > version + 1, "the run goes on")
        if not _lost(run) > lost:
            raise Disappointed("the log does not tell which orders were lost")
        return (
            f"killed at version {version}, submitted again after {again:.0f} s, goes on after "
            f"{time.monotonic() - began:.0f} s; {_lost(run) - lost} failures: {ANEW}"
        )

    return Injection(name, inject, ALL)


# -- links ----------------------------------------------------------------------------------------


def link_cut(node: int, seconds: float) -> Injection:
    """The link is cut for `seconds`."""

    def inject(run: Run) -> str:
        _, sequence = _training(run, node)
        run.field.links[node].cut()
        run.wait(seconds)
        run.field.links[node].restore()
        restored = time.monotonic()
        order = outcome(run, node, sequence)
        answers_again(run, node, last_order(run, node))
        again = time.monotonic() - restored
        return f"{seconds:.0f} s: {_story(order)}; answers {again:.0f} s after"

    return Injection("link-cut", inject, [node])


# -- shared ---------------------------------------------------------------------------------------


def orders(events: Iterable[Event], client: int) -> list[OrderRecord]:
    """The orders of one client in the sequence in which they were given."""
    history = History(keep_orders=True)
    for event in events:
        history.emit(event)
    return [order for order in history.orders if order.client == client]


def _order(run: Run, node: int, sequence: int) -> OrderRecord:
    return orders(run.events(), node)[sequence]


def last_order(run: Run, node: int) -> int:
    """Sequence number of a node's last order."""
    return len(orders(run.events(), node)) - 1


def _story(order: OrderRecord) -> str:
    """How an order ended, in words."""
    reason = f": {order.reason}" if order.reason else ""
    return f"{order.ended} after {(order.end or order.start) - order.start:.0f} s{reason}"


def outcome(run: Run, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has ended."""
    run.until(
        lambda: last_order(run, node) >= sequence and bool(_order(run, node, sequence).ended),
        f"order {sequence} of client {node} ends",
    )
    return _order(run, node, sequence)


def expect(order: OrderRecord, kind: str, reason: str) -> None:
    if order.ended != kind or reason not in order.reason:
        raise Disappointed(f"expected {kind} {reason!r}, got {order.ended} {order.reason!r}")


def answers_again(run: Run, node: int, sequence: int) -> None:
    """Wait for an update of an order after this one."""

    def answered() -> bool:
        return any(o.ended == "arrival" for o in orders(run.events(), node)[sequence + 1 :])

    run.until(answered, f"node {node} answers again")


def _training(run: Run, node: int) -> tuple[psutil.Process, int]:
    """Wait until a node is in the middle of an order: its worker, and the order's number."""
    found: list[tuple[psutil.Process, int]] = []

    def training() -> bool:
        told = orders(run.events(), node)
        workers = run.field.processes(f"node-{node}", "fl_app.node.worker")
        passed = run.now() - told[-1].start if told else 0.0
        if workers and SECONDS / 4 < passed < SECONDS / 2 and not told[-1].ended:
            found.append((workers[0], len(told) - 1))
        return bool(found)

    run.until(training, f"node {node} trains")
    return found[0]


def _kill(run: Run, where: str, name: str) -> None:
    processes = run.field.processes(where, name)
    if not processes:
        raise Disappointed(f"there is no process {name} of {where} to kill")
    for process in processes:
        process.kill()


def version_of(run: Run) -> int:
    return sum(isinstance(event, Aggregated) for event in run.events())


def _lost(run: Run) -> int:
    return sum(isinstance(e, Failed) and e.reason == ANEW for e in run.events())


# -- groups ---------------------------------------------------------------------------------------

ALL = range(NODES)
CYCLE = 8.5  # least seconds of an order: the client sleeps for 8
EACH = 2  # updates in a version


@dataclass(frozen=True)
class Group:
    """Faults of one run.

    Attributes:
        deadline: of an order, seconds.
        estimate: expected duration in seconds, from which the number of versions is computed.
        injections: in the order in which they happen.
    """

    deadline: float
    estimate: float
    injections: Sequence[Injection]

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of the run."""
        versions = round(self.estimate * NODES / CYCLE / EACH)
        concurrency = f"algorithm.schedule.concurrency={NODES}"
        return [
            *("algorithm=fedbuff", "runtime=deployment", "partition=iid"),
            *("task=digits", "task.model=logistic", f"num_clients={NODES}"),
            *(concurrency, f"algorithm.schedule.buffer_size={EACH}"),
            *("algorithm.client.local_epochs=1", "eval_every=1000", "checkpoint_every=1"),
            *(f"num_versions={versions}", f"deadline={self.deadline}"),
        ]

    def only(self, names: Sequence[str]) -> "Group":
        """This group with only the faults in `names`."""
        chosen = [injection for injection in self.injections if injection.name in names]
        spent = self.estimate * len(chosen) / len(self.injections)
        return replace(self, injections=chosen, estimate=spent)


FAULTS = Group(
    deadline=80.0,
    estimate=600.0,
    injections=[
        client_app_hangs(2),
        link_cut(3, seconds=90.0),
        client_app_killed(1),
        node_killed(2),
        server_killed("server-app-killed", "flwr-serverapp"),
        server_killed("superlink-killed", "flower-superlink"),
    ],
)

RANDOM = 130.0  # expected seconds of a process that is killed at random


def random_kills(times: int, rng: random.Random) -> Group:
    """Processes of a federation, each killed at a random moment."""
    kills = [client_app_killed(node) for node in ALL]
    kills += [node_killed(node) for node in ALL]
    kills.append(server_killed("server-app-killed", "flwr-serverapp"))
    kills.append(server_killed("superlink-killed", "flower-superlink"))

    def later(kill: Injection, seconds: float) -> Injection:
        def inject(run: Run) -> str:
            run.wait(seconds)
            return kill.inject(run)

        return replace(kill, inject=inject)

    drawn = [later(rng.choice(kills), rng.uniform(0.0, 2 * SECONDS)) for _ in range(times)]
    return Group(deadline=90.0, estimate=RANDOM * times, injections=drawn)
