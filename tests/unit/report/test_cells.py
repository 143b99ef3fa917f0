"""What a run's files say: its cells, their order and their names."""

import re

import pytest
from omegaconf import OmegaConf
from run_folders import (
    ROUNDS,
    aggregate,
    arrival,
    dispatch,
    evaluate,
    failure,
    reject,
    write_cell,
)

from fl_app.record.score import ACCURACY, LOSS
from fl_app.report.cells import read_cell, read_run


def orders_of(cell):
    """Of each order: client, start, end, what ended it, version, age, reason."""
    return [
        (o.client, o.start, cell.end(o), o.ended, o.version, o.age, o.reason)
        for o in cell.history.orders
    ]


def test_synchronous_clients_wait_for_the_slowest(tmp_path):
    write_cell(tmp_path, events=ROUNDS, algorithm="fedavg")
    cell = read_cell(tmp_path)
    assert orders_of(cell) == [
        (0, 0.0, 1.0, "arrival", 0, 0, ""),
        (1, 0.0, 3.0, "arrival", 0, 0, ""),
        (1, 3.0, 6.0, "arrival", 1, 0, ""),
        (0, 3.0, 4.0, "arrival", 1, 0, ""),
    ]
    assert cell.history.waits == [(0, 1.0, 3.0), (0, 4.0, 6.0)]
    assert cell.history.aggregations == [3.0, 6.0]
    assert cell.history.ages == {0: 4}
    assert cell.history.client_updates == 4
    assert cell.history.t == 6.0


CLUSTERS = {"kind": "cluster", "version": 0, "client": [0, 1], "cluster": [0, 0]}
TWO = [dispatch(0.0, 0), dispatch(0.0, 1), arrival(1.0, 0)]


@pytest.mark.parametrize(
    ("events", "waits"),
    [
        pytest.param(
            [*TWO, dispatch(1.0, 2), arrival(3.0, 1), aggregate(3.0, 1, [0, 1], [0, 0])],
            [],
            id="a place that is refilled at once does not wait",
        ),
        pytest.param(
            [
                *(*TWO, failure(2.0, 1), dispatch(2.0, 2), arrival(5.0, 2)),
                aggregate(5.0, 1, [0, 2], [0, 0]),
            ],
            [(0, 1.0, 5.0)],
            id="the refill of a failed place does not end the waiting of others",
        ),
        pytest.param(
            [
                *(*TWO, arrival(3.0, 1), {**CLUSTERS, "t": 3.0, "dropped": [0, 1]}),
                *(dispatch(3.0, 0), dispatch(3.0, 1), arrival(4.0, 0)),
                {**CLUSTERS, "t": 4.0, "dropped": []},
                *(arrival(6.0, 1), aggregate(6.0, 1, [0, 1], [0, 0])),
            ],
            [(0, 1.0, 3.0), (0, 4.0, 6.0)],
            id="who trained for clusters waits until they are formed",
        ),
    ],
)
def test_a_client_waits_while_its_place_is_empty(tmp_path, events, waits):
    write_cell(tmp_path, events=events)
    assert read_cell(tmp_path).history.waits == waits


def test_late_and_duplicate_replies_are_counted_and_train_nothing(tmp_path):
    events = [
        dispatch(0.0, 0),
        failure(2.0, 0),
        reject(3.0, client=0, base_version=0),
        reject(3.5),
        dispatch(4.0, 0),
        reject(5.0, client=0, base_version=0),
    ]
    write_cell(tmp_path, events=events)
    cell = read_cell(tmp_path)
    assert orders_of(cell) == [
        (0, 0.0, 2.0, "failure", 0, None, ""),
        (0, 4.0, 5.0, "reject", 0, None, "late"),
    ]
    history = cell.history
    assert (history.failures, history.rejected, history.client_updates) == (1, 3, 0)
    assert history.lost == {0: 2}
    assert [(mark.t, mark.client) for mark in history.marks] == [(3.0, 0), (3.5, None)]
    assert [trouble.t for trouble in history.troubles] == [2.0, 3.0, 3.5, 5.0]


def test_cells_come_in_the_order_of_algorithms_then_of_numbers_in_names(tmp_path):
    for name, algorithm in [
        ("mine", "my_own"),
        ("fedbuff-seed10", "fedbuff"),
        ("fedbuff-seed9", "fedbuff"),
        ("slow", "fedavg"),
        ("async", "fedasync"),
    ]:
        write_cell(tmp_path / name, events=ROUNDS, algorithm=algorithm)
    (tmp_path / "figures").mkdir()
    assert [cell.name for cell in read_run(tmp_path)] == [
        "slow",
        "async",
        "fedbuff-seed9",
        "fedbuff-seed10",
        "mine",
    ]


