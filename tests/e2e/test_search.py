"""`python -m fl_app.search`: results, continuation, parallel trials; and the benchmark."""

import json
from signal import SIGTERM
from unittest.mock import Mock

import pandas as pd
import pytest
from helpers import python
from omegaconf import OmegaConf

from fl_app.benchmark.__main__ import main as benchmark
from fl_app.core.errors import Interrupted
from fl_app.search.__main__ import main

RATE = "params_algorithm.client.local_lr"
# Only one cell has the last key; the algorithm that runs without an experiment has not.
WORDS = [
    *("experiment=quickstart", "experiment.only=[fedbuff,wkafl]", "runtime.workers=0"),
    *("search.trials=4", "search.grid=3", "search.updates=60"),
    "search.seeds=[0,1]",
    "experiment.space=['algorithm.client.local_lr=tag(log,interval(0.01,1))']",
    "experiment.spaces.wkafl=['algorithm.strategy.momentum=interval(0.0,0.5)']",
]


def search(folder, *more, **options):
    python("-m", "fl_app.search", *WORDS, f"search.folder={folder}", *more, **options)


def trials(folder):
    return pd.read_csv(folder / "trials.csv")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("searched")
    search(folder, "search.test_seeds=[5]", timeout=250)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_cell_gets_the_same_trials_and_its_best_setting_is_judged(study):
    table = trials(study)
    assert list(table.cell) == ["fedbuff"] * 4 + ["wkafl"] * 4
    assert list(table[RATE][:3]) == list(table[RATE][4:7]) == [0.01, 0.1, 1.0]
    momentum = table["params_algorithm.strategy.momentum"]
    assert list(momentum[4:7]) == [0.1] * 3  # as configured, until the grid has ended
    assert 0.0 <= momentum[7] <= 0.5
    assert not [*study.glob("runs/*/*/events.jsonl")]  # removed when a trial ended
    updates = {json.loads(path.read_text())["client_updates"] for path in study.glob("*/*/*/su*")}
    assert updates == {60}
    best = OmegaConf.load(study / "best.yaml")
    assert best.seeds == [0, 1]
    for cell, rows in table[table.state == "COMPLETE"].groupby("cell"):
        top = rows.loc[rows.value.idxmax()]
        config = OmegaConf.load(study / "test" / f"{cell}-seed5" / "config.yaml")
        assert config.algorithm.client.local_lr == top[RATE]
        assert f"algorithm.client.local_lr={top[RATE]}" in best.cells[cell]
        assert (config.seed, config.max_updates) == (5, 60)
    assert (study / "test" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_search_side_by_side_is_the_same(study, tmp_path):
    search(tmp_path, "search.parallel=2", "search.trials=2")
    whole = trials(study)
    first = whole[whole.number < 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(trials(tmp_path), first)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["experiment.space=[]"], "search.space='' must be given for cell fedavg"),
        (["search.space=algorithm.client=choice(1,2)"], "unknown key 'algorithm.client'"),
        (["search.space=seed=choice(0,1)"], "search.space=seed must be none of"),
        (
            [
                "search.space=algorithm.client.local_epochs=choice(1,2)",
                "algorithm.client.local_steps=3",
            ],
            "local_epochs would change nothing: algorithm.client.local_steps=3",
        ),
        (["search.updates=null", "num_versions=9"], "search.updates=None must be given"),
        (["++seed=7"], "seed=... must be left out: there are search.seeds"),
        (["++experiment.spaces.fedbuf=['a=1']"], "experiment.spaces.fedbuf=... must be of a cell"),
        (["runtime.train=false"], "runtime.train=false must be true"),
        (["-m"], "-m has no meaning here"),
        (["search.folder=/proc/search"], "/proc/search cannot be written to"),
    ],
)
def test_searches_that_mean_nothing_are_refused(overrides, message, tmp_path, capsys):
    assert quick(tmp_path / "s", "experiment.only=[fedavg]", *overrides) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def quick(folder, *more):
    """Search one cell, whose trials have the rates 1e-4 and 0.5; each run is short."""
    options = ["experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0"]
    options += ["search.updates=20", "search.grid=2", "search.trials=2", f"search.folder={folder}"]
    options.append("experiment.space=['algorithm.client.local_lr=choice(0.0001,0.5)']")
    options.append("max_updates=null")
    return main([*options, *more])


