"""A device that was restored from an old copy begins anew, and one with a full disk says so."""

import errno
import logging
import shutil
from collections.abc import Iterator
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
from fl_app.client.trainer import build_model
from fl_app.core.types import Order
from fl_app.engine.clock import Joined
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


def test_the_server_tells_the_next_order_what_it_has_seen_and_warns(
    state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def app(message: Message, context: Context) -> Message:
        """A ClientApp whose process ends after every order."""
        if message.metadata.message_type == "query":
            return client_app.app(message, context)
        return MessageHandler().handle(message, context)

    server, nodes = Server(), FakeGrid(app, 1, [{"partition-id": 1}])
    mailbox = GridMailbox(nodes, server.model.layout, train_config=TRAIN)
    grid.log.addHandler(caplog.handler)
    try:
        (joined,) = mailbox.pull(20.0)
        assert joined == Joined(1)
        for number in range(3):
            mailbox.push(
                Order(number, 1, number, 0, server.model.read(), {"regularisation": 0.1}, 0.0)
            )
            (reply,) = mailbox.pull(20.0)
            assert not reply.error  # type: ignore[union-attr]
            if number == 0:
                shutil.copy(state, state.with_name("copy"))
            elif number == 1:
                shutil.copy(state.with_name("copy"), state)
    finally:
        grid.log.removeHandler(caplog.handler)
        mailbox.close()
    sent = [wire.order_config(m).get(names.STATE_COUNT) for m in nodes.received[-3:]]
    assert sent == [None, 1, 2]
    assert "client 1 had an old copy of its state, saved 1 times, and begins anew" in caplog.text


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
