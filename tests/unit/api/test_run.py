"""Runs from Python: results, refusals, and that the process stays unchanged."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean, stdev

import hydra
import numpy as np
import pytest
import torch
from flwr.serverapp.strategy import FedAdam
from helpers import make_config
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf
from torch import nn

import fl_app
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.cli import CONF
from fl_app.client import LocalTrainer
from fl_app.client.build import build_task
from fl_app.core.errors import ClientError, RunError
from fl_app.devices.compute import UniformRatio
from fl_app.runner.earlier import own_code
from fl_app.schedule import Buffered, Schedule
from fl_app.strategy import AsyncStrategy

SMALL = (
    *("num_versions=2", "eval_every=1", "runtime.workers=0"),
    *("algorithm.client.local_steps=1", "algorithm.client.batch_size=4"),
)


class Mean(AsyncStrategy):
    schedule: Schedule = Buffered(concurrency=3, buffer_size=2)

    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor

    def aggregate(self, model, updates):
        self.state["calls"] = self.state.get("calls", 0) + 1
        assert self.state["calls"] == model.version + 1  # of this run alone
        total = sum(model.delta(update) for update in updates)
        return np.asarray(model.params + np.float32(self.factor / len(updates)) * total)


class Marking(LocalTrainer):
    """Training sets every parameter to the mark."""

    def __init__(self, task, *, mark=0.0, **settings):
        super().__init__(task, **settings)
        self.mark = mark

    def train(self, order):
        upload = super().train(order)
        upload.vector[:] = np.float32(self.mark) - order.vector
        return upload


class Empty(LocalTrainer):
    def __init__(self, task, **settings):
        pass


class Needy(Mean):
    needs = f"{__name__}.Marking"


@pytest.fixture(scope="module")
def task():
    """A task object: digits on twelve clients."""
    return build_task(make_config("num_clients=12", "partition=iid"))


def run(*settings, output, **keywords):
    return fl_app.run(*SMALL, *settings, output=output, progress=False, **keywords)


# -- results --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return run("num_clients=12", output=tmp_path_factory.mktemp("run") / "mine")


def test_a_result_has_everything_of_the_run(result):
    assert result.summary["num_versions"] == 2
    assert result.metrics["version"].tolist() == [0, 1, 2]
    assert result.metrics["accuracy"].iloc[-1] == result.summary["final_accuracy"]
    events = result.events
    assert list(events.columns[:2]) == ["kind", "t"]
    assert (events["kind"] == "arrival").sum() == result.summary["client_updates"]
    assert events["version"].dtype == "Int64"  # although arrivals have none
    dispatches = events[events["kind"] == "dispatch"]
    assert dispatches["client"].between(0, 11).all()
    assert {name: array.shape for name, array in result.model.items()} == {
        "1.weight": (32, 64),
        "1.bias": (32,),
        "3.weight": (10, 32),
        "3.bias": (10,),
    }
    assert (result.folder / "report.html").is_file()
    assert (result.folder / "table.csv").is_file()
    html = result._repr_html_()
    for text in ("acc. best", "client updates", '<img src="data:image/png;base64,'):
        assert text in html
    assert len(html) < 100_000
    assert repr(result).startswith("<fedbuff on digits: acc. final ")
    assert "test accuracy" in str(result.plot().chart.to_dict())
    assert result.plot()._repr_png_().startswith(b"\x89PNG")


# -- objects in place of overrides ----------------------------------------------------------------


def test_a_task_object_brings_its_clients(task, tmp_path):
    result = run("algorithm=fedasync", task=task, output=tmp_path)
    assert (result.summary["task"], result.summary["num_clients"]) == ("digits", 12)
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert config.task.num_examples == 1437
    other = build_task(make_config("num_clients=12", "partition=iid", "seed=1"))
    custom = replace(task, objective=task.objective.with_loss(lambda output, _: output.mean()))
    random = replace(task, augment=lambda inputs: inputs)
    for other_task, message in [
        (other, r"task\.crc32="),
        *((t, "code.*lam") for t in (custom, random)),
    ]:
        with pytest.raises(ValueError, match=message):
            run("algorithm=fedasync", "resume=auto", task=other_task, output=tmp_path)


class Slower(UniformRatio):
    """Devices of a user's own."""


