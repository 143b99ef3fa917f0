"""`python -m fl_app.search`, killed at random moments, continued, and side by side."""

import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra import initialize_config_dir
from omegaconf import OmegaConf

from fl_app.cli import CONF, compose
from fl_app.core.errors import RunError
from fl_app.runner.jobs import Ended, Job, Plan
from fl_app.runner.run import Ran
from fl_app.search.__main__ import main
from fl_app.search.cells import cells_to_search
from fl_app.search.search import digests
from fl_app.search.settings import split
from fl_app.search.space import grid

# The last key is of one cell alone, and not of the algorithm that runs without an experiment.
SPACE = "['algorithm.client.local_lr=tag(log,interval(0.01,1))']"
RATE = "search.space=algorithm.client.local_lr=interval(0.1,1)"
MOMENTUM = "['algorithm.strategy.momentum=interval(0.0,0.5)']"
WORDS = [
    "experiment=quickstart",
    "experiment.only=[fedbuff,wkafl]",
    "runtime.workers=0",
    "search.trials=4",
    "search.grid=3",
    "search.updates=60",
    "search.rungs=[20]",
    "search.seeds=[0,1]",
    f"experiment.space={SPACE}",
    f"experiment.spaces.wkafl={MOMENTUM}",
]


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "fl_app.search", *WORDS, f"search.folder={folder}", *more]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("searched")
    done = subprocess.run(
        command(folder, "search.test_seeds=[5]"), capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    assert "The best settings on fresh seeds: " in done.stdout
    return folder


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_cell_gets_the_same_trials_and_updates(searched: Path) -> None:
    trials = rows(searched)
    assert [row["cell"] for row in trials] == ["fedbuff"] * 4 + ["wkafl"] * 4
    assert {row["client_updates"] for row in trials if row["state"] == "complete"} == {"120"}
    rates = [float(row["algorithm.client.local_lr"]) for row in trials]
    assert rates[:3] == rates[4:7] == [0.01, 0.1, 1.0]
    momentum = [row["algorithm.strategy.momentum"] for row in trials]
    assert momentum[:7] == [""] * 4 + ["0.1"] * 3  # configured, until the grid has ended
    assert 0.0 <= float(momentum[7]) <= 0.5
    for row in trials:
        if row["state"] == "complete":
            of_seeds = [float(row["score_seed0"]), float(row["score_seed1"])]
            assert float(row["score"]) == pytest.approx(sum(of_seeds) / 2)
    assert not [*searched.glob("runs/*/*/*/events.jsonl")]  # removed when a trial ended
    assert [*searched.glob("test/*/events.jsonl")]
    assert not [*searched.glob("test/*/checkpoints/*")]  # hundreds of judged runs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_best_setting_is_run_on_fresh_seeds(searched: Path) -> None:
    best = OmegaConf.load(searched / "best.yaml")
    assert best.seeds == [0, 1]
    for cell in ("fedbuff", "wkafl"):
        mine = [r for r in rows(searched) if r["cell"] == cell and r["state"] == "complete"]
        top = max(mine, key=lambda row: float(row["score"]))
        key = "algorithm.client.local_lr"
        config = OmegaConf.load(searched / "test" / f"{cell}-seed5" / "config.yaml")
        assert config.algorithm.client.local_lr == float(top[key])
        assert f"{key}={top[key]}" in best.cells[cell]
        assert config.seed == 5
        assert config.max_updates == 60
    assert (searched / "test" / "report.html").is_file()
    page = (searched / "search.html").read_text()
    assert "The best settings" in page
    assert "Course of the search" in page


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_search_that_is_killed_at_random_moments_is_the_same(
    searched: Path, tmp_path: Path
) -> None:
    draw = random.Random(0)
    kills = 0
    for _ in range(12):
        with subprocess.Popen(
            command(tmp_path, "resume=auto"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                _, err = process.communicate(timeout=draw.uniform(2, 9) if kills < 4 else 200)
            except subprocess.TimeoutExpired:
                kills += 1
                os.killpg(process.pid, signal.SIGKILL)
                continue
        assert process.returncode == 0, err
        break
    assert kills >= 2
    assert rows(tmp_path) == rows(searched)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_search_side_by_side_is_the_same(searched: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "search.parallel=2"), capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    assert rows(tmp_path) == rows(searched)


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("delay", range(4))
def test_ctrl_c_tells_how_to_go_on(delay: int, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "search.trials=500"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            while not any(tmp_path.glob("runs/*/*/*/metrics.csv")):
                assert process.poll() is None, process.communicate()
                time.sleep(0.05)
            time.sleep(random.Random(delay).uniform(0, 2))  # within a run or between two
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert re.match(r"interrupted; to go on: python -m fl_app\.search .*resume=auto$", err)
    assert rows(tmp_path)
    assert (tmp_path / "search.html").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search.updates=10"], "search.space='' must be given for cell fedavg"),
        (["search.space=a.b=interval(0,1)", "search.updates=10"], "unknown key 'a.b'"),
        ([RATE], "search.updates=None must be given"),
        (
            [RATE, "search.updates=10", "search.rungs=[10]"],
            "search.rungs=[10.0] must be below max_updates=10",
        ),
        (
            [RATE, "search.updates=10", "search.rungs=[0.5]"],
            "search.rungs=[0.5] must be integers: they are client updates",
        ),
        (["experiment.seeds=[1]"], "experiment.seeds=... must be left out: use search.seeds"),
        (["experiment.tuned=x"], "experiment.tuned=... must be left out: the search has values of"),
        (
            ["search.updates=10", "+experiment.spaces.fedbuf=['a=1']"],
            "experiment.spaces.fedbuf=... must be left out: there is no cell fedbuf",
        ),
        (
            ["search.updates=10", "+experiment.spaces.fedbuff=['seeed=null']"],
            "experiment.spaces.fedbuff=seeed=null must be of a key of experiment.space: nothing is",
        ),
        (
            ["search.updates=10", "+experiment.spaces.fedbuff=null"],
            "search.space='' must be given for cell fedavg",
        ),
        (["overwrite=true"], "overwrite=true has no meaning here"),
        (["-m"], "-m is no key: a search takes words such as"),
        (
            [RATE, "search.updates=10", "search.folder=/proc/search"],
            "/proc/search cannot be written to",
        ),
        (["search.seeds=[0]", "search.test_seeds=[0]"], "search.seeds has [0], too"),
        (
            ["search.space=seed=choice(0,1)", "search.updates=10"],
            "search.space=seed must be none of",
        ),
        (["search.space=max_seconds=choice(1,2)", "search.updates=10"], "search.space=max_seconds"),
        (
            ["search.space=algorithm.client=choice(1,2)", "search.updates=10"],
            "unknown key 'algorithm.c",
        ),
        ([RATE, "search.updates=10", "target_accuracy=0.2"], "target_accuracy=0.2 must be null"),
        ([RATE, "search.updates=10", "seed=7"], "seed=7 must be left out: use search.seeds"),
        (
            [RATE, "search.updates=10", "algorithm.client.local_lr=0.7"],
            "algorithm.client.local_lr=0.7 must be left out: the search sets it in every trial",
        ),
        ([RATE, "search.updates=10", "++seed=7"], "seed=7 must be left out: use search.seeds"),
        (
            [RATE, "search.updates=10", "++algorithm.client.local_lr=0.7"],
            "algorithm.client.local_lr=0.7 must be left out: the search sets it in every trial",
        ),
        ([f"{RATE} algorithm.client.batch_size=null", "search.updates=10"], "batch_size=null must"),
        ([f"{RATE} {RATE[13:]}", "search.updates=10"], "must be of keys given once"),
        (
            ["search.space=algorithm.client.local_lr=interval(-1,1)", "search.updates=10"],
            "cell fedavg, algorithm.client.local_lr=-1.0: algorithm.client.local_lr=-1.0 must be",
        ),
        (
            ["search.space=algorithm.client.local_steps=interval(1,9)", "search.updates=10"],
            "worked with; int(interval(...)) tries integers",
        ),
        (["searc.trials=3"], "unknown key 'searc.trials'; did you mean search.trials?"),
        (["--config-dir=/nowhere"], "--config-dir=/nowhere must be a folder"),
        (
            [
                "experiment.only=[fedavg,wkafl]",
                "search.space=algorithm.strategy.server_lr=interval(0.1,1)",
                "search.updates=10",
            ],
            "'algorithm.strategy.server_lr' of cell fedavg: give ++experiment.spaces.wkafl",
        ),
    ],
)
def test_searches_that_mean_nothing_are_refused(
    words: list[str], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["experiment=quickstart", "experiment.only=[fedavg]", f"search.folder={tmp_path}/s"]
    more += ["experiment.space=[]", "max_updates=null", "num_versions=100"]
    assert main([*more, *words]) == 2
    assert told in capsys.readouterr().err
    assert not (tmp_path / "s").exists()


def quick(folder: Path, *more: str) -> int:
    """A search of one cell, whose trials have the rates 1e-4 and 0.5; each run takes a moment."""
    words = ["experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0"]
    words += ["search.updates=20", "search.grid=2", f"search.folder={folder}", "resume=auto"]
    if not any(word.startswith("search.space=") for word in more):
        words.append("search.space=algorithm.client.local_lr=choice(0.0001,0.5)")
    return main([*words, *more])


def judged(folder: Path) -> dict[str, tuple[int, float]]:
    """Seed and rate of the judged runs."""
    configs = {path.parent.name: OmegaConf.load(path) for path in folder.glob("test/*/config.yaml")}
    return {
        name: (config.seed, config.algorithm.client.local_lr) for name, config in configs.items()
    }


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_the_best_setting_is_judged_whatever_the_words_say(tmp_path: Path) -> None:
    """They may give a searched key that is not the first: the grid's trials have its value."""
    rates = "algorithm.client.local_lr=choice(0.0001,0.5)"
    more = [f"search.space=algorithm.client.batch_size=choice(16,32) {rates}"]
    more += ["algorithm.client.local_lr=0.0001", "search.trials=6", "search.test_seeds=[5]"]
    assert quick(tmp_path, *more) == 0
    tried = [float(row["algorithm.client.local_lr"]) for row in rows(tmp_path)]
    assert tried[:2] == [0.0001, 0.0001]
    assert 0.5 in tried
    assert judged(tmp_path) == {"fedbuff-seed5": (5, 0.5)}


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_judging_again_keeps_what_is_of_the_best_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path, "search.trials=1", "search.test_seeds=[5]") == 0
    assert judged(tmp_path) == {"fedbuff-seed5": (5, 0.0001)}
    assert quick(tmp_path, "search.trials=2") == 0
    assert "fedbuff-seed5 is removed: its setting is no longer the best" in capsys.readouterr().out
    assert judged(tmp_path) == {}
    assert quick(tmp_path, "search.trials=2", "search.test_seeds=[5]") == 0
    assert judged(tmp_path) == {"fedbuff-seed5": (5, 0.5)}
    before = (tmp_path / "test" / "fedbuff-seed5" / "events.jsonl").stat().st_mtime_ns
    assert quick(tmp_path, "search.trials=2", "search.test_seeds=[6]") == 0
    assert judged(tmp_path) == {"fedbuff-seed5": (5, 0.5), "fedbuff-seed6": (6, 0.5)}
    assert (tmp_path / "test" / "fedbuff-seed5" / "events.jsonl").stat().st_mtime_ns == before

    assert quick(tmp_path, "search.trials=1") == 2
    assert "search.trials=1 must be at least 2, which a cell has had" in capsys.readouterr().err
    file = tmp_path / "search.json"
    held = json.loads(file.read_text())
    held["cells"]["fedbuff"]["configuration"] = "of another one"
    file.write_text(json.dumps(held))
    assert quick(tmp_path, "search.trials=2") == 2
    assert "resume=auto: configuration of fedbuff has changed since" in capsys.readouterr().err
    assert judged(tmp_path).keys() == {"fedbuff-seed5", "fedbuff-seed6"}


def test_a_failure_of_the_machine_is_no_bad_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(jobs: deque[Job], *_: object, **__: object) -> Iterator[tuple[Job, Ended]]:
        yield jobs.popleft(), Ended(error=RunError("3 processes were killed"))

    with monkeypatch.context() as patched:
        patched.setattr("fl_app.search.search.carry_out", killed)
        assert quick(tmp_path, "search.trials=2") == 1
    assert "3 processes were killed" in capsys.readouterr().err
    assert quick(tmp_path, "search.trials=2") == 0
    assert [row["state"] for row in rows(tmp_path)] == ["complete", "complete"]


@pytest.mark.slow
def test_a_run_that_versions_end_early_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a trial, and as a judged run: its seed may need more versions for the same updates."""
    assert quick(tmp_path / "trial", "search.trials=2", "num_versions=1") == 2
    told = "num_versions=1 must be larger, for cell fedbuff: it ended the run before max_updates=20"
    assert told in capsys.readouterr().err
    more = ["search.trials=2", "num_versions=1", "search.rungs=[15]"]
    assert quick(tmp_path / "rung", *more) == 2
    assert told.replace("20", "15") in capsys.readouterr().err

    def short(plans: dict[str, Plan], *_: object, **__: object) -> Ran:
        short = {"client_updates": 19, "stopped": "num_versions", "num_versions": 3}
        return Ran([], False, dict.fromkeys(plans, short), {}, interrupted=False)

    monkeypatch.setattr("fl_app.search.judging.run_cells", short)
    monkeypatch.setattr("fl_app.search.judging.print_table", print)
    assert quick(tmp_path / "judged", "search.trials=2", "search.test_seeds=[5]") == 2
    assert "num_versions=3 must be larger, for fedbuff-seed5: it" in capsys.readouterr().err


def test_seconds_replace_the_updates_of_the_experiment(tmp_path: Path) -> None:
    words = ["experiment=benchmark", "experiment.only=[fedbuff@n10-iid]"]
    for given, budget in ((10, ("max_seconds", 10)), (None, ("max_updates", 2000))):
        own = [*words, *([f"search.seconds={given}"] if given else [])]
        settings, others = split([*own, "search.trials=2"])
        with initialize_config_dir(str(CONF), version_base="1.3"):
            (cell,) = cells_to_search(settings, compose(others), others, tmp_path)
        assert cell.budget == budget
        assert (cell.config.max_updates is None) == (given is not None)


def test_a_changed_end_of_a_cell_is_a_changed_configuration(tmp_path: Path) -> None:
    """It may come from an edited file of conf/, which no word tells."""
    found = []
    for end in ("num_versions=400", "num_versions=300", "max_seconds=3"):
        words = ["experiment=benchmark", "experiment.only=[fedbuff@n10-iid]", end]
        settings, others = split([*words, "search.trials=2"])
        with initialize_config_dir(str(CONF), version_base="1.3"):
            (cell,) = cells_to_search(settings, compose(others), others, tmp_path)
        found.append(digests(cell))
    assert len({each["configuration"] for each in found}) == 3
    assert len({each["space"] for each in found}) == 1


def test_a_search_goes_on_with_the_same_code_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its trials could not be compared. Comments and docstrings may change."""
    monkeypatch.syspath_prepend(tmp_path)
    code = "from fl_app.algorithms.fedbuff import FedBuff\n\nclass Mine(FedBuff):\n    rounds = 1\n"
    (tmp_path / "my_buffer.py").write_text(code)
    more = ["algorithm.strategy._target_=my_buffer.Mine", "search.trials=2"]
    folder = tmp_path / "search"
    assert quick(folder, *more) == 0
    (tmp_path / "my_buffer.py").write_text(f'"""Mine."""\n{code}  # one\n')
    assert quick(folder, *more) == 0
    (tmp_path / "my_buffer.py").write_text(code.replace("1", "2"))
    assert quick(folder, *more) == 2
    assert "resume=auto: code (my_buffer) of fedbuff has changed since" in capsys.readouterr().err


def test_a_search_with_other_words_names_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path, "search.trials=2") == 0
    assert quick(tmp_path, "search.trials=2", "eval_every=1", "search.measure=best") == 2
    assert "with other words (search.measure, eval_every=1): give" in capsys.readouterr().err


def test_a_search_goes_on_without_files_of_its_runs(tmp_path: Path) -> None:
    """Its journal has the scores."""
    assert quick(tmp_path, "search.trials=2") == 0
    shutil.rmtree(tmp_path / "runs")
    assert quick(tmp_path, "search.trials=3") == 0
    assert [row["state"] for row in rows(tmp_path)] == ["complete"] * 3


def test_choices_that_need_each_other_are_searched(tmp_path: Path) -> None:
    """A buffer of 20 needs 20 clients at work, which is neither the first nor the last choice."""
    sizes = "search.space=algorithm.schedule.buffer_size=choice(5,20)"
    words = [
        "experiment=quickstart",
        "experiment.only=[fedbuff]",
        "search.trials=2",
        "search.grid=2",
    ]
    words += [f"{sizes} algorithm.schedule.concurrency=choice(10,20,15)", "search.updates=10"]
    settings, others = split(words)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert len(cells_to_search(settings, compose(others), others, tmp_path)) == 1


def test_a_search_leaves_runs_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "fedbuff").mkdir()
    (tmp_path / "fedbuff" / "events.jsonl").touch()
    assert quick(tmp_path, "search.trials=2") == 2
    assert "must be a new folder: it holds runs" in capsys.readouterr().err
    assert not (tmp_path / "search.json").exists()


