"""What an experiment's own keys refuse, before any cell is composed."""

import re
from pathlib import Path

import pytest
from configs import composed
from hydra import initialize_config_dir
from omegaconf import DictConfig

from fl_app.cli import CONF
from fl_app.runner.cells import compose_cells


def cells(*words: str) -> dict[str, DictConfig]:
    config = composed(*words)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose_cells(config, words)


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
        (
            ["experiment=quickstart", "experiment.seeds=[1,2]", "++seed=3"],
            "seed=3 must be left out with experiment.seeds=[1, 2]",
        ),
        (["experiment=quickstart", "experiment.seeds=[1,1]"], "experiment.seeds=[1, 1] must be se"),
        (["experiment=quickstart", "experiment.only=fedavg"], "experiment.only=fedavg must be a l"),
    ],
)
def test_keys_without_effect_or_of_another_form(words: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        cells(*words)


def test_keys_that_the_user_gives_stay_in_a_smoke_run() -> None:
    for words in (
        ("algorithm.client.local_steps=3", "num_versions=5"),
        ("++algorithm.client.local_steps=3", "++num_versions=5"),
        ("algorithm.client={local_steps:3}", "num_versions=5"),
    ):
        only = "experiment.only=[fedbuff,fedasmu]"
        own = ("experiment=quickstart", "experiment.scale=smoke", only, *words)
        for cell in cells(*own).values():
            assert (cell.num_versions, cell.algorithm.client.local_steps) == (5, 3)


def test_cells_have_the_settings_that_a_search_found_and_the_user_may_replace(
    tmp_path: Path,
) -> None:
    best = tmp_path / "best.yaml"
    best.write_text("{cells: {fedbuff: [algorithm.client.local_lr=0.3, eval_every=3]}, seeds: [0]}")
    words = ("experiment=quickstart", "experiment.only=[fedbuff]", "experiment.seeds=[7]")
    words += (f"experiment.tuned={best}", "eval_every=4")
    (cell,) = cells(*words).values()
    assert (cell.algorithm.client.local_lr, cell.eval_every, cell.seed) == (0.3, 4, 7)
    words = (*words[:2], f"experiment.tuned={best}", "experiment.seeds=null")
    with pytest.raises(ValueError, match=r"experiment\.seeds=\[0\] must be none of those of the"):
        cells(*words, "seed=0")
    assert len(cells(*words, "seed=1")) == 1


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be the file best.yaml of a search: cells or seeds are"),
        ("cells: {}", "must be the file best.yaml of a search: cells or seeds are"),
        ("{cells: [], seeds: [0]}", "must be the file best.yaml of a search: cells or seeds are"),
        ("{cells: {fedavg: 3}, seeds: [0]}", "best.yaml of a search: cells or seeds are"),
        (
            "{cells: {fedavg: [a=1], fedbuff: null}, seeds: [7]}",
            "found a setting for fedbuff, or le",
        ),
        ("{cells: {fedavg: [a=1], fedbuff: [a=1]}, seeds: [7]}", "experiment.seeds=[7] must be no"),
    ],
)
def test_settings_of_another_search_are_refused(tmp_path: Path, text: str, told: str) -> None:
    best = tmp_path / "best.yaml"
    best.write_text(text)
    words = ["experiment=quickstart", "experiment.only=[fedavg,fedbuff]", "experiment.seeds=[7]"]
    words.append(f"experiment.tuned={best}")
    with pytest.raises(ValueError, match=re.escape(told)):
        cells(*words)
