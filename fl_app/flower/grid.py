"""Mailboxes over any Flower Grid: real nodes on the wall clock, or any node under virtual time."""

import logging
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from queue import Empty, SimpleQueue
from typing import Any

from flwr.serverapp import Grid

from fl_app.core.errors import RunError
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Reply
from fl_app.engine.clock import Joined, Left, Mailbox
from fl_app.flower import names, nodes
from fl_app.flower.codec import OrderPacker
from fl_app.flower.nodes import NO_NODES, Nodes
from fl_app.flower.orders import LOST, MALFORMED, Finding, Orders, kind_of, pause, read_reply, send

log = logging.getLogger("flwr")

HEED = 1.0  # seconds after which a signal raised in another thread is noticed
LOOK = 1.0  # seconds between two looks for simulated nodes that joined or left
NO_ORDER = (
    "no order was under way for %g s, and %d nodes are connected: the run waits for more; "
    "a schedule that needs fewer (buffer_size, or num_clusters of EAFL) would go on with these"
)
DIED = (
    "a process of Flower's engine died with its order, often since memory ran short; a "
    "larger client-resources-num-cpus makes fewer processes: "
)
NO_REPLY = (
    "no reply came for %g s, and %d nodes have orders: training takes longer, or the ClientApp "
    "returns no Message"
)


@dataclass(eq=False)
class AnyNode(Mailbox):
    """Mailbox for virtual time: any free node serves any client, one order at a time.

    Args:
        grid: reaches the nodes, such as those of Flower's simulation engine.
        layout: of the model.
        train_config: sent with every order.

    Raises:
        RunError: no node connected, or a process of Flower's engine died with its order: as a
            client's failure, this would change the results of the seed.
    """

    grid: Grid
    layout: Layout
    _: KW_ONLY
    train_config: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        config = {**(self.train_config or {}), names.ANY_NODE: True}
        self._packer = OrderPacker(self.layout, config)
        self._free: list[int] = []  # nodes
        self._under_way: dict[str, tuple[Order, int]] = {}  # by message id: order, node
        self._last_look = -math.inf
        self._wait_for_a_node(NO_NODES.format(nodes.PATIENCE))

    def capacity(self) -> int:
        if time.monotonic() - self._last_look >= LOOK:
            self._look()
        return len(self._free)

    def push(self, order: Order) -> None:
        while self._free:
            node = self._free.pop()
            if message_id := send(self.grid, self._packer.pack(order), node, kind_of(order)):
                self._under_way[message_id] = order, node
                return
        raise RunError("no node accepts an order: are any still connected?")

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        began = time.monotonic()
        while self._under_way:
            replies = []
            for message in self.grid.pull_messages(list(self._under_way)):
                # The second copy of a reply finds no order under way.
                if entry := self._under_way.pop(message.metadata.reply_to_message_id, None):
                    order, node = entry
                    self._free.append(node)
                    if message.has_error() and message.error.code in LOST:
                        lines = (message.error.reason or "").splitlines()
                        raise RunError(DIED + " ... ".join(dict.fromkeys(lines[:1] + lines[-1:])))
                    replies.append(read_reply(message, order, self.layout))
            waited = time.monotonic() - began
            if replies or (timeout is not None and waited >= timeout):
                return replies
            time.sleep(pause(waited, 0.002, 0.02))
        self._wait_for_a_node("all nodes have left, and none has come back")
        return []

    def close(self) -> None:
        self._under_way.clear()

    def _look(self) -> None:
        """Add nodes that joined and drop nodes that left, whose orders end as errors."""
        self._last_look = time.monotonic()
        busy = {node for _, node in self._under_way.values()}
        self._free = [node for node in self.grid.get_node_ids() if node not in busy]

    def _wait_for_a_node(self, problem: str) -> None:
        began = time.monotonic()
        while not self.capacity():
            waited = time.monotonic() - began
            if waited >= nodes.PATIENCE:
                raise RunError(problem)
            time.sleep(pause(waited, 0.02, 1.0))
            self._look()


class GridMailbox(Mailbox):
    """Mailbox for the wall clock: every node is a client, known by its partition id or its node id.

    Other threads look for nodes and await replies. Their findings go through one inbox, and only
    `pull` changes the state. So the caller knows of every client that has left before it gives the
    next order.

    Args:
        grid: reaches the nodes; used from several threads.
        layout: of the model.
        train_config: sent with every training order. If it carries this project's configuration,
            nodes are asked for their partition ids.
        evaluate_config: sent with every evaluate order; None = `train_config`.
        deadline: seconds that an order may take. Its message lives twice as long, so that a late
            reply still shows that its client is idle. After that the order is lost.
        needs: full name of the trainer class that nodes must use, else the run ends; "" = any.
    """

    def __init__(
        self,
        grid: Grid,
        layout: Layout,
        *,
        train_config: Mapping[str, object] | None = None,
        evaluate_config: Mapping[str, object] | None = None,
        deadline: float = math.inf,
        needs: str = "",
    ) -> None:
        self._inbox: SimpleQueue[Finding] = SimpleQueue()
        config = train_config or {}
        packer = OrderPacker(layout, config, evaluate_config)
        ttl = 2.0 * deadline if math.isfinite(deadline) else None
        report = self._inbox.put
        self._orders = Orders(grid, packer, layout, report, self._on_replies, ttl=ttl, needs=needs)
        self._nodes = Nodes(grid, report, introduce=names.APP_CONFIG in config)
        self._warned: set[str] = set()

    def capacity(self) -> int:
        return len(self._nodes.clients.keys() - self._orders.busy())

    def push(self, order: Order) -> None:
        node = self._nodes.clients.get(order.client_id)
        if node is not None:  # else its `Left` is on the way, and ends this order
            self._orders.give(order, node)

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        began = time.monotonic()
        until = math.inf if timeout is None else began + timeout
        while True:
            if events := [*self._orders.overdue(), *self._nodes.rested()]:
                return events
            left = until - time.monotonic()
            # In short waits: Flower ends a ServerApp without a SuperLink by a signal that it raises
            # in a thread of its own, which the main thread notices only when it wakes.
            try:
                finding = self._inbox.get(timeout=min(max(left, 0.0), HEED))
            except Empty:
                if left <= 0.0:
                    return []
                if time.monotonic() - began >= nodes.PATIENCE:
                    self._warn_of_waiting()
                continue
            if isinstance(finding, RunError):
                raise finding
            if events := finding():
                for event in events:
                    if isinstance(event, Left):
                        self._orders.drop(event.client_id)
                return events

    def close(self) -> None:
        self._nodes.close()
        self._orders.close()

    def _on_replies(self, order: Order, replies: list[Reply]) -> list[Any]:
        """The replies; or, of an order that failed, that its client leaves for some time."""
        if not self._orders.end(order.number):
            return []
        if order.evaluates:  # a client that cannot evaluate may well train
            return replies
        # A malformed reply counts as a reply: its client has taken its time, and needs no rest.
        for reply in replies:
            if reply.error and not reply.error.startswith(MALFORMED):
                return self._nodes.fail(order.client_id, reply) or replies
        self._nodes.succeed(order.client_id)
        return replies

    def _warn_of_waiting(self) -> None:
        """Warn, once of each kind, of a wait that may never end."""
        busy = len(self._orders.busy())
        message, count = (NO_REPLY, busy) if busy else (NO_ORDER, len(self._nodes.present))
        if count and message not in self._warned:
            self._warned.add(message)
            log.warning(message, nodes.PATIENCE, count)
