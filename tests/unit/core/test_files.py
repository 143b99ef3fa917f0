"""Atomic writes, logs with one writer, and the errors of disks."""

import errno
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.core.errors import RunError
from fl_app.core.files import atomic_write, disk_errors_as_run_errors, open_log
from fl_app.node import memory as files


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_what_fails_changes_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    path = tmp_path / "summary.json"
    path.write_bytes(b"old")

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"ne")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_log_is_appended_to_what_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    for keep, content in ((None, "abcdef"), (4, "XY"), (None, "new")):
        with open_log(path, keep) as file:
            file.write(content)
    assert path.read_text() == "new"
    with open_log(path, 2) as file:
        assert file.tell() == 2
        file.write("st")
    assert path.read_text() == "nest"
    with pytest.raises(FileNotFoundError):
        open_log(tmp_path / "gone", 4)


def test_a_file_is_written_by_one_process(tmp_path: Path) -> None:
    """Until that one closes it, or dies; one that was forked from it does not count."""
    path = tmp_path / "events.jsonl"
    command = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from fl_app.core.files import open_log\n"
        f"file = open_log(Path({str(path)!r}), None)\n"
        "file.write('theirs'), file.flush()\n"
        "if os.fork() == 0: time.sleep(60)\n"
        "print(flush=True), time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", command], stdout=subprocess.PIPE, start_new_session=True
    ) as writer:
        assert writer.stdout is not None
        try:
            writer.stdout.readline()
            with pytest.raises(RunError, match="is written by another process: two runs in one"):
                open_log(path, None)
            assert path.read_text() == "theirs"
            writer.kill()
            writer.wait()
            open_log(path, None).close()  # though its child lives
        finally:
            os.killpg(writer.pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left", "/a"), "No space left: '/a'; .* is /run, .* room"),
        (OSError(errno.EROFS, "Read-only"), "Read-only; the run's folder is /run, .* is mended"),
    ],
)
def test_errors_of_a_disk_end_the_run(error: OSError, text: str) -> None:
    with pytest.raises(RunError, match=text), disk_errors_as_run_errors(Path("/run")):
        raise error
    with pytest.raises(FileNotFoundError), disk_errors_as_run_errors(Path("/run")):
        raise FileNotFoundError(errno.ENOENT, "No such file")  # no disk's


# -- what is left on a disk after a power failure at any moment of a write -------------------------


class Disk:
    """Looks at a folder whenever a call has changed it, and tells what a power failure leaves.

    It is the weakest disk that POSIX allows. Bytes of a file are on it after an fsync of the file;
    before that, there may be none or half of them. An entry of a folder (a new name, another file
    under a name, no name) is on it after an fsync of the folder; before that, it may be or not.

    Attributes:
        failures: for every moment, all folders that may be left: bytes by path.
    """

    def __init__(self, root: Path, kept: Path) -> None:
        self.root, self._kept = root, kept
        self._entries: dict[str, int | None] = {}  # what is on the disk: path -> file, or a folder
        self._pending: dict[str, int | str | None] = {}  # changes that may be on it
        self._bytes: dict[int, bytes] = {}  # of a file, after an fsync
        self._seen: dict[int, bytes] = {}  # of a file, without
        self.failures: list[list[dict[str, bytes]]] = []
        self._known: dict[str, int | None] = {}

    def look(self) -> None:
        """Take notice of what has changed in the folders."""
        now: dict[str, int | None] = {}
        for path in sorted(self.root.rglob("*")):
            name = str(path.relative_to(self.root))
            now[name] = None if path.is_dir() else path.stat().st_ino
            if path.is_file():
                file = path.stat().st_ino
                if file not in self._seen:  # so that no other file ever gets its number
                    os.link(path, self._kept / str(file))
                self._seen[file] = path.read_bytes()
        for name in now.keys() | self._known.keys():
            if now.get(name, "") != self._known.get(name, ""):
                self._pending[name] = now.get(name, "gone")
        self._known = now

    def sync(self, descriptor: int) -> None:
        """An fsync of a file or a folder."""
        self.look()
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.is_file():
            self._bytes[path.stat().st_ino] = path.read_bytes()
        else:
            for name in [n for n in self._pending if (self.root / n).parent == path]:
                self._apply(self._entries, name, self._pending.pop(name))
        self.fail()

    @staticmethod
    def _apply(entries: dict[str, int | None], name: str, change: Any) -> None:
        if change == "gone":
            entries.pop(name, None)
        else:
            entries[name] = change

    def fail(self) -> None:
        """The power fails now."""
        self.look()
        left = []
        for count in range(len(self._pending) + 1):
            for names in itertools.combinations(sorted(self._pending), count):
                entries = dict(self._entries)
                for name in names:
                    self._apply(entries, name, self._pending[name])
                left += [dict(content) for content in self._contents(entries)]
        self.failures.append(left)

    def _contents(self, entries: dict[str, int | None]) -> Iterator[dict[str, bytes]]:
        """Every content of the files that can be reached."""
        files = {
            name: file
            for name, file in entries.items()
            if file is not None and all(str(p) in entries for p in list(Path(name).parents)[:-1])
        }
        choices = []
        for file in files.values():
            if file in self._bytes:
                choices.append([self._bytes[file]])
            else:
                seen = self._seen[file]
                choices.append([b"", seen[: len(seen) // 2], seen])
        for contents in itertools.product(*choices):
            yield dict(zip(files, contents, strict=True))


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    for name in ("disk", "kept"):
        (tmp_path / name).mkdir()
    here = Disk(tmp_path / "disk", tmp_path / "kept")

    def after(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            result = function(*arguments, **options)
            here.fail()
            return result

        return call

    monkeypatch.setattr(os, "fsync", here.sync)
    for name in ("replace", "unlink", "mkdir"):
        monkeypatch.setattr(os, name, after(getattr(os, name)))
    return here


def test_a_file_that_is_replaced_is_the_old_or_the_new_one(disk: Disk) -> None:
    path = disk.root / "summary.json"
    with atomic_write(path) as file:
        file.write(b"old text")
    del disk.failures[:-1]
    with atomic_write(path) as file:
        file.write(b"new text, longer")
        file.flush()
        disk.fail()
    found = [{left.get("summary.json") for left in moment} for moment in disk.failures]
    assert found[0] == {b"old text"}
    assert {content for moment in found for content in moment} == {b"old text", b"new text, longer"}
    assert found[-1] == {b"new text, longer"}, "what was acknowledged may be lost"


def count_of(left: dict[str, bytes], folder: Path) -> int | None:
    """The state that a device finds after a power failure; None = none."""
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in left.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    path = folder / "fl_app" / "run-7" / "client-3.npz"
    state = files.load(path)
    assert not path.with_suffix(".unreadable").exists(), "a torn file"
    return int(state["count"]) if state else None


def test_a_clients_state_is_the_last_or_the_one_that_is_being_saved(
    disk: Disk, tmp_path: Path
) -> None:
    path = disk.root / "fl_app" / "run-7" / "client-3.npz"
    states: list[Any] = [{"count": np.array(1)}, {"count": np.array(2)}, {}, {"count": np.array(4)}]
    earlier = None
    for state in states:
        disk.failures.clear()
        files.save(path, state)
        disk.fail()
        moments = list(disk.failures)
        new = int(state["count"]) if state else None
        possible = [{count_of(left, tmp_path / "after") for left in m} for m in moments]
        assert set().union(*possible) <= {earlier, new}
        assert possible[-1] == {new}, "what was acknowledged may be lost"
        earlier = new
