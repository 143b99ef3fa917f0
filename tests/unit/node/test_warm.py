"""The warm node: what it changes in Flower is as it expects it, and changed as it says."""

import ast
import hashlib
import inspect
import linecache
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from multiprocessing import Pipe
from pathlib import Path
from types import ModuleType
from typing import Any

import flwr.supernode.cli
import pytest
from flwr.cli import install
from flwr.supercore.inflatable import inflatable_utils
from flwr.supernode.runtime import run_clientapp

from fl_app.flower import private
from fl_app.node import room, warm


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


# -- drift: this is what Flower 1.41 and 1.42 look like -------------------------------------------


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


PARTS = ("waits", "starts", "executor", "pulls")


@pytest.mark.parametrize("part", PARTS)
def test_flower_is_the_one_that_is_known(part: str) -> None:
    assert private.difference(part) == ""
    assert private.known(part)


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


# -- a Flower that differs ------------------------------------------------------------------------

SOUND = """
import subprocess
import time
from flwr.cli.install import install_from_fab

def run(command, content):
    install_from_fab(content, skip_prompt=True)
    subprocess.Popen(command)
    subprocess.Popen(command, stdout=subprocess.DEVNULL)
    time.sleep(3)
"""


@pytest.fixture
def other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a source in the place of each of Flower's modules."""

    def put(source: str) -> None:
        (tmp_path / "other_flower.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "other_flower", raising=False)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        linecache.clearcache()
        for name in ("NODE", "SUPEREXEC", "LAUNCHER", "CLIENT_APP"):
            monkeypatch.setattr(private, name, "other_flower")

    return put


def test_a_flower_with_other_code_around_is_the_same(other: Any) -> None:
    other(SOUND + "\nclass New:\n    pass\n")
    assert [private.difference(part) for part in PARTS] == [""] * 4


@pytest.mark.parametrize(("old", "new", "part", "said"), [
    ("import time\n", "import asyncio\n", "waits", "other_flower does not import time"),
    ("import time\n", "from time import sleep\n", "executor", "does not import time"),
    ("time.sleep(3)", "pass", "waits", "other_flower does not call time.sleep"),
    ("time.sleep(3)", "time.sleep(secs=3)", "waits", r"calls time.sleep\(secs=3\) in another way"),
    ("import subprocess\n", "", "starts", "other_flower does not import subprocess"),
    ("    subprocess.Popen(command)", "    child = subprocess.Popen(command)", "starts",
     r"calls subprocess.Popen\(command\) in another way"),
    ("Popen(command)", "Popen(*command)", "executor", "in another way"),
    ("Popen(command)", "Popen(command, -1)", "executor", "in another way"),
    ("from flwr.cli.install import install_from_fab\n", "", "executor",
     "does not import install_from_fab"),
    ("    install_from_fab(", "    path = install_from_fab(", "executor", "in another way"),
])  # fmt: skip
def test_a_flower_that_differs_is_left_alone(
    other: Any, old: str, new: str, part: str, said: str
) -> None:
    other(SOUND.replace(old, new, 1))
    assert re.search(said, private.difference(part))


def test_a_flower_without_what_is_replaced_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private, "NODE", "flwr.supernode.elsewhere")
    assert "No module named 'flwr.supernode.elsewhere'" in private.difference("waits")
    monkeypatch.setattr(private, "PULLS", ("pull_objects", "pull_trees"))
    assert "pull_trees" in private.difference("pulls")


def test_pulls_that_wait_otherwise_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def pull_objects(ids: list[str], *, initial_backoff: float, delay: float) -> None:
        del ids, initial_backoff, delay

    monkeypatch.setattr(inflatable_utils, "pull_objects", pull_objects)
    assert private.difference("pulls") == "pull_objects has no keyword backoff_cap"


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


@pytest.fixture
def enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARM", "auto")
    monkeypatch.setattr(room, "free", lambda: 8 * 2**30)


@pytest.fixture(autouse=True)
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node forks its executor before it starts; these tests start none."""
    monkeypatch.setattr(warm, "_executor", lambda: warm._start_super_exec)


@pytest.mark.parametrize(("words", "executor", "waits"), [
    ([], True, True),
    (["--only", "executor"], True, False),
    (["--only", "node"], False, True),
])  # fmt: skip
@pytest.mark.usefixtures("enough")
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
    assert node.time is not time  # orders whose run has ended are dropped
    assert (pulls[0].__kwdefaults__["initial_backoff"] < 1) is waits
    assert os.environ["WARM"] == "auto"


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Flower's logger does not propagate."""
    warm.log.addHandler(caplog.handler)
    yield caplog
    warm.log.removeHandler(caplog.handler)


@pytest.mark.parametrize(("value", "megabytes", "forks", "waits", "left"), [
    ("auto", 8000, True, True, "auto"),
    ("auto", 454, True, True, "auto"),
    ("auto", 453, True, True, "0"),
    ("auto", 100, True, True, "0"),  # Flower's own executor would take more
    ("1", 100, True, True, "1"),
    ("0", 8000, False, False, "0"),
])  # fmt: skip
def test_memory_and_warm_decide_what_stays(
    monkeypatch: pytest.MonkeyPatch,
    node: Any,
    pulls: list[Any],
    said: pytest.LogCaptureFixture,
    value: str,
    megabytes: int,
    forks: bool,
    waits: bool,
    left: str,
) -> None:
    """ClientApps read from WARM whether a training process stays."""
    monkeypatch.setenv("WARM", value)
    monkeypatch.setattr(sys, "argv", ["warm"])
    monkeypatch.setattr(room, "free", lambda: (megabytes - 90) * 2**20)
    monkeypatch.setattr(room, "torch_build", lambda: "cpu")
    monkeypatch.setattr(room, "held", lambda: 90 * 2**20)  # a part of what a node needs
    warm.main()
    assert (node.subprocess is not subprocess) is forks
    assert (pulls[0].__kwdefaults__["initial_backoff"] < 1) is waits
    assert node.time is not time
    assert os.environ["WARM"] == left
    assert f"WARM={value}: " in said.text