def test_jobs_come_in_the_order_of_the_command_and_cells_in_that_of_their_experiment(tmp_path):
    """Both have wkafl before fedavg, whose place among algorithms is the first one."""
    for job, algorithm in (("10", "fedavg"), ("9", "wkafl")):
        write_cell(tmp_path / "sweep" / job, events=ROUNDS, algorithm=algorithm)
    chosen = "experiment: {only: %s, cells: {fedavg: [], wkafl.2: []}, settings: {b: [], a: []}}"
    for name in ("wkafl.2@a", "wkafl.2@b-seed1", "fedavg@a"):
        for only in ("[wkafl.2, fedavg]", "['@a', '@b']", "null"):
            write_cell(tmp_path / only / name, events=ROUNDS)
            (tmp_path / only / name / "config.yaml").write_text(chosen % only)
    folders = {path.name: [cell.folder for cell in read_run(path)] for path in tmp_path.iterdir()}
    assert folders == {
        "sweep": ["9", "10"],
        "[wkafl.2, fedavg]": ["wkafl.2@b-seed1", "wkafl.2@a", "fedavg@a"],
        "['@a', '@b']": ["fedavg@a", "wkafl.2@a", "wkafl.2@b-seed1"],
        "null": ["wkafl.2@b-seed1", "fedavg@a", "wkafl.2@a"],
    }


def test_folder_without_cells_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=re.escape(f"run_folder={folder} must hold")):
            read_run(folder)


def test_configuration_says_what_was_run(tmp_path):
    text = "algorithm: {name: eafl}\ntask: {_target_: fl_app.tasks.digits.digits}\nseed: 3\n"
    write_cell(tmp_path, events=[])
    (tmp_path / "config.yaml").write_text(text)
    cell = read_cell(tmp_path)
    assert (cell.algorithm, cell.task, cell.seed, cell.config) == ("eafl", "digits", 3, text)
    images = "task: {_target_: fl_app.tasks.images.image_task, data: mnist}\n"
    (tmp_path / "config.yaml").write_text(images)
    assert read_cell(tmp_path).task == "mnist"
    (tmp_path / "config.yaml").write_text("seed: [")
    with pytest.raises(ValueError, match=r"config\.yaml is damaged: "):
        read_cell(tmp_path)


def test_a_run_without_a_summary_is_judged_by_what_was_measured(tmp_path):
    write_cell(tmp_path / "a", events=[evaluate(0.0, 0, 0.5)])
    write_cell(tmp_path / "b", events=[{"kind": "evaluate", "t": 0.0, "version": 0, "loss": 2.0}])
    assert [cell.score for cell in read_run(tmp_path)] == [ACCURACY, LOSS]


# -- sweeps ----------------------------------------------------------------------------------------


def write_job(sweep, number, *overrides, **changed):
    """A job as the run leaves it."""
    folder = sweep / str(number)
    folder.mkdir(parents=True)
    config = {"algorithm": {"name": "fedasync", "client": {"local_lr": 0.1}}, "seed": 0}
    values = [word for word in overrides if not word.startswith(("algorithm=", "partition="))]
    config = OmegaConf.merge(config, changed, OmegaConf.from_dotlist(values))
    OmegaConf.save(config, folder / "config.yaml")
    OmegaConf.save(OmegaConf.create(list(overrides)), folder / "overrides.yaml")
    write_cell(folder, events=ROUNDS)


RATE = "algorithm.client.local_lr"


@pytest.mark.parametrize(
    ("jobs", "names"),
    [
        (
            [[f"{RATE}=0.05", "seed=0"], [f"{RATE}=0.05", "seed=1"], [f"{RATE}=0.1", "seed=0"]],
            ["local_lr=0.05 seed=0", "local_lr=0.05 seed=1", "local_lr=0.1"],
        ),
        ([["a.alpha=1", "b.alpha=2"], ["a.alpha=2", "b.alpha=2.5"]], None),
        ([["+x=[1,2]"], ["+x=null"]], ["x=[1,2]", "x=null"]),
        ([["partition=iid"], ["partition=shards"]], ["partition=iid", "partition=shards"]),
        ([[f"{RATE}=1"], [f"{RATE}=1"]], ["0", "1"]),
        ([[], []], ["0", "1"]),
    ],
)
def test_jobs_are_named_after_what_was_varied(tmp_path, jobs, names):
    names = names or ["a.alpha=1 b.alpha=2", "a.alpha=2 b.alpha=2.5"]
    for number, overrides in enumerate(jobs):
        write_job(tmp_path, number, *overrides)
    assert [cell.name for cell in read_run(tmp_path)] == [f"fedasync {name}" for name in names]


def test_cells_of_experiments_in_a_sweep_have_what_was_varied_behind_their_names(tmp_path):
    for number, alpha in enumerate(("0.1", "1")):
        for name in ("fast-seed0", "fast-seed3", "slow"):
            folder = tmp_path / str(number) / name
            write_cell(folder, events=ROUNDS, algorithm="fedbuff")
            given = ["experiment=quickstart", f"partition.alpha={alpha}"]
            OmegaConf.save(OmegaConf.create(given), folder / "overrides.yaml")
            with (folder / "config.yaml").open("a") as file:
                file.write(f"seed: {name[-1] if name[-1].isdigit() else 0}\n")
    assert [(cell.name, cell.label, cell.folder) for cell in read_run(tmp_path)] == [
        ("fast alpha=0.1 seed=0", "fast alpha=0.1", "0/fast-seed0"),
        ("fast alpha=0.1 seed=3", "fast alpha=0.1", "0/fast-seed3"),
        ("slow alpha=0.1", "slow alpha=0.1", "0/slow"),
        ("fast alpha=1 seed=0", "fast alpha=1", "1/fast-seed0"),
        ("fast alpha=1 seed=3", "fast alpha=1", "1/fast-seed3"),
        ("slow alpha=1", "slow alpha=1", "1/slow"),
    ]
