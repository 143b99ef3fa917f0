"""Every file in conf/experiment, and every documented command that extends one of them."""

import gc
import re
import shlex
from copy import deepcopy
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
from helpers import make_config
from omegaconf import OmegaConf

from fl_app.cli import CONF, refuse_surplus
from fl_app.client.build import COMMON_KEYS, instantiate
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.cells import compose_cells
from fl_app.runner.validate import UserObjects, validate_config

QUICKSTART = ("fedbuff", "wkafl", "fedhist", "fedasmu", "overlap_fedavg", "eafl")  # and fedavg
NAMES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
DOCS = (CONF.parent / "docs" / "experiments.md").read_text()
PAGES = [*CONF.parent.glob("docs/papers/*.md"), CONF.parent / "docs" / "comparisons.md"]
# Matches code spans and whole lines; pages of papers omit `experiment=`. Commas outside of brackets
# separate the choices of a sweep.
ROW = rf"(?:`|fl_app )(-m )?(?:experiment=)?((?:{'|'.join(NAMES)}) [^`#\n]*=[^`#\n]+)"
ROWS = sorted(
    {
        f"{sweep}experiment={words.strip()}"
        for text in [DOCS, *(page.read_text() for page in PAGES)]
        for sweep, words in re.findall(ROW, text.replace("\\\n", " "))
    }
)


def config_and_cells(*overrides, last=False):
    """The configuration of a user's overrides, and its cells, or only the last of them."""
    config = make_config(*overrides)
    refuse_surplus(config, overrides)
    if last:
        experiment = config.experiment
        cells = experiment.only or list(experiment.cells)
        assert {*cells} <= {*experiment.cells}
        name = cells[-1]
        experiment.only = ["@".join([name, *settings_of(experiment)[-1:]])]
    with patch("fl_app.runner.cells.compose", lambda _, overrides: make_config(*overrides)):
        return config, compose_cells(config, overrides)


@cache
def experiment_of(name):
    return make_config(f"experiment={name}").experiment


def settings_of(experiment):
    return [str(name) for name, overrides in experiment.settings.items() if overrides is not None]


@cache
def cells_of(name):
    settings = settings_of(experiment_of(name))
    # Otherwise all three times, and in every setting.
    only = [f"experiment.only=['@{settings[0]}']"] if settings else []
    return config_and_cells(f"experiment={name}", "experiment.seeds=[0]", *only)[1]


def quickest(name):
    """The first cell, preferably one whose clients do not pause between epochs."""
    experiment = experiment_of(name)
    names = experiment.only or [name for name, overrides in experiment.cells.items() if overrides]
    cell = min(names, key=lambda each: "algorithm=fedasmu" in experiment.cells[each])
    return "@".join([cell, *settings_of(experiment)[:1]])


SMALL = {
    "algorithm.client.local_steps": 1,
    "algorithm.client.batch_size": 2,
    "task.made_up": True,
    "runtime.workers": 0,
}
SLOTS = {  # for clients that pause between local epochs: steps would have no pauses
    "algorithm.client.local_steps": None,
    "algorithm.client.local_epochs": 2,
    "algorithm.client.batch_size": 64,
    "algorithm.schedule.concurrency": 2,
}
MAX_CLIENTS, MAX_TESTS = 100, 20


def run_small(cell, folder, versions=2):
    """A few versions on made-up data, in about a second."""
    cell = deepcopy(cell)
    small = SMALL | {"num_versions": versions} | (SLOTS if "slot" in cell.algorithm.client else {})
    if cell.num_clients is not None:  # otherwise one client per owner of data
        small["num_clients"] = min(cell.num_clients, MAX_CLIENTS)
    for key, value in small.items():
        node, _, leaf = key.rpartition(".")
        if leaf in (OmegaConf.select(cell, node) if node else cell):
            OmegaConf.update(cell, key, value)
    task = instantiate(cell.task, leave_out=COMMON_KEYS)(seed=cell.seed)
    tests = (task.test_inputs, task.test_targets)
    inputs, targets = (None if test is None else test[:MAX_TESTS] for test in tests)
    plan = Plan(cell, objects=UserObjects(replace(task, test_inputs=inputs, test_targets=targets)))
    outcome, summary = run_cell(plan, folder, label=folder.name)
    assert outcome.error is None
    assert summary["stopped"] == "num_versions"
    assert summary["num_versions"] == versions
    assert summary["failures"] == summary["rejected"] == 0
    gc.collect()  # models lie in reference cycles: twenty cells would keep 20 GB


