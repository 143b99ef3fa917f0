"""The cells of a run: what their keys refuse, and what ``compare=equal`` makes of them."""

import re

import hydra
import pytest
from configs import composed
from hydra import initialize_config_dir

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.api.settings import plan_of
from fl_app.cli import CONF
from fl_app.runner.cells import compose_cells
from fl_app.runner.validate import checked_cells
from fl_app.schedule import k_async


def composed_cells(*words):
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
def test_keys_without_effect_or_of_another_form(words, told):
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        composed_cells(*words)


# -- compare=equal --------------------------------------------------------------------------------

EPOCHS = (3, None)
FEW = ("compare.concurrency=20", "compare.buffer_size=4", "compare.local_epochs=3")


def values(cell):
    """Concurrency, buffer size, local epochs and steps; then the keys that are kept."""
    schedule, client = cell.algorithm.schedule, cell.algorithm.client
    both = (schedule.get("concurrency"), schedule.get("buffer_size"))
    return (*both, client.local_epochs, client.local_steps), list(cell.compare.kept)


def equal(*overrides):
    words = ["compare=equal", *overrides]
    (cell,) = checked_cells(composed(*words), words).values()
    return cell


@pytest.mark.parametrize(
    ("algorithm", "expected", "kept"),
    [
        ("wkafl", (20, 4, *EPOCHS), ["local work"]),
        ("fedhist", (20, 4, *EPOCHS), []),
        ("fedasmu", (20, None, *EPOCHS), ["buffer_size"]),
        ("overlap_fedavg", (None, 50, 5, None), ["concurrency", "buffer_size", "local work"]),
        ("eafl", (None, None, *EPOCHS), ["concurrency", "buffer_size", "local work"]),
        ("fedavg", (None, 20, *EPOCHS), ["buffer_size"]),
        ("fedasync", (20, None, *EPOCHS), ["buffer_size"]),
        ("gsgm", (None, 4, *EPOCHS), ["concurrency", "local work"]),
    ],
)
def test_each_algorithm_takes_over_what_its_equations_allow(algorithm, expected, kept):
    cell = equal(f"algorithm={algorithm}", *FEW)
    assert values(cell) == (expected, kept)


def test_with_all_clients_at_work_nobody_who_needs_them_is_told_apart():
    assert values(equal("algorithm=eafl"))[1] == ["buffer_size", "local work"]
    assert values(equal("algorithm=fedavg", "num_clients=6"))[0] == (None, 6, 5, None)
    assert values(equal("num_clients=6"))[0] == (6, 6, 5, None)


def test_uploads_that_are_displacements_train_like_others_and_pauses_need_epochs():
    words = ("algorithm.client.upload=pseudo", "compare.local_steps=7")
    assert values(equal("algorithm=wkafl", *words)) == ((50, 10, 5, 7), [])
    (*_, epochs, steps), kept = values(equal("algorithm=fedasmu", "compare.local_steps=7"))
    assert (epochs, steps, kept) == (5, None, ["buffer_size", "local work"])


def test_keys_that_the_user_gives_win_and_these_win_over_those_of_an_experiment():
    words = ["experiment=fmnist_n100", "experiment.only=[fedhist,wkafl]", "experiment.seeds=[0]"]
    more = ["compare=equal", *FEW, "algorithm.schedule.buffer_size=5"]
    config, changed = composed(*words), composed(*words, *more)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        own, same = checked_cells(config, words), checked_cells(changed, [*words, *more])
    assert own["fedhist"].algorithm.client.local_steps == 5
    assert [values(cell)[0] for cell in same.values()] == [(20, 5, *EPOCHS)] * 2


def test_runs_from_python_and_their_objects():
    plan = plan_of([FedBuff(), "compare=equal", *FEW])
    assert values(plan.config) == ((20, 4, *EPOCHS), [])
    plan = plan_of([FedBuff(), k_async(5, 9), "compare=equal", *FEW])
    assert list(plan.config.compare.kept) == ["concurrency", "buffer_size"]
