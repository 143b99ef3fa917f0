"""The training process that stays: here a thread, so that nothing but the socket is in between."""

import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fl_app import client_app
from fl_app.flower import wire
from fl_app.node import resident
from fl_app.node.handler import MessageHandler

NODE = 2**63 + 5
IDLE = 10.0


class Echo(MessageHandler):
    """Answers with what it was sent; remembers how many it served at a time."""

    def __init__(self, crashes: int = 0) -> None:
        super().__init__()
        self.crashes = crashes
        self.at_work = self.most_at_work = self.served = 0
        self.nodes: list[Any] = []

    def handle(self, message: Message, context: Context) -> Message:
        if self.crashes:
            self.crashes -= 1
            sys.exit()  # the thread's end, as a crash would be the process's
        self.at_work += 1
        self.most_at_work = max(self.most_at_work, self.at_work)
        self.served += 1
        self.nodes.append((context.run_id, context.node_id, dict(context.node_config)))
        reply = Message(message.content, reply_to=message)
        self.at_work -= 1
        return reply


class Residents:
    """Starts threads where a device would start processes."""

    def __init__(self) -> None:
        self.handler: MessageHandler = Echo()
        self.idle: float | None = None
        self.threads: list[Thread] = []

    def start(self, listener: socket.socket, idle: float) -> int:
        seconds = idle if self.idle is None else self.idle
        own = listener.dup()

        def live() -> None:
            with suppress(SystemExit):
                resident.serve(own, self.handler, seconds)

        thread = Thread(target=live)
        thread.start()
        self.threads.append(thread)
        return 0


@pytest.fixture
def residents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    here = Residents()
    monkeypatch.setattr(resident, "_start", here.start)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield here
    leave()
    for thread in here.threads:
        thread.join(IDLE)
        assert not thread.is_alive()


def context(**node_config: Any) -> Context:
    return Context(7, NODE, {"resident-idle": IDLE, **node_config}, RecordDict(), {})


def order(number: int = 0) -> Message:
    content = RecordDict({"config": ConfigRecord({"number": number})})
    message = Message(content, dst_node_id=NODE, message_type="train")
    message.metadata.__dict__["_message_id"] = f"message-{number}"
    return message


def number_in(reply: Message) -> Any:
    return reply.content["config"]["number"]


def address(tmp_path: Path) -> Path:
    return tmp_path / f"fl_app-{os.getuid()}" / f"{NODE}.sock"


def connected() -> Connection:
    return resident._connect(context())[0]


def leave() -> None:
    """Somebody with another version of the app calls: whoever is there ends."""
    with suppress(ConnectionError, PermissionError), connected() as connection:
        connection.send_bytes(b"/elsewhere")


def test_order_and_reply_come_through(residents: Residents) -> None:
    reply = resident.ask(order(3), context(**{"partition-id": 2}))
    assert number_in(reply) == 3
    assert reply.metadata.reply_to_message_id == "message-3"
    assert (reply.metadata.src_node_id, reply.metadata.message_type) == (NODE, "train")
    node_config = {"resident-idle": IDLE, "partition-id": 2}
    assert residents.handler.nodes == [(7, NODE, node_config)]  # type: ignore[attr-defined]


def test_many_at_once_start_one_and_are_served_in_turn(residents: Residents) -> None:
    replies: list[Any] = []
    callers = [
        Thread(target=lambda i=i: replies.append(number_in(resident.ask(order(i), context()))))
        for i in range(8)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(IDLE)
    assert sorted(replies) == list(range(8))
    assert len(residents.threads) == 1
    handler = residents.handler
    assert isinstance(handler, Echo)
    assert (handler.served, handler.most_at_work) == (8, 1)


def test_only_this_user_can_open_the_socket(residents: Residents, tmp_path: Path) -> None:
    resident.ask(order(), context())
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (address(tmp_path).parent, address(tmp_path))]
    assert modes == [0o700, 0o600]


@pytest.mark.parametrize("kind", ["open", "link"])
def test_a_folder_of_others_is_not_used(residents: Residents, tmp_path: Path, kind: str) -> None:
    folder = address(tmp_path).parent
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o770)
    else:
        (tmp_path / "private").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "private")
    reply = resident.ask(order(), context())
    assert "is not a folder of mode 0700 that belongs to user" in reply.error.reason
    assert residents.threads == []
    folder.unlink() if kind == "link" else folder.rmdir()


def test_one_that_crashes_is_replaced_and_told_the_order_again(residents: Residents) -> None:
    residents.handler = Echo(crashes=1)
    assert number_in(resident.ask(order(4), context())) == 4
    assert len(residents.threads) == 2


def test_one_that_always_crashes_is_a_failure(residents: Residents) -> None:
    residents.handler = Echo(crashes=9)
    reply = resident.ask(order(), context())
    assert "RuntimeError: the resident process ended twice" in reply.error.reason
    assert len(residents.threads) == 2


