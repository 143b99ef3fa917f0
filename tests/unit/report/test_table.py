"""The table of a run: its rows, as CSV, and on the console."""

import csv
import io
import re
from dataclasses import replace

import pytest
from helpers import (
    ASYNCHRONOUS,
    ROUNDS,
    SUMMARY,
    aggregate,
    arrival,
    dispatch,
    evaluate,
    failure,
    history_of,
    reject,
    write_cell,
    write_pair,
    write_seeds,
)
from omegaconf import OmegaConf
from rich.console import Console
from rich.text import Text

from fl_app import report
from fl_app.core.score import ACCURACY, LOSS, Score
from fl_app.report.__main__ import main
from fl_app.report.cells import Cell, read_cell, read_run
from fl_app.report.table import at_work, make_table, work_of


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def table_of(folder, target=0.9):
    return make_table(read_run(folder), target)


def print_table(table, **options):
    out = io.StringIO()
    table.print(Console(file=out, **options))
    return out.getvalue()


def csv_of(table, folder):
    table.write(folder / "table.csv")
    with (folder / "table.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_have_the_known_results_of_the_cells(tmp_path):
    write_pair(tmp_path)
    rounds, asynchronous = table_of(tmp_path).rows
    expected = {
        **{"cell": "fedavg", "algorithm": "fedavg"},
        **{"final_accuracy": 0.95, "best_accuracy": 0.95},
        "last10_accuracy": pytest.approx((0.5 + 0.95) / 2),
        **{"seconds_to_target": 6.0, "updates_to_target": 4},
        **{"seconds_to_stay_at_target": None, "updates_to_stay_at_target": None},
        **{"mean_staleness": 0.0, "max_staleness": 0, "mb_down": 2.5, "mb_up": 1.0},
        **{"client_updates": 4, "wall_updates_per_second": 812.4, "at_work": 2},
        **{"work_per_update": "10 steps", "failures": 0, "rejected": 0},
        **{"stopped": "num_versions", "statistic": "run", "num_seeds": 1, "label": "fedavg"},
        **{"seed": None, "folder": "fedavg", "score": "accuracy", "target_accuracy": 0.9},
    }
    assert rounds == expected
    assert [*rounds] == [*expected]  # the order of the columns
    expected |= {
        **{"cell": "fedasync", "algorithm": "fedasync", "label": "fedasync", "folder": "fedasync"},
        **{"final_accuracy": 0.85, "best_accuracy": 0.92},
        "last10_accuracy": pytest.approx((0.92 + 0.85) / 2),
        **{"seconds_to_target": 2.0, "updates_to_target": 2},
        **{"mean_staleness": 2 / 3, "max_staleness": 2, "client_updates": 3},
        **dict.fromkeys(
            ("mb_down", "mb_up", "wall_updates_per_second", "work_per_update", "stopped")
        ),
    }
    assert asynchronous == expected


def test_the_first_score_is_the_mean_of_as_many_evaluations_as_asked_for(tmp_path, capsys):
    write_pair(tmp_path)
    main([str(tmp_path), "--last", "2"])
    lines = capsys.readouterr().out.splitlines()
    fedavg, fedasync = (line.split() for line in lines[2:4])
    assert (fedavg[:2], fedasync[:2]) == (["fedavg", "72.5%"], ["fedasync", "88.5%"])
    for last in (0, 4):
        with pytest.raises(ValueError, match=f"last={last} must be an integer .* at most 3, the"):
            make_table(read_run(tmp_path), 0.9, last=last)
    (tmp_path / "report.html").mkdir()  # where nothing can be written
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "report.html" in capsys.readouterr().err


def test_seeds_are_followed_by_their_mean_and_sample_deviation(tmp_path):
    """Accuracy .85 and .92: mean .885, deviation .07 / 2^.5. Updates 3 and 2: 2.5 and .5^.5."""
    write_seeds(tmp_path)
    table = table_of(tmp_path)
    assert [(row["cell"], row["statistic"], row["num_seeds"]) for row in table.rows] == [
        ("fedavg", "run", 1),
        ("fedasync-seed0", "run", 1),
        ("fedasync-seed1", "run", 1),
        ("fedasync", "mean", 2),
        ("fedasync", "std", 2),
    ]
    mean, std = table.rows[3:]
    assert mean["final_accuracy"] == pytest.approx(0.885)
    assert std["final_accuracy"] == pytest.approx(0.07 / 2**0.5)
    assert (mean["client_updates"], std["client_updates"]) == (2.5, 0.5**0.5)
    assert (mean["algorithm"], mean["mb_up"], std["target_accuracy"]) == ("fedasync", None, 0.9)
    assert table.of_series() == [(table.rows[0], None), (mean, std)]
    assert csv_of(table, tmp_path)[-1]["client_updates"] == str(0.5**0.5)


# -- other scores ----------------------------------------------------------------------------------

RMSE = {"score": "rmse", "higher_is_better": False, "stopped": "num_versions"}
WORK = [dispatch(0.0, 0), arrival(1.0, 0), aggregate(1.0, 1, [0], [0])]


def errors(*values):
    tests = [
        {"kind": "evaluate", "t": float(n), "version": n, "rmse": error, "loss": error and error**2}
        for n, error in enumerate(values)
    ]
    return [*WORK, *tests]


def test_a_run_judged_by_its_error_has_the_lowest_first_and_no_column_of_accuracies(tmp_path):
    write_cell(tmp_path / "good", events=errors(30.0, 7.5, 5.0), summary=RMSE, algorithm="fedavg")
    write_cell(tmp_path / "worse", events=errors(30.0, 8.0, 9.25), summary=RMSE, algorithm="x")
    write_cell(tmp_path / "gone", events=errors(None, 1.0, None), summary=RMSE, algorithm="y")
    table = report.write_report(tmp_path, figures=False)
    rows = {row["cell"]: (row["final_rmse"], row["best_rmse"]) for row in table.rows}
    assert rows == {"good": (5.0, 5.0), "worse": (9.25, 8.0), "gone": (None, 1.0)}
    assert table.scores == [Score("rmse", higher_is_better=False)]
    text = print_table(table, force_terminal=True, width=200)
    assert "\x1b[1m5\x1b[0m" in text
    page = (tmp_path / report.PAGE).read_text().partition("Summary and configuration")[0]
    body = page.partition("</head>")[2]
    for label in ("accuracy", "acc.", "at 90%", "First at", "Stays at"):
        assert label not in "".join(table.rows[0]) + text + body
    assert "Lower values of rmse are better." in body


def test_runs_judged_by_different_scores_or_by_none_share_a_table(tmp_path):
    write_cell(tmp_path / "fedavg", events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
    write_cell(tmp_path / "error", events=errors(30.0, 7.5), summary=RMSE, algorithm="x")
    write_cell(tmp_path / "none", events=WORK, summary=RMSE, algorithm="y")
    table = table_of(tmp_path)
    rows = {row["cell"]: row for row in csv_of(table, tmp_path)}
    assert (rows["fedavg"]["score"], rows["fedavg"]["final_score"]) == ("accuracy", "0.95")
    assert (rows["error"]["score"], rows["error"]["final_score"]) == ("rmse", "7.5")
    assert rows["error"]["seconds_to_target"] == rows["none"]["final_score"] == ""
    assert {"95.0%", "7.5"} <= set(print_table(table).split())
    (single,) = table_of(tmp_path / "none").rows
    assert not {"final_score", "final_rmse", "seconds_to_target"} & {*single}


# -- console ---------------------------------------------------------------------------------------


def test_printed_table_breaks_no_line_in_a_file_and_has_the_best_bold_on_a_terminal(tmp_path):
    write_pair(tmp_path)
    table = table_of(tmp_path)
    lines = [" ".join(line.split()) for line in print_table(table).splitlines()]
    assert lines[2:4] == [
        "fedavg 95.0% 95.0% 6.0 4 - 0.0 4 2 10 steps - 0 0 0 2.5 1.0 812 num_versions",
        "fedasync 85.0% 92.0% 2.0 2 - 0.7 3 2 - - 2 0 0 - - - -",
    ]
    text = print_table(table, force_terminal=True, width=200)
    assert "\x1b[1m95.0%\x1b[0m" in text
    assert "\x1b[1m2.0\x1b[0m" in text
    assert "\x1b[1m85.0%" not in text


def test_printed_mean_has_its_spread_and_only_means_compete(tmp_path):
    write_seeds(tmp_path)
    table = table_of(tmp_path)
    lines = [" ".join(line.split()) for line in print_table(table).splitlines()]
    *_, spread, unfinished = lines
    assert spread == "Of several seeds: mean and sample standard deviation (n - 1)."
    assert unfinished.endswith(" fedasync-seed1 (no summary: still running, or killed)")
    assert lines[-3].startswith(
        "fedasync (2 seeds) 88.5% \u00b14.9 92.0% \u00b10.0 2.0 \u00b10.0 2 "
    )
    text = print_table(table, force_terminal=True, width=200)
    assert "\x1b[1m2.0 \u00b10.0\x1b[0m" in text
    assert text.count("\x1b[1m") == 5  # the last one says that runs have not ended


def test_notes_are_below_the_table_and_brackets_are_no_markup(tmp_path):
    reason = f"Diverged: [red]{' too long for a column' * 3}"
    write_cell(tmp_path / "[red]", events=ROUNDS, summary={**SUMMARY, "stopped": reason})
    write_cell(tmp_path / "x", events=ROUNDS, summary=SUMMARY)
    write_cell(tmp_path / "y", events=ASYNCHRONOUS, summary=SUMMARY)
    *_, row, _, _, work, last = print_table(table_of(tmp_path)).splitlines()
    assert row.rstrip().endswith("  Diverged: [red] too long for a ...")
    assert work.startswith("Unequal work: 3 to 4 client updates a cell")
    assert last == f"NOT RUN TO THEIR END: [red] ({reason})"


LONG = "fedasync local_lr=0.1 staleness_function=polynomial partition=dirichlet"


def test_a_narrow_terminal_gets_the_columns_that_matter_most_and_folded_names(
    tmp_path, monkeypatch
):
    for name in (LONG, "fedbuff"):
        write_cell(tmp_path / name, events=ROUNDS, summary=SUMMARY, algorithm="fedavg")
    table = table_of(tmp_path)
    cells = {}
    for width in (100, 80):
        lines = print_table(table, force_terminal=True, no_color=True, width=width).splitlines()
        lines = [Text.from_ansi(line).plain.rstrip() for line in lines]
        assert max(map(len, lines)) <= width
        cells[width] = [line.split() for line in lines]
    assert len(cells[80][1]) < len(cells[100][1])
    assert cells[80][2][1:] == ["local_lr=0.1", "95.0%", "95.0%", "6.0", "4"]
    assert cells[80][3:5] == [["staleness_function=polynomial"], ["partition=dirichlet"]]
    assert cells[80][6][:3] == ["Left", "out", "for"]
    monkeypatch.setenv("COLUMNS", "80")  # the same for a pipe
    assert max(map(len, print_table(table).splitlines())) <= 80


# -- equal work ------------------------------------------------------------------------------------


def cell(client_updates, stopped="num_versions", **more):
    history = history_of(client_updates=client_updates, **more)
    return Cell("a", {"stopped": stopped}, history=history)


TWO = [(0, 0.1), (1, 0.2)]
GAPS = "Cells are evaluated every 10 to 30 client updates (eval_every counts versions), and their"
UNEQUAL = "Unequal work: 100 to 1,000 client updates a cell"
REMEDY = "; compare at equal updates with max_updates=1000 num_versions=null"


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([], ""),
        ([cell(1000), cell(1100)], ""),
        ([cell(1000), cell(100), cell(300)], f"{UNEQUAL}{REMEDY}."),
        ([cell(100, "seconds"), cell(1000, "target_accuracy")], f"{UNEQUAL}."),
        ([cell(3, "interrupted"), cell(1000), cell(2, None)], ""),
        ([cell(60, evaluations=TWO, each=n) for n in (10, 30)], f"{GAPS} last ten means differ."),
        ([cell(60, evaluations=TWO, each=n) for n in (10, 20)], ""),
    ],
)
def test_unequal_work_is_noted(cells, text):
    assert work_of(cells) == text


