import signal
import subprocess
import sys

import pytest

from fl_app.field.control import OFFLINE_AFTER
from fl_app.field.processes import attend, end, keep


def test_a_process_is_started_again_after_delays_that_begin_anew_when_it_ran_well():
    """Delays double from 5 s to a minute. A node that died counts as online for OFFLINE_AFTER."""
    lives = iter([4.0] * 6 + [3600.0, 1.0])
    clock, pauses, told, began = [0.0], [], [], []

    def attempt() -> int:
        began.append(clock[0])
        clock[0] += next(lives)
        return 49

    def pause(seconds: float) -> None:
        clock[0] += seconds
        pauses.append(seconds)

    with pytest.raises(StopIteration):
        keep(attempt, pause=pause, now=lambda: clock[0], tell=told.append)
    assert pauses == [5, 10, 20, 40, 60, 60, 5, 10]
    assert told[0] == "ended with 49 after 4 s; starts again in 5 s"
    assert any(OFFLINE_AFTER < seconds < 2 * OFFLINE_AFTER for seconds in began)


def test_the_status_of_a_process_that_ends_of_its_own():
    assert attend(subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)) == 7


def test_when_one_of_two_processes_ends_the_other_is_ended():
    other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    assert attend(subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True), other) == 7
    assert other.returncode == -signal.SIGTERM


@pytest.mark.parametrize(
    ("first", "ended_by"), [("", signal.SIGTERM), ("trap '' TERM;", signal.SIGKILL)]
)
def test_a_process_is_ended_with_its_children(first, ended_by):
    process = subprocess.Popen(
        ["sh", "-c", f"{first} sleep 1000 & echo started; wait"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    with process.stdout as pipe:
        assert pipe.readline() == b"started\n"
        end(process, grace=0.2)
        assert pipe.read() == b""  # nobody holds the other end: the child is gone, too
    assert process.returncode == -ended_by


def test_a_keeper_has_the_time_to_end_what_does_not_want_to_end():
    keeper = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import signal, subprocess\n"
            "from fl_app.field.processes import attend\n"
            "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
            "stubborn = 'trap \"\" TERM; echo started; for i in 1 2 3 4 5; do sleep 1; done'\n"
            "process = subprocess.Popen(['sh', '-c', stubborn], start_new_session=True)\n"
            "print('attended\\n', end='', flush=True)\n"  # in one write
            "attend(process, grace=0.6)\n",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    with keeper.stdout as pipe:
        assert {pipe.readline(), pipe.readline()} == {b"started\n", b"attended\n"}
        end(keeper, grace=1.2)
        assert keeper.returncode == -signal.SIGINT  # by itself, when it was done
        assert pipe.read() == b""  # nobody holds the other end
