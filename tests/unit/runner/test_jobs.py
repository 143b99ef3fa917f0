"""Several runs: a late Ctrl-C, folders of earlier runs, failures, cells, and compare=equal."""

import json
import logging
import os
import re
import shutil
import signal

import numpy as np
import pytest
from helpers import make_config
from hydra import initialize_config_dir

import fl_app
from fl_app.algorithms.fedavg_k import FedAvgK
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.api.settings import plan_of
from fl_app.cli import CONF, compose
from fl_app.client import LocalTrainer
from fl_app.core.errors import ClientError, Interrupted, RunError, ServerError
from fl_app.record.summary import trouble_message
from fl_app.report import where
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.cells import compose_cells
from fl_app.runner.run import Results, run_cells
from fl_app.runner.validate import UserObjects, checked_cells, validate_config
from fl_app.schedule import k_async
from fl_app.schedule.compass import Compass

ONE = "algorithm.client.local_steps=1"


def plan(*overrides, **objects):
    overrides = ("algorithm=fedbuff", "max_updates=20", "runtime.workers=0", ONE, *overrides)
    return Plan(make_config(*overrides), objects=UserObjects(**objects))


class InterruptedAtTheEnd(FedAvgK):
    """Sends Ctrl-C to its own process while it computes the last version."""

    def aggregate(self, model, updates):
        if model.version == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return super().aggregate(model, updates)


@pytest.mark.parametrize("others", [0, 1])
def test_ctrl_c_at_the_end_of_the_last_run_came_too_late(others, tmp_path):
    overrides = ("algorithm=fedavg_k", "num_versions=2", "max_updates=null")
    plans = {"a": plan(*overrides, strategy=InterruptedAtTheEnd())}
    plans |= {"b": plan()} if others else {}
    results = run_cells(plans, tmp_path, show=False, figures=False)
    assert list(results.summaries) == ["a"]
    assert results.interrupted == (others > 0)


def test_ctrl_c_hides_no_failure(tmp_path, capsys):
    """For example of the checkpoint that is written after Ctrl-C."""
    results = Results({}, {"a": RunError("the disk is full")}, True)
    with pytest.raises(Interrupted):
        results.refuse_incomplete(tmp_path)
    assert capsys.readouterr().err == "error: a: the disk is full\n"
    with pytest.raises(RunError, match="the disk is full"):
        results._replace(interrupted=False).refuse_incomplete(tmp_path)


# -- in the folder of an earlier run --------------------------------------------------------------

WORDS = ("experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0", ONE)
SEEDS = {"experiment.seeds=[4,5]": [4, 5], "seed=7": [7]}


