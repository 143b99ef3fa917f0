"""Orders under way on Flower's nodes, each awaited in a thread of its own.

A single thread would block while one node uploads, because a Grid returns a reply only once it is
complete.
"""

import math
import threading
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from http.client import UNAUTHORIZED
from typing import Any, TypeAlias

from flwr.app import Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from fl_app.core import bugs
from fl_app.core.errors import RunError
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Reply
from fl_app.flower import codec
from fl_app.flower.patches import PUSH_ERROR

MALFORMED = "malformed reply"  # the beginning of the error of an unreadable reply
# Errors of the transport and of a killed process; no ClientApp has raised them.
TRANSPORT_ERRORS = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)
LOST = (ErrorCode.UNKNOWN, *TRANSPORT_ERRORS)  # also with an actor of Flower's engine
# Records that a ClientApp with `client_fn` reads and only Flower's old servers send.
OLD_RECORDS = ("fitins.parameters", "evaluateins.parameters")
WRAPPED = "Exception ClientAppException occurred. Message: "  # then an app's error, and '>


# A finding of another thread: a call for the mailbox's thread, which records it and returns the
# events that follow; or the error that ends the run.
Finding: TypeAlias = Callable[[], list[Any]] | RunError


@dataclass(eq=False)
class Orders:
    """Gives orders to nodes. All methods are called in one thread.

    Args:
        grid: reaches the nodes; used from several threads.
        packer: of the orders.
        layout: of the model.
        report: called in another thread with a finding.
        on_replies: takes an order and its replies: one, none if it is lost, or more if a message
            came twice. Returns the events that follow.
        ttl: seconds that a message lives; None = Flower's default, 12 hours.
        needs: see `codec.read_upload`.
    """

    grid: Grid
    packer: codec.OrderPacker
    layout: Layout
    report: Callable[[Finding], None]
    on_replies: Callable[[Order, list[Reply]], list[Any]]
    _: KW_ONLY
    ttl: float | None
    needs: str

    def __post_init__(self) -> None:
        # Number of an order -> client, and the time at which its message expires.
        self._awaited: dict[int, tuple[int, float]] = {}
        self._answered = set[str]()  # kinds of orders that a ClientApp has carried out

    def busy(self) -> set[int]:
        """Clients with an order."""
        return {client_id for client_id, _ in self._awaited.values()}

    def give(self, order: Order, node: int) -> None:
        """Give an order to a node."""
        until = time.monotonic() + (self.ttl or math.inf)
        self._awaited[order.number] = order.client_id, until
        start_thread(self._exchange, order, node)

    def end(self, number: int) -> bool:
        """Stop awaiting an order; returns whether it was awaited."""
        return self._awaited.pop(number, None) is not None

    def drop(self, client_id: int) -> None:
        """Stop awaiting a client's orders."""
        self._awaited = {n: each for n, each in self._awaited.items() if each[0] != client_id}

    def overdue(self) -> list[Reply]:
        """Orders whose messages have timed out, as replies, so that their clients get others.

        Otherwise a Grid would wait for an interrupted upload for hours.
        """
        now = time.monotonic()
        late = [number for number, (_, until) in self._awaited.items() if until <= now]
        for number in late:
            self.end(number)
        return [Reply(n, error="lost: no reply within twice its deadline") for n in late]

    def close(self) -> None:
        """Stop awaiting all orders."""
        self._awaited = {}

    def _exchange(self, order: Order, node: int) -> None:
        try:
            replies = self._ask(order, node)
        except RunError as error:
            if kind_of(order) not in self._answered:
                self.report(error)
                return
            replies = [Reply(order.number, error=str(error))]  # one node cannot end the run
        except Exception as error:  # else the order would be lost with its thread
            if getattr(getattr(error, "response", None), "status_code", None) == UNAUTHORIZED:
                return  # the run was stopped, and no client has failed
            replies = [Reply(order.number, error=f"grid: {error!r}")]
        self.report(partial(self.on_replies, order, replies))

    def _ask(self, order: Order, node: int) -> list[Reply]:
        message_id = send(self.grid, self.packer.pack(order), node, kind_of(order), self.ttl)
        if not message_id:
            return [Reply(order.number, error=f"node {node} was not given the order")]
        messages = wait_for(self.grid, message_id, lambda: order.number in self._awaited)
        replies = [read_reply(message, order, self.layout, self.needs) for message in messages]
        if any(not reply.error for reply in replies):
            self._answered.add(kind_of(order))
        return replies


