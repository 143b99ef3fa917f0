import os
import signal
import subprocess
import sys
import threading
from itertools import islice

import pytest

from fl_app.field.control import OFFLINE_AFTER
from fl_app.field.supervise import delays, end, keep, run_process


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


def test_a_process_runs_in_its_environment_and_tells_its_status(tmp_path):
    script = "import os, pathlib; pathlib.Path(os.environ['NAME']).write_text('x'); exit(7)"
    where = tmp_path / "here"
    assert run_process([sys.executable, "-c", script], {"NAME": str(where)}) == 7
    assert where.exists()


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


def test_an_interrupted_supervisor_ends_its_process(tmp_path):
    """As Ctrl-C does, in the middle of waiting."""
    started = tmp_path / "started"
    os.mkfifo(started)

    def interrupt() -> None:
        with started.open() as fifo:
            pids.append(int(fifo.read()))
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    pids: list[int] = []
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run_process(["sh", "-c", f"echo $$ >{started}; exec sleep 1000"], os.environ)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
