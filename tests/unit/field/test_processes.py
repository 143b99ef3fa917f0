"""Processes that are kept running without a service manager, and ended with all they started."""

import signal
import subprocess
import time
from pathlib import Path

import pytest

from fl_app.field import __main__ as command
from fl_app.field.processes import end


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


def test_a_process_that_ends_is_started_again_and_ended_with_its_keeper(
    tmp_path, monkeypatch, capsys
):
    (tmp_path / "node.env").write_text("SUPERLINK=server:8100\nMINE=42\n")
    monkeypatch.chdir(tmp_path)
    lives, wait, pauses = tmp_path / "lives", time.sleep, []
    lives.touch()
    (tmp_path / "start.sh").write_text(
        f"echo $MINE >>{lives}; [ $(wc -l <{lives}) -lt 3 ] || exec sleep 1000; exit 7"
    )

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if lives.read_text().count("42") == 3 and "end" not in pauses:
            pauses.append("end")  # once: what it has started is waited for
            raise KeyboardInterrupt
        wait(0.01)

    monkeypatch.setattr("time.sleep", pause)
    with pytest.raises(KeyboardInterrupt):
        command._keep(tmp_path)
    assert lives.read_text() == "42\n" * 3
    assert capsys.readouterr().out.count("ended with status 7; starts again in 10 s") == 2
    assert pauses.count(10.0) == 2
    asked = subprocess.run(["pgrep", "-f", "sleep 1000"], capture_output=True, text=True)
    homes = [Path(f"/proc/{pid}/cwd").resolve() for pid in asked.stdout.split()]
    assert tmp_path not in homes
