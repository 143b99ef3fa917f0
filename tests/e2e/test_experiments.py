"""Every file in conf/experiment, and the rows of docs/experiments.md that add to one."""

import csv
import gc
import json
import re
import sys

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from fl_app import run as run_module
from fl_app.__main__ import main
from fl_app.cli import CONF, refuse_surplus
from fl_app.engine.arena import Arena
from fl_app.run.cells import compose_cells, shrink
from fl_app.run.run import run_cell
from fl_app.run.validate import validate_config

NAMES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
LARGE = re.compile("alexnet|vgg11|resnet|transformer|celeba")  # a step of 0.1 s and more
SLOW = [pytest.mark.slow, pytest.mark.timeout(900)]
DOCS = (CONF.parent / "docs" / "experiments.md").read_text()
# In code spans; commas outside of brackets separate the choices of a sweep.
ROWS = sorted(set(re.findall(r"`((?:-m )?experiment=[^\s`]+ [^`]*)`", DOCS)))


def composed(*overrides: str, last: bool = False) -> tuple[DictConfig, dict[str, DictConfig]]:
    """What a user's overrides make, and its cells, or only the last of them."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
        refuse_surplus(config)
        if last:
            experiment = config.experiment
            experiment.only = (experiment.only or list(experiment.cells))[-1:]
        return config, compose_cells(config, overrides)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=SLOW if LARGE.search(n) else []) for n in NAMES],
)
def test_every_experiment_is_accepted_and_its_small_form_runs(name, tmp_path):
    config, cells = composed(f"experiment={name}", "experiment.seeds=[0]")  # else all thrice
    for cell in cells.values():
        validate_config(cell)
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m fl_app experiment={name}"]
    assert config.experiment.name == name
    assert f"`experiment={name}`" in DOCS
    for label, cell in cells.items():
        shrink(cell)
        outcome, summary = run_cell(cell, tmp_path / label, label=label)
        assert outcome.error is None
        assert summary["stopped"] == "num_versions"
        assert summary["num_versions"] == 2
        assert summary["failures"] == summary["rejected"] == 0


def test_nothing_is_kept_of_a_cell_that_ended(tmp_path, monkeypatch):
    """A large model's run holds gigabytes, which the next cell needs."""
    before = []
    alone = run_module.run_cell

    def counted(*args, **more):
        before.append(sum(type(thing) is Arena for thing in gc.get_objects()))
        return alone(*args, **more)

    monkeypatch.setattr(run_module, "run_cell", counted)
    overrides = ["experiment=quickstart", "experiment.scale=smoke", "runtime.workers=1"]
    gc.collect()
    gc.disable()  # by itself it would come at some time or other
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            run_module.run(compose("config", overrides=overrides), overrides, tmp_path)
    finally:
        gc.enable()
    assert before == [0] * 4


@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_list_is_accepted(row):
    """With its last cell, rarely of the experiment's own algorithm, and the last of its choices."""
    words = [re.sub(r"(?<==)[^\[\]]*,", "", word) for word in row.split() if word != "-m"]
    config, cells = composed(*words, last=True)
    for configuration in (config, *cells.values()):
        validate_config(configuration)


def test_small_scale_keeps_what_the_user_sets():
    _, cells = composed(
        "experiment=wkafl_mnist",
        "experiment.scale=smoke",
        "experiment.only=[wkafl]",
        "experiment.seeds=[3,4]",
        "num_versions=5",
    )
    assert list(cells) == ["wkafl"]
    cell = cells["wkafl"]
    assert (cell.seed, cell.num_versions, cell.num_clients) == (3, 5, 100)
    assert list(cell.task.sources) == ["synthetic"]
    assert cell.algorithm.strategy.server_lr == 0.005


def test_small_scale_on_the_command_line(monkeypatch, capsys, tmp_path):
    overrides = ["experiment=quickstart", "experiment.scale=smoke", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["fl_app", *overrides])
    assert main() == 0
    with (tmp_path / "table.csv").open() as file:
        cells = [row["cell"] for row in csv.DictReader(file)]
    assert cells == ["fedavg", "fedavg_k", "fedasync", "fedbuff"]
    versions = [json.loads((tmp_path / c / "summary.json").read_text()) for c in cells]
    assert [summary["num_versions"] for summary in versions] == [2, 2, 2, 2]
    out = capsys.readouterr().out
    assert "fedasync, cell 3 of 4: 2/2 versions" in out
    assert out.endswith("All 4 cells are done\n")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["experiment=quickstart", "experiment.scale=tiny"], "scale=tiny must be full or smoke"),
        (["experiment.scale=smoke"], "scale=smoke must be full without experiment=<name>"),
    ],
)
def test_scales_that_mean_nothing_are_refused(overrides, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        composed(*overrides)
