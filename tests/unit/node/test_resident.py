"""The training process that stays: here a thread, so that nothing but the socket is in between."""

import logging
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
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
from fl_app.node import resident, room
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
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Flower's logger does not propagate."""
    resident.log.addHandler(caplog.handler)
    with caplog.at_level(logging.INFO, "flwr"):
        yield caplog
    resident.log.removeHandler(caplog.handler)


@pytest.fixture
def residents(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    here = Residents()
    monkeypatch.setenv("WARM", "auto")
    monkeypatch.setattr(room, "free", lambda: 8192 * room.MIB)
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
    found = resident._connect(context())
    assert found is not None
    return found.connection


def leave() -> None:
    """Somebody with another version of the app calls: whoever is there ends."""
    with suppress(ConnectionError, PermissionError):
        if found := resident._connect(context()):
            with found.connection as connection:
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
def test_a_folder_of_others_is_not_used(
    residents: Residents, tmp_path: Path, said: pytest.LogCaptureFixture, kind: str
) -> None:
    folder = address(tmp_path).parent
    if kind == "open":
        folder.mkdir()
        folder.chmod(0o770)
    else:
        (tmp_path / "private").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "private")
    assert resident.ask(order(), context()) is None
    assert "is not a folder of mode 0700 that belongs to user" in said.text
    assert residents.threads == []
    folder.unlink() if kind == "link" else folder.rmdir()


def test_one_that_crashes_is_replaced_and_told_the_order_again(residents: Residents) -> None:
    residents.handler = Echo(crashes=1)
    assert number_in(resident.ask(order(4), context())) == 4
    assert len(residents.threads) == 2


