"""The faults: how each is injected, and how the run must respond.

Every injection acts on a run and returns what it observed. It raises `Disappointed` if the run does
not respond as it must.
"""

import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import psutil

from fl_app.core.events import Aggregated, Event, Failed
from fl_app.record.history import History, OrderRecord
from lab.faults.field import NODES, Disappointed, Run

SECONDS = 8.0  # of an order: long enough that clients' rates do not depend on the processor
MODEL_BYTES = 4 * 61_706  # LeNet

ANEW = "the server was started anew"

# Fault of an update -> kind of the event that must follow, and a pattern of its reason. Unit tests
# of the codec and of the guard have all others: these need processes that send and receive.
UPDATES = {
    "raises": ("failure", "RuntimeError.*the sensor is broken"),
    "nan": ("reject", "payload has non-finite entries"),
    "garbage": ("failure", "malformed reply: (.*the reply is larger than|arrays do not fit)"),
}


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


# -- what clients send ----------------------------------------------------------------------------


def bad_update(fault: str, node: int) -> Injection:
    """The next order of this node returns a bad update."""

    def inject(run: Run) -> str:
        before = len(run.field.done(node))
        run.field.give([node], seconds=1.0, faults=[fault])
        kind, pattern = UPDATES[fault]
        order = _ended(run, node, fault, before)
        if order.ended != kind or not re.search(pattern, order.reason):
            raise Disappointed(
                f"expected a {kind} event that matches {pattern!r}, got {order.ended} "
                f"{order.reason!r}"
            )
        run.field.give([node], seconds=SECONDS)
        return f"{kind}: {order.reason}"

    return Injection(fault, inject, [node])


def late(node: int, seconds: float) -> Injection:
    """The client answers after the deadline."""

    def inject(run: Run) -> str:
        since = len(run.field.done(node))
        run.field.give([node], seconds=SECONDS, faults=[f"late:{seconds}"])
        order = _ended(run, node, f"late:{seconds}", since)
        run.until(lambda: bool(_order(run, node, order.sequence).late), "the late reply comes")
        order = _order(run, node, order.sequence)
        expect(order, "failure", "deadline passed")
        if "late: its deadline" not in order.late:
            raise Disappointed(f"the late reply was {order.late!r}")
        return f"failure: {order.reason}; reject: {order.late}"

    return Injection("late-reply", inject, [node])


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
        return _story(run, order)

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
        return _story(run, order)

    return Injection("client-app-hangs", inject, [node])


def node_killed(node: int, name: str) -> Injection:
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

    return Injection(name, inject, [node])


def server_killed(name: str, process: str, nodes: Sequence[int]) -> Injection:
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

    return Injection(name, inject, nodes)


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
        return f"{seconds:.0f} s: {_story(run, order)}; answers {again:.0f} s after"

    return Injection("link-cut", inject, [node])


def slow_uplink(node: int, seconds: float, count: int) -> Injection:
    """The upload of an update takes `seconds`, for `count` orders."""

    def inject(run: Run) -> str:
        def mean(since: int, until: int | None) -> float:
            told = [o for o in orders(run.events(), node) if o.ended][since:until]
            if lost := [o for o in told if o.ended != "arrival"]:
                raise Disappointed(f"an order was lost: {lost[0]}")
            return sum(o.end - o.start for o in told if o.end is not None) / len(told)

        link, first = run.field.links[node], last_order(run, node) + 1
        link.up.bytes_per_second = MODEL_BYTES / seconds
        run.until(lambda: _answered(run, node, first) >= count, f"{count} updates arrive")
        link.up.bytes_per_second = float("inf")
        times = f"{mean(0, first):.0f} -> {mean(first, None):.0f}"
        return f"{seconds:.0f} s for an update: {times} s an order, none lost"

    return Injection("slow-uplink", inject, [node])


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


def _story(run: Run, order: OrderRecord) -> str:
    """How an order ended, in words."""
    order = _order(run, order.client, order.sequence)  # a late reply may have arrived since
    reason = f": {order.reason}" if order.reason else ""
    late = f"; reject: {order.late}" if order.late else ""
    return f"{order.ended} after {(order.end or order.start) - order.start:.0f} s{reason}{late}"


def outcome(run: Run, node: int, sequence: int) -> OrderRecord:
    """Wait until an order has ended."""
    run.until(
        lambda: last_order(run, node) >= sequence and bool(_order(run, node, sequence).ended),
        f"order {sequence} of client {node} ends",
    )
    return _order(run, node, sequence)


