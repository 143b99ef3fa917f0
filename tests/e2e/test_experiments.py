"""Every file in conf/experiment, and the rows of docs/experiments.md that add to one."""

import csv
import gc
import json
import re
import sys
from copy import deepcopy
from functools import cache
from pathlib import Path

import pytest
from configs import ALGORITHMS
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

from fl_app.__main__ import main
from fl_app.cli import CONF, refuse_surplus
from fl_app.engine.arena import Arena
from fl_app.runner.cell import run_cell
from fl_app.runner.cells import compose_cells, shrink
from fl_app.runner.run import run
from fl_app.runner.validate import validate_config

QUICKSTART = ("fedbuff", "wkafl", "fedhist", "fedasmu", "overlap_fedavg", "eafl")  # and fedavg
NAMES = sorted(path.stem for path in (CONF / "experiment").glob("*.yaml"))
DOCS = (CONF.parent / "docs" / "experiments.md").read_text()
PAPER_PAGES = sorted((CONF.parent / "docs" / "papers").glob("*.md"))
# In code spans and in lines of their own, in a paper's page without `experiment=`; commas outside
# of brackets separate the choices of a sweep.
ROW = rf"(?:`|fl_app )(-m )?(?:experiment=)?((?:{'|'.join(NAMES)}) [^`#\n]*=[^`#\n]+)"
ROWS = sorted(
    {
        f"{sweep}experiment={words.strip()}"
        for text in [DOCS, *(page.read_text() for page in PAPER_PAGES)]
        for sweep, words in re.findall(ROW, text)
    }
)


def composed(*overrides: str, last: bool = False) -> tuple[DictConfig, dict[str, DictConfig]]:
    """What a user's overrides make, and its cells, or only the last of them."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
        refuse_surplus(config)
        if last:
            experiment = config.experiment
            name = (experiment.only or list(experiment.cells))[-1]
            experiment.only = ["@".join([name, *settings_of(experiment)[-1:]])]
        return config, compose_cells(config, overrides)


@cache
def experiment_of(name: str) -> DictConfig:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", [f"experiment={name}"]).experiment


def settings_of(experiment: DictConfig) -> list[str]:
    return [str(name) for name, words in experiment.settings.items() if words is not None]


@cache
def cells_of(name: str) -> dict[str, DictConfig]:
    settings = settings_of(experiment_of(name))
    # Else all thrice, and in every setting.
    only = [f"experiment.only=['@{settings[0]}']"] if settings else []
    return composed(f"experiment={name}", "experiment.seeds=[0]", *only)[1]


def quickest(name: str) -> str:
    """The first cell, if possible one whose clients do not pause between epochs."""
    experiment = experiment_of(name)
    names = experiment.only or [name for name, words in experiment.cells.items() if words]
    cell = min(names, key=lambda each: "algorithm=fedasmu" in experiment.cells[each])
    return "@".join([cell, *settings_of(experiment)[:1]])


def run_small(cell: DictConfig, folder: Path) -> None:
    cell = deepcopy(cell)
    shrink(cell)
    outcome, summary = run_cell(cell, folder, label=folder.name)
    assert outcome.error is None
    assert summary["stopped"] == "num_versions"
    assert summary["num_versions"] == 2
    assert summary["failures"] == summary["rejected"] == 0
    gc.collect()  # large models in cycles: twenty cells would keep 20 GB


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_is_listed_and_its_cells_are_accepted(name):
    lines = (CONF / "experiment" / f"{name}.yaml").read_text().splitlines()
    assert lines[:2] == ["# @package _global_", f"# python -m fl_app experiment={name}"]
    assert f"`experiment={name}`" in DOCS
    last = composed(f"experiment={name}", "experiment.seeds=[0]", last=True)[1]  # its last setting
    for cell in [*cells_of(name).values(), *last.values()]:
        assert cell.experiment.name == name
        validate_config(cell)


def runs() -> list[object]:
    """Experiments; all but one of each family are slow."""
    quick = ("quickstart", "mnist_eafl", "fmnist_n100", "fmnist_asmu", "overlap")
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", runs())
def test_the_quickest_cell_of_an_experiment_runs(name, tmp_path):
    """Every task with every model: those that have no experiment are rows of the list."""
    label = quickest(name)
    only = f"experiment.only=['{label}']"
    (cell,) = composed(f"experiment={name}", "experiment.seeds=[0]", only)[1].values()
    run_small(cell, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_small_form_of_every_algorithm_runs(name, tmp_path):
    cell = composed(f"algorithm={name}")[1][""]
    validate_config(cell)
    run_small(cell, tmp_path)


@pytest.mark.slow
def test_nothing_is_kept_of_a_cell_that_ended(tmp_path):
    """A large model's run holds gigabytes, which the next cell needs."""
    kept = []

    def arenas():
        return sum(type(thing) is Arena for thing in gc.get_objects())

    def count(phase, _):
        if phase == "stop":
            kept.append(arenas() - before)

    overrides = ["experiment=quickstart", "experiment.scale=smoke", "runtime.workers=1"]
    gc.collect()
    before = arenas()  # of other tests in this process
    gc.disable()  # so that all collections are those that the run asks for, after each cell
    gc.callbacks.append(count)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            run(compose("config", overrides=overrides), overrides, tmp_path)
    finally:
        gc.callbacks.remove(count)
        gc.enable()
    assert kept[:4] == [0] * 4


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("row", ROWS)
def test_every_row_of_the_list_is_accepted(row, tmp_path):
    """With its last cell, rarely of the experiment's own algorithm, and the last of its choices."""
    words = [re.sub(r"(?<==)[^\[\]]*,", "", word) for word in row.split() if word != "-m"]
    for cell in composed(*words, last=True)[1].values():
        validate_config(cell)
        if "task.model=" in row:
            run_small(cell, tmp_path)


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