def test_unequal_work_per_update_is_noted():
    """Three orders at once (two of them end when the last one begins), and ten at once."""
    spans = [(0, 0.0, 1.0), (1, 0.0, 1.0), (2, 0.5, None), (1, 1.0, 2.0)]
    few, many = (
        Cell("a", {"work_per_update": work}, history=history_of(orders))
        for work, orders in (
            ("10 steps", spans),
            ("1 mini-batch", [(client, 0.0, None) for client in range(10)]),
        )
    )
    assert (at_work(few), at_work(many)) == (3, 10)
    assert work_of([few, few]) == ""
    differ = (
        "Cells differ in what they do per update: 10 steps, 1 mini-batch, and in how many clients "
        "are at work: 3 to 10"
    )
    remedy = "; compare=equal makes equal what their equations allow."
    assert work_of([few, many]) == differ + remedy
    equal = [replace(each, config="compare: {buffer_size: 10}") for each in (few, many)]
    assert work_of(equal) == differ + "."


# -- cells -----------------------------------------------------------------------------------------


def orders_of(cell):
    """Client, start, end, ending event, version, age and reason of each order."""
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
    assert (cell.history.aggregations, cell.history.ages) == ([3.0, 6.0], {0: 4})
    assert (cell.history.client_updates, cell.history.t) == (4, 6.0)


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
    names = ["mine", "fedbuff-seed10", "fedbuff-seed9", "slow", "async"]
    algorithms = ["my_own", "fedbuff", "fedbuff", "fedavg", "fedasync"]
    for name, algorithm in zip(names, algorithms, strict=True):
        write_cell(tmp_path / name, events=ROUNDS, algorithm=algorithm)
    (tmp_path / "figures").mkdir()
    names = "slow async fedbuff-seed9 fedbuff-seed10 mine"
    assert " ".join(cell.name for cell in read_run(tmp_path)) == names