@pytest.mark.slow
def test_options_of_a_folder_of_one_s_own_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = (CONF / "experiment" / "quickstart.yaml").read_text().replace("quickstart", "mine")
    folder = tmp_path / "my options"
    (folder / "experiment").mkdir(parents=True)
    (folder / "experiment" / "mine.yaml").write_text(mine)
    words = ["experiment=mine", "search.trials=2", "search.test_seeds=[5]"]
    assert quick(tmp_path / "search", *words, f"--config-dir={folder}") == 0
    assert judged(tmp_path / "search").keys() == {"fedbuff-seed5"}
    assert quick(tmp_path / "other", *words, "algorithm.strategy.sever_lr=1") == 2
    assert "experiment=mine does not exist" in capsys.readouterr().err


@pytest.mark.slow
def test_what_a_score_is_measured_over_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedASMU makes a version of each update, FedBuff one of ten."""
    words = ["experiment.only=[fedbuff,fedasmu]", "search.updates=200", "search.trials=1"]
    assert quick(tmp_path / "a", *words, "eval_every=2", "num_versions=null") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "note: search.trials=1 tries the first of the grid's 2 values only" in told
    assert "the last 18 client updates of fedasmu, and over the last 180 of fedbuff" in told
    assert "and over the last 180 of fedbuff" in (tmp_path / "a" / "search.html").read_text()
    assert quick(tmp_path / "b", *words, "search.measure=final", "num_versions=null") == 0
    assert "the last 18" not in capsys.readouterr().out


def test_a_search_by_seconds_has_rungs_in_seconds(tmp_path: Path) -> None:
    words = ["experiment=quickstart", "experiment.only=[fedbuff]", "runtime.workers=0", RATE]
    words += ["search.seconds=8", "search.rungs=[2.5]", "search.trials=2", "search.grid=2"]
    assert main([*words, f"search.folder={tmp_path}"]) == 0
    (last,) = tmp_path.glob("runs/fedbuff/1/seed0/summary.json")
    assert json.loads(last.read_text())["virtual_seconds"] == 8
    with (tmp_path / "study.jsonl").open() as file:
        rungs = [json.loads(line) for line in file if '"intermediate_value"' in line]
    assert [each["step"] for each in rungs] == [0, 1, 0, 1]
    assert rungs[0]["intermediate_value"] != rungs[1]["intermediate_value"]


@pytest.mark.slow
def test_a_diverged_run_ends_its_trial_and_not_the_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = "search.space=algorithm.client.local_lr=choice(1e30,0.5)"
    assert quick(tmp_path / "one", rates, "search.trials=2") == 0
    bad, good = rows(tmp_path / "one")
    assert (bad["state"], bad["score"]) == ("pruned", "")
    assert bad["error"].startswith("seed 0: ")
    assert (good["state"], good["error"]) == ("complete", "")
    assert "algorithm.client.local_lr=0.5" in capsys.readouterr().out

    rates = "search.space=algorithm.client.local_lr=choice(1e30,1e29)"
    assert quick(tmp_path / "all", rates, "search.trials=2", "search.test_seeds=[5]") == 0
    assert "fedbuff is not judged: none of its trials was completed" in capsys.readouterr().out
    assert not (tmp_path / "all" / "test").exists()


def test_a_refused_value_ends_the_search_and_leaves_what_was_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = ("buffer_size=choice(5,20)", "concurrency=choice(10,20)")
    space = f"search.space={' '.join(f'algorithm.schedule.{key}' for key in keys)}"
    for _ in range(2):  # it cannot go on
        assert quick(tmp_path, space, "search.trials=2", "algorithm.schedule.concurrency=10") == 2
        assert (
            "fedbuff, trial 1: algorithm.schedule.buffer_size=20 must be" in capsys.readouterr().err
        )
        assert [row["state"] for row in rows(tmp_path)] == ["complete", "running"]
        assert OmegaConf.load(tmp_path / "best.yaml").cells.fedbuff
    assert (tmp_path / "search.html").is_file()


def test_runs_without_a_score_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quick(tmp_path, "search.trials=2", "runtime.train=false") == 2
    told = "search.measure=last10 must be that of a score, which the runs of cell fedbuff do not"
    assert told in capsys.readouterr().err


def test_ctrl_c_waits_for_the_runs_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They save a checkpoint. Without this the first one that has ended ends the others."""
    ended = []

    def interrupted(jobs: deque[Job], *_: object, **__: object) -> Iterator[tuple[Job, Ended]]:
        for job in list(jobs):
            yield job, Ended(interrupted=True)
            ended.append(job.name)

    monkeypatch.setattr("fl_app.search.search.carry_out", interrupted)
    quick(tmp_path, "search.trials=2", "experiment.only=[fedbuff,wkafl]")
    assert ended == ["fedbuff, trial 0, seed 0", "wkafl, trial 0, seed 0"]


