"""A Flower Grid in memory. Its nodes run a ClientApp as soon as they receive a message."""

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import count
from types import SimpleNamespace

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.common.constant import ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node, NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.inflatable import inflatable_protobuf_utils as requests
from flwr.supercore.inflatable import inflatable_utils as inflatable
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

ClientApp = Callable[[Message, Context], Message]

FIRST_NODE = 2**63 + 17  # node ids are 64 random bits

_sending = set()


def finish(timeout=10.0):
    """Wait for nodes that still work: nodes of all tests in a process share one ClientApp.

    Args:
        timeout: seconds to wait for each.
    """
    for thread in _sending - {threading.current_thread()}:
        thread.join(timeout)


class FakeGrid(Grid):
    """Behaves like Flower's grids, with faults on demand.

    Messages are serialised in both directions. A node works in the thread that sends to it. A
    reply can be pulled once. An id that is unknown, or no longer known, is answered with error 3.

    Args:
        app: ClientApp of every node; an exception becomes error 2.
        num_nodes: number of nodes that are connected from the start.
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
        """All messages that were pushed."""
        self.held = set()
        """Nodes that keep their messages until `release`."""
        self.refused = set()
        """Nodes for which the grid accepts no message."""
        self.uploading = {}
        """Nodes whose replies cannot be pulled before their event is set: pulling blocks."""
        configs = [{"partition-id": i} for i in range(num_nodes)]
        for config in configs if node_configs is None else node_configs:
            self.connect(config)

    # -- faults -----------------------------------------------------------------------------------

    def connect(self, node_config=None):
        """Connect a new node and return its id."""
        node = FIRST_NODE + len(self._contexts)
        self._contexts[node] = Context(1, node, dict(node_config or {}), RecordDict(), {})
        self.node_ids.append(node)
        return node

    def vanish(self, node):
        """Remove the node; messages that it held are answered with error 5."""
        self.node_ids.remove(node)
        with self._lock:
            for message_id, message in self._held_by(node):
                error = Error(ErrorCode.NODE_UNAVAILABLE, "node unavailable")
                self._replies[message_id] = [Message(error, reply_to=message)]

    def restart(self, node):
        """Connect the node again; messages that it holds stay unanswered."""
        self._restarts[node] += 1

    def release(self, node):
        """Let the node handle the messages that it held."""
        self.held.discard(node)
        for message_id, message in self._held_by(node):
            self._work(message_id, message)

    # -- Grid -------------------------------------------------------------------------------------

    set_run = run = create_message = None  # abstract in Flower's Grid; nobody calls them

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
    """The message after serialisation and deserialisation."""
    return message_from_proto(message_to_proto(message))


def _unavailable(message_id):
    metadata = Metadata(1, "", 1, 1, message_id, "", 0.0, 1.0, "train")
    error = Error(ErrorCode.MESSAGE_UNAVAILABLE, "message unavailable")
    return Message(error=error, metadata=metadata)


# -- a grid over a store ---------------------------------------------------------------------------

IN_MEMORY = ":flwr-in-memory:"
OF_SERVER_APPS = {
    "GetNodes": "get_nodes",
    "PushMessages": "push_messages",
    "PushObject": "push_object",
    "PullMessages": "pull_messages",
    "PullObject": "pull_object",
    "ConfirmMessageReceived": "confirm_message_received",
}


def serve(connection, app):
    """Carry out one order, as a SuperNode does; return whether there was one.

    Args:
        connection: tuple that Flower's `http_request_response` yields.
        app: function that makes the reply.
    """
    _, receive, send, _, _, pull, push, confirm = connection
    if (received := receive()) is None:
        return False
    bare, tree = received
    run_id = bare.metadata.run_id
    order = inflatable.pull_and_inflate_object_from_tree(
        tree,
        partial(pull, run_id),
        partial(confirm, run_id),
        return_type=Message,
        initial_backoff=0.001,
        backoff_cap=0.02,
    )
    order.metadata.__dict__["_message_id"] = bare.metadata.message_id
    reply = app(order)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    missing, session = send(reply, get_object_tree(reply), 0.0)
    objects = get_all_nested_objects(reply)
    inflatable.push_objects(objects, partial(push, run_id, session), object_ids_to_push=missing)
    return True


class SuperLink:
    """A SuperLink without HTTP, with one run.

    Args:
        num_nodes: number of nodes, all online.

    Attributes:
        grid: Grid as a ServerApp gets it. It calls the functions of `client`.
        store: objects of messages.
        connections: connection of each node, for `serve`.
    """

    def __init__(self, num_nodes):
        factory = import_module("flwr.server.superlink.linkstate.linkstate_factory")
        noop = import_module("flwr.superlink.federation.noop_federation_manager")
        runtime = import_module("flwr.superlink.servicer.runtime.runtime_handlers")
        self.state = state = factory.LinkStateFactory(
            IN_MEMORY, noop.NoOpFederationManager(), ObjectStoreFactory(IN_MEMORY)
        ).state()
        self.store = state.object_store
        run_id = state.create_run(
            None, None, None, {}, noop.NOOP_FEDERATION_ID, None, None, "flwr-serverapp"
        )
        (task,) = state.get_tasks(run_ids=[run_id])
        state.claim_task(task.task_id)
        state.activate_task(task.task_id)
        self.heartbeat = partial(state.acknowledge_task_heartbeat, task.task_id)
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = task.task_id, run_id, 1
        self.client = SimpleNamespace(
            **{
                name: partial(getattr(runtime, function), state=state, task=task)
                for name, function in OF_SERVER_APPS.items()
            }
        )
        self.grid = import_module("flwr.superlink.grid.http_grid").HttpGrid(token="token")
        self.grid.__dict__.update(_client=self.client, _run=Run.create_empty(run_id))
        self.connections = [self._connect(i) for i in range(num_nodes)]

    def _connect(self, number):
        fleet = import_module("flwr.superlink.servicer.fleet.fleet_handlers")
        node_id = self.state.create_node("", "", bytes([number]), 1e6)
        self.state.activate_node(node_id, 1e6)
        node, stored = Node(node_id=node_id), {"state": self.state, "store": self.store}

        def receive():
            self.heartbeat()  # as the ServerApp does: without heartbeats a run ends after a minute
            response = fleet.pull_messages(fleet_pb2.PullMessagesRequest(node=node), **stored)
            trees = response.message_object_trees
            return (message_from_proto(response.messages_list[0]), trees[0]) if trees else None

        def send(reply, tree, seconds):
            bare = import_module("flwr.app.message").remove_content_from_message(reply)
            request = fleet_pb2.PushMessagesRequest(
                node=node, messages_list=[message_to_proto(bare)], message_object_trees=[tree]
            )
            answer = fleet.push_messages(request, self.state)
            return set(answer.objects_to_push), answer.session_id

        def pull(run_id, object_id):
            call = partial(fleet.pull_object, state=self.state)
            return requests.make_pull_object_fn_protobuf(call, node, run_id)(object_id)

        def push(run_id, session, object_id, content):
            call = partial(fleet.push_object, state=self.state)
            requests.make_push_object_fn_protobuf(call, node, run_id, session)(object_id, content)

        def confirm(run_id, message_id):
            request = message_pb2.ConfirmMessageReceivedRequest(
                node=node, run_id=run_id, message_object_id=message_id
            )
            fleet.confirm_message_received(request, **stored)

        return node_id, receive, send, None, None, pull, push, confirm
