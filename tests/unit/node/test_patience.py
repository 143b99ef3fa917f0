"""A SuperNode drops a reply whose ClientApp was killed, and goes on."""

from importlib import import_module
from types import SimpleNamespace

import pytest
from flwr.proto.message_pb2 import ObjectTree

from fl_app.flower import private
from fl_app.node.patience import Patience


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Store:
    """Flower's store of the parts of messages; each part comes at a time."""

    def __init__(self, clock: Clock, comes: dict[str, float]) -> None:
        self.clock, self.comes = clock, comes
        self.deleted: list[str] = []

    def get_object_tree(self, message: str) -> ObjectTree:
        del message
        return ObjectTree(
            object_id="root",
            children=[ObjectTree(object_id=part) for part in self.comes if part != "root"],
        )

    def get(self, part: str) -> bytes:
        return part.encode() if self.clock.now() >= self.comes[part] else b""

    def delete(self, message: str) -> None:
        self.deleted.append(message)


def push(monkeypatch: pytest.MonkeyPatch, comes: dict[str, float]) -> tuple[list[str], Clock]:
    """Let Flower's SuperNode push a reply; the parts that were pushed, and the clock."""
    clock, pushed = Clock(), list[str]()
    store = Store(clock, comes)
    metadata = SimpleNamespace(
        message_id="reply", reply_to_message_id="order", run_id=1, group_id="", message_type="train"
    )
    message = SimpleNamespace(metadata=metadata)
    deleted: list[str] = []
    state = SimpleNamespace(
        get_messages_legacy=lambda is_reply: [message],
        get_message_processing_duration=lambda message_id: 1.0,
        delete_messages=lambda message_ids: deleted.extend(message_ids),
    )
    node = import_module(private.NODE)
    monkeypatch.setattr(node, "time", node.time)  # is restored afterwards
    private.replace(private.NODE, "time", sleep=Patience(clock.sleep, 60.0, clock.now).sleep)
    node._push_messages(
        state,
        store,
        lambda message, tree, seconds: (set(comes), "session"),
        lambda run, session, part, content: pushed.append(part),
    )
    assert deleted == ["reply", "order"]
    assert store.deleted == ["reply"]
    return sorted(pushed), clock


def test_a_reply_whose_parts_come_late_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    comes = {"root": 0.0, "a": 50.0, "b": 100.0}
    pushed, _ = push(monkeypatch, comes)
    assert pushed == ["a", "b", "root"]


@pytest.mark.parametrize("missing", ["root", "b"])
def test_a_reply_that_lacks_a_part_is_dropped(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    comes = {"root": 0.0, "a": 0.0, "b": 0.0} | {missing: float("inf")}
    pushed, clock = push(monkeypatch, comes)
    assert missing not in pushed
    assert 60.0 < clock.seconds < 62.0


def test_other_waits_have_no_limit() -> None:
    clock = Clock()
    patience = Patience(clock.sleep, 60.0, clock.now)
    for _ in range(1000):
        patience.sleep(0.5)
    assert clock.seconds == 500.0
