"""A reply that is too large is refused part by part, with Flower's own grid and functions."""

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

from fl_app.core.types import Order
from fl_app.engine.guard import MALFORMED
from fl_app.flower import patches
from fl_app.flower.orders import read_reply

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
