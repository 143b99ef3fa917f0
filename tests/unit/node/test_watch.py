"""A SuperNode drops an order whose run has ended; Flower's own loop and state are the real ones."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from hashlib import sha256
from importlib import import_module
from typing import Any

import httpx
import psutil
import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeStateFactory

from fl_app.flower import private
from fl_app.node.patience import Patience
from fl_app.node.watch import Watch, end_client_apps

NODE = 2**63 + 5
RUN, NEXT = 7, 8


class Clock:
    """Time passes only while somebody sleeps; things happen at their time."""

    def __init__(self, until: float) -> None:
        self.seconds, self.until = 0.0, until

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        if self.seconds > self.until:
            raise TimeoutError


class Node:
    """Flower's SuperNode with a server that has orders and runs, and without a network.

    Args:
        orders: run id of each order, in the order in which they are given out.
        ended: seconds at which each run ends.
        until: seconds after which the node is switched off.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, orders: list[int], ended: dict[int, float],
        until: float,
    ) -> None:  # fmt: skip
        self.clock = Clock(until)
        self.orders, self.ended = list(orders), ended
        self.sent: list[tuple[int, bool]] = []  # run, and whether the reply is an error
        self.killed: list[float] = []
        self.asked: list[float] = []
        self.parts_come = True
        self.refused: Exception | None = None
        self.unfinished_at_pull: list[int] = []
        self.module = import_module(private.NODE)
        monkeypatch.setattr(self.module, "time", self.module.time)
        watch = Watch(lambda: self.killed.append(self.clock.now()), now=self.clock.now)
        sleep = Patience(self.clock.sleep, now=self.clock.now, look=watch.look).sleep
        private.replace(private.NODE, "time", sleep=sleep)
        monkeypatch.setattr(self.module, "_init_connection", self.connection)
        monkeypatch.setattr(self.module, "register_signal_handlers", lambda **_: None)
        monkeypatch.setattr(self.module, "get_fused_config_from_fab", lambda content, run: {})
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1
        self.factory = NodeStateFactory(ObjectStoreFactory(":flwr-in-memory:"))
        self.state = self.factory.state()

    def run(self) -> "Node":
        with pytest.raises(TimeoutError):
            self.module.start_client_internal(
                state_factory=self.factory, server_address="127.0.0.1:1", node_config={},
                insecure=True, isolation="process",
            )  # fmt: skip
        return self

    def runs(self, run_id: int) -> bool:
        return self.clock.now() < self.ended.get(run_id, float("inf"))

    def tasks_left(self) -> int:
        return sum(not task.finished_at for task in self.state.get_tasks())

    @contextmanager
    def connection(self, **_: Any) -> Any:
        yield (
            NODE, self.receive, self.send, self.get_run, self.get_fab, self.pull, self.push,
            lambda run_id, message_id: None,
        )  # fmt: skip

    def receive(self) -> Any:
        self.unfinished_at_pull.append(self.tasks_left())
        if not self.orders:
            return None
        content = RecordDict({"config": ConfigRecord({"n": len(self.orders)})})
        message = Message(content, dst_node_id=NODE, message_type="train")
        message.metadata.__dict__["_run_id"] = self.orders.pop(0)
        message.metadata.__dict__["_src_node_id"] = 1
        message.metadata.__dict__["_message_id"] = message.object_id
        inflatable = import_module("flwr.supercore.inflatable.inflatable_object")
        self.objects = {
            key: value.deflate()
            for key, value in inflatable.get_all_nested_objects(message).items()
        }
        bare = import_module("flwr.app.message.message").remove_content_from_message(message)
        return bare, inflatable.get_object_tree(message)

    def get_run(self, run_id: int) -> Run:
        self.asked.append(self.clock.now())
        if self.refused is not None and not self.runs(run_id):
            raise self.refused
        if not self.runs(run_id):
            raise RunNotRunningException
        return Run.create_empty(run_id)

    def get_fab(self, fab_hash: str, run_id: int) -> Any:
        return import_module("flwr.supercore.fab").Fab(sha256(b"").hexdigest(), b"", {})

    def pull(self, run_id: int, object_id: str) -> bytes:
        if not self.parts_come and run_id == RUN:
            raise RunNotRunningException  # it ended while the parts were on their way
        return self.objects[object_id]

    def send(self, message: Message, tree: Any, seconds: float) -> Any:
        if not self.runs(message.metadata.run_id):
            raise RunNotRunningException
        self.sent.append((message.metadata.run_id, message.has_error()))
        return set(), "session"

    def push(self, *_: Any) -> None: ...


def test_an_order_whose_run_has_ended_is_dropped_within_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No ClientApp ever answers: without the watch the node would wait for it for ever."""
    node = Node(monkeypatch, [RUN, NEXT], {RUN: 25.0}, until=200.0).run()
    assert len(node.killed) == 1
    assert 25.0 < node.killed[0] < 25.0 + 15.0
    assert node.orders == []  # the next one was taken
    assert node.tasks_left() == 1  # that of the next order, which is under way
    assert max(node.asked) > 190.0  # and still watched


def test_a_run_that_goes_on_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [RUN], {}, until=3600.0).run()
    assert (node.killed, node.sent, node.tasks_left()) == ([], [], 1)
    assert len(node.asked) < 3600 / 10 + 2


@pytest.mark.parametrize(("status", "dropped"), [(404, True), (503, False)])
def test_a_server_that_has_forgotten_the_run(
    monkeypatch: pytest.MonkeyPatch, status: int, dropped: bool
) -> None:
    node = Node(monkeypatch, [RUN], {RUN: 5.0}, until=60.0)
    request = httpx.Request("POST", "https://server")
    node.refused = httpx.HTTPStatusError(
        "", request=request, response=httpx.Response(status, request=request)
    )
    assert bool(node.run().killed) is dropped


def test_a_server_that_does_not_answer_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [RUN], {RUN: 5.0}, until=60.0)
    node.refused = httpx.ConnectError("nobody")
    assert node.run().killed == []


def test_a_task_that_flower_forgets_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends while the order's parts are pulled: its ClientApp waits for them for ever."""
    node = Node(monkeypatch, [RUN], {}, until=20.0)
    node.parts_come = False
    node.run()
    assert node.tasks_left() == 1  # as Flower leaves it
    node = Node(monkeypatch, [RUN], {}, until=60.0)
    node.parts_come = False
    node.run()
    assert node.tasks_left() == 0
    assert len(node.state.object_store) == 0


