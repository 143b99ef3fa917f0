"""The warm node: what it changes in Flower is as it expects it, and changed as it says."""

import ast
import hashlib
import inspect
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.supernode.cli
import pytest
from flwr.cli import install
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.version import package_version
from flwr.supernode.runtime import run_clientapp

from fl_app.flower import private
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


def test_a_module_finds_other_functions_where_it_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("looks")
    module.subprocess = subprocess  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "looks", module)
    private.replace("looks", "subprocess", Popen=len)
    assert module.subprocess.Popen is len
    assert module.subprocess.DEVNULL == subprocess.DEVNULL
    assert subprocess.Popen is not len


# -- drift: this is what Flower 1.41 looks like ---------------------------------------------------


def uses(module: str, name: str) -> list[str]:
    """Everything of an imported module that a module uses, as written."""
    tree = ast.parse(inspect.getsource(import_module(module)))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    called = {id(call.func): call for call in calls}
    return sorted(
        ast.unparse(called.get(id(node), node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == name
    )


def test_flower_is_the_one_that_is_known() -> None:
    assert package_version.startswith(private.KNOWN)
    assert private.known()


@pytest.mark.parametrize(("module", "name", "expected"), [
    (private.NODE, "time", ["time.sleep(0.5)", "time.sleep(0.5)", "time.sleep(3)"]),
    (private.NODE, "subprocess", ["subprocess.Popen(command)"]),
    (private.SUPEREXEC, "time", ["time.sleep(task_poll_interval)"]),
    (private.LAUNCHER, "subprocess", [
        "subprocess.DEVNULL",
        "subprocess.DEVNULL",
        "subprocess.Popen(args)",
        "subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)",
    ]),
])  # fmt: skip
def test_flower_uses_what_is_replaced_as_expected(
    module: str, name: str, expected: list[str]
) -> None:
    assert uses(module, name) == expected


def test_flower_starts_the_commands_that_are_expected() -> None:
    assert 'command = ["flower-superexec"]' in inspect.getsource(import_module(private.NODE))
    commands = import_module("flwr.supercore.constant").TASK_TYPE_TO_COMMAND
    assert "flwr-clientapp" in commands.values()


def test_flower_pulls_and_installs_as_expected() -> None:
    for function in (
        inflatable_utils.pull_objects,
        inflatable_utils.pull_and_inflate_object_from_tree,
    ):
        asked = inspect.signature(function).parameters
        for name in ("initial_backoff", "backoff_cap", "max_tries_per_object"):
            assert asked[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert "install_from_fab(fab.content, skip_prompt=True)" in inspect.getsource(run_clientapp)
    source = inspect.getsource(install)
    assert '{version}.{fab_hash[:FAB_HASH_TRUNCATION]}"' in source
    assert "if skip_prompt:\n            return install_path" in source


# -- what is changed ------------------------------------------------------------------------------


@pytest.fixture
def pulls() -> Iterator[list[Any]]:
    """The functions whose defaults change, put right afterwards."""
    functions: list[Any] = [
        inflatable_utils.pull_objects,
        inflatable_utils.pull_and_inflate_object_from_tree,
    ]
    before = [function.__kwdefaults__ for function in functions]
    yield functions
    for function, defaults in zip(functions, before, strict=True):
        function.__kwdefaults__ = defaults


def test_what_is_still_being_uploaded_is_asked_for_sooner(pulls: list[Any]) -> None:
    tries = iter([False, False, True])

    def pull(object_id: str) -> bytes:
        if next(tries):
            return b"there"
        raise inflatable_utils.ObjectUnavailableError(object_id)

    private.pull_sooner()
    for function in pulls:
        defaults = function.__kwdefaults__
        assert (defaults["initial_backoff"], defaults["backoff_cap"]) == (0.03, 0.5)
        assert defaults["max_tries_per_object"] is None
        assert "max_concurrent_pulls" in defaults
    assert inflatable_utils.pull_objects(["a"], pull) == {"a": b"there"}


def test_an_app_is_unpacked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    unpacked: list[Any] = []

    def unpack(fab: bytes, **options: Any) -> None:
        unpacked.append((fab, options))
        digest = hashlib.sha256(fab).hexdigest()[:8]
        (tmp_path / "apps" / f"us.app.1.0.{digest}").mkdir(parents=True)

    monkeypatch.setenv("FLWR_HOME", str(tmp_path))
    monkeypatch.setattr(install, "install_from_fab", unpack)
    for fab in (b"one", b"one", b"two", b"one"):
        private.install_once(fab, skip_prompt=True)
    assert unpacked == [(b"one", {"skip_prompt": True}), (b"two", {"skip_prompt": True})]


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, pulls: list[Any]) -> Any:
    """Flower's module, put right afterwards; its command line does nothing."""
    module = import_module(private.NODE)
    for name in ("time", "subprocess"):
        monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(flwr.supernode.cli, "flower_supernode", lambda: None)
    return module


@pytest.mark.parametrize(("words", "executor", "waits"), [
    ([], True, True),
    (["--only", "executor"], True, False),
    (["--only", "node"], False, True),
])  # fmt: skip
def test_each_half_can_be_had_alone(
    monkeypatch: pytest.MonkeyPatch,
    node: Any,
    pulls: list[Any],
    words: list[str],
    executor: bool,
    waits: bool,
) -> None:
    monkeypatch.setattr(sys, "argv", ["warm", "--insecure", *words, "--port", "9094"])
    warm.main()
    assert sys.argv == ["flower-supernode", "--insecure", "--port", "9094"]
    assert (node.subprocess is not subprocess) is executor
    assert (node.time is not time) is waits
    assert (pulls[0].__kwdefaults__["initial_backoff"] < 1) is waits


def test_an_unknown_flower_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, node: Any, pulls: list[Any]
) -> None:
    monkeypatch.setattr(private, "package_version", "1.42.0")
    warm.log.addHandler(caplog.handler)
    try:
        warm.run_super_node(None)
    finally:
        warm.log.removeHandler(caplog.handler)
    assert "Flower is 1.42.0, not 1.41.x: it waits as it always does" in caplog.text
    assert (node.time, node.subprocess) == (time, subprocess)
    assert pulls[0].__kwdefaults__["initial_backoff"] == 1


def test_without_its_fork_server_it_starts_client_apps_as_flower_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = tmp_path / "flwr-clientapp"
    command.write_text("#!/bin/sh\nexit 7\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    server: Any = object.__new__(warm.ForkServer)  # whose child has ended
    server._orders, child = Pipe()

    def end_at_an_order() -> None:
        child.recv()
        child.close()

    threading.Thread(target=end_at_an_order).start()
    assert server.start(["flwr-clientapp", "ended meanwhile"]) is None
    assert server.start(["flwr-clientapp", "too late"]).wait() == 7
    server._orders.close()


# -- processes ------------------------------------------------------------------------------------

FORKED = """
import os, sys, flwr.supernode.cli
from fl_app.node import warm
def client_app():
    mine = [name for name in sys.modules if name.partition(".")[0] == "fl_app"]
    print(sys.argv[1:], os.getppid() != int(sys.argv[1]), mine, flush=True)
    if sys.argv[2] == "fails":
        raise RuntimeError("as told")
flwr.supernode.cli.flwr_clientapp = client_app
server = warm.ForkServer()
for word in ("first", "fails", "last"):
    assert server.start(["flwr-clientapp", str(os.getpid()), word]) is None
server.start([sys.executable, "-c", "print('another command')"]).wait()
server.start(["flwr-clientapp", "0", "hushed"], executable="/bin/true").wait()
print("end", flush=True)
"""


@pytest.mark.slow
def test_client_apps_are_forked_one_after_the_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    pid = ast.literal_eval(lines[0].split("]")[0] + "]")[0]
    assert lines == [
        f"['{pid}', 'first'] True []",
        f"['{pid}', 'fails'] True []",
        f"['{pid}', 'last'] True []",
        "another command",
        "end",
    ]
    assert "RuntimeError: as told" in done.stderr
