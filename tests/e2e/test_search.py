"""`python -m fl_app.search`, killed at random moments, continued, and side by side."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from fl_app.cli import CONF
from fl_app.search.__main__ import main
from fl_app.search.search import budget_of, cells_of, space_of
from fl_app.search.settings import Settings
from fl_app.search.space import grid

RATE = "params_algorithm.client.local_lr"
# The last key is of one cell alone, and not of the algorithm that runs without an experiment.
WORDS = [
    *("experiment=quickstart", "experiment.only=[fedbuff,wkafl]", "runtime.workers=0"),
    *("search.trials=4", "search.grid=3", "search.updates=60", "search.rungs=[20]"),
    *(
        "search.seeds=[0,1]",
        "experiment.space=['algorithm.client.local_lr=tag(log,interval(0.01,1))']",
    ),
    "experiment.spaces.wkafl=['algorithm.strategy.momentum=interval(0.0,0.5)']",
]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fl_app.search", *WORDS, f"search.folder={folder}", *more]


def trials(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "trials.csv")


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    subprocess.run(command(folder, "search.test_seeds=[5]"), check=True, timeout=250)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_cell_gets_the_same_trials_and_its_best_setting_is_judged(searched: Path) -> None:
    table = trials(searched)
    assert list(table.cell) == ["fedbuff"] * 4 + ["wkafl"] * 4
    assert list(table[RATE][:3]) == list(table[RATE][4:7]) == [0.01, 0.1, 1.0]
    momentum = table["params_algorithm.strategy.momentum"]
    assert list(momentum[4:7]) == [0.1] * 3  # configured, until the grid has ended
    assert 0.0 <= momentum[7] <= 0.5
    assert not [*searched.glob("runs/*/*/events.jsonl")]  # removed when a trial ended
    spent = {json.loads(path.read_text())["client_updates"] for path in searched.glob("*/*/*/su*")}
    assert spent == {20, 60} if "PRUNED" in {*table.state} else {60}
    best = OmegaConf.load(searched / "best.yaml")
    assert best.seeds == [0, 1]
    for cell, own in table[table.state == "COMPLETE"].groupby("cell"):
        top = own.loc[own.value.idxmax()]
        config = OmegaConf.load(searched / "test" / f"{cell}-seed5" / "config.yaml")
        assert config.algorithm.client.local_lr == top[RATE]
        assert f"algorithm.client.local_lr={top[RATE]}" in best.cells[cell]
        assert (config.seed, config.max_updates) == (5, 60)
    assert (searched / "test" / "report.html").is_file()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_that_is_killed_at_random_moments_or_runs_side_by_side_is_the_same(
    searched: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    for kill in (True, True, False):
        with subprocess.Popen(
            command(tmp_path, "resume=auto", "search.parallel=2"), start_new_session=True
        ) as process:
            try:
                process.wait(draw.uniform(6, 12) if kill else 300)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0
    pd.testing.assert_frame_equal(trials(tmp_path), trials(searched))


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ctrl_c_tells_how_to_go_on(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "search.trials=500"), stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            while not any(tmp_path.glob("runs/1/*/metrics.csv")):
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.match(r"interrupted; to go on: python -m fl_app\.search .*resume=auto$", err)
    assert len(trials(tmp_path)) > 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["experiment.space=[]"], "search.space='' must be given for cell fedavg"),
        (["search.space=a.b=interval(0,1)"], "unknown key 'a.b' of cell fedavg"),
        (["search.space=algorithm.client=choice(1,2)"], "unknown key 'algorithm.client'"),
        (["search.space=seed=choice(0,1)"], "search.space=seed must be none of"),
        (["search.space=max_seconds=choice(1,2)"], "search.space=max_seconds must be none of"),
        (["search.updates=null", "num_versions=9"], "search.updates=None must be given"),
        (["search.rungs=[10]"], "search.rungs=[10.0] must be client updates or seconds below"),
        (["search.rungs=[0.5]"], "search.rungs=[0.5] must be client updates"),
        (["experiment.seeds=[1]"], "experiment.seeds=... must be left out"),
        (["++seed=7"], "seed=... must be left out: there are search.seeds"),
        (["++experiment.spaces.fedbuf=['a=1']"], "experiment.spaces.fedbuf=... must be of a cell"),
        (["target_accuracy=0.2"], "target_accuracy=... must be null"),
        (["-m"], "-m has no meaning here"),
        (["search.folder=/proc/search"], "/proc/search cannot be written to"),
        (["algorithm.client.local_lrr=1"], "unknown key 'algorithm.client.local_lrr'"),
    ],
)
def test_searches_that_mean_nothing_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path / "s", "experiment.only=[fedavg]", *words) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def quick(folder: Path, *more: str) -> int:
    """A search of one cell, whose trials have the rates 1e-4 and 0.5; each run takes a moment."""
    words = ["experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0"]
    words += ["search.updates=10", "search.grid=2", "search.trials=2", f"search.folder={folder}"]
    words += [
        "max_updates=null",
        "experiment.space=['algorithm.client.local_lr=choice(0.0001,0.5)']",
    ]
    return main([*words, *more])


@pytest.mark.slow
def test_a_search_goes_on_and_judges_what_is_best_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def judged() -> dict[str, float]:
        configs = {path.parent.name: path for path in tmp_path.glob("test/*/config.yaml")}
        return {n: OmegaConf.load(p).algorithm.client.local_lr for n, p in configs.items()}

    assert quick(tmp_path, "search.trials=1", "search.test_seeds=[5]") == 0
    assert judged() == {"fedbuff-seed5": 0.0001}
    assert quick(tmp_path) == 2
    assert "must be a new folder, or one to go on with by resume=auto" in capsys.readouterr().err
    assert quick(tmp_path, "resume=auto", "search.test_seeds=[6]") == 0
    assert "fedbuff-seed5 is removed: its setting is no longer" in capsys.readouterr().out
    assert judged() == {"fedbuff-seed6": 0.5}
    assert quick(tmp_path, "resume=auto", "eval_every=1") == 2
    assert "must be the folder of a search with the same words" in capsys.readouterr().err


def test_a_search_needs_an_experiment_and_a_folder_to_go_on_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["algorithm=fedbuff", "search.updates=10"]) == 2
    assert "error: experiment=null must be the name of an experiment" in capsys.readouterr().err
    assert main(["experiment=quickstart", "resume=auto"]) == 2
    assert "error: resume=auto needs search.folder=" in capsys.readouterr().err
    assert main(["--help"]) == 0
    assert "test_seeds: with each of which" in capsys.readouterr().out


def test_a_diverged_run_ends_its_trial_and_not_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = "search.space=algorithm.client.local_lr=choice(1e30,0.5)"
    assert quick(tmp_path, rates, "search.updates=20") == 0
    bad, good = trials(tmp_path).itertuples()
    assert (bad.state, good.state) == ("PRUNED", "COMPLETE")
    assert trials(tmp_path).user_attrs_error[0].startswith("seed 0: ")
    assert "fedbuff: algorithm.client.local_lr=0.5" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_every_method_of_the_benchmark_has_the_budget_and_a_space() -> None:
    words = ["experiment=benchmark", "experiment.only=['@n100-slow']"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cells = cells_of(words, words)
    settings = Settings(trials=9, grid=6)
    assert len(cells) == 39
    assert budget_of(settings, cells) == ("max_updates", 2000)
    for name, cell in cells.items():
        space = space_of(settings, name, cell)
        first = grid(space, 6, {key: OmegaConf.select(cell, key) for key in space})
        assert len(first) == 6
        # The other keys begin with what the method is configured to.
        assert all(values.keys() == space.keys() for values in first), name
        rate, *_ = space
        common = first[0][rate] * 27
        moved = common / OmegaConf.select(cell, rate)
        factor = 1 / 9 if name in cell.experiment.spaces else 1
        assert min(moved, 1 / moved) == pytest.approx(factor, rel=0.02)
        wanted = [common / 27, common / 9, common / 3, common, common * 3, common * 9]
        assert [values[rate] for values in first] == pytest.approx(wanted, rel=0.02), name
