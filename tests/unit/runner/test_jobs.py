"""Runs one after the other: their share of the cores, a late Ctrl-C, and what earlier runs left."""

import os
import signal
from dataclasses import replace

import pytest
from configs import composed
from hydra import initialize_config_dir

from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.cli import CONF
from fl_app.core.errors import Interrupted, RunError
from fl_app.runner import run as runs
from fl_app.runner.run import Plan, Ran, _with_its_share, run_cells
from fl_app.runner.validate import Given, checked_cells

ONE = "algorithm.client.local_steps=1"


def plan(*words, **objects):
    words = ("algorithm=fedbuff", "max_updates=20", "runtime.workers=0", ONE, *words)
    return Plan(composed(*words), given=Given(**objects))


def test_cores_are_shared_and_gpus_are_not(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    auto = plan("runtime.workers=auto")
    for parallel, workers in ((2, 4), (8, 0), (1, "auto")):
        assert _with_its_share(auto, parallel).config.runtime.workers == workers
    monkeypatch.setattr(runs, "gpus_of", lambda _: ["cuda:0", "cuda:1"])
    assert _with_its_share(auto, 2) is auto


class InterruptedAtTheEnd(FedAvgK):
    """Sends Ctrl-C to its own process while it computes the last version."""

    def aggregate(self, model, updates):
        if model.version == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return super().aggregate(model, updates)


@pytest.mark.parametrize("others", [0, 1])
def test_ctrl_c_at_the_end_of_the_last_run_came_too_late(others, tmp_path):
    words = ("algorithm=fedavg_k", "num_versions=2", "max_updates=null")
    plans = {"a": plan(*words, strategy=InterruptedAtTheEnd())}
    plans |= {"b": plan()} if others else {}
    ran = run_cells(plans, tmp_path, None, show=False, figures=False)
    assert list(ran.summaries) == ["a"]
    assert ran.interrupted == (others > 0)


def test_ctrl_c_hides_no_failure(tmp_path, capsys):
    """Such as of the checkpoint that Ctrl-C asks for."""
    ran = Ran({}, {"a": RunError("the disk is full")}, True)
    with pytest.raises(Interrupted):
        ran.refuse_incomplete(tmp_path)
    assert capsys.readouterr().err == "error: a: the disk is full\n"
    with pytest.raises(RunError, match="the disk is full"):
        replace(ran, interrupted=False).refuse_incomplete(tmp_path)


# -- in the folder of an earlier run --------------------------------------------------------------

WORDS = ("experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0", ONE)


def ran(folder, *words):
    """Run 20 updates with each seed; the runs that the report then shows."""
    words = (*WORDS, "max_updates=20", *words)
    config = composed(*words)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cells = checked_cells(config, words)
    plans = {name: Plan(cell, words) for name, cell in cells.items()}
    parallel = config.experiment.parallel
    run_cells(plans, folder, 0.9, parallel=parallel, show=False, figures=False)
    return sorted(path.parent.name for path in folder.glob("*/summary.json"))


def test_a_mean_has_the_runs_of_the_command_alone_and_further_seeds_join_it(tmp_path):
    """With one seed, the folder of a cell has the cell's name, with several it has the seed's."""
    ran(tmp_path, "experiment.seeds=[0]")
    with pytest.raises(ValueError, match=r"/fedbuff is a run of a cell that is not to run now"):
        ran(tmp_path, "experiment.seeds=[0,1]", "resume=auto")
    assert [*tmp_path.glob("*/summary.json")] == [tmp_path / "fedbuff" / "summary.json"]
    assert len(ran(tmp_path, "experiment.seeds=[0,1]", "overwrite=true")) == 2
    assert len(ran(tmp_path, "experiment.seeds=[0,1,2]", "resume=auto")) == 3


def test_a_single_run_is_replaced_by_cells(tmp_path):
    """The report would show the run alone."""
    run_cells({"": plan()}, tmp_path, 0.9, show=False, figures=False)
    assert ran(tmp_path, "overwrite=true") == ["fedbuff"]
    assert not (tmp_path / "summary.json").exists()


def test_a_picture_that_fails_costs_the_run_nothing(tmp_path, monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("no font")

    monkeypatch.setattr("fl_app.report.page.write_page", fails)
    run = run_cells({"": plan()}, tmp_path, 0.9, show=False)
    assert (run.summaries[""]["stopped"], run.problems) == ("updates", {})
    assert (tmp_path / "table.csv").is_file()
    assert [r.getMessage() for r in caplog.records] == [
        "The report has not all pictures: RuntimeError: no font"
    ]