def _ended(run: Run, node: int, fault: str, since: int) -> OrderRecord:
    """Wait until the order with a fault has ended."""

    def sequences() -> list[int]:
        done = run.field.done(node)[since:]
        return [int(str(note["sequence"])) for note in done if note["fault"] == fault]

    run.until(lambda: bool(sequences()), f"client {node} takes {fault}")
    (sequence,) = sequences()
    return outcome(run, node, sequence)


def expect(order: OrderRecord, kind: str, reason: str) -> None:
    if order.ended != kind or reason not in order.reason:
        raise Disappointed(f"expected {kind} {reason!r}, got {order.ended} {order.reason!r}")


def _answered(run: Run, node: int, since: int) -> int:
    """How many updates of a node have arrived, from order number `since` on."""
    told = orders(run.events(), node)[since:]
    return sum(o.ended == "arrival" for o in told)


def answers_again(run: Run, node: int, sequence: int) -> None:
    """Wait for an update of an order after this one."""
    run.until(lambda: _answered(run, node, sequence + 1) > 0, f"node {node} answers again")


def _training(run: Run, node: int) -> tuple[psutil.Process, int]:
    """Wait until a ClientApp begins to train: its process, and the sequence number of its order.

    On a busy machine an order may have ended before it is seen; then the next one is awaited.
    """
    before = len(run.field.done(node))
    found: list[tuple[psutil.Process, int]] = []

    def training() -> bool:
        for note in run.field.done(node)[before:][-1:]:
            sequence = int(str(note["sequence"]))
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(int(str(note["pid"])))
                if last_order(run, node) >= sequence and not _order(run, node, sequence).ended:
                    found.append((process, sequence))
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
        name: of the group.
        deadline: of an order, seconds.
        estimate: expected duration in seconds, from which the number of versions is computed.
        injections: in the order in which they happen.
    """

    name: str
    deadline: float
    estimate: float
    injections: Sequence[Injection]

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of the run."""
        versions = round(self.estimate * NODES / CYCLE / EACH)
        concurrency = f"algorithm.schedule.concurrency={NODES}"
        return [
            *("algorithm=fedbuff", "runtime=deployment"),
            f"num_clients={NODES}",
            *("task=mnist", "task.made_up=true"),
            *("partition=iid", f"partition.max_size={500 // NODES}"),
            *(concurrency, f"algorithm.schedule.buffer_size={EACH}"),
            *("algorithm.client.local_epochs=1", "eval_every=1000", "checkpoint_every=1"),
            *(f"num_versions={versions}", f"deadline={self.deadline}"),
            *("guard.max_norm_ratio=10", "guard.max_examples=100000"),
        ]

    def only(self, names: Sequence[str]) -> "Group":
        """This group with only the faults in `names`."""
        chosen = [injection for injection in self.injections if injection.name in names]
        spent = self.estimate * len(chosen) / len(self.injections)
        return replace(self, injections=chosen, estimate=spent)


GROUPS = (
    Group(
        "clients",
        deadline=40.0,
        estimate=360.0,
        injections=[
            *(bad_update(fault, node=3) for fault in UPDATES),
            late(1, seconds=50.0),
            client_app_hangs(2),
        ],
    ),
    Group(
        "links",
        deadline=60.0,
        estimate=240.0,
        injections=[slow_uplink(2, seconds=20.0, count=2), link_cut(3, seconds=90.0)],
    ),
    Group(
        "processes",
        deadline=80.0,
        estimate=420.0,
        injections=[
            client_app_killed(1),
            node_killed(2, "node-killed"),
            server_killed("server-app-killed", "flwr-serverapp", ALL),
            server_killed("superlink-killed", "flower-superlink", ALL),
        ],
    ),
)


RANDOM = 130.0  # expected seconds of a process that is killed at random


def random_kills(times: int, rng: random.Random) -> Group:
    """Processes of a federation, each killed at a random moment."""
    kills = [client_app_killed(node) for node in ALL]
    kills += [node_killed(node, "node-killed") for node in ALL]
    kills.append(server_killed("server-app-killed", "flwr-serverapp", ALL))
    kills.append(server_killed("superlink-killed", "flower-superlink", ALL))

    def later(kill: Injection, seconds: float) -> Injection:
        def inject(run: Run) -> str:
            run.wait(seconds)
            return kill.inject(run)

        return replace(kill, inject=inject)

    drawn = [later(rng.choice(kills), rng.uniform(0.0, 2 * SECONDS)) for _ in range(times)]
    return Group("random", deadline=90.0, estimate=RANDOM * times, injections=drawn)
