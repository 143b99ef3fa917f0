"""Messages through Flower's own object store and grid."""

import os
import threading
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from store_grid import SuperLink, serve

from fl_app.core.layout import Layout
from fl_app.core.types import Order, Upload
from fl_app.flower import codec, patches
from fl_app.flower.grid import AnyNode, GridMailbox
from fl_app.flower.orders import MALFORMED, read_reply

LAYOUT = Layout.of_arrays({"w": np.zeros(2, np.float32)})
MODEL = np.ones(2, np.float32)


def order(number, client_id, model=MODEL):
    return Order(number, client_id, 0, 0, model, {}, 0.0)


def answer(message):
    vector = codec.read_order(message, LAYOUT).vector + 1
    return codec.pack_upload(message, Upload(vector, "model", 10, 0.5), LAYOUT)


@pytest.mark.parametrize(
    "count", [3, pytest.param(2001, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_three_nodes_lose_no_order_whose_model_is_sent_again_when_they_have_it(count, monkeypatch):
    """All start from one version at a time, and what a second thread brings of it comes late."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # with one, a grid sends the parts one by one
    link = SuperLink(3)
    mailbox = GridMailbox(link.grid, LAYOUT)
    clients = [event.client_id for event in mailbox.pull(5.0)]
    push_messages, push_object = link.client.PushMessages, link.client.PushObject
    registered, received = threading.Barrier(3), threading.Event()
    brought = set()

    def register(request):
        response = push_messages(request)
        registered.wait(10.0)  # so all three bring the model
        return response

    def bring(request):
        if request.object_content.startswith(b"ArrayChunk"):  # a grid sends two parts at a time
            if request.object_id in brought:
                assert received.wait(10.0)
            brought.add(request.object_id)
        return push_object(request)

    link.client.PushMessages, link.client.PushObject = register, bring
    errors = []
    for version in range(count // 3):
        received.clear()
        brought.clear()
        model = np.full(2, version, np.float32)
        for client_id in clients:
            mailbox.push(order(len(errors) + clients.index(client_id), client_id, model))
        for connection in link.connections:
            while not serve(connection, answer):
                pass
        received.set()
        errors += [next(iter(mailbox.pull(5.0))).error for _ in clients]
    mailbox.close()
    assert errors == [""] * count


@pytest.mark.parametrize("step", range(1, 6))
def test_a_model_that_goes_while_the_next_message_is_registered(step):
    """The store lets go of its lock after every part of a message."""
    link = SuperLink(2)
    mailbox = AnyNode(link.grid, LAYOUT)
    mailbox.push(order(0, 0))
    confirmed = []
    for connection in link.connections:
        if serve((*connection[:-1], lambda *message: confirmed.append(message)), answer):
            confirm = connection[-1]

    class Lock:
        def __init__(self):
            self.lock, self.steps = threading.RLock(), 0

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()
            self.steps += 1
            if self.steps == step:
                confirm(*confirmed[0])

    link.store.lock_store = Lock()
    mailbox.push(order(1, 1))
    assert sum(serve(connection, answer) for connection in link.connections) == 1
    replies = [reply for _ in range(2) for reply in mailbox.pull(0.0)]
    assert [reply.error for reply in replies] == ["", ""]


# -- a reply that is too large is refused part by part --------------------------------------------

MIB = 2**20


@pytest.fixture
def module(monkeypatch):
    module = import_module(patches.HTTP_GRID)
    monkeypatch.setattr(module, "pull_objects", module.pull_objects)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return module


def pulled(module, bound, *, megabytes, parts):
    """What Flower's grid makes of a reply.

    Returns:
        The message, the bytes that were pulled for it, and what the SuperLink was told to remove.
    """
    arrays = {str(i): Array(np.full(megabytes * MIB // 8, float(i))) for i in range(parts)}
    order = Message(RecordDict(), dst_node_id=5, message_type="train")
    order.metadata.__dict__["_message_id"] = "order"
    reply = Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=order)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
    found = SimpleNamespace(num_bytes=0, removed=[], reply=reply.object_id)

    def pull(request):
        content = objects[request.object_id]
        found.num_bytes += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    serde = import_module("flwr.common.serde")
    bare = import_module("flwr.app.message.message").remove_content_from_message(reply)
    client = SimpleNamespace(
        PullMessages=lambda request: SimpleNamespace(
            messages_list=[serde.message_to_proto(bare)],
            message_object_trees=[get_object_tree(reply)],
        ),
        PullObject=pull,
        ConfirmMessageReceived=lambda request: found.removed.append(request.message_object_id),
    )
    grid = module.HttpGrid.__new__(module.HttpGrid)
    grid.__dict__.update(_client=client, _run=Run.create_empty(1), node=Node(node_id=1))
    patches.bound_replies(bound, grid)
    (found.message,) = grid.pull_messages(["order"])
    return found


def test_a_reply_beyond_the_bound_is_malformed_and_not_held(module):
    """64 MiB were sent; no more than a part for each thread is held when it is refused."""
    found = pulled(module, 3 * MIB, megabytes=2, parts=32)
    assert found.message.has_error()
    assert found.num_bytes < 40 * MIB
    assert found.removed == [found.reply]  # from the database
    order = Order(0, 1, 0, 0, np.zeros(1, np.float32), {}, 0.0)
    reply = read_reply(found.message, order, None)
    assert reply.error.startswith(f"{MALFORMED}: ")
    assert f"the reply is larger than {3 * MIB} bytes" in reply.error


def test_a_second_run_of_a_process_has_a_bound_of_its_own(module):
    assert pulled(module, 3 * MIB, megabytes=2, parts=2).message.has_error()
    assert pulled(module, 10 * MIB, megabytes=2, parts=2).message.has_content()