def test_every_experiment_is_listed():
    for name in NAMES:
        lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
        assert lines[:2] == ["# @package _global_", f"# python -m fl_app experiment={name}"]
        assert f"`experiment={name}`" in DOCS


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_cells_of_an_experiment_are_accepted(name):
    """All cells of the first setting, unless it is a benchmark's, and the last of the last one."""
    last = config_and_cells(f"experiment={name}", "experiment.seeds=[0]", last=True)[1]
    first = {} if name.startswith("benchmark_") else cells_of(name)
    for cell in [*first.values(), *last.values()]:
        assert cell.experiment.name == name
        validate_config(cell)


# One experiment of each family, and every model that only an experiment uses.
QUICK = ("quickstart", "mnist_eafl", "fmnist_n100", "fmnist_asmu", "overlap")
SLOW = (
    *("wkafl_celeba", "wkafl_cifar10", "eafl_cifar10", "fedhist_cifar10"),
    *("overlap_mlp_mnist", "cana", "pi_rack", "benchmark_networks"),
)


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_the_quickest_cell_of_an_experiment_runs(name, tmp_path):
    """Together with the documented rows, this runs every task with every model."""
    only = f"experiment.only=['{quickest(name)}']"
    (cell,) = config_and_cells(f"experiment={name}", "experiment.seeds=[0]", only)[1].values()
    run_small(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_list_is_accepted(row, tmp_path):
    """With its last cell and the last of its choices."""
    overrides = [re.sub(r"^([^=]+=)[^\[\]]*,", r"\1", w) for w in shlex.split(row) if w != "-m"]
    for cell in config_and_cells(*overrides, last=True)[1].values():
        validate_config(cell)
        if "task.model=" in row:
            run_small(cell, tmp_path, versions=1)


def test_every_cell_runs_in_every_setting():
    few = "+experiment.settings.few=['num_clients=10']"
    overrides = ["experiment=quickstart", few, "+experiment.settings.all=[]"]
    _, cells = config_and_cells(*overrides, "experiment.only=[fedbuff@all,wkafl,@few]")
    assert list(cells) == [
        *("fedbuff@all", "wkafl@few", "wkafl@all", "fedavg@few", "fedbuff@few"),
        *("fedhist@few", "fedasmu@few", "overlap_fedavg@few", "eafl@few"),
    ]
    clients = {cell.num_clients for name, cell in cells.items() if name.endswith("@few")}
    assert clients == {10}
    assert cells["fedbuff@all"].num_clients == 20
    with pytest.raises(ValueError, match="algorithm/client=sgd would change nothing"):
        config_and_cells(*overrides, "experiment.overrides=['algorithm/client=sgd']")
    with pytest.raises(ValueError, match="only names '@none', which is none of the cells fedavg@"):
        config_and_cells(*overrides, "experiment.only=['@none']")


def test_inherited_parts_of_an_experiment_can_be_left_out():
    overrides = ["experiment=quickstart", "+experiment.settings.few=['num_clients=10']"]
    overrides += ["+experiment.settings.none=null", "experiment.cells.fedavg=null"]
    _, cells = config_and_cells(*overrides)
    assert list(cells) == [f"{cell}@few" for cell in QUICKSTART]
    with pytest.raises(ValueError, match="only names 'fedavg', which is none of the cells"):
        config_and_cells(*overrides, "experiment.only=[fedavg]")
