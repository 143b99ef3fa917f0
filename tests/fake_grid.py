"""A Flower Grid in memory, whose nodes run a ClientApp as soon as they are sent a message."""

import threading
from collections import Counter
from collections.abc import Callable
from itertools import count

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

ClientApp = Callable[[Message, Context], Message]

FIRST_NODE = 2**63 + 17  # node ids are 64 random bits

_sending = set()


def finish(timeout=10.0):
    """Wait for nodes that still work. Those of an earlier test share its process's ClientApp.

    Args:
        timeout: seconds to wait for each.
    """
    for thread in _sending - {threading.current_thread()}:
        thread.join(timeout)


class FakeGrid(Grid):
    """Behaves like Flower's grids, with faults on demand.

    Messages are serialised on both ways. A node works in the thread that sends to it. A reply is
    handed out once; an id that is unknown (any longer) is answered with error 3.

    Args:
        app: what every node runs; an exception becomes error 2.
        num_nodes: connected from the start.
        node_configs: per node; default: partition ids 0, 1, ...
    """

    def __init__(self, app, num_nodes, node_configs=None):
        # A Message takes its origin from the identity of the process; ServerApps have one.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._app = app
        self._lock = threading.Lock()
        self._ids = count()
        self._contexts = {}
        self._sent = {}
        self._replies = {}
        self._restarts = Counter()
        self.node_ids = []
        self.received = []
        """Everything that was pushed."""
        self.held = set()
        """Nodes that keep their messages until `release`."""
        self.refused = set()
        """Nodes for which the grid accepts no message."""
        self.uploading = {}
        """Nodes whose replies block whoever pulls them until the event is set."""
        configs = [{"partition-id": i} for i in range(num_nodes)]
        for config in configs if node_configs is None else node_configs:
            self.connect(config)

    # -- faults -----------------------------------------------------------------------------------

    def connect(self, node_config=None):
        """A new node; returns its id."""
        node = FIRST_NODE + len(self._contexts)
        self._contexts[node] = Context(1, node, dict(node_config or {}), RecordDict(), {})
        self.node_ids.append(node)
        return node

    def vanish(self, node):
        """The node is gone; what it held is answered with error 5."""
        self.node_ids.remove(node)
        with self._lock:
            for message_id, message in self._held_by(node):
                error = Error(ErrorCode.NODE_UNAVAILABLE, "node unavailable")
                self._replies[message_id] = [Message(error, reply_to=message)]

    def restart(self, node):
        """The node connects again; what it holds stays without an answer."""
        self._restarts[node] += 1

    def release(self, node):
        """The node works off what it held."""
        self.held.discard(node)
        for message_id, message in self._held_by(node):
            self._work(message_id, message)

    # -- Grid -------------------------------------------------------------------------------------

    set_run = run = create_message = None  # of Flower's own, which nobody calls

    def get_node_ids(self):
        return list(self.node_ids)

    def get_nodes(self):
        for node in self.get_node_ids():
            yield NodeInfo(node_id=node, last_activated_at=str(self._restarts[node]))

    def push_messages(self, messages):
        thread = threading.current_thread()
        _sending.add(thread)
        try:
            return self._push(messages)
        finally:
            _sending.discard(thread)

    def _push(self, messages):
        message_ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if node in self.refused or node not in self.node_ids:
                message_ids.append("")
                continue
            message_id = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = message_id
            with self._lock:
                self._sent[message_id] = message
                self.received.append(message)
            if node not in self.held:
                self._work(message_id, message)
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids):
        pulled = []
        for message_id in list(message_ids):
            with self._lock:
                replies = self._replies.pop(message_id, [])
                message = self._sent.pop(message_id, None) if replies else None
                unknown = not replies and message_id not in self._sent
            if unknown:
                replies = [_unavailable(message_id)]
            if message is not None and message.metadata.dst_node_id in self.uploading:
                self.uploading[message.metadata.dst_node_id].wait(10)
            pulled.extend(replies)
        return pulled

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))

    # -- nodes ------------------------------------------------------------------------------------

    def _held_by(self, node):
        return [
            (message_id, message)
            for message_id, message in self._sent.items()
            if message.metadata.dst_node_id == node and message_id not in self._replies
        ]

    def _work(self, message_id, message):
        node = message.metadata.dst_node_id
        try:
            reply = through(self._app(through(message), self._contexts[node]))
        except Exception as error:
            reason = f"{type(error)}:<'{error}'>"
            code = ErrorCode.CLIENT_APP_RAISED_EXCEPTION
            reply = Message(Error(code, reason), reply_to=message)
        with self._lock:
            self._replies[message_id] = [reply]


def through(message):
    """A message as it arrives elsewhere."""
    return message_from_proto(message_to_proto(message))


def _unavailable(message_id):
    metadata = Metadata(1, "", 1, 1, message_id, "", 0.0, 1.0, "train")
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "message unavailable")
    return Message(error=error, metadata=metadata)