@pytest.mark.slow
def test_the_benchmark_has_eight_settings():
    _, cells = composed(
        "experiment=benchmark", "experiment.only=[fedavg_k,fedasync,port]", "experiment.seeds=[0]"
    )
    kinds = [cell.partition._target_.rpartition(".")[2] for cell in cells.values()]
    assert sorted(kinds) == sorted(["Dirichlet", "Dirichlet", "Iid", "SlowLabels"] * 6)
    for name, cell in cells.items():
        validate_config(cell)
        assert cell.num_clients == (100 if "@n10-" in name else 1000)
        assert cell.algorithm.schedule.concurrency == cell.num_clients
        # All clients at work make 2,000 updates in about 20 seconds.
        slow = cell.devices.get("slow_share", 0)
        rate = (1 - slow + slow / cell.devices.get("slowdown", 1)) / cell.devices.base_seconds
        assert cell.max_updates / (cell.num_clients * rate) == pytest.approx(20)


def test_the_benchmark_of_networks_has_settings_of_its_own_and_the_same_methods():
    assert list(experiment_of("benchmark_networks").cells) == list(experiment_of("benchmark").cells)
    _, cells = composed(
        "experiment=benchmark_networks", "experiment.only=[fedhist]", "experiment.seeds=[0]"
    )
    models = {name: (cell.task.data, cell.task.model) for name, cell in cells.items()}
    assert models == {
        "fedhist@lenet-dir0.3": ("fashion_mnist", "lenet"),
        "fedhist@lenet-slow": ("fashion_mnist", "lenet"),
        "fedhist@cnn-dir0.3": ("cifar10", "cnn"),
        "fedhist@cnn-slow": ("cifar10", "cnn"),
    }


PAPERS = [name for name in NAMES if re.match(r"(wkafl|fedhist|fedasmu|eafl)_|overlap_\w+_", name)]


def test_every_table_of_a_paper_has_a_reduced_form_that_is_listed():
    assert len(PAPERS) > 15
    for name in PAPERS:
        text = (CONF / "experiment" / f"{name}.yaml").read_text()
        divisor = re.search(r"^  reduced: (\d+)$", text, re.MULTILINE)
        assert divisor, name
        assert re.search(rf"^\| .*`{name}`.* \| {divisor[1]} \|", DOCS, re.MULTILINE), name


