"""The connected nodes of Flower, and the client of each."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from flwr.app import MessageType, RecordDict
from flwr.serverapp import Grid

from fl_app.core.errors import RunError
from fl_app.core.types import Reply
from fl_app.engine.clock import Joined, Left
from fl_app.flower import names
from fl_app.flower.orders import TRANSPORT_ERRORS, Finding, pause, send, start_thread, wait_for
from fl_app.flower.patches import SIMULATION_GRID

log = logging.getLogger("flwr")

PATIENCE = 60.0  # seconds to wait for the first node, and to retry when nodes cannot be listed
POLL = 3.0  # seconds between two looks at the connected nodes
FIRST_REST, LONGEST_REST = 5.0, 600.0  # seconds
SETTLE = 0.2  # seconds in which a simulation starts more nodes, if it has not started all
SAME = (
    "node {} takes over client {} from node {}: it has restarted without its key, or two devices "
    "have this partition-id"
)
NO_NODES = (
    "no node connected within {:g} s: start some with `flower-supernode`, or set num-supernodes "
    "of the simulation's federation above 0"
)


class Nodes:
    """The connected clients, and the node of each. All methods are called in one thread.

    Other threads look for nodes and query them, and `report` their findings. The state changes only
    when the caller runs a finding.

    A client whose orders fail again and again rests: it leaves for some time. A node whose data
    cannot be read fails within seconds. It would get orders all the time, and its failures would
    fill the log and end the run as stalled.

    Args:
        grid: reaches the nodes; used from several threads.
        report: called in another thread with a finding.
        introduce: ask every new node for its partition id, which becomes its client id. A node
            that has none is known by its node id.

    Attributes:
        clients: client -> node.
        present: node -> when it connected.
    """

    def __init__(self, grid: Grid, report: Callable[[Finding], None], *, introduce: bool) -> None:
        self._grid, self._report, self._introduces = grid, report, introduce
        self._closed = threading.Event()
        self.present: dict[int, str] = {}
        self.clients: dict[int, int] = {}
        self._failures: Counter[int] = Counter()  # client -> orders in a row that failed
        self._resting: dict[int, tuple[int, float]] = {}  # client -> node, and until when
        start_thread(self._watch)

    def see(self, nodes: Mapping[int, str]) -> list[Joined | Left]:
        """Record the connected nodes; returns which clients left or joined.

        A SuperNode that was killed may be back before its absence was seen. It counts as left: it
        has lost its order, and Flower reports no error of it.

        Args:
            nodes: each with the time at which it connected; "" = unknown.
        """
        staying = {node for node, since in self.present.items() if nodes.get(node) == since}
        self.present = dict(nodes)
        gone = [client for client, node in self.clients.items() if node not in staying]
        for client in gone:
            del self.clients[client]
        self._resting = {c: each for c, each in self._resting.items() if each[0] in staying}
        events: list[Joined | Left] = [Left(client) for client in gone]
        for node in sorted(nodes.keys() - staying):
            if self._introduces:
                start_thread(self._ask, node)
            else:
                events += self.introduce(node, node)
        return events

    def introduce(self, node: int, client: int | None) -> list[Joined | Left]:
        """Record the client of a node; returns which client left or joined.

        Args:
            node: that was queried.
            client: of the node; None = the query did not reach it.
        """
        if client is None:  # to be queried again when it is next seen
            self.present.pop(node, None)
        if client is None or node not in self.present:
            return []
        if client in self.clients:
            # A SuperNode that restarts without its key comes back under a new node id, a minute
            # before the old one is missed.
            why = SAME.format(node, client, self.clients.pop(client))
            log.warning(why)
            # It joins once the caller knows that it has left.
            self._report(partial(self.introduce, node, client))
            return [Left(client, reason=why)]
        self._resting.pop(client, None)
        self._failures.pop(client, None)
        self.clients[client] = node
        return [Joined(client)]

    def succeed(self, client: int) -> None:
        """Record a training order that did not fail."""
        self._failures.pop(client, None)

    def fail(self, client: int, problem: Reply) -> list[Joined | Left]:
        """Record a training order that failed; returns whether its client leaves to rest.

        No client rests if all fail: the fault is not theirs, and the run is to end soon.
        """
        self._failures[client] += 1
        failures, others = self._failures[client], self.clients.keys() - {client}
        if failures == 1 or all(self._failures[other] for other in others):
            return []
        seconds = min(FIRST_REST * 2.0 ** min(failures - 2, 10), LONGEST_REST)
        log.warning("client %d gets no order for %g s: %s", client, seconds, problem.error)
        self._resting[client] = self.clients.pop(client), time.monotonic() + seconds
        return [Left(client, reason=problem.error, traceback=problem.traceback)]

    def rested(self) -> list[Joined | Left]:
        """Clients that have rested, and join again."""
        now = time.monotonic()
        returning = [client for client, (_, until) in self._resting.items() if until <= now]
        for client in returning:
            self.clients[client], _ = self._resting.pop(client)
        return [Joined(client) for client in returning]

    def close(self) -> None:
        """End the threads."""
        self._closed.set()
        self.present = {}

    def _watch(self) -> None:
        began = last_seen = time.monotonic()
        nodes: dict[int, str] = {}
        any_node = False  # a node that has connected once may come back
        while not self._closed.is_set():
            now = time.monotonic()
            try:
                nodes = {each.node_id: each.last_activated_at for each in self._grid.get_nodes()}
                last_seen, any_node = now, any_node or bool(nodes)
                self._report(partial(self.see, nodes))
            except Exception as error:
                # A Grid tries again by itself, but not after every error that passes.
                log.warning("cannot see which nodes are connected: %r", error)
                if now - last_seen >= PATIENCE:
                    self._report(RunError(f"cannot see which nodes are connected: {error!r}"))
                    return
            if not any_node and now - began > PATIENCE:
                self._report(RunError(NO_NODES.format(PATIENCE)))
                return
            # Look more often until a node has connected: the run has not begun.
            self._closed.wait(POLL if nodes else pause(now - began, 0.02, min(1.0, POLL)))

    def _ask(self, node: int) -> None:
        client: int | None = node
        try:
            message_id = send(self._grid, RecordDict(), node, MessageType.QUERY, PATIENCE)
            for reply in wait_for(self._grid, message_id, lambda: node in self.present):
                if reply.has_content():
                    partition = reply.content.metric_records[names.METRICS].get(names.PARTITION_ID)
                    client = partition if isinstance(partition, int) and partition >= 0 else node
                elif reply.error.code in TRANSPORT_ERRORS:
                    client = None
        except Exception as error:  # it may still train
            log.warning("node %d could not be asked for its introduction: %r", node, error)
        self._report(partial(self.introduce, node, client))


def count_nodes(grid: Grid) -> tuple[int, bool]:
    """How many nodes are connected, and whether no more can come: those of a simulation are fixed.

    Flower starts these beside the ServerApp, so this waits until their number stops growing.
    """
    if type(grid).__name__ != SIMULATION_GRID:
        return len(list(grid.get_node_ids())), False
    before, began = 0, time.monotonic()
    while time.monotonic() - began < PATIENCE:
        count = len(list(grid.get_node_ids()))
        if count and count == before:
            return count, True
        before = count
        time.sleep(SETTLE)
    raise RunError(NO_NODES.format(PATIENCE))
