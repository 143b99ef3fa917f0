"""What an experiment's own keys refuse, before any cell is composed."""

import re
from pathlib import Path

import pytest
from configs import composed

from fl_app.runner.cells import compose_cells


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["experiment.seeds=[0,1]"], "experiment.seeds=[0, 1] must be null without experiment=<"),
        (["experiment.only=[fedavg]"], "experiment.only=['fedavg'] must be null without"),
        (["experiment.tuned=best.yaml"], "experiment.tuned=best.yaml must be null without"),
        (["experiment=quickstart", "experiment.seeds=3"], "experiment.seeds=3 must be a list"),
        (
            ["experiment=quickstart", "experiment.seeds=[1,2]", "seed=3"],
            "seed=3 must be left out with experiment.seeds=[1, 2]",
        ),
        (["experiment=quickstart", "experiment.only=fedavg"], "experiment.only=fedavg must be a l"),
    ],
)
def test_keys_without_effect_or_of_another_form(words: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        compose_cells(composed(*words), words)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be the file best.yaml of a search: TypeError"),
        ("cells: {}", "must be the file best.yaml of a search: KeyError('seeds')"),
        ("{cells: [], seeds: [0]}", "must be the file best.yaml of a search: AttributeError"),
        ("{cells: {fedavg: 3}, seeds: [0]}", "must be the file best.yaml of a search: TypeError"),
        ("{cells: {fedavg: [a=1], fedbuff: []}, seeds: [7]}", "found a setting for fedbuff, or le"),
        ("{cells: {fedavg: [a=1], fedbuff: [a=1]}, seeds: [7]}", "experiment.seeds=[7] must be no"),
    ],
)
def test_settings_of_another_search_are_refused(tmp_path: Path, text: str, told: str) -> None:
    best = tmp_path / "best.yaml"
    best.write_text(text)
    words = ["experiment=quickstart", "experiment.only=[fedavg,fedbuff]", "experiment.seeds=[7]"]
    words.append(f"experiment.tuned={best}")
    with pytest.raises(ValueError, match=re.escape(told)):
        compose_cells(composed(*words), words)
