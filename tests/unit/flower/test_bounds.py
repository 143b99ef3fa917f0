"""A reply that is too large is refused part by part, with Flower's own grid and functions."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.task_identity import TaskIdentity

from fl_app.core.types import Order
from fl_app.engine.guard import MALFORMED
from fl_app.flower import private
from fl_app.flower.grid import _reply

MIB = 2**20


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = import_module(private.HTTP_GRID)
    monkeypatch.setattr(module, "pull_objects", module.pull_objects)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return module


def pulled(grid: Any, megabytes: int, parts: int) -> tuple[Message, int]:
    """What Flower's grid makes of a reply, and the bytes that it pulled for that."""
    arrays = {str(i): Array(np.full(megabytes * MIB // 8, float(i))) for i in range(parts)}
    order = Message(RecordDict(), dst_node_id=5, message_type="train")
    order.metadata.__dict__["_message_id"] = "order"
    reply = Message(RecordDict({"arrays": ArrayRecord(arrays)}), reply_to=order)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    objects = {key: value.deflate() for key, value in get_all_nested_objects(reply).items()}
    bytes_pulled = 0

    def pull(request: Any) -> PullObjectResponse:
        nonlocal bytes_pulled
        content = objects[request.object_id]
        bytes_pulled += len(content)
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    serde = import_module("flwr.common.serde")
    bare = import_module("flwr.app.message.message").remove_content_from_message(reply)
    client = SimpleNamespace(
        PullMessages=lambda request: SimpleNamespace(
            messages_list=[serde.message_to_proto(bare)],
            message_object_trees=[get_object_tree(reply)],
        ),
        PullObject=pull,
        ConfirmMessageReceived=lambda request: None,
    )
    http_grid = grid.HttpGrid.__new__(grid.HttpGrid)
    http_grid.__dict__.update(
        _client=client,
        _run=SimpleNamespace(run_id=1),
        node=Node(node_id=1),
    )
    (message,) = http_grid.pull_messages(["order"])
    return message, bytes_pulled


def test_a_reply_within_the_bound_arrives(grid: Any) -> None:
    private.bound_replies(10 * MIB)
    message, _ = pulled(grid, megabytes=2, parts=2)
    assert message.has_content()


def test_a_reply_beyond_the_bound_is_malformed_and_not_held(grid: Any) -> None:
    """64 MiB were sent; no more than a part for each thread is held when it is refused."""
    private.bound_replies(3 * MIB)
    message, num_bytes = pulled(grid, megabytes=2, parts=32)
    assert message.has_error()
    assert num_bytes < 40 * MIB
    order = Order(0, 1, 0, 0, np.zeros(1, np.float32), {}, 0.0)
    reply = _reply(message, order, None)  # type: ignore[arg-type]
    assert reply.error.startswith(f"{MALFORMED}: ")
    assert f"the reply is larger than {3 * MIB} bytes" in reply.error


def test_a_second_run_of_a_process_has_a_bound_of_its_own(grid: Any) -> None:
    private.bound_replies(3 * MIB)
    assert private.difference("replies") == ""
    private.bound_replies(10 * MIB)
    message, _ = pulled(grid, megabytes=2, parts=2)
    assert message.has_content()


def test_this_flower_has_what_the_bound_needs(monkeypatch: pytest.MonkeyPatch, grid: Any) -> None:
    assert private.difference("replies") == ""
    monkeypatch.setattr(grid, "pull_objects", None)
    assert "does not import pull_objects" in private.difference("replies")
