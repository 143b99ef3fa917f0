"""Sources are tried in the user's order, unpacked once, and what is wrong is said."""

import logging
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fl_app.tasks.cache import Arrays, cache_folder
from fl_app.tasks.sources import DataSet, Hub, load


def read(root: Path) -> Arrays:
    return {"x": np.frombuffer((root / "letters" / "a.bin").read_bytes(), np.uint8).copy()}


DATA = DataSet(
    name="letters",
    folder="letters",
    read=read,
    hub=None,
    stand_in=lambda: {"x": np.array([9])},
    command="fetch it DIR",
    hint="Or else. ",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "letters").mkdir(parents=True)
    (folder / "letters" / "a.bin").write_bytes(b"\x01\x02")
    return folder


def test_the_root_of_the_configuration_wins_over_the_environments(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FL_APP_DATA", str(tmp_path))
    arrays, source = load(DATA, ["local"], str(root))
    assert (arrays["x"].tolist(), source) == ([1, 2], "local")
    monkeypatch.setenv("FL_APP_DATA", str(root))
    assert load(DATA, ["local"], None)[0]["x"].tolist() == [1, 2]


def test_files_are_unpacked_once_until_they_change(root: Path) -> None:
    reads = []

    def counted(folder: Path) -> Arrays:
        reads.append(folder)
        return read(folder)

    data = replace(DATA, read=counted)
    first = load(data, ["local"], str(root))[0]["x"]
    again = load(data, ["local"], str(root))[0]["x"]
    assert again.tolist() == first.tolist() == [1, 2]
    assert len(reads) == 1
    again[0] = 5  # a private copy: neither file nor other users see it
    assert load(data, ["local"], str(root))[0]["x"].tolist() == [1, 2]
    (root / "letters" / "a.bin").write_bytes(b"\x01\x02\x03")
    assert load(data, ["local"], str(root))[0]["x"].tolist() == [1, 2, 3]
    assert len(reads) == 2


def test_an_optional_folder_that_appears_is_noticed(root: Path) -> None:
    data = replace(DATA, optional="more", read=lambda r: {"x": np.array([len(list(r.iterdir()))])})
    assert load(data, ["local"], str(root))[0]["x"].tolist() == [1]
    (root / "more").mkdir()
    (root / "more" / "c.bin").write_bytes(b"")
    assert load(data, ["local"], str(root))[0]["x"].tolist() == [2]


def test_the_order_decides(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(DATA, ["local", "synthetic"], str(root))[1] == "local"
    assert "stand-in" not in caplog.text
    arrays, source = load(DATA, ["synthetic", "local"], str(root))
    assert (arrays["x"].tolist(), source) == ([9], "stand-in")


def test_a_stand_in_is_announced(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert load(DATA, ["local", "hub", "synthetic"], None)[1] == "stand-in"
    assert "letters: NOT THE REAL DATA but a synthetic stand-in" in caplog.text


def test_without_data_it_says_where_it_looked_and_what_would_help(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no data for letters") as error:
        load(DATA, ["local", "hub"], None)
    text = str(error.value)
    assert "local: neither task.root nor the environment variable FL_APP_DATA" in text
    assert "hub: the hub is not known to have this set" in text
    assert "fetch it DIR\nthen export FL_APP_DATA=DIR. Or else. task.sources=[synthetic]" in text
    with pytest.raises(ValueError, match=r"local: .* has no folder letters"):
        load(DATA, ["local"], str(tmp_path))


@pytest.mark.parametrize("by_key", [True, False])
def test_a_root_that_is_no_folder_is_refused_even_if_another_source_could_help(
    by_key: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = str(tmp_path / "nowhere")
    monkeypatch.setenv("FL_APP_DATA", wrong)
    key = r"task\.root" if by_key else "FL_APP_DATA"
    with pytest.raises(ValueError, match=f"{key}=.*/nowhere must be a folder"):
        load(DATA, ["local", "synthetic"], wrong if by_key else None)


def test_a_damaged_file_is_told_even_if_another_source_could_help(root: Path) -> None:
    def broken(folder: Path) -> Arrays:
        raise EOFError("ran out of input")

    with pytest.raises(
        ValueError, match=r"letters in task\.root=.* .*ran out of input: a file is missing"
    ):
        load(replace(DATA, read=broken), ["local", "synthetic"], str(root))


@pytest.mark.parametrize("sources", [[], ["lokal"], "local"])
def test_unknown_sources_are_refused(sources: list[str]) -> None:
    with pytest.raises(ValueError, match=r"task\.sources=.* must be a list of local, hub, synth"):
        load(DATA, sources, None)


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_told_and_nothing_is_cached() -> None:
    data = replace(DATA, hub=Hub("somebody/letters", dict))
    with pytest.raises(ValueError, match=r"hub: somebody/letters: \w*Error: .*Offline"):
        load(data, ["hub"], None)
    assert not list(cache_folder().iterdir())
