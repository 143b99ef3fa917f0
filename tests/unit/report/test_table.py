import csv

import pytest
from run_folders import ROUNDS, evaluate, write_cell, write_pair, write_seeds

from fl_app.record.score import ACCURACY
from fl_app.report.reading import read_run
from fl_app.report.table import Row, make_table, write_csv


def table_of(tmp_path, target=0.9):
    write_pair(tmp_path)
    return make_table(read_run(tmp_path), target)


def test_row_tells_what_the_cell_came_to(tmp_path):
    assert table_of(tmp_path).rows[0] == Row(
        cell="fedavg",
        algorithm="fedavg",
        data=None,
        final_score=0.95,
        best_score=0.95,
        last10_score=pytest.approx((0.1 + 0.5 + 0.95) / 3),
        seconds_to_target=6.0,
        updates_to_target=4,
        seconds_to_stay_at_target=None,
        updates_to_stay_at_target=None,
        mean_staleness=0.0,
        max_staleness=0,
        mb_down=2.5,
        mb_up=1.0,
        client_updates=4,
        updates_per_second=812.4,
        at_work=2,
        work_per_update="10 steps",
        failures=0,
        rejected=0,
        stopped="num_versions",
        label="fedavg",
        seed=None,
        folder="fedavg",
        score=ACCURACY,
    )


def test_row_of_a_run_without_summary_has_what_the_events_tell(tmp_path):
    row = table_of(tmp_path).rows[1]
    assert (row.final_score, row.best_score) == (0.85, 0.92)
    assert (row.seconds_to_target, row.updates_to_target) == (2.0, 2)
    assert (row.mean_staleness, row.max_staleness) == (2 / 3, 2)
    assert row.mb_down is row.mb_up is row.updates_per_second is row.stopped is None


def test_target_that_was_never_reached_is_unknown(tmp_path):
    rows = table_of(tmp_path, target=0.93).rows
    assert [row.seconds_to_target for row in rows] == [6.0, None]
    assert [row.updates_to_target for row in rows] == [4, None]


def test_csv_has_a_row_per_cell_and_dashes_for_the_unknown(tmp_path):
    write_csv(table_of(tmp_path, target=0.93), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert first["cell"] == "fedavg"
    assert first["seconds_to_target"] == "6.0"
    assert first["mb_down"] == "2.5"
    assert second["cell"] == "fedasync"
    assert second["seconds_to_target"] == second["stopped"] == "-"
    assert second["target_accuracy"] == "0.93"


def of_seeds(tmp_path):
    write_seeds(tmp_path)
    return make_table(read_run(tmp_path), 0.9)


def test_seeds_are_followed_by_their_mean_and_sample_deviation(tmp_path):
    """Accuracy .85 and .92: mean .885, deviation .07 / 2^.5. Updates 3 and 2: 2.5 and .5^.5."""
    rows = of_seeds(tmp_path).rows
    assert [(row.cell, row.statistic, row.num_seeds) for row in rows] == [
        ("fedavg", "run", 1),
        ("fedasync-seed0", "run", 1),
        ("fedasync-seed1", "run", 1),
        ("fedasync", "mean", 2),
        ("fedasync", "std", 2),
    ]
    mean, std = rows[3:]
    assert mean.final_score == pytest.approx(0.885)
    assert std.final_score == pytest.approx(0.07 / 2**0.5)
    assert (mean.client_updates, std.client_updates) == (2.5, 0.5**0.5)
    assert (mean.seconds_to_target, std.seconds_to_target) == (2.0, 0.0)
    assert (mean.algorithm, std.algorithm) == ("fedasync", "fedasync")
    assert mean.mb_up is None  # no summary says so


def test_mean_of_what_one_seed_never_reached_is_unknown(tmp_path):
    of_seeds(tmp_path)
    (tmp_path / "fedasync-seed1" / "events.jsonl").write_text("")
    mean = make_table(read_run(tmp_path), 0.9).rows[3]
    assert mean.seconds_to_target is mean.updates_to_target is mean.final_score is None
    assert mean.client_updates == 1.5


def test_words_that_seeds_do_not_share_are_unknown_of_all(tmp_path):
    for seed, stopped in enumerate(("seconds", "num_versions")):
        summary = {"data": "real", "stopped": stopped}
        write_cell(tmp_path / f"x-seed{seed}", events=ROUNDS, summary=summary)
    mean = make_table(read_run(tmp_path), 0.9).rows[2]
    assert (mean.data, mean.stopped) == ("real", None)


def test_csv_tells_runs_from_what_they_have_in_common(tmp_path):
    write_csv(of_seeds(tmp_path), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["cell"] for row in rows if row["statistic"] == "run"] == [
        "fedavg",
        "fedasync-seed0",
        "fedasync-seed1",
    ]
    (std,) = [row for row in rows if row["statistic"] == "std"]
    assert (float(std["client_updates"]), std["num_seeds"], std["mb_up"]) == (0.5**0.5, "2", "-")


def test_series_are_means_with_their_spread_and_runs_without(tmp_path):
    table = of_seeds(tmp_path)
    assert table.of_series() == [(table.rows[0], None), (table.rows[3], table.rows[4])]


def test_target_that_is_kept_is_told_beside_the_first_time(tmp_path):
    """Means of five: .77 at t=5, .76 at t=6, .9 at t=7 and 8."""
    accuracies = [0.95, 0.2, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9]
    events = [evaluate(float(t), t, a) for t, a in enumerate(accuracies, start=1)]
    write_cell(tmp_path, events=events, algorithm="fedavg")
    (row,) = make_table(read_run(tmp_path), 0.9).rows
    assert row.seconds_to_target == 1.0
    assert row.seconds_to_stay_at_target == 7.0