def test_one_that_always_crashes_is_not_started_for_a_while(
    residents: Residents, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    residents.handler = Echo(crashes=9)
    assert resident.ask(order(), context()) is None
    assert len(residents.threads) == 2
    assert "memory ran short: no resident process is started for 600 s" in said.text
    assert resident.ask(order(), context()) is None
    assert len(residents.threads) == 2
    pass_by(tmp_path, 599.0)
    assert resident.ask(order(), context()) is None
    pass_by(tmp_path, 2.0)
    assert resident.ask(order(), context()) is None
    assert len(residents.threads) == 4
    assert "no resident process is started for 1200 s" in said.text
    pass_by(tmp_path, 90000.0)
    residents.handler = Echo()
    assert number_in(resident.ask(order(4), context())) == 4
    residents.handler = Echo(crashes=2)
    leave()
    assert resident.ask(order(), context()) is None
    assert said.messages[-1] == "memory ran short: no resident process is started for 600 s"


def pass_by(tmp_path: Path, seconds: float) -> None:
    """Make the note that no resident is started older."""
    note = address(tmp_path).with_suffix(".short")
    os.utime(note, times=(note.stat().st_mtime - seconds,) * 2)


@pytest.mark.parametrize("note", ["", "soon", "-5"])
def test_a_damaged_note_forbids_nothing(residents: Residents, tmp_path: Path, note: str) -> None:
    address(tmp_path).parent.mkdir(mode=0o700)
    address(tmp_path).with_suffix(".short").write_text(note)
    assert number_in(resident.ask(order(5), context())) == 5


def test_a_clock_that_was_ahead_forbids_nothing(residents: Residents, tmp_path: Path) -> None:
    address(tmp_path).parent.mkdir(mode=0o700)
    address(tmp_path).with_suffix(".short").write_text("600")
    pass_by(tmp_path, -5000.0)
    assert number_in(resident.ask(order(5), context())) == 5


class Dying(Residents):
    """Starts processes that end in a given way instead of answering."""

    def __init__(self, command: str) -> None:
        super().__init__()
        self.command = command
        self.count = 0

    def start(self, listener: socket.socket, idle: float) -> int:
        del idle
        self.count += 1
        listener.set_inheritable(True)
        return os.posix_spawn("/bin/sh", ["sh", "-c", self.command], os.environ)


@pytest.mark.parametrize(("command", "starts", "said_of_it"), [
    ("kill -9 $$", 1, None),
    ("kill -ILL $$", 2, "Illegal instruction: torch or another package is built for another"),
    ("kill -SEGV $$", 2, "ended twice before it answered: signal SIGSEGV"),
    ("exit 3", 2, "ended twice before it answered: exit status 3"),
])  # fmt: skip
def test_how_it_ended_decides(
    residents: Residents,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    command: str,
    starts: int,
    said_of_it: str | None,
) -> None:
    """What kills one for memory spares this process; what is broken would break it, too."""
    del residents
    dying = Dying(command)
    monkeypatch.setattr(resident, "_start", dying.start)
    reply = resident.ask(order(), context())
    assert dying.count == starts
    if said_of_it is None:
        assert reply is None
        assert address(tmp_path).with_suffix(".short").exists()
    else:
        assert reply is not None
        assert said_of_it in reply.error.reason
    address(tmp_path).unlink()  # nobody listens there


@pytest.mark.parametrize(("config", "warm", "starts"), [
    ({}, "auto", False), ({}, "1", True), ({"resident": True}, "auto", True),
])  # fmt: skip
def test_it_is_started_only_if_there_is_memory_for_it(
    residents: Residents,
    monkeypatch: pytest.MonkeyPatch,
    said: pytest.LogCaptureFixture,
    config: dict[str, Any],
    warm: str,
    starts: bool,
) -> None:
    monkeypatch.setenv("WARM", warm)
    monkeypatch.setattr(room, "free", lambda: room.needed() - 1)
    monkeypatch.setattr(room, "SPARE", 0)
    assert (resident.ask(order(), context(**config)) is not None) is starts
    assert len(residents.threads) == starts
    assert (
        "MiB of memory are free, and a training process that stays needs" in said.text
    ) != starts


def test_it_ends_when_memory_runs_short(
    residents: Residents, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    handler = residents.handler
    assert isinstance(handler, Echo)
    # It runs short during the second order: after the first the resident looks at it, too.
    monkeypatch.setattr(room, "free", lambda: (10 if handler.served > 1 else 8192) * room.MIB)
    assert number_in(resident.ask(order(1), context())) == 1
    assert number_in(resident.ask(order(2), context())) == 2
    residents.threads[0].join(IDLE)
    assert not residents.threads[0].is_alive()
    assert not address(tmp_path).exists()
    monkeypatch.setattr(room, "free", lambda: 8192 * room.MIB)
    assert resident.ask(order(3), context()) is None
    assert len(residents.threads) == 1


def test_it_looks_at_the_memory_also_without_orders(
    residents: Residents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "LOOK", 0.01)
    assert number_in(resident.ask(order(1), context())) == 1
    monkeypatch.setattr(room, "free", lambda: 10 * room.MIB)
    residents.threads[0].join(IDLE / 2)
    assert not residents.threads[0].is_alive()


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


@pytest.mark.parametrize(("value", "warm", "process", "expected"), [
    (None, None, "flwr-clientapp", True), (None, "auto", "/opt/bin/flwr-clientapp", True),
    (None, "1", "flwr-clientapp", True), (None, "0", "flwr-clientapp", False),
    (None, None, "flwr-simulation", False), (None, "1", "pytest", False),
    (True, "0", "pytest", True), (False, "1", "flwr-clientapp", False),
])  # fmt: skip
def test_who_wants_one(
    monkeypatch: pytest.MonkeyPatch,
    value: bool | None,
    warm: str | None,
    process: str,
    expected: bool,
) -> None:
    monkeypatch.delenv("WARM", raising=False)
    if warm is not None:
        monkeypatch.setenv("WARM", warm)
    monkeypatch.setattr(sys, "argv", [process])
    config = {} if value is None else {"resident": value}
    assert resident.wanted(context(**config)) is expected


def test_a_value_of_warm_without_meaning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp"])
    monkeypatch.setenv("WARM", "yes")
    with pytest.raises(ValueError, match="WARM=yes must be auto, 1 or 0"):
        resident.wanted(context())


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


def test_the_client_app_carries_out_what_no_resident_does(
    residents: Residents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARM", "auto")
    monkeypatch.setattr(sys, "argv", ["flwr-clientapp"])
    monkeypatch.setattr(room, "free", lambda: 0)
    reply = client_app.app(order(), context(**{"partition-id": 1}))
    assert "the order carries no app-config" in reply.error.reason  # so says the handler
    assert residents.threads == []


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
