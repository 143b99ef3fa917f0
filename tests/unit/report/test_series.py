from collections import Counter

import numpy as np
import pytest
from run_folders import (
    ASYNCHRONOUS,
    ROUNDS,
    arrival,
    clients_evaluate,
    dispatch,
    evaluate,
    history_of,
    write_cell,
)

from fl_app.report.cells import Cell, Wait
from fl_app.report.reading import read_cell, read_run
from fl_app.report.series import (
    Series,
    activity,
    client_curve,
    client_metrics,
    curve,
    group,
    histogram,
    labels,
    learning_phase,
    reached,
    rows,
    sample,
    seconds,
    time_label,
    training_share,
    whose,
    window,
)


def cell(name="fedbuff", accuracies=(), orders=(), waits=(), seconds=0.0, label=""):
    return Cell(
        name=name,
        label=label,
        algorithm="fedbuff",
        on_wall_clock=False,
        summary={},
        history=history_of(orders, accuracies, seconds),
        waits=[Wait(*each) for each in waits],
    )


def test_seeds_of_a_cell_are_one_series():
    labels = ["fedavg", "fedbuff", "fedavg", ""]
    cells = [cell(f"cell{n}", label=label) for n, label in enumerate(labels)]
    series = group(cells)
    assert [(each.name, each.cells) for each in series] == [
        ("fedavg", (cells[0], cells[2])),
        ("fedbuff", (cells[1],)),
        ("cell3", (cells[3],)),
    ]


def test_ages_of_seeds_are_counted_together():
    first, second = cell(), cell()
    first.history.ages = Counter({0: 2})
    second.history.ages = Counter({0: 1, 3: 4})
    assert Series("fedbuff", (first, second)).ages == {0: 3, 3: 4}


def test_curve_of_seeds_is_their_mean_and_range_interpolated_until_the_first_seed_ends():
    """No plateau of B after its end, and no step of the mean where it drops out.

    t:    0     2     3     4
    A:   .2    .6    .7    .8
    B:   .4    .8   1.0
    """
    line = curve(
        Series(
            "fedbuff",
            (cell(accuracies=[(0, 0.2), (2, 0.6), (4, 0.8)]), cell(accuracies=[(0, 0.4), (3, 1)])),
        )
    )
    np.testing.assert_array_equal(line.t, [0, 2, 3])
    np.testing.assert_allclose(line.mean, [0.3, 0.7, 0.85])
    np.testing.assert_allclose(line.low, [0.2, 0.6, 0.7])
    np.testing.assert_allclose(line.high, [0.4, 0.8, 1.0])
    ((t, values),) = line.tails
    np.testing.assert_allclose(t, [3, 4])
    np.testing.assert_allclose(values, [0.7, 0.8])
    assert reached(line, 0.8) == 3.0
    assert reached(line, 0.95) is None


def test_curve_starts_where_every_seed_has_a_value_and_skips_seeds_without():
    seeds = cell(accuracies=[(0, 0.1), (1, 0.3)]), cell(accuracies=[(1, 0.5)]), cell()
    line = curve(Series("fedbuff", seeds))
    np.testing.assert_array_equal(line.t, [1])
    np.testing.assert_allclose(line.mean, [0.4])


def test_curve_of_seeds_that_never_overlap_is_their_own_lines():
    seeds = cell(accuracies=[(0, 0.1), (1, 0.3)]), cell(accuracies=[(2, 0.5), (3, 0.7)])
    line = curve(Series("fedbuff", seeds))
    assert line.t.size == 0
    assert [(t.tolist(), values.tolist()) for t, values in line.tails] == [
        ([0, 1], [0.1, 0.3]),
        ([2, 3], [0.5, 0.7]),
    ]


def test_curve_of_nothing_is_empty():
    line = curve(Series("fedbuff", (cell(),)))
    assert line.t.size == line.mean.size == line.low.size == line.high.size == 0
    assert reached(line, 0.1) is None


