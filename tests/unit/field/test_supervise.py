import signal
import subprocess
import sys
from itertools import islice

import pytest

from fl_app.field.control import OFFLINE_AFTER
from fl_app.field.supervise import attend, delays, end, keep


class Over(Exception):
    """The end of a test's story."""


class Story:
    """A process whose every life has a length and a status; time passes only here."""

    def __init__(self, *lives: tuple[float, int]) -> None:
        self._lives = iter(lives)
        self.clock = 0.0
        self.pauses: list[float] = []
        self.told: list[str] = []

    def attempt(self) -> int:
        try:
            seconds, status = next(self._lives)
        except StopIteration:
            raise Over from None
        self.clock += seconds
        return status

    def pause(self, seconds: float) -> None:
        self.clock += seconds
        self.pauses.append(seconds)

    def keep(self) -> "Story":
        with pytest.raises(Over):
            keep(self.attempt, pause=self.pause, now=lambda: self.clock, tell=self.told.append)
        return self


def test_a_process_is_started_again_whatever_its_status():
    story = Story((3.0, 49), (3.0, 0)).keep()
    assert len(story.pauses) == 2
    assert story.told[0] == "ended with 49 after 3 s; starts again in 5 s"


def test_delays_double_up_to_a_minute():
    assert list(islice(delays(), 6)) == [5, 10, 20, 40, 60, 60]


def test_delays_start_anew_after_a_process_ran_well():
    assert Story((1.0, 1), (1.0, 1), (3600.0, 1), (1.0, 1)).keep().pauses == [5, 10, 5, 10]


def test_a_refused_node_is_let_in_again_within_two_minutes():
    """A node that died counts as online for up to OFFLINE_AFTER; each start takes a few seconds."""
    began = []
    story = Story(*[(4.0, 49)] * 5)
    attempt = story.attempt

    def record() -> int:
        began.append(story.clock)
        return attempt()

    story.attempt = record
    story.keep()
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


class Interrupted(subprocess.Popen):
    """Ctrl-C is pressed while somebody looks whether it has ended."""

    pressed = False

    def poll(self) -> int | None:
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        return super().poll()


def test_an_interrupted_supervisor_ends_its_process():
    process = Interrupted(["sleep", "1000"], start_new_session=True)
    with pytest.raises(KeyboardInterrupt):
        attend(process)
    assert process.returncode == -signal.SIGTERM


def test_a_keeper_has_the_time_to_end_what_does_not_want_to_end():
    keeper = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import signal, subprocess\n"
            "from fl_app.field.supervise import attend\n"
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
