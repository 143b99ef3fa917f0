"""What the parts accept as a run that ended well."""

import json
from pathlib import Path

import pytest

from boards.kits import change, told
from boards.row import Disappointed
from fl_app.core.events import Arrived, to_json


def write(run: Path, stopped: str, *arrivals: Arrived) -> Path:
    summary = {"stopped": stopped, "num_versions": 3, "failures": 1}
    (run / "summary.json").write_text(json.dumps(summary))
    lines = [json.dumps(to_json(event)) + "\n" for event in arrivals]
    (run / "events.jsonl").write_text("".join(lines))
    return run


@pytest.fixture
def arrival() -> Arrived:
    return Arrived(t=7.0, client=1, order=0, base_version=0, age=0)


@pytest.mark.parametrize("stopped", ["num_versions", "seconds"])
def test_a_run_is_told_in_numbers(tmp_path: Path, arrival: Arrived, stopped: str) -> None:
    said = told(write(tmp_path, stopped, arrival))
    assert said == "3 versions from 1 updates in 7 s, 1 failures"


def test_a_run_that_ended_otherwise_is_none(tmp_path: Path, arrival: Arrived) -> None:
    with pytest.raises(Disappointed, match="stopped with diverged"):
        told(write(tmp_path, "diverged", arrival))


def test_a_run_without_updates_is_none(tmp_path: Path) -> None:
    with pytest.raises(Disappointed, match="no update arrived"):
        told(write(tmp_path, "seconds"))


def test_settings_that_are_not_there_are_missed(tmp_path: Path) -> None:
    settings = tmp_path / "node.env"
    settings.write_text('DATA=""\nPORT="9094"\n')
    change(settings, 'DATA=""', 'DATA="/srv"')
    assert settings.read_text() == 'DATA="/srv"\nPORT="9094"\n'
    with pytest.raises(Disappointed, match=r"node.env must hold DATA="):
        change(settings, 'DATA=""', 'DATA="/srv"')
