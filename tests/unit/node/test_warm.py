"""The warm node: how it waits, what starts its ClientApps, and what it replaces in Flower."""

import ast
import ctypes
import inspect
import os
import signal
from collections.abc import Iterator
from importlib import import_module

import psutil
import pytest
from flwr.supercore.constant import TaskType
from flwr.supercore.exit import add_exit_handler
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResultStatus
from flwr.supernode.runtime import run_clientapp

from fl_app.field.loopback import free_ports
from fl_app.flower import patches
from fl_app.node import warm


class Clock:
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []

    def now(self) -> float:
        return self.seconds

    def pause(self, seconds: float) -> None:
        self.pauses.append(round(seconds, 3))
        self.seconds += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def pace(clock: Clock) -> warm.Pace:
    return warm.Pace(clock.now, clock.pause)


def test_it_waits_a_tenth_longer_and_never_longer_than_flower(
    clock: Clock, pace: warm.Pace
) -> None:
    for _ in range(12):
        pace.sleep(3.0)
    assert clock.pauses[:10] == [0.03] * 10  # until 0.3 s have passed
    assert clock.pauses[10:] == [0.03, 0.033]
    clock.seconds += 28.0
    pace.sleep(3.0)
    clock.seconds += 1000.0
    pace.sleep(3.0)
    assert clock.pauses[12:] == [2.836, 3.0]


def test_another_wait_begins_briefly_again(clock: Clock, pace: warm.Pace) -> None:
    pace.sleep(3.0)
    clock.seconds += 60.0
    pace.sleep(0.5)  # for something else
    clock.seconds += 2.0
    pace.sleep(0.5)
    pace.sleep(3.0)
    clock.seconds += 9.0
    pace.renew()
    pace.sleep(3.0)
    assert clock.pauses == [0.03, 0.03, 0.203, 0.03, 0.03]


@pytest.mark.parametrize(("value", "expected"), [("", True), ("1", True), ("0", False)])
def test_one_variable_says_whether_a_node_is_warm(value: str, expected: bool) -> None:
    assert warm.wanted({"WARM": value}) == expected
    with pytest.raises(ValueError, match="WARM=auto must be 1 or 0"):
        warm.wanted({"WARM": "auto"})


def test_the_executor_finds_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    node = ["--superlink", "server.lan:8100", "--insecure", "--host", "0.0.0.0", "--port", "9195"]
    parent = ["--parent-pid", str(os.getpid())]
    address = ["--runtime-api-address", "127.0.0.1:9195"]
    assert warm.executor_arguments(node) == [*address, *parent, "--insecure"]
    tls = [*node, "--ssl-ca-certfile", "ca.crt", "--allow-runtime-dependency-installation"]
    more = ["--root-certificates", "ca.crt", "--allow-runtime-dependency-installation"]
    assert warm.executor_arguments(tls) == [*address, *parent, *more]


# -- the SuperNode's sleep -------------------------------------------------------------------------


def test_a_reply_whose_content_does_not_come_is_given_up(clock: Clock, pace: warm.Pace) -> None:
    lost = ctypes.c_double()
    patience = warm.Patience(lost, lambda: True, pace, clock.now)
    clock.seconds = 1000.0
    patience.sleep(0.5)
    lost.value = 1000.0  # a worker dies
    clock.seconds = 1000.0 + warm.LIMIT
    patience.sleep(0.5)  # Flower may still report the order as failed
    clock.seconds += 1.0
    with pytest.raises(TimeoutError, match="its ClientApp was killed"):
        patience.sleep(0.5)
    patience.sleep(0.5)
    lost.value = 1.0
    patience.sleep(3.0)  # for the next order: nothing is missing
    patience.sleep(0.5)


def test_a_node_ends_with_its_executor(clock: Clock, pace: warm.Pace) -> None:
    ended = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        warm.Patience(ctypes.c_double(), lambda: False, pace).sleep(3.0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM]


# -- the executor, with real processes whose orders cannot be had ---------------------------------


@pytest.fixture
def executor() -> Iterator[warm.StayingExecutor]:
    executor = warm.StayingExecutor(ctypes.c_double(), warm.Pace(pause=lambda seconds: None))
    yield executor
    executor.close()
    assert workers() == []


def workers() -> list[psutil.Process]:
    found = psutil.Process().children()
    return [process for process in found if "fl_app.node.worker" in process.cmdline()]


def order(app: str = "a") -> ExecutionSpec:
    """A task of a SuperNode that does not answer."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    return ExecutionSpec(TaskType.CLIENT_APP, address, "token", True, None, False, 1, False, 1, app)


def test_a_worker_that_is_killed_is_noticed_and_replaced(executor: warm.StayingExecutor) -> None:
    assert executor.launch(order()).status is LaunchResultStatus.ACCEPTED
    (first,) = workers()
    assert executor._lost.value == 0.0
    first.kill()
    executor.reconcile()
    assert executor._lost.value > 0.0
    assert executor.launch(order()).status is LaunchResultStatus.ACCEPTED
    assert executor._lost.value == 0.0
    assert workers() != [first]


def test_an_order_that_was_given_up_does_not_hold_up_the_next(
    executor: warm.StayingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm, "GRACE", 0.01)
    executor.launch(order())
    (first,) = workers()
    executor.launch(order())
    (second,) = workers()
    assert second != first


# -- drift: this is what Flower 1.41 and 1.42 look like -------------------------------------------


def test_flower_is_one_that_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    assert patches.difference("node") == ""
    monkeypatch.setattr(patches, "version", lambda name: "1.43.0")
    assert patches.difference("node") == "a warm node was tried with <1.43,>=1.41 only"


def test_an_untried_flower_runs_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr(patches, "version", lambda name: "1.43.0")
    monkeypatch.setattr(warm, "flower_supernode", lambda: started.append(list(warm.sys.argv)))
    monkeypatch.setattr("sys.argv", ["warm", "--superlink", "server.lan:8100"])
    monkeypatch.delenv("WARM", raising=False)
    warm.main()
    assert started == [["flower-supernode", "--superlink", "server.lan:8100"]]


@pytest.mark.parametrize(("module", "name", "expected"), [
    (patches.NODE, "time", ["time.sleep(0.5)", "time.sleep(0.5)", "time.sleep(3)"]),
    (patches.SUPEREXEC, "get_executor", ["get_executor(executor_type, executor_config="
     "executor_config, insecure=insecure, root_certificates_path=root_certificates_path)"]),
    (patches.CLIENT_APP, "install_from_fab", ["install_from_fab(fab.content, skip_prompt=True)"]),
    (patches.CLIENT_APP, "flwr_exit", [
        "flwr_exit(code=exit_code, event_type=EventType.FLWR_CLIENTAPP_RUN_LEAVE)",
    ]),
])  # fmt: skip
def test_flower_calls_what_is_replaced_as_expected(
    module: str, name: str, expected: list[str]
) -> None:
    tree = ast.parse(inspect.getsource(import_module(module)))
    calls = [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert sorted(call for call in calls if call.startswith((f"{name}(", f"{name}."))) == expected


def test_an_order_that_was_carried_out_does_not_end_its_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("flwr_exit", "install_from_fab"):  # as they are now, afterwards
        monkeypatch.setattr(run_clientapp, name, getattr(run_clientapp, name))
    ended: list[str] = []
    add_exit_handler(lambda: ended.append("told the SuperNode"))
    patches.stay()
    with pytest.raises(patches.OrderDone):
        run_clientapp.flwr_exit(code=0)
    assert ended == ["told the SuperNode"]
