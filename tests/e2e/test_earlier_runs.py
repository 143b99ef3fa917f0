"""What lies in a run's folder is gone on with, replaced on request, or left as it is."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fl_app.__main__ import main

SHORT = ["runtime.workers=0", "num_versions=3", "num_clients=20", "tensorboard=false"]
CELLS = ["experiment=quickstart", "experiment.only=[fedbuff,wkafl]"]
THREE_WAYS = (
    "give resume=auto to go on with it, another folder (hydra.run.dir=..., of a sweep "
    "hydra.sweep.dir=..., in Python output=...), or overwrite=true to replace it"
)


def command(*words: str) -> int:
    """The exit code of the command line."""
    with pytest.MonkeyPatch.context() as patch:
        flags = [word for word in words if word == "-m"]
        patch.setattr(sys, "argv", ["fl_app", *flags, *SHORT, *words[len(flags) :]])
        return main()


def given(folder: Path, *words: str) -> int:
    return command(f"hydra.run.dir={folder}", *words)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def reached(folder: Path) -> int:
    """Versions of the run that lies there."""
    versions: int = json.loads((folder / "summary.json").read_text())["num_versions"]
    return versions


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("one") / "run"
    assert given(folder, "algorithm=wkafl", "checkpoint_every=1") == 0
    return folder


@pytest.fixture
def copy(one: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(one, tmp_path / "copy"))


@pytest.fixture
def untouched(one: Path) -> Iterator[Path]:
    """The folder of a finished run, in which no file may change."""
    before = contents(one)
    yield one
    assert contents(one) == before


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm=fedbuff"],
        ["algorithm=wkafl", "checkpoint_every=1"],
        ["experiment=quickstart"],
    ],
)
def test_a_run_is_not_overwritten(untouched, capsys, words):
    assert given(untouched, *words) == 2
    error = capsys.readouterr().err
    assert f"{untouched} holds a run, whose files would be lost: give" in error
    assert (THREE_WAYS in error) == (words[0] != "experiment=quickstart")


def test_another_run_does_not_go_on_there(untouched, capsys):
    assert given(untouched, "algorithm=fedbuff", "resume=auto") == 2
    error = capsys.readouterr().err
    assert "holds a run of another configuration (" in error
    assert "algorithm." in error
    assert "give another folder, or overwrite=true to replace it" in error
    assert given(untouched, "algorithm=wkafl", "resume=auto", "overwrite=true") == 2
    assert "overwrite=true must be left out with resume=auto" in capsys.readouterr().err
    assert given(untouched, "experiment=quickstart", "resume=auto") == 2
    assert f"{untouched} holds a run, whose files would be lost" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("refused", "text"),
    [
        (["runtime.workers=-3"], "runtime.workers=-3 must be"),
        (["runtime.workers=1", "runtime.patience=0"], "runtime.patience=0 must be"),
        (["guard.max_norm=-1"], "guard.max_norm=-1 must be"),
        (["num_clients=5000"], "num_clients=5000 must be"),
        (["devices.ratio=0.5"], "ratio=0.5 must be"),
        (["algorithm.client.batch_size=0"], "batch_size=0 must be"),
        (["metrics=[clients]", "task=wikitext2", "task.sources=[synthetic]"], "metrics="),
        # Pauses need to know the parts of an order.
        (
            [
                *("algorithm=fedasmu", "algorithm/schedule=random_k"),
                *("algorithm.client.local_steps=null", "algorithm.client.local_epochs=2"),
            ],
            "that schedule draws how long an order takes, but not",
        ),
    ],
)
def test_what_is_refused_changes_no_file(untouched, capsys, refused, text):
    for word in ("overwrite=true", "resume=auto"):
        assert given(untouched, "algorithm=wkafl", "checkpoint_every=1", word, *refused) == 2
    assert text in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_is_replaced_where_that_is_asked_for(copy):
    (copy / "figures" / "of_another_algorithm.png").touch()
    words = ("algorithm=fedasync", "checkpoint_final=false", "overwrite=true")
    assert given(copy, *words) == 0
    assert json.loads((copy / "summary.json").read_text())["algorithm"] == "fedasync"
    assert list((copy / "checkpoints").iterdir()) == []
    assert not (copy / "figures" / "of_another_algorithm.png").exists()


@pytest.mark.slow
def test_cells_are_not_overwritten_and_can_be_extended(tmp_path, capsys):
    assert given(tmp_path, *CELLS) == 0
    before = contents(tmp_path)
    assert given(tmp_path, *CELLS) == 2
    assert f"{tmp_path / 'fedbuff'} holds a run" in (error := capsys.readouterr().err)
    assert THREE_WAYS in error
    for words in ([], ["resume=auto"]):
        assert given(tmp_path, *words) == 2
        error = capsys.readouterr().err
        assert f"{tmp_path / 'fedbuff'} holds a run" in error
        assert "resume=auto to go on" not in error
    assert contents(tmp_path) == before
    words = ("experiment.only=[fedbuff]", "num_versions=4", "resume=auto")
    assert given(tmp_path, "experiment=quickstart", *words) == 0
    assert (reached(tmp_path / "fedbuff"), reached(tmp_path / "wkafl")) == (4, 3)
    assert given(tmp_path, *CELLS, "overwrite=true") == 0
    assert (reached(tmp_path / "fedbuff"), reached(tmp_path / "wkafl")) == (3, 3)


@pytest.mark.slow
def test_jobs_of_a_sweep_are_not_overwritten_and_can_be_extended(tmp_path, capsys):
    sweep = ("-m", "algorithm=fedasync,fedbuff", f"hydra.sweep.dir={tmp_path}")
    assert command(*sweep) == 0
    before = contents(tmp_path)
    assert command(*sweep) == 2
    assert f"{tmp_path / '0'} holds a run" in capsys.readouterr().err
    assert given(tmp_path) == 2
    assert f"{tmp_path / '0'} holds a run" in capsys.readouterr().err
    assert contents(tmp_path) == before
    assert command(*sweep, "num_versions=4", "resume=auto") == 0
    assert (reached(tmp_path / "0"), reached(tmp_path / "1")) == (4, 4)


@pytest.mark.parametrize("place", ["file/run", "file", "/proc/nobody/may"])
@pytest.mark.parametrize("mode", [["hydra.run.dir="], ["-m", "seed=1", "hydra.sweep.dir="]])
def test_a_folder_that_cannot_be_made_is_told_in_a_sentence(tmp_path, capsys, place, mode):
    (tmp_path / "file").touch()
    *words, key = mode
    assert command(*words, f"{key}{tmp_path / place}") == 2
    error = capsys.readouterr().err
    assert "cannot be written to (" in error
    assert "give another folder (hydra.run.dir=..., of a sweep hydra.sweep.dir=..., " in error
    assert len(error.splitlines()) == 1