@pytest.mark.parametrize(
    ("moments", "end", "expected"),
    [
        ((4.0, 10.0), 100.0, 25.0),
        ((4.0, 10.0), 29.0, None),
        ((4.0, None), 100.0, None),
        ((0.0, 0.0), 100.0, None),
    ],
)
def test_learning_phase_shows_how_the_last_one_reached_the_target(moments, end, expected):
    def series(moment):
        start = [] if moment == 0.0 else [(0.0, 0.1)]
        middle = [] if moment is None else [(moment, 0.9)]
        last = (end, 0.2 if moment is None else 0.9)
        return Series("x", (cell(accuracies=[*start, *middle, last]),))

    assert learning_phase([series(moment) for moment in moments], 0.9) == expected


def test_learning_phase_of_a_run_that_never_evaluated_is_unknown():
    assert learning_phase([Series("x", (cell(),))], 0.9) is None


def test_histogram_is_the_share_of_updates_in_bins_of_ages():
    first, share = histogram(Counter({0: 1, 1: 1, 2: 4, 5: 2}), 2)
    np.testing.assert_array_equal(first, [0, 2, 4])
    np.testing.assert_array_equal(share, [0.25, 0.5, 0.25])


def test_training_share_compares_training_with_waiting(tmp_path):
    """In each round of 3 s client 0 trains 1 s and waits 2 s, client 1 trains all the time."""
    write_cell(tmp_path, events=ROUNDS)
    rounds = read_cell(tmp_path)
    assert training_share(rounds, 6.0) == pytest.approx(8 / 12)
    assert training_share(rounds, 1.0) == 1.0
    assert training_share(rounds, 2.0) == pytest.approx(3 / 4)


def test_training_share_without_waiting_and_without_anything(tmp_path):
    write_cell(tmp_path, events=ASYNCHRONOUS)
    assert training_share(read_cell(tmp_path), 3.0) == 1.0
    assert training_share(cell(), 3.0) == 0.0


def test_window_shows_a_few_orders_of_a_slow_client():
    fast = [(0, t, t + 1) for t in range(100)]
    assert window([cell(orders=fast, seconds=100)]) == pytest.approx(5)
    slow = [(1, t, t + 10) for t in range(0, 1000, 10)]
    assert window([cell(orders=fast + slow, seconds=1000)]) == pytest.approx(50)
    assert window([cell(orders=fast, seconds=3)]) == 3
    assert window([cell()]) == 0


def test_rows_are_the_clients_of_the_window_from_fast_to_slow_in_all_cells():
    cells = [
        cell(orders=[(7, 0, 4), (3, 0, 1), (9, 50, 51)]),
        cell(orders=[(3, 0, 2), (5, 2, 5), (7, 60, 61)]),
    ]
    # Means: client 3 1.5 s, client 7 2.5 s, client 5 3 s; client 9 starts after the window.
    assert rows(cells, until=10) == [3, 7, 5]


def test_sample_spreads_evenly_and_keeps_both_ends():
    assert sample(range(5), 9) == [0, 1, 2, 3, 4]
    assert sample(range(101), 5) == [0, 25, 50, 75, 100]


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ([3, 12345], ["3", "12345"]),
        ([8812345678901234, 77], ["..1234", "77"]),
        ([1111192345, 2222282345, 9], ["..92345", "..82345", "9"]),
        ([123456789, 123456789], ["..6789", "..6789"]),
    ],
)
def test_labels_are_short_and_tell_clients_apart(clients, expected):
    assert labels(clients) == expected


def test_open_orders_end_with_the_log(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, 1), evaluate(7.0, 0, 0.1)])
    assert window([read_cell(tmp_path)]) == 7.0


def test_curve_of_loss_over_versions_and_updates():
    """Versions 0, 1 and updates 0, 10 belong to the two evaluations; the loss is 1 - accuracy."""
    series = Series("fedbuff", (cell(accuracies=[(0, 0.25), (8, 0.75)]),))
    over_versions = curve(series, "version", "loss")
    assert (over_versions.t.tolist(), over_versions.mean.tolist()) == ([0, 1], [0.75, 0.25])
    assert curve(series, "client_updates").t.tolist() == [0, 10]


