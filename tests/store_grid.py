"""Flower's own grid, handlers, state and object store in one process, and nodes that answer."""

from functools import partial
from importlib import import_module
from types import SimpleNamespace

from flwr.app import Message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable import inflatable_protobuf_utils as requests
from flwr.supercore.inflatable import inflatable_utils as inflatable
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

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
    """Carry out one order, as a SuperNode does; returns whether there was one.

    Args:
        connection: what Flower's `http_request_response` yields.
        app: makes the reply.
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
        num_nodes: all online.

    Attributes:
        grid: as a ServerApp has it. It calls the functions of `client`.
        store: of the objects of messages.
        connections: of the nodes, as of `serve`.
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
            self.heartbeat()  # as the ServerApp does: a run without it ends after a minute
            found = fleet.pull_messages(fleet_pb2.PullMessagesRequest(node=node), **stored)
            trees = found.message_object_trees
            return (message_from_proto(found.messages_list[0]), trees[0]) if trees else None

        def send(reply, tree, seconds):
            bare = import_module("flwr.app.message").remove_content_from_message(reply)
            told = fleet_pb2.PushMessagesRequest(
                node=node, messages_list=[message_to_proto(bare)], message_object_trees=[tree]
            )
            answer = fleet.push_messages(told, self.state)
            return set(answer.objects_to_push), answer.session_id

        def pull(run_id, object_id):
            ask = partial(fleet.pull_object, state=self.state)
            return requests.make_pull_object_fn_protobuf(ask, node, run_id)(object_id)

        def push(run_id, session, object_id, content):
            tell = partial(fleet.push_object, state=self.state)
            requests.make_push_object_fn_protobuf(tell, node, run_id, session)(object_id, content)

        def confirm(run_id, message_id):
            told = message_pb2.ConfirmMessageReceivedRequest(
                node=node, run_id=run_id, message_object_id=message_id
            )
            fleet.confirm_message_received(told, **stored)

        return node_id, receive, send, None, None, pull, push, confirm