def checked(*overrides):
    """The cells that these overrides describe."""
    config = make_config(*overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return checked_cells(config, overrides)


def run_seeds(folder, *overrides):
    """Run 20 updates with each seed; return the runs that the report then shows."""
    overrides = (*WORDS, "max_updates=20", *overrides)
    plans = {name: Plan(cell, overrides) for name, cell in checked(*overrides).items()}
    parallel = make_config(*overrides).experiment.parallel
    run_cells(plans, folder, parallel=parallel, show=False, figures=False)
    return sorted(path.parent.name for path in folder.glob("*/summary.json"))


def test_a_mean_has_the_runs_of_the_command_alone_and_further_seeds_join_it(tmp_path):
    """With one seed, the folder of a cell has the cell's name, with several it has the seed's."""
    run_seeds(tmp_path, "experiment.seeds=[0]")
    with pytest.raises(ValueError, match=r"/fedbuff is a run of a cell that is not to run now"):
        run_seeds(tmp_path, "experiment.seeds=[0,1]", "resume=auto")
    assert [*tmp_path.glob("*/summary.json")] == [tmp_path / "fedbuff" / "summary.json"]
    shutil.rmtree(tmp_path / "fedbuff")
    assert len(run_seeds(tmp_path, "experiment.seeds=[0,1]", "resume=auto")) == 2
    assert len(run_seeds(tmp_path, "experiment.seeds=[0,1,2]", "resume=auto")) == 3
    assert {w: [cell.seed for cell in checked(*WORDS, w).values()] for w in SEEDS} == SEEDS


def test_a_picture_that_fails_costs_the_run_nothing(tmp_path, monkeypatch, caplog):
    def fails(*_, **__):
        raise RuntimeError("no font")

    monkeypatch.setattr("fl_app.report.page.write_page", fails)
    run = run_cells({"": plan()}, tmp_path, show=False)
    assert (run.summaries[""]["stopped"], run.problems) == ("updates", {})
    assert (tmp_path / "table.csv").is_file()
    assert [r.getMessage() for r in caplog.records] == [
        "Pictures are missing in the report: RuntimeError: no font"
    ]
    assert where(tmp_path).endswith(f"python -m fl_app.report {tmp_path} writes it")


# -- failures --------------------------------------------------------------------------------------

SMALL = (
    *("num_clients=5", "partition=iid", "num_versions=3", "eval_every=10"),
    *("algorithm.client.local_steps=1", "algorithm.client.batch_size=4"),
)
ERROR = "AttributeError: 'NoneType' object has no attribute 'vector'"


class Faulty(LocalTrainer):
    """Client 2 has a bug in its second order, and training diverges on client 4."""

    @property
    def batches(self):
        return True

    def begin(self, config, rng):
        if self.client_id == 2 and int(config["version"]) > 0:
            _look_at(None)
        if self.client_id == 4:
            raise FloatingPointError("the loss is not finite")

    def correct(self, grad, step):
        return grad


def run_alone(folder, *overrides):
    plan = Plan(make_config(*SMALL, *overrides), objects=UserObjects(trainer=Faulty))
    return run_cell(plan, folder, label="run", show=False)


def _look_at(model):
    vector = model.vector()
    return vector


WAYS = (("runtime.workers=0",), ("runtime.workers=2",), ("runtime.workers=0", "runtime.batch=4"))


def test_the_first_error_ends_the_run_in_every_runtime(tmp_path, caplog):
    """The log has one traceback, of the user's code alone; the files of the run are written."""
    events = []
    for number, way in enumerate(WAYS):
        folder = tmp_path / str(number)
        caplog.clear()
        outcome, summary = run_alone(folder, *way)
        assert isinstance(outcome.error, ClientError)
        assert re.match(rf"client 2, order \d+: {ERROR}\.", str(outcome.error))
        (message,) = (r.getMessage() for r in caplog.records if r.levelno >= logging.ERROR)
        assert ERROR in message
        assert message.count('File "') == message.count(f'File "{__file__}"') == 2
        assert json.loads((folder / "summary.json").read_text()) == summary
        assert summary["stopped"].startswith("ClientError: client 2, order ")
        assert summary["num_versions"] > 0
        assert summary["first_failure"] == f"client 2: {ERROR}"  # not that of client 4
        events.append((folder / "events.jsonl").read_text())
    assert events[0] == events[1]  # last bits of losses differ in batches
    *_, last = map(json.loads, events[0].splitlines())
    assert (last["kind"], last["client"], last["raised"]) == ("failure", 2, True)


def test_a_run_that_tolerates_failures_counts_them_at_its_end(tmp_path, caplog, capsys):
    settings = (*SMALL, "runtime.workers=0", "failures=tolerate")
    result = fl_app.run(*settings, Faulty, output=tmp_path / "python")
    summary, kinds = result.summary, result.events["kind"]
    failures = int((kinds == "failure").sum())
    assert (summary["stopped"], summary["failures"]) == ("num_versions", failures)
    assert summary["orders"] == (kinds == "dispatch").sum()
    assert len([r for r in caplog.records if r.levelno >= logging.ERROR]) == 1
    message = f"{failures} of {summary['orders']} orders failed, first: client 2: {ERROR}"
    progress, last = capsys.readouterr().out.splitlines()
    assert progress.endswith(f" {failures} failed")
    assert last == message


def test_a_collapsed_model_is_reported():
    help_ = "a tenth of algorithm.client.local_lr may help"
    message = f"the model predicts no better than a constant ({help_})"
    assert trouble_message({"": {"collapsed": True}}) == message
    gradients = trouble_message({"": {"collapsed": True, "work_per_update": "1 mini-batch"}})
    assert gradients == message.replace("client.local_lr", "strategy.server_lr")
    several = {"one": {"collapsed": True}, "two": {"collapsed": False}, "three": {}}
    assert trouble_message(several) == f"{message}: one"
    private = trouble_message({"": {"collapsed": True, "private": ["3.*"]}})
    assert private.startswith("the server has the first values of private layers")
    silent = {"one": {"without_update": [2, 7]}, "two": {"without_update": []}}
    assert trouble_message(silent) == "one, NO UPDATE from clients 2, 7"
    assert trouble_message({"one": {"num_versions": 0}}).endswith(
        "are those of the first model: one"
    )


def test_an_error_in_a_strategy_is_logged_with_its_traceback(tmp_path, caplog, monkeypatch):
    def aggregate(*_):
        np.ones(2) @ np.ones(3)

    monkeypatch.setattr("fl_app.algorithms.fedbuff.FedBuff.aggregate", aggregate)
    outcome, summary = run_cell(Plan(make_config(*SMALL)), tmp_path, label="run", show=False)
    assert isinstance(outcome.error, ServerError)
    assert summary["stopped"].startswith("ValueError: matmul: ")
    assert caplog.text.count(f'File "{__file__}"') == caplog.text.count('File "') == 1
    assert (tmp_path / "model.npz").is_file()


def test_an_algorithms_file_has_its_four_parts_and_no_other():
    config = make_config("+algorithm.clients.upload=delta", "algorithm=fedbuff")
    with pytest.raises(ValueError, match=r"^algorithm=fedbuff must have .*: of its YAML, clients"):
        validate_config(config)


# -- cells of an experiment ------------------------------------------------------------------------


def make_cells(*overrides):
    config = compose(overrides)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose_cells(config, overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("experiment.seeds=[0,1]", "experiment.seeds=[0, 1] must be null without experiment=<"),
        ("experiment.only=[fedavg]", "experiment.only=['fedavg'] must be null without"),
        ("+experiment.cels={}", "unknown keys: experiment.cels; did you mean experiment.cells"),
        ("+experiment.seed=1", "unknown keys: experiment.seed; did you mean experiment.seeds or"),
        ("algorithm=fedhist algorithm.client.local_epochs=3", "algorithm.client.local_epochs w"),
        ("experiment=quickstart experiment.seeds=3", "experiment.seeds=3 must be a list"),
        ("experiment=quickstart experiment.seeds=[]", "experiment.seeds=[] must be a list"),
        ("experiment=quickstart experiment.seeds=[1,2] seed=3", "seed=3 must be left out with exp"),
        ("experiment=quickstart experiment.seeds=[1] ++seed=3", "seed=3 must be left out with exp"),
        ("experiment=quickstart experiment.seeds=[1] +experiment.cells.x=['seed=4']", "seed=4 mu"),
        ("experiment=quickstart +experiment.cells.x=a", "experiment: x=a must be a list such as"),
        ("experiment=quickstart +experiment.cells.x-seed1=[]", "experiment: a cell=x-seed1 must"),
        ("experiment=quickstart experiment.seeds=[1,1]", "experiment.seeds=[1, 1] must be se"),
        ("experiment=quickstart experiment.only=fedavg", "experiment.only=fedavg must be a l"),
    ],
)
def test_keys_without_effect_or_of_another_form(overrides, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        make_cells(*overrides.split())


# -- compare=equal --------------------------------------------------------------------------------

EPOCHS = (3, None)
FEW = ("compare.concurrency=20", "compare.buffer_size=4", "compare.local_epochs=3")


def values(cell):
    """Concurrency, buffer size, local epochs and steps; then the keys that stay different."""
    schedule, client = cell.algorithm.schedule, cell.algorithm.client
    sizes = (schedule.get("concurrency"), schedule.get("buffer_size"))
    return (*sizes, client.local_epochs, client.local_steps), list(cell.compare.kept)


def equal(*overrides):
    (cell,) = checked("compare=equal", *overrides).values()
    return cell


@pytest.mark.parametrize(
    ("algorithm", "expected", "exceptions"),
    [
        ("wkafl", (20, 4, *EPOCHS), ["local work"]),
        ("fedhist", (20, 4, *EPOCHS), []),
        ("fedasmu", (20, None, *EPOCHS), ["buffer_size"]),
        ("overlap_fedavg", (None, 50, 5, None), ["concurrency", "buffer_size", "local work"]),
        ("eafl", (None, None, *EPOCHS), ["concurrency", "buffer_size", "local work"]),
        ("fedavg", (None, 20, *EPOCHS), ["buffer_size"]),
        ("fedasync", (20, None, *EPOCHS), ["buffer_size"]),
        ("gsgm", (None, 4, *EPOCHS), ["concurrency", "local work"]),
        ("fedsa", (20, None, *EPOCHS), ["buffer_size", "local work"]),
        ("fedcompass", (None, None, *EPOCHS), ["concurrency", "buffer_size", "local work"]),
    ],
)
def test_each_algorithm_takes_settings_that_its_equations_allow(algorithm, expected, exceptions):
    cell = equal(f"algorithm={algorithm}", *FEW)
    assert values(cell) == (expected, exceptions)


def test_algorithms_that_need_all_clients_differ_only_if_others_do_not():
    assert values(equal("algorithm=eafl"))[1] == ["buffer_size", "local work"]
    assert values(equal("algorithm=fedavg", "num_clients=6"))[0] == (None, 6, 5, None)
    assert values(equal("num_clients=6"))[0] == (6, 6, 5, None)


def test_uploads_that_are_displacements_train_like_others_and_pauses_need_epochs():
    overrides = ("algorithm.client.upload=pseudo", "compare.local_steps=7")
    assert values(equal("algorithm=wkafl", *overrides)) == ((50, 10, 5, 7), [])
    (*_, epochs, steps), exceptions = values(equal("algorithm=fedasmu", "compare.local_steps=7"))
    assert (epochs, steps, exceptions) == (5, None, ["buffer_size", "local work"])
    assert values(equal("algorithm=fedasmu", "compare.local_epochs=1")) == (
        (50, None, 5, None),
        ["buffer_size", "local work"],
    )


def test_keys_that_the_user_gives_win_and_these_win_over_those_of_an_experiment():
    base = ["experiment=fmnist_n100", "experiment.only=[fedhist,wkafl]", "experiment.seeds=[0]"]
    same = checked(*base, "compare=equal", *FEW, "algorithm.schedule.buffer_size=5")
    assert checked(*base)["fedhist"].algorithm.client.local_steps == 5
    assert [values(cell)[0] for cell in same.values()] == [(20, 5, *EPOCHS)] * 2


def test_runs_from_python_and_their_objects():
    plan = plan_of([FedBuff(), "compare=equal", *FEW])
    assert values(plan.config) == ((20, 4, *EPOCHS), [])
    plan = plan_of([FedBuff(), Compass(), "compare=equal", *FEW])
    assert "local work" in plan.config.compare.kept
    plan = plan_of(["algorithm=fedcompass", k_async(5, 9), "compare=equal", *FEW])
    assert list(plan.config.compare.kept) == ["concurrency", "buffer_size"]