@pytest.mark.slow
def test_a_resumed_search_tests_the_best_setting_so_far(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("fl_app.search.search.LINE_EVERY", 0)

    def tested_rates():
        configs = {path.parent.name: path for path in tmp_path.glob("test/*/config.yaml")}
        return {n: OmegaConf.load(p).algorithm.client.local_lr for n, p in configs.items()}

    two = "+experiment.spaces.fedbuff=['algorithm.strategy.server_lr=choice(0.5,1)']"
    assert quick(tmp_path / "two", two) == 0
    told = capsys.readouterr().out
    assert "none tries algorithm.strategy.server_lr (give" in told
    assert "trial 2 of 2: 1 of 1 runs, 0 min left\ntrial 2 of 2; best so far: fedbuff" in told
    assert quick(tmp_path, "search.trials=1", "search.test_seeds=[5]") == 0
    assert "the upper end of algorithm.client.local_lr is not tried" in capsys.readouterr().out
    assert tested_rates() == {"fedbuff-seed5": 0.0001}
    assert quick(tmp_path) == 2
    assert "must be a new folder, or one to go on with by resume=auto" in capsys.readouterr().err
    assert quick(tmp_path, "resume=auto", "search.test_seeds=[6]") == 0
    assert "fedbuff-seed5 is removed: another setting" in capsys.readouterr().out
    assert tested_rates() == {"fedbuff-seed6": 0.5}
    assert quick(tmp_path, "resume=auto", "search.test_seeds=[7]") == 0
    assert tested_rates() == {"fedbuff-seed7": 0.5}
    assert quick(tmp_path, "resume=auto", "eval_every=1") == 2
    assert "must be the folder of a search with the same words" in capsys.readouterr().err
    given = tmp_path / "search.json"
    given.write_text(given.read_text().replace('"fedbuff": {}', '"fedbuff": {"mine.Own": 7}'))
    assert quick(tmp_path, "resume=auto") == 2  # its code has changed


def test_a_search_needs_an_experiment_and_a_folder_to_go_on_with(capsys):
    assert main(["algorithm=fedbuff", "search.updates=10"]) == 2
    assert "error: experiment=null must be the name of an experiment" in capsys.readouterr().err
    assert main(["experiment=quickstart", "resume=auto"]) == 2
    assert "error: resume=auto needs search.folder=" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "test_seeds: the best setting of every cell" in capsys.readouterr().out


def test_the_exit_status_names_the_signal_that_ended_the_search(monkeypatch, capsys):
    monkeypatch.setattr("fl_app.runner.signals.received", SIGTERM)
    monkeypatch.setattr("fl_app.search.search.search", Mock(side_effect=Interrupted))
    assert main(["experiment=quickstart", "search.folder=here"]) == 128 + SIGTERM
    assert capsys.readouterr().err.endswith(
        " experiment=quickstart search.folder=here resume=auto\n"
    )


def test_a_diverged_run_ends_its_trial_and_not_the_search(tmp_path, capsys):
    rates = "search.space=algorithm.client.local_lr=choice(1e30,0.5)"
    assert quick(tmp_path, rates, "search.updates=20") == 0
    bad, good = trials(tmp_path).itertuples()
    assert (bad.state, good.state) == ("PRUNED", "COMPLETE")
    assert trials(tmp_path).user_attrs_error[0].startswith("seed 0: ")
    assert "fedbuff: algorithm.client.local_lr=0.5" in capsys.readouterr().out


# -- entries of the benchmark ----------------------------------------------------------------------

TINY = [
    *("task=digits", "task.model=logistic", "num_clients=10", "experiment.report_accuracy=0.2"),
    *("max_updates=30", "num_versions=30", "eval_every=1"),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_strategy_of_flower_is_scored_and_its_page_rebuilt(tmp_path, capsys, monkeypatch):
    target = "examples.fedsasync.FedSaSync"
    arguments = [target, "algorithm/schedule=round_blocking", "algorithm.schedule.buffer_size=4"]
    arguments += ["--quick", "--peers", "fedbuff"]
    arguments += ["--folder", str(tmp_path / "one"), "--parallel", "1", "--common", *TINY]
    assert benchmark(arguments) == 0
    folder = tmp_path / "one"
    trials = pd.read_csv(folder / "search" / "trials.csv")
    counts = trials.groupby("cell").size().to_dict()
    assert counts == {"entry-FedSaSync@n10-dir0.1": 3, "fedbuff@n10-dir0.1": 3}
    assert set(trials[trials.cell == "fedbuff@n10-dir0.1"].state) == {"COMPLETE"}
    page = (folder / "page.md").read_text()
    assert "entry-FedSaSync is number" in page
    assert "Its schedule: RoundBlocking." in page
    assert "`algorithm.client.local_lr=tag(log,interval(0.00185,0.45))`" in page
    assert len(json.loads((folder / "results.json").read_text())["runs"]) == 2 * 3
    assert capsys.readouterr().out.count("holds") == 4

    (folder / "page.md").unlink()
    monkeypatch.setattr("fl_app.runner.run._run", None)  # nothing may run
    assert benchmark(arguments) == 0
    assert (folder / "page.md").read_text() == page

    capsys.readouterr()
    assert benchmark([*arguments, "eval_every=2"]) == 2  # other runs in the same folder
    assert "--folder=" in capsys.readouterr().err


def test_refused_input_names_the_reason(tmp_path, capsys):
    (tmp_path / "y.csv").write_text("x,y\n" + "1,0.5\n2,1.5\n" * 1000)
    states = ["--experiment", "benchmark_states"]
    table = ["task=csv", f"task.path={tmp_path / 'y.csv'}", "task.target=y", "task.kind=regression"]
    for arguments, message in [
        (["fedbuff", "--common", "partition=iid"], "unknown key 'partition.alpha'"),
        (["fedbuff", "--common", *table], "--common=rmse must be a task with accuracy"),
        (["fedhits"], "did you mean fedhist"),
        (["fedbuff", "algorithm.strategy.server_rl=1"], "server_rl"),
        (["fedbuff", "--settings", "n7"], "--settings=n7 must be one of n10-dir0.1, n10-dir0.3, "),
        (["fedbuff", *states, "--settings", "n10-iid"], "--settings=n10-iid must be one of n10-ch"),
        (["fedbuff", "--peers", "fedbuf"], "--peers=fedbuf must be one of "),
    ]:  # nothing has run, so the same folder can be used
        assert benchmark([*arguments, "--folder", str(tmp_path / "one")]) == 2
        assert message in capsys.readouterr().err
