"""What an experiment's own keys refuse, before any cell is composed."""

import re

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