def test_the_reduced_scale_divides_the_length_and_nothing_else():
    words = ["experiment=eafl_mnist", "experiment.reduced=8", "experiment.only=[eafl,eafl-no-dsa]"]
    full = composed(*words)[1]["eafl"]
    small = composed(*words, "experiment.scale=reduced")[1]
    cell = small["eafl"]
    assert (full.num_versions, full.eval_every) == (1600, 20)
    assert (cell.num_versions, cell.eval_every) == (200, 4)  # 50 evaluations
    assert full.algorithm.strategy.recluster_every == 100
    assert cell.algorithm.strategy.recluster_every == 12
    assert small["eafl-no-dsa"].num_versions == 1000
    cell.num_versions, cell.eval_every = full.num_versions, full.eval_every
    cell.algorithm.strategy.recluster_every = full.algorithm.strategy.recluster_every
    cell.experiment.scale = "full"
    assert cell == full
    given = composed(*words, "experiment.scale=reduced", "num_versions=99")[1]["eafl"]
    assert given.num_versions == 99


def test_every_cell_runs_in_every_setting():
    few = "+experiment.settings.few=['num_clients=10']"
    words = ["experiment=quickstart", few, "+experiment.settings.all=[]"]
    _, cells = composed(*words, "experiment.only=[fedbuff@all,wkafl,@few]")
    assert list(cells) == [
        *("fedbuff@all", "wkafl@few", "wkafl@all", "fedavg@few", "fedbuff@few"),
        *("fedhist@few", "fedasmu@few", "overlap_fedavg@few", "eafl@few"),
    ]
    clients = {cell.num_clients for name, cell in cells.items() if name.endswith("@few")}
    assert clients == {10}
    assert cells["fedbuff@all"].num_clients == 20
    with pytest.raises(ValueError, match="only names '@none', which is none of the cells fedavg@"):
        composed(*words, "experiment.only=['@none']")


def test_what_an_experiment_inherits_can_be_left_out():
    words = ["experiment=quickstart", "+experiment.settings.few=['num_clients=10']"]
    words += ["+experiment.settings.none=null", "experiment.cells.fedavg=null"]
    _, cells = composed(*words)
    assert list(cells) == [f"{cell}@few" for cell in QUICKSTART]
    with pytest.raises(ValueError, match="only names 'fedavg', which is none of the cells"):
        composed(*words, "experiment.only=[fedavg]")


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_small_scale_on_the_command_line(monkeypatch, capsys, tmp_path):
    overrides = ["experiment=quickstart", "experiment.scale=smoke", f"hydra.run.dir={tmp_path}"]
    monkeypatch.setattr(sys, "argv", ["fl_app", *overrides])
    assert main() == 0
    with (tmp_path / "table.csv").open() as file:
        cells = [row["cell"] for row in csv.DictReader(file)]
    assert cells == ["fedavg", *QUICKSTART]
    versions = [json.loads((tmp_path / c / "summary.json").read_text()) for c in cells]
    assert [summary["num_versions"] for summary in versions] == [2] * 7
    out = capsys.readouterr().out
    assert "wkafl, cell 3 of 7: 2/2 versions" in out
    assert out.endswith("All 7 cells are done\n")


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (
            ["experiment=quickstart", "experiment.scale=tiny"],
            "scale=tiny must be full, reduced or smoke",
        ),
        (
            ["experiment=quickstart", "experiment.scale=reduced"],
            "scale=reduced must be full or smoke with experiment=quickstart",
        ),
        (
            ["experiment=wkafl_mnist", "experiment.scale=reduced", "experiment.reduced=0.5"],
            "experiment.reduced=0.5 must be a finite number >= 1",
        ),
        (["experiment.scale=smoke"], "scale=smoke must be full without experiment=<name>"),
    ],
)
def test_scales_that_mean_nothing_are_refused(overrides, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        composed(*overrides)
