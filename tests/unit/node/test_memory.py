"""What a device keeps between its orders."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from fl_app.node.memory import Memory


def context(**node_config: str) -> Context:
    return Context(1, 5, dict(node_config), RecordDict(), {})


def test_what_was_saved_is_loaded_and_replaced_as_a_whole(tmp_path: Path) -> None:
    memory = Memory.of(context(**{"state-dir": str(tmp_path)}), "7", client_id=3)
    assert memory.load() == {}
    memory.save({"slot": np.array(2), "model": np.arange(3.0)})
    memory.save({"slot": np.array(4)})
    again = Memory.of(context(**{"state-dir": str(tmp_path)}), "7", client_id=3)
    assert {name: int(array) for name, array in again.load().items()} == {"slot": 4}
    folder = tmp_path / "run-7"
    assert [path.name for path in folder.iterdir()] == ["client-3.npz"]
    again.save({})
    assert memory.load() == {}
    assert memory.count == 3, "else the next state would look like an old copy"


def test_every_client_and_every_run_has_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    Memory.of(context(), "7", 0).save({"slot": np.array(1)})
    assert Memory.of(context(), "7", 1).load() == {}
    assert Memory.of(context(), "8", 0).load() == {}
    assert Memory.of(context(), "7", 0).load().keys() == {"slot"}


def test_it_lies_in_the_users_state_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FL_APP_STATE_DIR", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    Memory.of(context(), "7", 0).save({"slot": np.array(1)})
    assert (tmp_path / "fl_app" / "run-7" / "client-0.npz").exists()


def test_a_run_does_not_name_a_folder_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"run=\.\./\.\. must be letters and digits"):
        Memory.of(context(), "../..", 0)


def test_what_was_kept_of_old_runs_goes_when_a_new_one_comes(tmp_path: Path) -> None:
    there = context(**{"state-dir": str(tmp_path)})

    def save(run: str, age: float) -> Path:
        memory = Memory.of(there, run, 0)
        memory.save({"slot": np.array(1)})
        (memory.path.parent / "client-0.npz.draft-123").touch()  # whoever wrote it was killed
        os.utime(memory.path.parent, (time.time() - age,) * 2)
        return memory.path.parent

    old, recent = save("1", 8 * 86400.0), save("2", 6 * 86400.0)
    own = tmp_path / "run-results"  # the user's
    own.mkdir()
    (own / "table.csv").touch()
    os.utime(own, (0, 0))
    new = save("3", 0.0)
    assert {path for path in tmp_path.iterdir()} == {recent, own, new}
    assert (own / "table.csv").exists()
    assert not old.exists()


def test_half_written_files_of_killed_processes_go(tmp_path: Path) -> None:
    path = tmp_path / "client-0.npz"
    Memory(path).save({"slot": np.array(1)})
    killed = tmp_path / f"client-0.npz.draft-{2**22 + 1}"  # above any process id
    writing = tmp_path / f"client-0.npz.draft-{os.getpid()}"
    another = tmp_path / f"client-10.npz.draft-{2**22 + 1}"
    for draft in (killed, writing, another):
        draft.touch()
    assert Memory(path).load().keys() == {"slot"}
    assert {*tmp_path.iterdir()} == {path, writing, another}


def test_a_torn_file_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "client-0.npz"
    memory = Memory(path)
    memory.save({"model": np.arange(100.0)})
    path.write_bytes(path.read_bytes()[:150])
    memory = Memory(path)
    assert memory.load() == {}
    assert "this client starts without it" in caplog.text
    assert (tmp_path / "client-0.unreadable").exists()
    memory.save({"slot": np.array(1)})
    assert memory.load().keys() == {"slot"}


def test_an_order_that_failed_changes_nothing(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "client-0.npz")
    memory.save({"model": np.zeros(2)})
    memory.load()["model"] += 1  # and is never saved
    assert memory.load()["model"].tolist() == [0, 0]


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "client-0.npz")
    memory.save({"slot": np.array(1)})
    with pytest.raises(ValueError, match="allow_pickle=False"):
        memory.save({"slot": np.array(2), "evil": np.array([print], dtype=object)})
    assert [path.name for path in tmp_path.iterdir()] == ["client-0.npz"]
    assert memory.load()["slot"] == 1


def test_a_pickle_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "client-0.npz"
    np.savez(path, evil=np.array([print], dtype=object), allow_pickle=True)
    assert Memory(path).load() == {}
    path.write_bytes(b"")
    assert Memory(path).load() == {}


def test_how_often_a_state_was_saved_is_in_its_file(tmp_path) -> None:
    path = tmp_path / "client-0.npz"
    memory = Memory(path)
    for _ in range(3):
        memory.save({"slot": np.zeros(1)})
    again = Memory(path)
    assert again.load().keys() == {"slot"}
    assert memory.count == again.count == 3


def test_an_old_copy_is_put_aside_and_counted_on_from_what_the_server_knows(tmp_path) -> None:
    path = tmp_path / "client-0.npz"
    memory = Memory(path)
    memory.save({"slot": np.zeros(1)})
    memory.begin_anew(5)
    assert memory.load() == {}
    assert Memory(path.with_suffix(".older")).load().keys() == {"slot"}
    memory.save({"slot": np.zeros(1)})
    assert memory.count == 6
    Memory(tmp_path / "client-1.npz").begin_anew(5)  # a new device without any state


def test_a_file_of_an_earlier_version_counts_nothing(tmp_path) -> None:
    path = tmp_path / "client-0.npz"
    with path.open("wb") as file:
        np.savez(file, slot=np.zeros(1))
    memory = Memory(path)
    assert memory.load().keys() == {"slot"}
    assert memory.count == 0
