"""The warm node: its pauses, its executor of ClientApps, and its patches of Flower."""

import logging
import subprocess
import sys

import psutil
import pytest
from flwr.app import Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import start_client_internal
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.runtime import run_clientapp
from kit_processes import free_ports

from fl_app.flower import patches
from fl_app.node import warm


class Clock:
    """A clock that advances only during `sleep`."""

    def __init__(self):
        self.seconds = 0.0
        self.pauses = []

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.pauses.append(round(seconds, 3))
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(warm, "time", clock)
    return clock


def test_it_waits_a_tenth_longer_and_never_longer_than_flower(clock):
    pace = warm.Pace()
    for _ in range(12):
        pace.sleep(3.0)
    assert clock.pauses[:10] == [0.03] * 10  # until 0.3 s have passed
    assert clock.pauses[10:] == [0.03, 0.033]
    clock.seconds += 28.0
    pace.sleep(3.0)
    clock.seconds += 1000.0
    pace.sleep(3.0)
    assert clock.pauses[12:] == [2.836, 3.0]
    pace.sleep(0.5)  # for something else
    clock.seconds += 2.0
    pace.sleep(0.5)
    pace.renew()
    pace.sleep(0.5)
    assert clock.pauses[14:] == [0.03, 0.203, 0.03]


def test_the_executor_finds_the_node():
    node = ["--superlink", "server.lan:8100", "--insecure", "--host", "0.0.0.0", "--port", "9195"]
    tls = ["--ssl-ca-certfile", "ca.crt", "--allow-runtime-dependency-installation"]
    for arguments, certificates in ((node, None), ([*node, *tls], "ca.crt")):
        assert warm.runtime_of(arguments) == {
            "runtime_api_address": "127.0.0.1:9195",
            "insecure": certificates is None,
            "root_certificates_path": certificates,
            "runtime_dependency_install": certificates is not None,
        }


# -- the executor, with real processes whose SuperNode does not answer ----------------------------


@pytest.fixture
def executor():
    executor = warm.StayingExecutor()
    yield executor
    executor.close()
    assert workers() == []


def workers():
    children = psutil.Process().children()
    return [process for process in children if "fl_app.node.worker" in process.cmdline()]


def order(app="a"):
    """A task of a SuperNode that does not answer."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    return ExecutionSpec(TaskType.CLIENT_APP, address, "token", True, None, False, 1, False, 1, app)


def test_a_worker_that_is_killed_ends_the_executor(executor, caplog):
    """Otherwise the SuperNode might wait for ever for the content of an announced reply."""
    assert executor.launch(order()).status is LaunchResultStatus.ACCEPTED
    workers()[0].kill()
    with pytest.raises(SystemExit):
        executor.reconcile()
    assert "the process of an order was killed: Killed" in caplog.text
    assert workers() == []


def test_an_order_that_was_given_up_or_is_of_another_app_does_not_hold_up_the_next(
    executor, monkeypatch
):
    monkeypatch.setattr(warm, "GRACE", 0.01)
    executor.launch(order())
    (first,) = workers()
    executor.launch(order())
    (second,) = workers()
    executor._busy = False
    executor.launch(order("b"))
    (third,) = workers()
    assert len({first.pid, second.pid, third.pid}) == 3


# -- patches of Flower ----------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "version"), [("0", "1.41.0"), ("1", "1.43.0")])
def test_an_untried_flower_runs_as_it_is_and_so_does_a_cold_node(monkeypatch, value, version):
    calls = []
    monkeypatch.setattr(patches, "version", lambda name: version)
    monkeypatch.setattr(warm, "push_late_replies", lambda: None)
    monkeypatch.setattr(warm, "flower_supernode", lambda: calls.append(list(sys.argv)))
    monkeypatch.setattr("sys.argv", ["warm", "--superlink", "server.lan:8100"])
    monkeypatch.setenv("WARM", value)
    warm.supernode()
    assert calls == [["warm", "--superlink", "server.lan:8100"]]
    monkeypatch.setenv("WARM", "auto")
    with pytest.raises(ValueError, match="WARM=auto must be 1 or 0"):
        warm.supernode()


def test_an_order_that_was_carried_out_does_not_end_its_process(monkeypatch):
    for name in ("flwr_exit", "install_from_fab"):  # to restore them afterwards
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    calls = []
    add_exit_handler(lambda: calls.append("told the SuperNode"))
    patches.stay()
    with pytest.raises(patches.OrderDone):
        run_clientapp.flwr_exit(code=0)
    assert calls == ["told the SuperNode"]


def test_a_reply_that_comes_late_does_not_take_the_place_of_the_next(monkeypatch):
    monkeypatch.setattr(start_client_internal, "_pull_and_store_message", lambda **settings: None)
    patches.push_late_replies()
    state = NodeStateFactory(ObjectStoreFactory()).state()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    order = Message(RecordDict(), dst_node_id=1, message_type="train")
    order.metadata.__dict__["_message_id"] = "order"
    pull = start_client_internal._pull_and_store_message
    state.store_message(order)
    assert pull(state=state) is None
    reply = Message(RecordDict(), reply_to=order)
    reply.metadata.__dict__["_message_id"] = "reply"
    state.store_message(reply)
    assert pull(state=state) == 0
    assert state.get_messages_legacy(is_reply=True) == [reply]
    assert pull(state=state) is None


# -- the process ----------------------------------------------------------------------------------

THREAD = "threading.Thread(target=threading.Event().wait).start()"  # it never ends


@pytest.mark.parametrize(("ending", "output"), [
    ("pass", "The SuperNode has given up\n"),
    ("raise OSError('no such key')", "OSError: no such key\nThe SuperNode has given up\n"),
])  # fmt: skip
def test_its_process_ends_even_if_a_thread_runs(ending, output):
    script = (
        "import threading\n"
        "from fl_app.node.warm import main\n"
        "def node():\n"
        f"    {THREAD}\n"
        f"    {ending}\n"
        "main(node)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30.0
    )
    assert result.returncode == 1
    assert result.stderr.endswith(output)


def test_flowers_lines_about_every_message_are_left_out(caplog):
    log = logging.getLogger("flwr")
    caplog.set_level("INFO", "flwr")
    log.addFilter(warm.is_informative)
    try:
        for text in ("", "[RUN %s]", "Sending: train message (ID: %s)", "client %s: train order"):
            log.info(text, *["7"] * text.count("%s"))
        log.error("Sending: %s", "it failed")
    finally:
        log.removeFilter(warm.is_informative)
    assert caplog.messages == ["client 7: train order", "Sending: it failed"]
