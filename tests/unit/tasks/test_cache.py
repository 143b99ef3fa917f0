"""Unpacked arrays are kept, mapped, made again if they are cut short, and private."""

import logging
import stat
from pathlib import Path

import numpy as np
import pytest

from fl_app.tasks.cache import Arrays, cache_folder, cached

MADE = {"targets": np.arange(5), "inputs": np.arange(1000, dtype=np.uint8)}


class Source:
    """Makes the arrays, and counts how often."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self) -> Arrays:
        self.made += 1
        return {name: array.copy() for name, array in MADE.items()}


def load(source: Source) -> Arrays:
    arrays = cached("letters", "as it is", source)
    assert {name: array.tobytes() for name, array in arrays.items()} == {
        name: array.tobytes() for name, array in MADE.items()
    }
    return arrays


def entry() -> Path:
    (folder,) = cache_folder().iterdir()  # nothing else stays behind
    return folder


def test_arrays_are_made_once_and_mapped_and_only_the_user_can_read_them() -> None:
    source = Source()
    load(source)
    arrays = load(source)
    assert source.made == 1
    assert isinstance(arrays["inputs"], np.memmap)
    arrays["inputs"][0] = 9  # a private copy
    load(source)
    assert stat.S_IMODE(entry().stat().st_mode) == 0o700


@pytest.mark.parametrize("size", [0, 100, 500])
def test_what_a_power_failure_cut_short_is_made_again(size: int) -> None:
    source = Source()
    load(source)
    with (entry() / "inputs.npy").open("r+b") as file:
        file.truncate(size)
    load(source)
    assert source.made == 2


def test_another_state_is_another_entry_but_of_private_data_one_is_kept(tmp_path: Path) -> None:
    source = Source()
    for state in (1, 2, 1):
        cached("public", state, source)
        cached("own", state, source, private=tmp_path / "[a]*")
        cached("own", state, source, private=tmp_path / "b")
    names = sorted(path.name.rpartition("-")[0] for path in cache_folder().iterdir())
    assert len(names) == 4
    assert names[2:] == ["public", "public"]


def test_a_cache_that_cannot_be_written_to_only_costs_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "file" / "cache"))
    source = Source()
    with caplog.at_level(logging.WARNING):
        load(source)
        load(source)
    assert source.made == 2
    assert "unpacked data cannot be kept in" in caplog.text