def test_a_second_search_in_a_folder_leaves_the_first_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hold = "with open_log(Path(sys.argv[1]), None): print(flush=True), sys.stdin.read()"
    hold = f"import sys; from pathlib import Path; from fl_app.core.files import open_log\n{hold}"
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "search.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as first:
        assert first.stdout is not None
        first.stdout.readline()
        assert quick(tmp_path, "search.trials=2") == 1
        first.communicate()
    assert "search.lock" in capsys.readouterr().err
    assert not (tmp_path / "search.json").exists()


def test_a_search_goes_on_in_a_folder_that_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["experiment=quickstart", "resume=auto"]) == 2
    assert "error: resume=auto needs search.folder=" in capsys.readouterr().err


def test_a_search_needs_an_experiment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["algorithm=fedbuff", "search.updates=10"]) == 2
    assert "error: experiment=null must be the name of an experiment" in capsys.readouterr().err


def test_a_folder_that_holds_a_search_is_continued_on_demand_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.json").write_text('{"search": {"seed": 1}, "words": []}')
    words = [f"search.folder={tmp_path}", *WORDS]
    assert main(words) == 2
    assert "must be a new folder, or one to go on with by resume=auto" in capsys.readouterr().err
    assert main([*words, "resume=auto"]) == 2
    assert "holds a search with other words (search.space, " in capsys.readouterr().err


