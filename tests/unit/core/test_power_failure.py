"""What is left on a disk after a power failure at any moment of a write.

The model of a disk is the weakest that POSIX allows. Bytes of a file are on it after an fsync of
the file. Before that, there may be none or half of them. An entry of a folder (a new name, another
file under a name, no name) is on it after an fsync of the folder. Before that, it may be or not.
"""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.core.files import atomic_write
from fl_app.node import memory as files


class Disk:
    """Looks at a folder whenever a call has changed it, and tells what a power failure leaves.

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
