"""A device that was restored from an old copy begins anew, and one with a full disk says so."""

import errno
import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import composed
from fake_grid import FakeGrid
from flwr.app import Context, Message, RecordDict
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.client.build import build_task
from fl_app.client.initial import build_model
from fl_app.core.snapshot import Encoder, decode
from fl_app.core.types import Order
from fl_app.engine.clock import Joined, Replied
from fl_app.engine.wall import WallClock
from fl_app.flower import grid, names, wire
from fl_app.flower.grid import GridMailbox
from fl_app.node import memory
from fl_app.node.handler import MessageHandler

SETTINGS = ("algorithm=feddyn", "num_clients=4", "algorithm.client.local_steps=1")
CONFIG = OmegaConf.to_yaml(composed(*SETTINGS), resolve=True)
TRAIN = {names.APP_CONFIG: CONFIG, names.RUN: "7"}


@pytest.fixture(autouse=True)
def _process() -> Iterator[None]:
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    return tmp_path / "run-7" / "client-1.npz"


class Server:
    """Gives orders to a node, as the server does that has the counts of its replies."""

    def __init__(self) -> None:
        self.model = build_model(build_task(composed(*SETTINGS)), 0)
        self.packer = wire.OrderPacker(self.model.layout, TRAIN)

    def order(self, count: int = 0) -> Message:
        """The reply of a node that has been started anew."""
        given = Order(0, 1, 0, 0, self.model.read(), {"regularisation": 0.1}, 0.0)
        message = Message(
            self.packer.pack(given, state_count=count), dst_node_id=5, message_type="train"
        )
        return MessageHandler().handle(
            message, Context(1, 5, {"partition-id": 1}, RecordDict(), {})
        )


def test_the_count_travels_with_every_reply(state: Path) -> None:
    server = Server()
    assert [wire.state_counts(server.order())[0] for _ in range(3)] == [1, 2, 3]
    upload = wire.unpack_reply(server.order(3), server.model.layout)
    assert upload.metrics.keys().isdisjoint({names.STATE_COUNT, names.STATE_OLDER})


def test_a_device_restored_from_an_old_copy_begins_anew(state: Path) -> None:
    server = Server()
    server.order()
    shutil.copy(state, state.with_name("copy"))
    for _ in range(3):
        count, older = wire.state_counts(server.order())
    assert (count, older) == (4, None)
    shutil.copy(state.with_name("copy"), state)
    reply = server.order(count)
    assert wire.state_counts(reply) == (5, 1)
    assert state.with_suffix(".older").exists()
    assert wire.state_counts(server.order(5)) == (6, None)  # from now on it is in step


def test_a_device_that_is_ahead_of_the_server_keeps_its_state(state: Path) -> None:
    """The server went back to a checkpoint, or a reply was lost on its way."""
    server = Server()
    for _ in range(3):
        server.order()
    assert wire.state_counts(server.order(2)) == (4, None)


@pytest.mark.parametrize("told", ["many", -3, 2.5])
def test_a_count_without_meaning_is_none(state: Path, told: Any) -> None:
    reply = Server().order()
    if isinstance(told, str):
        reply.content["metrics"][names.STATE_COUNT] = [1]
    else:
        reply.content["metrics"][names.STATE_COUNT] = told
    assert wire.state_counts(reply) == (0, None)


def app(message: Message, context: Context) -> Message:
    """A ClientApp whose process ends after every order."""
    if message.metadata.message_type == "query":
        return client_app.app(message, context)
    return MessageHandler().handle(message, context)


class Clock:
    """A server's clock, with a mailbox of a node that is client 1.

    Args:
        nodes: the grid.
        saved: what an earlier clock had in its checkpoint.
    """

    def __init__(self, nodes: FakeGrid, saved: Any = None) -> None:
        self.server, self.number = Server(), 0
        mailbox = GridMailbox(nodes, self.server.model.layout, train_config=TRAIN)
        self.clock = WallClock(mailbox)
        if saved is not None:
            self.clock.load_state_dict(saved, {})
        assert self.clock.next(20.0) == Joined(1)

    def order(self) -> None:
        """Give an order and wait for its reply."""
        vector = self.server.model.read()
        given = Order(self.number, 1, self.number, 0, vector, {"regularisation": 0.1}, 0.0)
        self.clock.dispatch(given)
        self.number += 1
        replied = self.clock.next(self.clock.now + 20.0)
        assert isinstance(replied, Replied)
        assert not replied.reply.error


def counts_sent(nodes: FakeGrid) -> list[Any]:
    """The counts that went with the orders so far."""
    orders = [m for m in nodes.received if m.metadata.message_type == "train"]
    return [wire.order_config(m).get(names.STATE_COUNT) for m in orders]


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    grid.log.addHandler(caplog.handler)
    yield caplog
    grid.log.removeHandler(caplog.handler)


WARNING = "client 1 had an old copy of its state, saved 1 times, and begins anew"


def test_the_server_tells_the_next_order_what_it_has_seen_and_warns(
    state: Path, logged: pytest.LogCaptureFixture
) -> None:
    nodes = FakeGrid(app, 1, [{"partition-id": 1}])
    with closing(Clock(nodes).clock) as clock:
        assert clock.state_dict().keys() == {"now"}
    one = Clock(nodes)
    with closing(one.clock):
        one.order()
        shutil.copy(state, state.with_name("copy"))
        one.order()
        shutil.copy(state.with_name("copy"), state)
        one.order()
    assert counts_sent(nodes) == [None, 1, 2]
    assert WARNING in logged.text


def test_a_server_that_goes_on_from_its_checkpoint_notices_it_too(
    state: Path, logged: pytest.LogCaptureFixture
) -> None:
    nodes = FakeGrid(app, 1, [{"partition-id": 1}])
    one = Clock(nodes)
    with closing(one.clock):
        one.order()
        shutil.copy(state, state.with_name("copy"))
        one.order()
        encoder = Encoder()
        saved = decode(
            json.loads(json.dumps(encoder.encode(one.clock.state_dict()))), encoder.arrays
        )
        one.order()  # after the checkpoint
    two = Clock(nodes, saved)
    with closing(two.clock):
        two.order()
        assert WARNING not in logged.text  # the device is ahead, which is no fault
        shutil.copy(state.with_name("copy"), state)
        two.order()
    assert counts_sent(nodes) == [None, 1, 2, 2, 4]
    assert WARNING in logged.text


def test_a_full_disk_is_the_failure_of_the_order(
    state: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(state))

    server = Server()
    server.order()
    before = state.read_bytes()
    monkeypatch.setattr(memory.np, "savez", full)
    with caplog.at_level(logging.CRITICAL):
        reply = server.order()
    assert "the disk of this node is full: [Errno 28] No space left" in wire.error_of(reply)
    assert state.read_bytes() == before
    assert [path.name for path in state.parent.iterdir()] == [state.name]