def test_time_is_named_after_its_clock():
    real = cell()
    real.on_wall_clock = True
    assert time_label([cell()]) == "virtual time (s)"
    assert time_label([cell(), real]) == "wall time (s)"


@pytest.mark.parametrize(("t", "text"), [(0.04, "0.0 s"), (99.94, "99.9 s"), (1234.5, "1,234 s")])
def test_seconds_are_as_fine_as_they_are_few(t, text):
    assert seconds(t) == text


def test_curve_of_clients_is_their_mean_and_worst_decile_over_the_versions_time(tmp_path):
    """Version 2 is told after version 4. Seed 1 has half the values at times 10 and 30: at 20,
    seed 0 has (0.6, 0.2) and seed 1 (0.3, 0.1) by interpolation."""
    first = [
        clients_evaluate(12, 10, 1, 0.4, 0.0),
        clients_evaluate(35, 30, 4, 0.8, 0.4),
        clients_evaluate(36, 20, 2, 0.6, 0.2),
    ]
    second = [clients_evaluate(11, 10, 1, 0.2, 0.0), clients_evaluate(31, 30, 4, 0.4, 0.2)]
    write_cell(tmp_path / "x-seed0", events=first, algorithm="fedbuff")
    write_cell(tmp_path / "x-seed1", events=second, algorithm="fedbuff")
    (series,) = group(read_run(tmp_path))
    line = client_curve(series, "t", "accuracy")
    np.testing.assert_allclose(line.t, [10, 20, 30])
    np.testing.assert_allclose(line.mean, [0.3, 0.45, 0.6])
    np.testing.assert_allclose(line.low, [0.0, 0.15, 0.3])
    assert client_curve(series, "t", "loss").t.size == 0
    assert client_metrics(series.cells) == ["accuracy"]
    assert whose(series.cells) == "clients'"
    assert [e.accuracy for e in series.cells[0].evaluations] == [0.4, 0.6, 0.8]


def test_what_clients_of_others_measured_has_its_own_names(tmp_path):
    events = [
        {"kind": "evaluate", "t": 0, "version": 0, "accuracy": 0.1, "loss": 2.0},
        clients_evaluate(12, 10, 1, 0.4, 0.0, metric="eval_acc"),
    ]
    write_cell(tmp_path, events=events, algorithm="fedbuff")
    cell = read_cell(tmp_path)
    assert client_metrics([cell]) == ["eval_acc"]
    assert whose([cell]) == "test"
    assert [e.accuracy for e in cell.evaluations] == [0.1]


@pytest.mark.parametrize(
    ("told", "trains", "transfers"),
    [
        ({}, [(0, 5)], []),
        ({"fresh": False}, [(1, 4)], [(0, 1), (4, 5)]),
        ({"fresh": True}, [(1, 2), (3, 4)], [(0, 1), (2, 3), (4, 5)]),
        ({"beside": True}, [(0, 3)], [(0, 2)]),
    ],
)
def test_lanes_tell_training_from_transfers(tmp_path, told, trains, transfers):
    """A second of download, three of training, and a second of upload."""
    parts = {"parts": [1, 3, 1], "beside": told.get("beside")} if told else {}
    refresh = {"kind": "refresh", "t": 2.0, "client": 0, "order": 0, "version": 1}
    events = [{**dispatch(0.0, 0), **parts}, *[refresh] * told.get("fresh", False)]
    write_cell(tmp_path, events=[*events, arrival(5.0, 0)])
    of_client = read_cell(tmp_path)
    (order,) = of_client.history.orders
    assert activity(of_client, order) == (trains, transfers)
    time = sum(end - start for start, end in trains)
    assert training_share(of_client, 5.0) == pytest.approx(time / 5)