def test_the_code_of_devices_is_part_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setitem(sys.modules, "mine", sys.modules[__name__])
    run("devices._target_=mine.Slower", output="~/own")
    assert f"{__name__}.Slower" in OmegaConf.load(tmp_path / "own" / "config.yaml").code


def test_code_has_a_checksum_unless_it_is_installed():
    first, second = (lambda x: x + 1), (lambda x: x + 2)
    sums = [own_code(each) for each in (first, second, partial(first, 1), Mean(), Mean)]
    assert len({str(each) for each in sums}) == 4
    assert own_code(partial(first, object())) == own_code(partial(first, object()))
    assert own_code(partial(np.mean, axis=0), nn.Linear, FedBuff()) == {}


def test_a_strategy_object_brings_its_schedule_and_serves_several_runs(tmp_path):
    mine = Mean(0.5)
    first, second = (run(mine, "num_clients=12", output=tmp_path / str(i)) for i in range(2))
    assert first.summary["algorithm"] == "Mean"
    assert first.summary["client_updates"] == 4  # two versions of two updates each
    assert first.summary["model_sha256"] == second.summary["model_sha256"]
    assert mine.state == {}
    config = OmegaConf.load(first.folder / "config.yaml").algorithm
    assert config.strategy.factor == 0.5
    assert config.schedule == "Buffered(concurrency=3, buffer_size=2, refill='at_once')"


@pytest.mark.parametrize("trainer", [partial(Marking, mark=2.0), None])
def test_a_users_trainer_trains(trainer, tmp_path):
    rounds = Buffered(concurrency=2, buffer_size=2, refill="after_aggregation")
    settings = [Mean(), trainer] if trainer else [Needy()]
    result = run(*settings, rounds, "num_clients=12", output=tmp_path)
    mark = 2.0 if trainer else 0.0
    for array in result.model.values():
        np.testing.assert_allclose(array, mark, atol=1e-5)


def test_a_strategy_that_sets_the_work_in_its_orders_decides_the_work_per_update(tmp_path):
    class OneStep(Mean):
        def dispatch(self, model, client_id):
            return model.params, {"local_steps": 1}

        totals = staticmethod(lambda: {"stopped": 3.0})

    with pytest.warns(UserWarning, match="strategy have stopped, which are names of the run's own"):
        result = run(OneStep(), "num_clients=3", output=tmp_path)
    assert result.summary["work_per_update"] == "by OneStep"
    assert result.summary["stopped"] == "num_versions"


@dataclass(kw_only=True, eq=False, repr=False)
class Eager(LocalTrainer):
    """A trainer with defaults of its own, of which one is that of its base."""

    momentum: float = 0.5
    local_epochs: int = 1


class Eagerer(Eager):
    def __init__(self, task, *, weight_decay=0.01, **settings):
        super().__init__(task, weight_decay=weight_decay, **settings)


@pytest.mark.parametrize(
    ("overrides", "lr", "momentum"),
    [([], 0.25, 0.5), (["algorithm.client.local_lr=0.5", "algorithm.client.momentum=0"], 0.5, 0)],
)
def test_values_of_a_trainer_count_unless_an_override_gives_them(overrides, lr, momentum, tmp_path):
    run(Mean(), partial(Eagerer, local_lr=0.25), *overrides, output=tmp_path)
    client = OmegaConf.load(tmp_path / "config.yaml").algorithm.client
    assert (client.local_lr, client.momentum) == (lr, momentum)
    assert (client.local_epochs, client.weight_decay, client.upload) == (1, 0.01, "delta")
    with pytest.raises(ValueError, match=r"^Eager must be a subclass of .*MOONTrainer"):
        run("algorithm=moon", Eager, output=tmp_path)


# -- refusals -------------------------------------------------------------------------------------

