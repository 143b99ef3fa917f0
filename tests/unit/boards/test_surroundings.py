"""What pip and uv are told in containers."""

import configparser
import tomllib
from pathlib import Path

from boards.surroundings import volumes


def test_folders_and_indexes_are_passed_on(tmp_path: Path) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    environment = {
        "PIP_FIND_LINKS": f"{wheels} somewhere",
        "UV_FIND_LINKS": str(wheels),
        "PIP_EXTRA_INDEX_URL": "one two",
        "UV_INDEX_URL": "main",
        "PIP_CONSTRAINT": "constraints.txt",  # a matter of the commands, not of the machine
    }
    mounted = volumes(tmp_path, environment)
    assert mounted[:2] == [
        f"{tmp_path}/pip.conf:/etc/pip.conf:ro",
        f"{tmp_path}/uv.toml:/etc/uv/uv.toml:ro",
    ]
    assert f"{wheels}:{wheels}:ro" in mounted
    pip = configparser.ConfigParser()
    pip.read(tmp_path / "pip.conf")
    assert {key: value.split() for key, value in pip["global"].items()} == {
        "index-url": ["main"],
        "extra-index-url": ["one", "two"],
        "find-links": [str(wheels), "somewhere"],
    }
    assert tomllib.loads((tmp_path / "uv.toml").read_text()) == {
        "native-tls": True,
        "index-url": "main",
        "extra-index-url": ["one", "two"],
        "find-links": [str(wheels), "somewhere"],
    }


def test_a_machine_without_settings_has_none(tmp_path: Path) -> None:
    volumes(tmp_path, {})
    assert (tmp_path / "pip.conf").read_text() == "[global]\n"
