"""Processes that wait, forked, until they are told what to run."""

import json
import subprocess
import sys

import pytest

FORKS = """
import json, os, sys
from fl_app.node import forks

def run(words, descriptors):
    with open(descriptors[0], "w") as file:
        cmdline = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
        json.dump([words, cmdline, os.getppid(), "fl_app.node.forks" in sys.modules], file)
    os._exit(0)

reading, writing = os.pipe()
"""


def run(code: str) -> str:
    """The output of a process, which has ended with its children."""
    words = [sys.executable, "-c", FORKS + code, *["long"] * 20]
    done = subprocess.run(words, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_reserve_runs_what_it_is_told_under_that_name() -> None:
    told = run("""
forks.settle()
reserve = forks.Reserve(run)
reserve.start(["python", "-m", "some.process"], [writing])
os.close(writing)
print(os.getpid(), open(reading).read())
os.waitpid(reserve.pid, 0)
""")
    parent, _, rest = told.partition(" ")
    words, cmdline, of, _ = json.loads(rest)
    assert words == cmdline == ["python", "-m", "some.process"]
    assert of == int(parent)


def test_whatever_code_is_imported_can_start_the_reserve_that_was_offered() -> None:
    told = run("""
reserve = forks.Reserve(run)
reserve.offer()
forks.forget()
assert "fl_app" not in sys.modules
from fl_app.node import forks as others
assert others is not forks
socket, pid = others.taken()
assert pid == reserve.pid and others.taken() is None
others.tell(socket, ["x"], [writing])
os.close(writing)
print(open(reading).read())
os.waitpid(pid, 0)
reserve.dismiss()
""")
    assert json.loads(told)[0] == ["x"]


@pytest.mark.parametrize("offered", [True, False])
def test_a_reserve_that_is_told_nothing_ends(offered: bool) -> None:
    told = run(f"""
reserve = forks.Reserve(run)
if {offered}:
    reserve.offer()
reserve.dismiss()
if not {offered}:  # it may have been told something, so nobody has waited for its end
    os.waitpid(reserve.pid, 0)
try:
    os.waitpid(reserve.pid, 0)
except ChildProcessError:
    print("gone")
""")
    assert told == "gone\n"


def test_names_that_are_too_long_are_cut_off() -> None:
    told = run("""
forks.rename(["y" * 100_000])
print(len(open("/proc/self/cmdline").read()))
forks.rename(["z"])
print(open("/proc/self/cmdline").read().rstrip("\\0"))
""")
    length, name = told.split()
    assert int(length) < 100_000
    assert name == "z"