def kind_of(order: Order) -> str:
    """The type of an order's message."""
    return MessageType.EVALUATE if order.evaluates else MessageType.TRAIN


def send(grid: Grid, content: RecordDict, node: int, kind: str, ttl: float | None = None) -> str:
    """The id under which the reply will come, or "" if the node cannot be reached.

    A SuperLink stores an object, such as a model, once for all messages that hold it, and until the
    nodes have all of them. Two failures occur when messages with one model are sent at a time:

    - The first message brings the model, both nodes have pulled their messages, and the SuperLink
      refuses the model of the second message. That node lacks nothing, and will reply.
    - The SuperLink removes the model while the second message is registered, which fails. Sent
      again, the message has the same id, and the node gets it once.
    """
    message = Message(content, dst_node_id=node, message_type=kind, ttl=ttl)
    for last in (False, True):
        try:
            return next(iter(grid.push_messages([message])), "") or ""
        except Exception as error:
            if type(error).__name__ == PUSH_ERROR:
                # If the node does not have the message, the SuperLink answers with an error.
                return str(message.metadata.message_id)
            if last:
                raise
    raise AssertionError


def wait_for(grid: Grid, message_id: str, wanted: Callable[[], bool]) -> list[Message]:
    """The replies to a message; none if they are no longer wanted."""
    began = time.monotonic()
    while message_id and wanted():
        if messages := list(grid.pull_messages([message_id])):
            return messages
        time.sleep(pause(time.monotonic() - began, 0.02, 1.0))
    return []


def read_reply(message: Message, order: Order, layout: Layout, needs: str = "") -> Reply:
    """The reply to an order in a node's message.

    Raises:
        RunError: the ClientApp can carry out no order of this run.
    """
    if message.has_error():
        summary, traceback = read_error(message)
        return Reply(order.number, error=summary, traceback=traceback)
    try:
        if order.evaluates:
            return Reply(order.number, scores=codec.read_scores(message))
        return Reply(order.number, codec.read_upload(message, layout, needs, order))
    except ValueError as error:
        problem = f"{MALFORMED}: {error}"
        return Reply(order.number, error=problem, traceback=problem)


def read_error(message: Message) -> tuple[str, str]:
    """The error message of a reply without content, and its traceback.

    Returns:
        The traceback is "" unless an error in the client's code is the reason.

    Raises:
        RunError: the ClientApp has a `client_fn`. All clients run the same app.
    """
    reason = message.error.reason or ""
    if any(f"'{name}'" in reason for name in OLD_RECORDS):
        raise RunError(
            "the ClientApp has a client_fn, which reads only the messages of Flower's old servers "
            "and fails with Flower's own FedAvg, too: register a function with @app.train() and "
            "call your NumPyClient in it (docs/flower.md, Your ClientApp)"
        )
    summary, header, lines = reason.partition(f"\n{bugs.HEADER}")
    if not header and message.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION:
        *_, last = ["", *summary.strip().splitlines()]  # as from Flower's own nodes
        return (last[len(WRAPPED) : -2] if last.startswith(WRAPPED) else last), summary
    return summary or f"Flower's error {message.error.code}", (header + lines).strip()


def pause(waited: float, shortest: float, longest: float) -> float:
    """Seconds until the next look: a tenth of the wait so far, within [shortest, longest]."""
    return min(max(0.1 * waited, shortest), longest)


def start_thread(target: Callable[..., None], *args: object) -> None:
    """Run a function in a thread; it may hang in the grid for hours, so nothing waits for it."""
    threading.Thread(target=target, args=args, daemon=True).start()
