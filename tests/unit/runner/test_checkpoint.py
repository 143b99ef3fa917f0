"""Files that are all there or not there at all."""

from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from fl_app.core.errors import RunError
from fl_app.runner import checkpoint
from fl_app.runner.checkpoint import Checkpoints


def test_the_last_two_are_kept_and_the_newest_is_loaded(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    assert store.load() is None
    for version in (2, 9, 10):
        path = store.save(version, {"version": version, "params": np.arange(3.0) * version})
    assert path.name == "version-000000010.safetensors"
    names = sorted(file.name for file in (tmp_path / "checkpoints").iterdir())
    assert names == ["version-000000009.safetensors", "version-000000010.safetensors"]
    assert store.load()["params"].tolist() == [0.0, 10.0, 20.0]


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_torn_file_is_passed_over(tmp_path: Path, keep: int) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, {"params": np.arange(100.0)})
    path = store.save(2, {"params": np.arange(100.0) + 1})
    path.write_bytes(path.read_bytes()[:keep])
    assert store.load()["params"][0] == 0.0
    # It does not count as one of those that are kept, and goes with them.
    store.save(3, {"params": np.arange(100.0) + 2})
    names = sorted(file.name for file in path.parent.iterdir())
    assert names == [f"version-00000000{n}" for n in ("1.safetensors", "2.torn", "3.safetensors")]


def test_one_that_cannot_be_read_is_not_begun_anew_without_a_word(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    store.save(1, {}).write_bytes(b"nothing of the kind")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"can be read: version-000000001.*: torn"):
            store.load()


def test_the_structure_may_be_of_any_size(tmp_path: Path) -> None:
    """A header of safetensors may not: reading refuses more than 100 MB."""
    path = Checkpoints(tmp_path).save(1, {"orders": list(range(100_000))})
    assert int.from_bytes(path.read_bytes()[:8], "little") < 10_000
    assert Checkpoints(tmp_path).load()["orders"][-1] == 99_999


@pytest.mark.parametrize("error", [OSError(28, "No space left"), SafetensorError("too large")])
def test_where_it_cannot_be_written_the_one_before_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    store = Checkpoints(tmp_path)

    def full(*_: object) -> bytes:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        with pytest.raises(RunError, match="done since its beginning is lost"):
            store.save(1, {})
    store.save(2, {"params": np.arange(3.0)})
    monkeypatch.setattr(checkpoint, "save", full)
    with pytest.raises(RunError, match=r"of version 3 .*; version-000000002.safetensors stands"):
        store.save(3, {"params": np.zeros(3)})
    assert store.load()["params"].tolist() == [0, 1, 2]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path)
    path = store.save(2, {"params": np.arange(100.0)})
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ValueError, match="its checksum does not fit"):
        store.load()