def test_jobs_come_in_the_order_of_the_command_and_cells_in_that_of_their_experiment(tmp_path):
    """Both have wkafl before fedavg, although fedavg is the first of the algorithms."""
    for job, algorithm in (("10", "fedavg"), ("9", "wkafl")):
        write_cell(tmp_path / "sweep" / job, events=ROUNDS, algorithm=algorithm)
    config = "experiment: {only: %s, cells: {fedavg: [], wkafl.2: []}, settings: {b: [], a: []}}"
    for name in ("wkafl.2@a", "wkafl.2@b-seed1", "fedavg@a"):
        for only in ("[wkafl.2, fedavg]", "['@a', '@b']", "null"):
            write_cell(tmp_path / only / name, events=ROUNDS)
            (tmp_path / only / name / "config.yaml").write_text(config % only)
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


def test_algorithm_task_and_seed_are_read_from_the_configuration(tmp_path):
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
    (tmp_path / "config.yaml").unlink()
    (tmp_path / "summary.json").write_text('{"client_updates": 3}')
    with pytest.warns(UserWarning, match=r"has 0 of the 3 client updates in summary\.json"):
        read_cell(tmp_path)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ValueError, match=r"summary\.json is damaged: "):
        read_cell(tmp_path)


def test_a_run_without_a_summary_is_judged_by_its_metrics(tmp_path):
    write_cell(tmp_path / "a", events=[evaluate(0.0, 0, 0.5)])
    write_cell(tmp_path / "b", events=[{"kind": "evaluate", "t": 0.0, "version": 0, "loss": 2.0}])
    assert [cell.score for cell in read_run(tmp_path)] == [ACCURACY, LOSS]