def test_it_is_ended_at_once_when_the_next_run_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [RUN, NEXT], {}, until=12.0)
    node.parts_come = False
    node.run()
    (task,) = [task for task in node.state.get_tasks() if not task.finished_at]
    assert task.run_id == NEXT


def test_a_clientapp_that_still_writes_its_context_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(monkeypatch, [], {}, until=25.0)
    node.state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash="0" * 64)
    assert node.run().tasks_left() == 1


def test_this_flower_has_what_the_watch_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert private.difference("orders") == ""
    monkeypatch.setattr(private, "VARIABLES", frozenset({"state", "order_in_hand"}))
    assert "has no order_in_hand" in private.difference("orders")


def test_other_functions_that_sleep_are_none_of_its_business() -> None:
    assert private.waiting(sys._getframe()) is None

    def start_client_internal() -> Any:
        return private.waiting(sys._getframe())  # without the variables

    assert start_client_internal() is None


def test_clientapps_of_this_process_are_ended_and_nothing_else() -> None:
    ignores = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)"
    )
    command = [sys.executable, "-c", f"{ignores}; time.sleep(60)"]
    with (
        subprocess.Popen([*command, "other"], stdout=subprocess.PIPE) as other,
        subprocess.Popen(
            ["flwr-clientapp", *command[1:]], executable=sys.executable, stdout=subprocess.PIPE
        ) as app,
    ):
        try:
            assert other.stdout is not None
            assert app.stdout is not None
            other.stdout.readline(), app.stdout.readline()
            import fl_app.node.watch as watch

            began, watch.GRACE = time.monotonic(), 0.2
            end_client_apps()
            assert time.monotonic() - began < 5.0
            assert not psutil.pid_exists(app.pid)
            assert psutil.pid_exists(other.pid)
            assert other.poll() is None
        finally:
            watch.GRACE = 5.0
            for process in (other, app):
                process.kill()


def test_the_training_of_a_dropped_order_is_interrupted() -> None:
    """By the end of the ClientApp's connection, in the resident's main thread."""
    script = """
import socket, threading, time
from multiprocessing.connection import Connection
from fl_app.node.resident import Gone, _interrupted_by_end_of

ours, theirs = socket.socketpair()
threading.Timer(0.2, ours.close).start()
began = time.monotonic()
try:
    with _interrupted_by_end_of(Connection(theirs.detach())):
        while time.monotonic() - began < 20:
            sum(range(1000))
except Gone:
    print("given up")
ours, theirs = socket.socketpair()
with _interrupted_by_end_of(Connection(theirs.detach())):
    time.sleep(0.05)
ours.close()
time.sleep(0.1)
print("carried out", threading.active_count())
"""
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, env=os.environ
    )
    assert result.stdout == "given up\ncarried out 1\n", result.stderr


def test_a_finished_task_is_not_finished_again(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(monkeypatch, [], {}, until=100.0)
    task = node.state.create_task(task_type=TaskType.CLIENT_APP, run_id=RUN, fab_hash="0" * 64)
    node.state.claim_task(task)
    node.state.activate_task(task)
    node.state.finish_task(task, sub_status=SubStatus.COMPLETED, details="done")
    node.run()
    (found,) = node.state.get_tasks()
    assert found.status.details == "done"


def test_replies_are_told_and_the_watch_sees_what_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, str]] = []
    busy_at: list[float] = []
    idle_at: list[float] = []

    class Failing(Clock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.seconds > 5.0 and not told:
                node.state.get_messages_legacy(run_ids=[RUN], is_reply=False)
                node.state._store_error_replies({RUN}, Error(ErrorCode.UNKNOWN, "it is broken"))

    monkeypatch.setattr(sys.modules[__name__], "Clock", Failing)
    node = Node(monkeypatch, [RUN, NEXT], {NEXT: 40.0}, until=100.0)
    monkeypatch.setattr(node.module, "_push_messages", node.module._push_messages)
    assert private.difference("sent") == ""
    private.watch_replies(lambda *reply: told.append(reply))
    watch = Watch(
        lambda: node.killed.append(node.clock.now()),
        now=node.clock.now,
        beside=lambda busy: (busy_at if busy else idle_at).append(node.clock.now()),
    )
    sleep = Patience(node.clock.sleep, now=node.clock.now, look=watch.look).sleep
    private.replace(private.NODE, "time", sleep=sleep)
    node.run()
    assert told == [("train", "it is broken")]  # and not that of the run that had ended
    assert node.sent == [(RUN, True)]
    assert len(node.killed) == 1
    assert min(idle_at) > node.killed[0] >= max(busy_at) > 30.0
