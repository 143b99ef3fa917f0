"""What a device keeps between its orders."""

import os
import time

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fl_app.node import memory


def folder_of(run, **node_config):
    return memory.folder_of(Context(1, 5, {**node_config}, RecordDict(), {}), run)


def test_what_was_saved_is_loaded_and_replaced_as_a_whole(tmp_path):
    path = tmp_path / "run-7" / "client-3.npz"
    assert memory.load(path) == {}
    memory.save(path, {"slot": np.array(2), "model": np.arange(3.0)})
    memory.save(path, {"slot": np.array(4)})
    assert {name: int(array) for name, array in memory.load(path).items()} == {"slot": 4}
    assert [each.name for each in path.parent.iterdir()] == ["client-3.npz"]
    with pytest.raises(ValueError, match="allow_pickle=False"):  # what was there stays
        memory.save(path, {"slot": np.array(2), "evil": np.array([print], dtype=object)})
    assert memory.load(path)["slot"] == 4
    memory.save(path, {})
    assert memory.load(path) == {}


def test_where_it_lies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FL_APP_STATE_DIR", raising=False)
    assert folder_of("7") == tmp_path / "home" / "fl_app" / "run-7"
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path / "set"))
    assert folder_of("7") == tmp_path / "set" / "run-7"
    assert folder_of("7", **{"state-dir": str(tmp_path)}) == tmp_path / "run-7"
    with pytest.raises(ValueError, match=r"run=\.\./\.\. must be letters and digits"):
        folder_of("../..")


def test_what_was_kept_of_old_runs_goes_when_a_new_one_comes(tmp_path):
    def save(run, age):
        path = tmp_path / f"run-{run}" / "client-0.npz"
        memory.save(path, {"slot": np.array(1)})
        path.with_name("client-0.npz.tmp").touch()  # whoever wrote it was killed
        os.utime(path.parent, (time.time() - age,) * 2)
        return path.parent

    old, recent = save("1", 8 * 86400.0), save("2", 6 * 86400.0)
    own = tmp_path / "run-results"  # the user's
    own.mkdir()
    (own / "table.csv").touch()
    os.utime(own, (0, 0))
    new = save("3", 0.0)
    assert {*tmp_path.iterdir()} == {recent, own, new}
    assert (own / "table.csv").exists()
    assert not old.exists()


def pickled(path):
    np.savez(path, evil=np.array([print], dtype=object), allow_pickle=True)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:150]),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"not a zip"),
        pickled,
    ],
)
def test_an_unreadable_file_counts_as_none(tmp_path, caplog, spoil):
    path = tmp_path / "client-0.npz"
    memory.save(path, {"model": np.arange(100.0)})
    spoil(path)
    assert memory.load(path) == {}
    assert "this client starts without it" in caplog.text
    memory.save(path, {"slot": np.array(1)})
    assert memory.load(path).keys() == {"slot"}