# -- sweeps ----------------------------------------------------------------------------------------


def write_job(sweep, number, *overrides, **changes):
    """Write the files of a job's run."""
    folder = sweep / str(number)
    folder.mkdir(parents=True)
    config = {"algorithm": {"name": "fedasync", "client": {"local_lr": 0.1}}, "seed": 0}
    values = [word for word in overrides if not word.startswith(("algorithm=", "partition="))]
    config = OmegaConf.merge(config, changes, OmegaConf.from_dotlist(values))
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
        ([["a=1"], ["a=2", "resume=auto", "runtime.workers=2"]], ["a=1", "a=2"]),
    ],
)
def test_jobs_are_named_after_the_varied_keys(tmp_path, jobs, names):
    names = names or ["a.alpha=1 b.alpha=2", "a.alpha=2 b.alpha=2.5"]
    for number, overrides in enumerate(jobs):
        write_job(tmp_path, number, *overrides)
    assert [cell.name for cell in read_run(tmp_path)] == [f"fedasync {name}" for name in names]


def test_cells_of_experiments_in_a_sweep_have_the_varied_keys_after_their_names(tmp_path):
    for number, alpha in enumerate(("0.1", "1")):
        for name in ("fast-seed0", "fast-seed3", "slow"):
            folder = tmp_path / str(number) / name
            write_cell(folder, events=ROUNDS, algorithm="fedbuff")
            overrides = ["experiment=quickstart", f"partition.alpha={alpha}"]
            OmegaConf.save(OmegaConf.create(overrides), folder / "overrides.yaml")
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