def test_a_socket_that_was_left_behind_is_replaced(residents: Residents, tmp_path: Path) -> None:
    address(tmp_path).parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(address(tmp_path)))
    assert number_in(resident.ask(order(5), context())) == 5


CODE = os.fsencode(resident.CODE)


@pytest.mark.parametrize("sent", [b"", struct.pack("!i", len(CODE)) + CODE, b"\0\0\1\0torn"])
def test_a_client_app_that_crashes_is_forgotten(residents: Residents, sent: bytes) -> None:
    with connected() as connection:
        os.write(connection.fileno(), sent)
    assert number_in(resident.ask(order(6), context())) == 6
    assert len(residents.threads) == 1


def test_a_client_app_that_does_not_wait_for_the_reply_is_forgotten(residents: Residents) -> None:
    with connected() as connection:
        for part in (CODE, wire.context_to_bytes(context()), wire.to_bytes(order())):
            connection.send_bytes(part)
    assert number_in(resident.ask(order(6), context())) == 6
    assert len(residents.threads) == 1


def test_it_ends_when_it_is_idle_and_leaves_nothing(residents: Residents, tmp_path: Path) -> None:
    residents.idle = 0.01
    with connected():
        pass
    residents.threads[0].join(IDLE)
    assert not residents.threads[0].is_alive()
    assert not address(tmp_path).exists()
    residents.idle = None
    assert number_in(resident.ask(order(8), context())) == 8


def test_one_whose_socket_was_cleaned_away_leaves_that_of_the_next(
    residents: Residents, tmp_path: Path
) -> None:
    resident.ask(order(0), context())
    with connected() as connection:
        address(tmp_path).unlink()
        resident.ask(order(1), context())
        assert len(residents.threads) == 2
        connection.send_bytes(b"/elsewhere")
        residents.threads[0].join(IDLE)
    resident.ask(order(2), context())
    assert len(residents.threads) == 2


def test_it_runs_the_code_of_the_client_app_that_starts_it() -> None:
    """Another installation of the package may come first in a new process."""
    assert (resident.CODE / "fl_app" / "node" / "resident.py").samefile(resident.__file__)


def test_another_version_of_the_app_gets_another_one(
    residents: Residents, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    resident.ask(order(1), context())
    leave()
    residents.threads[0].join(IDLE)
    assert not address(tmp_path).exists()
    assert number_in(resident.ask(order(2), context())) == 2
    assert len(residents.threads) == 2


def test_it_works_ahead_until_somebody_waits(residents: Residents) -> None:
    class Ahead(Echo):
        rounds = 0

        def work_ahead(self, until: Callable[[], bool]) -> None:
            self.rounds += 1
            while not until():
                pass

    residents.handler = handler = Ahead()
    for i in range(3):
        assert number_in(resident.ask(order(i), context())) == i
    assert handler.rounds >= 2
    assert handler.served == 3


@pytest.mark.parametrize(("value", "variable", "expected"), [
    (None, None, False), (None, "1", True), (None, "0", False), (True, None, True),
    (False, "1", False),
])  # fmt: skip
def test_who_wants_one(
    monkeypatch: pytest.MonkeyPatch, value: bool | None, variable: str | None, expected: bool
) -> None:
    monkeypatch.delenv("FL_APP_RESIDENT", raising=False)
    if variable is not None:
        monkeypatch.setenv("FL_APP_RESIDENT", variable)
    config = {} if value is None else {"resident": value}
    assert resident.wanted(context(**config)) is expected


def test_settings_that_mean_nothing_are_refused(residents: Residents) -> None:
    message = order()
    with pytest.raises(ValueError, match="resident=yes must be true or false: it decides"):
        client_app.app(message, context(resident="yes"))
    reply = client_app.app(message, context(resident=True, **{"resident-idle": 0}))
    assert "resident-idle=0 must be a finite number above 0" in reply.error.reason
    reply = client_app.app(message, context(resident=True, **{"resident-idle": "long"}))
    assert "resident-idle=long must be a finite number above 0" in reply.error.reason
    assert residents.threads == []


def test_the_client_app_passes_orders_on(residents: Residents) -> None:
    for kind in ("train", "evaluate"):
        message = order(9)
        message.metadata.__dict__["_message_type"] = kind
        assert number_in(client_app.app(message, context(resident=True))) == 9
    assert len(residents.threads) == 1


def test_any_node_needs_none(residents: Residents) -> None:
    message = order()
    message.content["config"]["any-node"] = True
    reply = client_app.app(message, context(resident=True))
    assert "carries no app-config" in reply.error.reason
    assert residents.threads == []


def test_it_ends_with_the_process_that_started_the_client_app() -> None:
    ended = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as parent:
            descriptor = os.pidfd_open(parent.pid)
            watch = Thread(target=resident._end_with, args=[descriptor])
            watch.start()
            assert ended == []
        watch.join(IDLE)
        assert ended == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(descriptor)
