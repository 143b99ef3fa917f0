"""Unpacked arrays are kept, and nobody trains on a cache that was cut off or altered."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fl_app.tasks.cache import CHECKED, DIGEST, SMALL, Arrays, cache_folder, cached

MADE = {"targets": np.arange(5), "inputs": np.arange(SMALL + 1, dtype=np.uint8)}


class Source:
    """Makes the arrays, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Arrays:
        self.made += 1
        return {name: array.copy() for name, array in MADE.items()}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    monkeypatch.setenv(CHECKED, "")
    return Source()


def load(source: Source) -> Arrays:
    arrays = cached("letters", "as it is", source)
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in MADE.items()
    }
    return arrays


def entry() -> Path:
    (folder,) = cache_folder().iterdir()  # nothing else stays behind
    return folder


def test_arrays_are_made_once_and_mapped(source: Source, caplog: pytest.LogCaptureFixture) -> None:
    load(source)
    arrays = load(source)
    assert source.made == 1
    assert isinstance(arrays["inputs"], np.memmap)
    assert sorted(path.name for path in entry().iterdir()) == [DIGEST, "inputs.npy", "targets.npy"]
    assert not caplog.records


def truncate(folder: Path) -> None:
    with (folder / "inputs.npy").open("r+b") as file:
        file.truncate(1000)


def alter(path: Path, place: int) -> None:
    """Change one byte, and put the time of the change back, as far as that can be done."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def remove_digest(folder: Path) -> None:
    (folder / DIGEST).unlink()


def garble_digest(folder: Path) -> None:
    (folder / DIGEST).write_text("[1, 2")


def replace_digest(folder: Path) -> None:
    (folder / DIGEST).write_text(json.dumps({"targets.npy": 3}))


DAMAGES = {
    "truncated": (truncate, r"inputs.npy has 1000 bytes instead of 8388737"),
    "another label": (lambda f: alter(f / "targets.npy", 128), r"targets.npy was changed"),
    "another pixel": (lambda f: alter(f / "inputs.npy", 5_000_000), r"inputs.npy was changed"),
    "no file": (lambda f: (f / "inputs.npy").unlink(), r"inputs.npy is missing"),
    "no digest": (remove_digest, r"digest.json is missing"),
    "digest is no JSON": (garble_digest, r"digest.json cannot be used"),
    "digest is something else": (replace_digest, r"digest.json cannot be used"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_does_not_fit_is_unpacked_again_and_told_in_one_line(
    damage: str, source: Source, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = load(source)["inputs"]
    monkeypatch.setenv(CHECKED, "")  # as another process
    do, expected = DAMAGES[damage]
    do(entry())
    with caplog.at_level(logging.WARNING):
        load(source)
    assert source.made == 2
    (record,) = caplog.records
    told = record.getMessage()
    assert told.startswith("letters is unpacked again: ")
    assert "\n" not in told
    assert expected in told
    load(source)
    assert source.made == 2
    if damage not in ("another pixel", "truncated"):
        assert old[9] == 9  # who has mapped it keeps it


def test_a_large_file_is_hashed_once_by_a_process_and_its_children(source: Source) -> None:
    load(source)
    checked = os.environ[CHECKED]
    stat = (entry() / "inputs.npy").stat()
    assert f":{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}" in checked
    assert len(checked.split()) == 1  # labels are small and hashed every time
    load(source)
    assert os.environ[CHECKED] == checked


def test_a_large_file_that_was_written_to_is_hashed_again(source: Source) -> None:
    load(source)
    checked = os.environ[CHECKED]
    os.utime(entry() / "inputs.npy", ns=(1, 1))
    load(source)
    assert source.made == 1
    assert len(os.environ[CHECKED].split()) == len(checked.split()) + 1


@pytest.mark.slow
def test_processes_that_unpack_at_the_same_time_do_so_once() -> None:
    """And those that find it damaged at the same time as well."""
    script = """if True:
        import sys
        import numpy as np
        from fl_app.tasks.cache import cached
        def make():
            print("made")
            return {"x": np.arange(200_000)}
        sys.stdin.readline()
        for _ in range(20):
            assert cached("letters", 1, make)["x"][-1] == 199_999
        """
    outputs = []
    for _ in range(2):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs.append("".join(process.communicate()[0] for process in processes))
        assert all(process.returncode == 0 for process in processes)
        truncated = entry() / "x.npy"
        with truncated.open("r+b") as file:
            file.truncate(10)
    assert outputs == ["made\n", "made\n"]


def test_a_cache_that_cannot_be_written_to_costs_time_only(
    source: Source,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "file"))
    load(source)
    assert "cannot be kept in" in caplog.text


def test_nothing_is_kept_of_nothing() -> None:
    assert cached("letters", 1, dict) == {}
    assert not list(cache_folder().iterdir())


def test_a_users_own_data_are_his_alone_and_kept_once(source: Source) -> None:
    def entries() -> set[str]:
        return {path.name for path in cache_folder().iterdir()}

    def load(place: str, content: int, key: str = "") -> str:
        before = entries() if cache_folder().exists() else set()
        state = (place, content, key)
        arrays = cached("patients", state, source, private=(place, content))
        assert arrays["targets"].tolist() == [0, 1, 2, 3, 4]
        return next(iter(entries() - before), "")

    first, setting, other = load("/a.csv", 1), load("/a.csv", 1, "target"), load("/b/a.csv", 1)
    assert {(cache_folder() / name).stat().st_mode & 0o777 for name in entries()} == {0o700}
    assert entries() == {first, setting, other}
    assert load("/a.csv", 1) == ""  # it is there
    changed = load("/a.csv", 2)
    assert entries() == {changed, other}
    assert source.made == 4


def test_the_users_cache_folder_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FL_APP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/fl_app")