def test_help_names_every_key(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    told = capsys.readouterr().out
    assert "  search.test_seeds=[]: with each of which" in told
    assert "  search.measure=last10: of a run" in told


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("setting", ["n10-dir0.1", "n100-dir0.1", "n100-slow"])
def test_every_method_of_the_benchmark_has_the_budget_and_a_space(
    setting: str, tmp_path: Path
) -> None:
    words = ["experiment=benchmark", f"experiment.only=['@{setting}']"]
    settings, words = split([*words, "search.trials=9", "search.grid=6"])
    config = compose(words)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cells = cells_to_search(settings, config, words, tmp_path)
    assert len(cells) == 39
    for cell in cells:
        assert cell.budget == ("max_updates", 2000)
        configured = {key: OmegaConf.select(cell.config, key) for key in cell.space}
        first = grid(cell.space, 6, configured)
        assert len(first) == 6
        # The other keys begin with what the method is configured to.
        assert all(values.keys() == cell.space.keys() for values in first), cell.name
        rate, *_ = cell.space
        common = configured[rate]
        wanted = [common / 27, common / 9, common / 3, common, common * 3, common * 9]
        moved = first[0][rate] / wanted[0]
        factor = 1 / 9 if cell.name in config.experiment.spaces else 1
        assert min(moved, 1 / moved) == pytest.approx(factor, rel=0.02)
        rates = [values[rate] / moved for values in first]
        assert rates == pytest.approx(wanted, rel=0.02), cell.name
