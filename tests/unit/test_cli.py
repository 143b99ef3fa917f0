"""What an override that is refused may have meant."""

import hydra
import pytest
from hydra.errors import HydraException

from fl_app.cli import CONF, explain, refuse_dots


def complaint(*overrides: str) -> str:
    with (
        hydra.initialize_config_dir(str(CONF), version_base="1.3"),
        pytest.raises(HydraException) as refused,
    ):
        hydra.compose("config", overrides=[word for word in overrides if word[0] != "-"])
    return explain(refused.value, overrides)


@pytest.mark.parametrize(
    ("overrides", "nearest"),
    [
        (["algorithm=fedasync", "algorithm.strategy.mixin="], "algorithm.strategy.mixing"),
        (["algorithm=fedhist", "algorithm.strategy.fussion=1"], "algorithm.strategy.fusion"),
        (["experiment=wkafl_mnist", "partition.num_label=5"], "partition.num_labels"),
        (["algorithm/schedule=random_k", "algorithm.schedule.sead=1"], "algorithm.schedule.seed"),
        (["devices/network=link", "devices.network.latensy=1"], "devices.network.latency"),
        (["algorithm.strategy.sever_lr=1"], "algorithm.strategy.server_lr"),
    ],
)
def test_the_nearest_key_is_one_of_the_groups_that_were_chosen(
    overrides: list[str], nearest: str
) -> None:
    assert f"; did you mean {nearest}" in complaint(*overrides)


def test_a_group_that_cannot_be_chosen_like_this_is_refused_all_the_same() -> None:
    assert "unknown key 'algorithm/lr_schedule'" in complaint("algorithm/lr_schedule=linear")


@pytest.mark.parametrize("choice", ["algorithm.schedule=buffered", "+devices.network=link"])
def test_a_dot_where_a_slash_chooses(choice: str) -> None:
    with pytest.raises(ValueError, match=f"must be {choice.lstrip('+').replace('.', '/')}: "):
        refuse_dots(["algorithm=fedbuff", choice])


def test_dots_that_mean_keys() -> None:
    refuse_dots(["algorithm.schedule.buffer_size=5", "algorithm.schedule={buffer_size: 5}"])