def test_a_value_of_warm_without_meaning_starts_no_node(
    monkeypatch: pytest.MonkeyPatch, node: Any
) -> None:
    monkeypatch.setenv("WARM", "yes")
    monkeypatch.setattr(sys, "argv", ["warm"])
    with pytest.raises(ValueError, match="WARM=yes must be auto, 1 or 0"):
        warm.main()
    assert node.time is time


@pytest.mark.usefixtures("enough")
def test_an_unknown_flower_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, node: Any, pulls: list[Any]
) -> None:
    monkeypatch.setattr(private, "_called_with_one_argument", differ)
    monkeypatch.setattr(sys, "argv", ["warm"])
    warm.main()
    flower = re.escape(version("flwr"))
    assert re.search(f"Flower {flower}, as told: it waits as it always does", said.text)
    assert (node.time, node.subprocess) == (time, subprocess)
    assert pulls[0].__kwdefaults__["initial_backoff"] == 1


def test_the_executor_of_an_unknown_flower_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    superexec, launcher = import_module(private.SUPEREXEC), import_module(private.LAUNCHER)
    ran: list[str] = []
    monkeypatch.setattr("flwr.supercore.cli.flower_superexec", lambda: ran.append("Flower's"))
    monkeypatch.setattr(private, "_called_with_one_argument", differ)
    monkeypatch.setattr(sys, "argv", ["warm", "flower-superexec", "--insecure"])
    warm.main()
    assert ran == ["Flower's"]
    assert sys.argv == ["flower-superexec", "--insecure"]
    assert (superexec.time, launcher.subprocess) == (time, subprocess)
    assert "as told: it waits as it always does" in said.text


def differ(module: ModuleType, function: str) -> None:
    raise private._Differs("as told")


def test_another_command_of_the_node_starts_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "said"
    process = warm._start_super_exec(["sh", "-c", f"echo hello >{path}"], stdin=subprocess.DEVNULL)
    assert process.wait() == 0
    assert path.read_text() == "hello\n"


@pytest.fixture
def server() -> Iterator[Any]:
    """A fork server, and the end of the pipe that its process would have."""
    here: Any = object.__new__(warm.ForkServer)
    here._begun = here._ended = 0
    here._orders, here.child = Pipe()
    yield here
    here._orders.close()
    here.child.close()


def test_without_its_fork_server_it_starts_client_apps_as_flower_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: Any
) -> None:
    command = tmp_path / "flwr-clientapp"
    command.write_text("#!/bin/sh\nexit 7\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server.start(["flwr-clientapp", "ended meanwhile"]) is None
    assert server.child.recv() == ["flwr-clientapp", "ended meanwhile"]
    assert server.busy
    server.child.close()
    assert server.wait(10.0)
    assert server.start(["flwr-clientapp", "too late"]).wait() == 7


def test_the_end_of_a_client_app_ends_a_wait(server: Any) -> None:
    server.start(["flwr-clientapp", "1"])
    assert not server.wait(0.0)
    server.child.send(1)
    assert server.wait(10.0)
    assert not server.busy


def test_a_client_app_that_hangs_keeps_no_other_from_starting(
    monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    monkeypatch.setattr(warm, "GRACE", 0.01)
    server.start(["flwr-clientapp", "1"])
    server.start(["flwr-clientapp", "2"])
    server.child.send(1)  # ended at last
    assert not server.wait(0.0)
    server.child.send(2)
    assert server.wait(10.0)


# -- processes ------------------------------------------------------------------------------------

FORKED = """
import os, signal, subprocess, sys, time, flwr.supernode.cli
from fl_app.node import warm
def client_app():
    mine = [name for name in sys.modules if name.partition(".")[0] == "fl_app"]
    child = subprocess.run(["true"]).returncode  # SIGCHLD is as usual
    print(sys.argv[1:], os.getppid() != int(sys.argv[1]), mine, child, flush=True)
    if sys.argv[2] == "fails":
        raise RuntimeError("as told")
    if sys.argv[2] == "hangs":
        time.sleep(600)
flwr.supernode.cli.flwr_clientapp = client_app
warm.GRACE = 0.5
server = warm.ForkServer()
for word in ("first", "fails", "hangs", "last"):
    assert server.start(["flwr-clientapp", str(os.getpid()), word]) is None
assert server.wait(20.0)
server.start([sys.executable, "-c", "print('another command')"]).wait()
server.start(["flwr-clientapp", "0", "hushed"], executable="/bin/true").wait()
print("end", flush=True)
os.killpg(0, signal.SIGTERM)
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
        start_new_session=True,
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    lines = done.stdout.splitlines()
    pid = ast.literal_eval(lines[0].split("]")[0] + "]")[0]
    assert lines == [
        f"['{pid}', 'first'] True [] 0",
        f"['{pid}', 'fails'] True [] 0",
        f"['{pid}', 'hangs'] True [] 0",
        f"['{pid}', 'last'] True [] 0",
        "another command",
        "end",
    ]
    assert "RuntimeError: as told" in done.stderr
