"""Mailboxes over any Flower Grid: real nodes on the wall clock, or any node under virtual time."""

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fl_app.core.errors import RunError
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Reply, Vector
from fl_app.core.vector import read_only
from fl_app.engine.clock import VANISHED, Joined, Left
from fl_app.engine.guard import MALFORMED
from fl_app.flower import names, wire
from fl_app.flower.private import PUSH_ERROR, SIMULATION_GRID, TOO_LARGE
from fl_app.flower.rests import FIRST, Rests

log = logging.getLogger("flwr")

INTRODUCTION_SECONDS = 60.0
SETTLE_SECONDS = 0.2  # in which a simulation starts more nodes, if it has not started all
NO_NODES = (
    "no node connected within {:g} s: start some with `flower-supernode`, or set num-supernodes "
    "of the simulation's federation above 0"
)


class AnyNode:
    """Mailbox for virtual time: any free node serves any client, one order at a time.

    Args:
        grid: reaches the nodes, such as those of Flower's simulation engine.
        layout: of the model.
        train_config: sent with every order.
        fixed: see `wire.OrderPacker`.
        ttl: seconds of real time that an order may take; None = Flower's default, 12 hours.
        patience: seconds to wait for a node, at the start and whenever all have left.
        refresh_seconds: seconds between two checks for nodes that joined or left.

    Raises:
        RunError: no node came.
    """

    def __init__(
        self,
        grid: Grid,
        layout: Layout,
        *,
        train_config: Mapping[str, object] | None = None,
        fixed: Mapping[str, NDArray[np.generic]] | None = None,
        ttl: float | None = None,
        patience: float = 60.0,
        refresh_seconds: float = 1.0,
    ) -> None:
        self._grid = grid
        self._layout = layout
        self._refresh_seconds = refresh_seconds
        config = {**(train_config or {}), names.ANY_NODE: True}
        self._packer = wire.OrderPacker(layout, config, fixed)
        self._ttl = ttl
        self._free: dict[int, None] = {}  # nodes; a dict keeps their order
        self._patience = patience
        # Message id -> order, node, and whether the fixed part goes with it.
        self._under_way: dict[str, tuple[Order, int, bool]] = {}
        self._refreshed = -math.inf
        began = time.monotonic()
        while not self._free:
            self._refresh()
            waited = time.monotonic() - began
            if not self._free and waited >= patience:
                raise RunError(NO_NODES.format(patience))
            if not self._free:
                time.sleep(_pause(waited, 0.02, 1.0))

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        if time.monotonic() - self._refreshed >= self._refresh_seconds:
            self._refresh()
        return len(self._free)

    def push(self, order: Order) -> None:
        while self._free:
            node, _ = self._free.popitem()
            if self._send(order, node):
                return
        raise RunError("no node accepts an order: are any still connected?")

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        began = time.monotonic()
        while True:
            replies = []
            for message in self._grid.pull_messages(list(self._under_way)):
                # A reply that comes twice finds nothing under way.
                known = self._under_way.pop(message.metadata.reply_to_message_id, None)
                if known is None:
                    continue
                order, node, supplied = known
                asks = wire.asks_for_fixed(message) and not supplied
                if asks and self._send(order, node, fixed=True):
                    continue
                self._free[node] = None
                replies.append(_reply(message, order, self._layout))
            waited = time.monotonic() - began
            if replies or (timeout is not None and waited >= timeout):
                return replies
            if not self._under_way:
                if self.capacity() > 0:
                    return replies
                if waited >= self._patience:
                    raise RunError("all nodes have left, and none has come back")
            time.sleep(_pause(waited, 0.002, 0.02))

    def close(self) -> None:
        self._under_way.clear()

    def _send(self, order: Order, node: int, fixed: bool = False) -> bool:
        """Give an order to a node; returns whether the node can be reached."""
        content = self._packer.pack(order, fixed=fixed)
        message_id = _push(self._grid, content, node, _type(order), self._ttl)
        if message_id:
            self._under_way[message_id] = order, node, fixed
        return bool(message_id)

    def _refresh(self) -> None:
        """Add nodes that joined, drop nodes that left; orders on the latter end as errors."""
        self._refreshed = time.monotonic()
        busy = {node for _, node, _ in self._under_way.values()}
        self._free = dict.fromkeys(n for n in self._grid.get_node_ids() if n not in busy)