OPAQUE = Mean()
OPAQUE.rule = lambda update: update


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["hydra.run.dir=x"], r"^hydra\.run\.dir=x has no effect here: give the folder as output="),
        (["experiment=quickstart"], r"^experiment=quickstart has no .*: .* fl_app\.compare"),
        ([f"seed={2**63}"], rf"^seed={2**63} must be an integer >= 0 and < 2\^63"),
        (["runtime=flower"], r"^runtime=flower must be inprocess or ray here: .* `flwr run`"),
        ([Mean(), "algorithm=fedavg"], r"^Mean and algorithm= are two algorithms"),
        ([Mean(), "algorithm.strategy.factor=2"], r"give it to the object, as Mean\(\.\.\.\)"),
        ([Mean], r"^Mean must be an object, such as Mean\(\)"),
        ([Buffered], r"^Buffered must be an object, such as Buffered\(\)"),
        ([FedAdam()], r"^FedAdam must be an AsyncStrategy: wrap it as fl_app\.asynchronous"),
        ([FedBuff(), Empty], r"^Empty\.__init__ must call super\(\)\.__init__\(task, \*\*settings"),
        ([Buffered(), "algorithm/schedule=fully_async"], r"the schedule is an object"),
        ([OPAQUE, *SMALL, "runtime.workers=1"], r"^strategy\.rule is a function, which a checkp"),
    ],
)
def test_bad_settings_are_refused(settings, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fl_app.run(*settings, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("override", ["task.model=cnn", "num_clients=7"])
def test_keys_that_a_task_object_decides_are_no_overrides(override, task, tmp_path):
    text = f"^{override} has no effect here: leave it out, because task= is an object"
    with pytest.raises(ValueError, match=text):
        fl_app.run(override, task=task, output=tmp_path)
    with pytest.raises(ValueError, match=r"a task is given as task="):
        fl_app.run(task, output=tmp_path)


def test_a_run_that_cannot_go_on_raises_and_leaves_its_files(tmp_path):
    with pytest.raises(RunError):
        run(Mean(1e38), "num_versions=20", "num_clients=12", output=tmp_path / "mine")
    assert fl_app.Result(tmp_path / "mine").summary["stopped"].startswith(("Diverged", "Stalled"))
    with pytest.raises(ValueError, match=r"must hold a run's .*: read one of .*mine$"):
        fl_app.Result(tmp_path)


def test_an_upload_that_cannot_become_an_update_ends_the_run(tmp_path):
    class ExtraVector(FedBuff):
        upload_extra = ("own",)

    with pytest.raises(ClientError, match=r"order \d+: extra vectors are none, expected own"):
        fl_app.run(*SMALL, ExtraVector(), output=tmp_path)


# -- the process ----------------------------------------------------------------------------------


def test_a_run_leaves_the_process_as_it_was(tmp_path):
    torch.manual_seed(7)
    before = torch.get_rng_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        fl_app.run(*SMALL[:2], "runtime.workers=1", output=tmp_path, progress=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(torch.get_rng_state(), before)
    assert multiprocessing.active_children() == []
    assert not GlobalHydra.instance().is_initialized()


def test_a_program_that_uses_hydra_itself_can_run(tmp_path):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        mine = GlobalHydra.instance().hydra
        assert run("num_clients=12", output=tmp_path).summary["num_clients"] == 12
        assert GlobalHydra.instance().hydra is mine


def test_a_run_in_a_thread_equals_one_in_the_main_thread(result, tmp_path):
    results: list[fl_app.Result] = []

    def work():
        results.append(run("num_clients=12", output=tmp_path))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert results[0].summary["model_sha256"] == result.summary["model_sha256"]


class Interrupting(Mean):
    """Sends Ctrl-C to its own process."""

    def aggregate(self, model, updates):
        if model.version == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return super().aggregate(model, updates)


def test_an_interrupted_run_returns_its_results_and_can_be_resumed(tmp_path, capsys):
    keys = ("num_clients=12", "num_versions=9")
    result = run(Interrupting(), *keys, output=tmp_path)
    assert result.summary["stopped"] == "interrupted"
    assert result.metrics["version"].tolist() == [0, 1, 2, 3, 4, 5]
    assert result.model.keys() == {"1.weight", "1.bias", "3.weight", "3.bias"}
    message = f'interrupted; to go on, add output="{tmp_path}" and "resume=auto" to the same call'
    assert message in capsys.readouterr().out
    whole = run(Interrupting(), *keys, "resume=auto", output=tmp_path)
    assert whole.summary["stopped"] == "num_versions"
    assert whole.metrics["version"].tolist() == list(range(10))


# -- names of the package: importing it imports nothing for them ----------------------------------

# Where torchvision lacks its operators, Python imports `fl_app.tasks.vision` at startup (.pth).
SHOW = """
import sys
before = {*sys.modules} - {"fl_app"}
import fl_app
assert {"run", "compare", "Result", "Comparison", "Task"} <= {*dir(fl_app)}
print(*{*sys.modules} - before)
"""
HEAVY = {"altair", "flwr", "hydra", "numpy", "omegaconf", "pandas", "torch"}


def test_importing_the_package_imports_nothing_else():
    command = [sys.executable, "-c", SHOW]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {*names}
    assert [name for name in names if name.startswith("fl_app")] == ["fl_app"]


def test_names_are_imported_on_first_use():
    assert fl_app.Task.__name__ == "Task"
    with pytest.raises(AttributeError, match=r"module 'fl_app' has no attribute 'nothing'"):
        _ = fl_app.nothing


# -- comparisons: the files of an experiment, and their numbers ------------------------------------


@pytest.mark.slow  # draws figures
def test_a_comparison_has_a_folder_a_table_over_seeds_and_a_picture(task, tmp_path):
    comparison = fl_app.compare(
        {
            "mine": [FedBuff(server_lr=0.5), "algorithm.schedule.buffer_size=3", "num_versions=3"],
            "fedasync": "algorithm=fedasync",
        },
        *SMALL,
        seeds=[0, 1],
        task=task,
        output=tmp_path / "mine",
        progress=False,
    )
    folder, table = comparison.folder, comparison.table
    cells = {"fedasync-seed0", "fedasync-seed1", "mine-seed0", "mine-seed1"}
    names = {path.name for path in folder.iterdir()}
    assert names == {*cells, "table.csv", "report.html", "figures"}
    assert {path.stem for path in (folder / "figures").glob("*.png")} >= {"accuracy", "overview"}
    assert fl_app.Comparison(folder).table.equals(table)
    assert table.index.tolist() == ["mine", "fedasync"]  # in the order of the argument
    for name, results in comparison.results.items():
        accuracies = [result.summary["final_accuracy"] for result in results]
        assert len(accuracies) == table.loc[name, "seeds"] == 2
        assert table.loc[name, "final_accuracy"] == pytest.approx(fmean(accuracies))
        assert table.loc[name, "final_accuracy_std"] == pytest.approx(stdev(accuracies))
    assert table["client_updates"].tolist() == [9, 2]  # settings of a cell override the common ones
    html = comparison._repr_html_()
    for text in ("acc.", " ±", "Unequal work", f"Files: {folder}", '<img src="data:image/'):
        assert text in html
    assert "fedasync (2 seeds): " in str(comparison.plot().chart.to_dict())
    assert "fedasync" in repr(comparison)


@pytest.mark.slow  # draws figures
def test_a_failed_run_is_reported_and_the_others_run(task, tmp_path):
    name = "algorithm.strategy.server_lr"
    cells = {"bad": f"{name}=1e30", "good": f"{name}=1"}
    with pytest.warns(UserWarning, match=r"^bad: (Diverged|Stalled): "):
        comparison = fl_app.compare(
            cells, *SMALL, "num_versions=6", task=task, output=tmp_path, progress=False
        )
    stopped = comparison.table["stopped"]
    assert stopped["bad"].startswith(("Diverged", "Stalled"))
    assert stopped["good"] == "num_versions"


@pytest.mark.parametrize(
    ("cells", "keywords", "message"),
    [
        ({}, {}, r"^cells=\{\} must be at least one"),
        ({"a": "num_versions=2"}, {"seeds": [1, 1]}, r"^seeds=\[1, 1\] must be"),
        ({"a": "num_versions=2"}, {"seeds": 3}, r"^seeds=3 must be a list such as \[0, 1, 2\]"),
        ({"a": "num_versions=2"}, {"seeds": "0,1"}, r"^seeds=0,1 must be a list such as"),
        ({"a": "seed=3"}, {}, r"^a: seed=3 has no effect here: give the seeds as seeds="),
        ({"7": "num_versions=2"}, {}, r"^cells='7' must be the name of a folder, and no number"),
        ({"x-seed1": "num_versions=2"}, {}, r"^cells=x-seed1 must be without -seedN at its end"),
        ({"a": "num_versions=2", "b": "algorithm=x"}, {}, r"^b: algorithm=x does not exist"),
    ],
)
def test_bad_comparisons_are_refused_before_anything_runs(cells, keywords, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        fl_app.compare(cells, output=tmp_path / "folder", progress=False, **keywords)
    assert not (tmp_path / "folder").exists()
