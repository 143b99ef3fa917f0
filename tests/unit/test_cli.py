"""What an override that is refused may have meant."""

import hydra
import pytest
from hydra.errors import HydraException

from fl_app.cli import CONF, compose, explain, refuse_dots
from fl_app.runner.validate import build_schedule


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
        (["experiment=wkafl_mnist", "partition.num_label=5"], "partition.num_labels"),
        (["algorithm/schedule=random_k", "algorithm.schedule.sead=1"], "algorithm.schedule.seed"),
        (["algorithm.strategy.sever_lr=1"], "algorithm.strategy.server_lr"),
    ],
)
def test_the_nearest_key_is_one_of_the_groups_that_were_chosen(
    overrides: list[str], nearest: str
) -> None:
    assert f"; did you mean {nearest}" in complaint(*overrides)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("algorithm=fedhist fusion=0.2", "; did you mean algorithm.strategy.fusion?"),
        ("schedule.concurrency=3", "'schedule.concurrency'; did you mean algorithm.schedule.con"),
        ("fusion=0.2", "; algorithm.strategy.fusion is a key of algorithm=cana, fedhist"),
        ("partition=iid alpha=1", "; partition.alpha is a key of partition=dirichlet, flwr, sl"),
    ],
)
def test_the_end_of_a_key_is_answered_with_the_whole_key(words: str, told: str) -> None:
    assert told in complaint(*words.split())


def test_a_key_of_one_cell_s_algorithm_names_the_algorithm() -> None:
    told = complaint("experiment=fedhist_cifar10", "algorithm.client.contrast=1")
    assert told.endswith("; algorithm.client.contrast is a key of algorithm=moon")


def test_a_key_that_some_options_of_a_sweep_have_is_not_suggested_for_itself() -> None:
    key = "algorithm.schedule.concurrency=3"
    with pytest.raises(ValueError, match="concurrency") as refused:
        compose(["algorithm=fedavg", key])
    cause = refused.value.__context__
    assert isinstance(cause, HydraException)
    told = explain(cause, ["algorithm=fedbuff,fedavg", key])
    assert told.endswith("with one of the options that are swept: sweep that one apart")


@pytest.mark.parametrize("schedule", ["buffered", "k_async", "fully_async", "synchronous"])
def test_few_clients_all_work(schedule: str) -> None:
    """A federation smaller than the defaults needs no further keys."""
    config = compose([f"algorithm/schedule={schedule}", "num_clients=6"])
    build_schedule(config).validate_population(6)
    keys = config.algorithm.schedule
    assert keys.get("concurrency", keys.get("buffer_size")) == 6


def test_a_group_that_cannot_be_chosen_like_this_is_refused_all_the_same() -> None:
    assert "unknown key 'algorithm/lr_schedule'" in complaint("algorithm/lr_schedule=linear")


@pytest.mark.parametrize("choice", ["algorithm.schedule=buffered", "+devices.network=link"])
def test_a_dot_where_a_slash_chooses(choice: str) -> None:
    with pytest.raises(ValueError, match=f"must be {choice.lstrip('+').replace('.', '/')}: "):
        refuse_dots(["algorithm=fedbuff", choice])


def test_signs_that_need_quotes() -> None:
    quoted = "task.separator=; cannot be read: quote it for Hydra and for the shell, "
    assert complaint("task=csv", "task.separator=;") == f"{quoted}\"task.separator=';'\""
    assert compose(["task=csv", "task.separator=';'"]).task.separator == ";"


def test_dots_that_mean_keys() -> None:
    refuse_dots(["algorithm.schedule.buffer_size=5", "algorithm.schedule={buffer_size: 5}"])


def test_a_key_of_an_earlier_version_is_answered_with_the_one_in_its_place() -> None:
    with pytest.raises(ValueError, match=r"give algorithm\.strategy\.compensation_form="):
        compose(["algorithm=overlap_fedavg", "algorithm.strategy.squares=code"])