class GridMailbox:
    """Mailbox for the wall clock: every node is a client, known by its partition id or its node id.

    Every order is sent and awaited in a thread of its own. A single thread would block while one
    node uploads, because a Grid returns a reply only once it is complete.

    A client whose orders fail again and again leaves for some time (`fl_app.flower.rests`).

    Args:
        grid: reaches the nodes; used from several threads.
        layout: of the model.
        train_config: sent with every training order, and asked for with the number of examples.
        evaluate_config: sent with every evaluate order; None = `train_config`.
        fixed: see `wire.OrderPacker`.
        deadline: seconds that an order may take. Its message lives twice as long, so that a late
            reply still shows that its client is idle. After that the order is lost, even if only
            its upload was interrupted, for which a Grid would wait three minutes.
        introduce: ask every new node for its partition id, which becomes its client id. A node
            that gives none is known by its node id.
        needs: full name of the trainer class that nodes must use, else the run ends; "" = any.
        patience: seconds to wait for the first node, to retry when nodes cannot be listed, and
            without any order until a warning.
        poll_seconds: seconds between two looks at the connected nodes.
        heed_seconds: after how long, at most, a signal raised in another thread is noticed.
        rest_seconds: of a client's first rest.
        fewer: what is to be smaller if the nodes are too few, in the words of the run's author.
    """

    def __init__(
        self,
        grid: Grid,
        layout: Layout,
        *,
        train_config: Mapping[str, object] | None = None,
        evaluate_config: Mapping[str, object] | None = None,
        fixed: Mapping[str, NDArray[np.generic]] | None = None,
        deadline: float = math.inf,
        introduce: bool = True,
        needs: str = "",
        patience: float = 60.0,
        poll_seconds: float = 3.0,
        heed_seconds: float = 1.0,
        rest_seconds: float = FIRST,
        fewer: str = "algorithm.schedule.buffer_size",
    ) -> None:
        self._grid = grid
        self._layout = layout
        self._train_config = dict(train_config or {})
        self._packer = wire.OrderPacker(layout, self._train_config, fixed, evaluate_config)
        self._ttl = 2.0 * deadline if math.isfinite(deadline) else None
        self._introduces = introduce
        self._needs = needs
        self._patience = patience
        self._poll_seconds = poll_seconds
        self._heed_seconds = heed_seconds
        self._fewer = fewer
        self._inbox: SimpleQueue[Reply | Joined | Left | RunError] = SimpleQueue()
        self._closed = threading.Event()
        self._state_counts: dict[int, int] = {}  # client -> largest one that it told
        self._packs: set[int] = set()  # nodes that take models packed; known before they join
        # Guards the seven below, and the order of events in the inbox.
        self._lock = threading.Lock()
        self._present: set[int] = set()  # nodes
        self._nodes: dict[int, int] = {}  # client -> node
        self._leaving: Counter[int] = Counter()  # client -> how many `Left` are in the inbox
        # Number of an order -> client, and when its message comes to its end.
        self._awaited: dict[int, tuple[int, float]] = {}
        self._rests = Rests(rest_seconds)
        self._resting: dict[int, tuple[int, float]] = {}  # client -> node, and until when
        self._told_of_idleness = False
        self._thread(self._watch)

    def share(self, vector: Vector) -> Vector:
        return read_only(vector)

    def capacity(self) -> int:
        with self._lock:
            return len(self._nodes.keys() - {client_id for client_id, _ in self._awaited.values()})

    def push(self, order: Order) -> None:
        with self._lock:
            node = self._nodes.get(order.client_id)
            if node is None or self._leaving[order.client_id]:
                return  # its `Left` is in the inbox, and takes this order along
            until = time.monotonic() + (self._ttl or math.inf)
            self._awaited[order.number] = order.client_id, until
        self._thread(self._exchange, order, node)

    def pull(self, timeout: float | None) -> Iterable[Reply | Joined | Left]:
        began = time.monotonic()
        until = math.inf if timeout is None else began + timeout
        while True:
            left = until - time.monotonic()
            # In short waits: Flower ends a ServerApp without a SuperLink by a signal that it raises
            # in a thread of its own, which the main thread notices only when it wakes.
            event = self._arrived(min(max(left, 0.0), self._heed_seconds))
            if event is not None:
                return [event]  # only one: handling it may change what the next one means
            if left <= 0.0:
                return []
            if not self._told_of_idleness and time.monotonic() - began >= self._patience:
                self._tell_of_idleness()

    def state_dict(self) -> dict[str, Any]:
        """How often clients had saved their states, so that an older copy is still noticed."""
        return {"state_counts": dict(self._state_counts)} if self._state_counts else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Remember a result of `state_dict`; clients may be ahead of it, which is no fault."""
        self._state_counts = dict(state.get("state_counts", {}))

    def _tell_of_idleness(self) -> None:
        """Warn if nodes are there and no order is under way, once: others may never come."""
        with self._lock:
            if self._awaited or not self._present:
                return
            self._told_of_idleness = True
            log.warning(
                "no order was under way for %g s, and %d nodes are connected: the run waits for "
                "more; with a smaller %s these would be enough",
                self._patience,
                len(self._present),
                self._fewer,
            )

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            self._present.clear()
            self._awaited.clear()
            self._resting.clear()

    def _arrived(self, timeout: float) -> Reply | Joined | Left | None:
        """The first in the inbox; waits for one."""
        try:
            event = self._inbox.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(event, RunError):
            raise event
        if isinstance(event, Left):
            with self._lock:
                self._leaving[event.client_id] -= 1
        return event

    # -- connected nodes ---------------------------------------------------------------------------

    def _watch(self) -> None:
        began, anybody = time.monotonic(), False
        seen = began
        while not self._closed.is_set():
            try:
                present = set(self._grid.get_node_ids())
            except Exception as error:
                # A Grid tries again by itself, but not after every error that passes.
                if time.monotonic() - seen >= self._patience:
                    self._inbox.put(RunError(f"cannot see which nodes are connected: {error!r}"))
                    return
                log.warning("cannot see which nodes are connected: %r", error)
                self._closed.wait(self._poll_seconds)
                continue
            seen = time.monotonic()
            with self._lock:
                gone, come = self._present - present, present - self._present
                self._present = present
                for node in gone:
                    self._leave(node)
            for node in sorted(come):
                if self._introduces:
                    self._thread(self._introduce, node)
                else:
                    self._join(node, client_id=node)
            self._give_up()
            self._end_rests()
            waited = time.monotonic() - began
            anybody = anybody or bool(present)  # a node that was there once may come back
            if not anybody and waited > self._patience:
                self._inbox.put(RunError(NO_NODES.format(self._patience)))
                return
            # Look more often until a node is there: the run has not begun.
            self._closed.wait(self._poll_seconds if present else _pause(waited, 0.02, 1.0))

    def _give_up(self) -> None:
        """Report orders whose messages have timed out as lost, so that new ones can be given."""
        with self._lock:
            now = time.monotonic()
            for number in [n for n, (_, until) in self._awaited.items() if until <= now]:
                del self._awaited[number]
                self._inbox.put(Reply(number, error="lost: no reply within twice its deadline"))

    def _end_rests(self) -> None:
        with self._lock:
            now = time.monotonic()
            for client_id in [c for c, (_, until) in self._resting.items() if until <= now]:
                self._nodes[client_id], _ = self._resting.pop(client_id)
                self._inbox.put(Joined(client_id))

    def _introduce(self, node: int) -> None:
        client_id, owns_data = None, False
        try:
            for reply in self._query(node, wire.query_record(), INTRODUCTION_SECONDS):
                if reply.has_content():
                    client_id = wire.partition_of(reply)
                    owns_data = wire.owns_data(reply)
                    if wire.takes_packed(reply):
                        self._packs.add(node)
                elif wire.not_delivered(reply):  # to be asked again when it is next seen
                    with self._lock:
                        self._present.discard(node)
                    return
        except Exception as error:  # it may still train
            log.warning("node %d could not be asked for its introduction: %r", node, error)
        client_id = node if client_id is None else client_id
        if owns_data and names.APP_CONFIG in self._train_config:
            self._announce(node, client_id)
        self._join(node, client_id)

    def _announce(self, node: int, client_id: int) -> None:
        """Log how many examples a node has; the node then has its data ready for its first order.

        Its first order fails for the same reason as this question, so nothing is decided here.
        """
        problem = "no reply"
        try:
            for reply in self._query(node, wire.query_record(self._train_config), self._ttl):
                if reply.has_content():
                    count = wire.num_examples_of(reply)
                    log.info("client %d has %d training examples of its own", client_id, count)
                    return
                problem = wire.error_of(reply)
        except Exception as error:
            problem = repr(error)
        log.warning("client %d told no number of training examples: %s", client_id, problem)

    def _query(self, node: int, content: RecordDict, ttl: float | None) -> list[Message]:
        message_id = _push(self._grid, content, node, MessageType.QUERY, ttl)
        return self._await(message_id, lambda: node in self._present)

    def _join(self, node: int, client_id: int) -> None:
        with self._lock:
            if node not in self._present:
                return
            if client_id in self._nodes:
                # A SuperNode that restarts without its key comes back under a new node id, a
                # minute before the old one is missed.
                log.warning(
                    "node %d takes over client %d from node %d",
                    node,
                    client_id,
                    self._nodes[client_id],
                )
                self._leave(self._nodes[client_id])
            self._resting.pop(client_id, None)
            self._rests.forget(client_id)
            self._nodes[client_id] = node
            self._inbox.put(Joined(client_id))

    def _leave(self, node: int) -> None:
        for client_id in [c for c, n in self._nodes.items() if n == node]:
            self._remove(client_id)
        for client_id in [c for c, (n, _) in self._resting.items() if n == node]:
            del self._resting[client_id]

    def _remove(self, client_id: int, reason: str = VANISHED, traceback: str = "") -> int:
        """Take a client and its orders out of the run; returns its node."""
        for number in [n for n, (c, _) in self._awaited.items() if c == client_id]:
            del self._awaited[number]
        self._leaving[client_id] += 1
        self._inbox.put(Left(client_id, reason=reason, traceback=traceback))
        return self._nodes.pop(client_id)

    # -- orders -----------------------------------------------------------------------------------

    def _exchange(self, order: Order, node: int) -> None:
        try:
            replies = self._ask(order, node)
        except RunError as error:
            self._inbox.put(error)
            return
        except Exception as error:  # else the order would be lost with its thread
            replies = [Reply(order.number, error=f"grid: {error!r}")]
        # A malformed reply is one all the same: such a client takes its time, and needs no rest.
        errors = [r for r in replies if r.error and not r.error.startswith(MALFORMED)]
        problem = next(iter(errors), None)
        with self._lock:
            if order.number not in self._awaited:
                return
            # A client that cannot evaluate may well train.
            if not order.evaluates and self._sent_to_rest(order.client_id, problem):
                return
            del self._awaited[order.number]
            for reply in replies:
                self._inbox.put(reply)

    def _sent_to_rest(self, client_id: int, problem: Reply | None) -> bool:
        """Whether a client leaves for some time, with its order, because that failed."""
        if problem is None:
            self._rests.forget(client_id)
            return False
        seconds = self._rests.fail(client_id, self._nodes.keys() - {client_id})
        if seconds:
            log.warning("client %d gets no order for %g s: %s", client_id, seconds, problem.error)
            node = self._remove(client_id, problem.error, problem.traceback)
            self._resting[client_id] = node, time.monotonic() + seconds
        return bool(seconds)

    def _ask(self, order: Order, node: int) -> list[Reply]:
        for supplies in (False, True):
            # The packed order is not kept in a variable: it would hold a copy of the model
            # meanwhile.
            message_id = _push(
                self._grid,
                self._packer.pack(
                    order,
                    packed=node in self._packs,
                    fixed=supplies,
                    state_count=self._state_counts.get(order.client_id, 0),
                ),
                node,
                _type(order),
                self._ttl,
            )
            if not message_id:
                return [Reply(order.number, error=f"node {node} was not given the order")]
            messages = self._await(message_id, lambda: order.number in self._awaited)
            if not any(map(wire.asks_for_fixed, messages)):
                break
        for message in messages:
            self._note_state(order.client_id, message)
        supplied = self._packer.num_fixed_bytes if supplies else 0
        replies = [_reply(message, order, self._layout, self._needs) for message in messages]
        return [replace(reply, supplied=supplied) for reply in replies]

    def _note_state(self, client_id: int, message: Message) -> None:
        """Remember how often a client has saved its state: an older copy of it is to be noticed."""
        count, older = wire.state_counts(message)
        if older is not None:
            log.warning(
                "client %d had an old copy of its state, saved %d times, and begins anew: was its "
                "device restored, or does another one have its folder?",
                client_id,
                older,
            )
        if count:
            self._state_counts[client_id] = count

    def _await(self, message_id: str, wanted: Callable[[], bool]) -> list[Message]:
        """The replies to a message; none if they are no longer wanted."""
        began = time.monotonic()
        while message_id and wanted():
            messages = list(self._grid.pull_messages([message_id]))
            if messages:
                return messages
            self._closed.wait(_pause(time.monotonic() - began, 0.02, 1.0))
        return []

    def _thread(self, target: Callable[..., None], *args: object) -> None:
        # A thread may hang in the grid for hours, so it is not waited for.
        threading.Thread(target=target, args=args, daemon=True).start()


def count_nodes(grid: Grid) -> tuple[int, bool]:
    """How many nodes are connected, and whether no more can come: those of a simulation are fixed.

    Flower starts them beside the ServerApp. They are waited for, and all there are counted.
    """
    if type(grid).__name__ != SIMULATION_GRID:
        return len(list(grid.get_node_ids())), False
    before, began = 0, time.monotonic()
    while time.monotonic() - began < INTRODUCTION_SECONDS:
        count = len(list(grid.get_node_ids()))
        if count and count == before:
            return count, True
        before = count
        time.sleep(SETTLE_SECONDS)
    raise RunError(NO_NODES.format(INTRODUCTION_SECONDS))


def _push(grid: Grid, content: RecordDict, node: int, message_type: str, ttl: float | None) -> str:
    """The id under which the reply will come, or "" if the node cannot be reached.

    A SuperLink keeps an object, such as a model, once for all messages that hold it, and until the
    nodes have all of them. Two things happen when messages with one model are sent at a time:

    - The first message brings the model, both nodes have taken theirs, and the model is refused
      when the second message brings it. That node has its message: only its reply is missing.
    - The model goes while the second message is registered, which fails. Sent again, the message
      has the same id, and the node has it once.
    """
    message = Message(content, dst_node_id=node, message_type=message_type, ttl=ttl)
    again = False
    while True:
        try:
            return next(iter(grid.push_messages([message])), "") or ""
        except Exception as error:
            if type(error).__name__ == PUSH_ERROR:
                # If the node does not have it after all, the SuperLink answers with an error.
                return str(message.metadata.message_id)
            if again:
                raise
            again = True


def _type(order: Order) -> str:
    kind: str = MessageType.EVALUATE if order.evaluates else MessageType.TRAIN
    return kind


def _reply(message: Message, order: Order, layout: Layout, needs: str = "") -> Reply:
    if message.has_error():
        text = wire.error_of(message)
        malformed = f"{MALFORMED}: " if TOO_LARGE in text else ""
        traceback = wire.traceback_of(message)
        return Reply(order.number, error=f"{malformed}{text}", traceback=traceback)
    try:
        if order.evaluates:
            return Reply(order.number, scores=wire.unpack_scores(message))
        return Reply(order.number, wire.unpack_reply(message, layout, order.base_version, needs))
    except ValueError as error:
        return Reply(order.number, error=f"{MALFORMED}: {error}")


def _pause(waited: float, least: float, most: float) -> float:
    """Seconds until the next look: a tenth of the wait so far, within [least, most]."""
    return min(max(0.1 * waited, least), most)
