"""Files that are all there or not there at all."""

import os
import signal
from pathlib import Path

import pytest

from fl_app.core.files import whole


def test_a_file_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    for content in (b"old", b"new"):
        with whole(path) as file:
            file.write(content)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")

    def write() -> None:
        with whole(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_kill_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")
    child = os.fork()
    if child == 0:
        with whole(path, aside=".mine") as file:
            file.write(b"ne")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert path.read_bytes() == b"old"
    assert (tmp_path / "summary.json.mine").read_bytes() == b"ne"
