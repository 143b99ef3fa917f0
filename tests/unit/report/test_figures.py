"""The numbers in the specifications of a report's figures."""

import csv
import io

import numpy as np
import pytest
from helpers import (
    ASYNCHRONOUS,
    EVENTFUL,
    ROUNDS,
    arrival,
    clients_evaluate,
    dispatch,
    failure,
    history_of,
    write_cell,
)
from omegaconf import OmegaConf

from fl_app.cli import CONF
from fl_app.report import figures
from fl_app.report.cells import Cell, group, read_run
from fl_app.report.figures import save
from fl_app.report.lanes import activity, timeline
from fl_app.report.style import ALGORITHMS, WAITING, looks


def tables(chart):
    """The tables of a figure by their columns; later ones with equal columns are appended."""
    result = {}
    for text in figures.specification(chart)["datasets"].values():
        rows = list(csv.DictReader(io.StringIO(text)))
        result.setdefault(" ".join(rows[0]), []).extend(rows)
    return result


@pytest.fixture
def series(tmp_path):
    events = [*ASYNCHRONOUS, failure(3.0, 0, 2), dispatch(3.0, 1, 3)]
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_cell(tmp_path / "fedasync-seed0", events=events, algorithm="fedasync")
    write_cell(tmp_path / "fedasync-seed1", events=ASYNCHRONOUS[:-1], algorithm="fedasync")
    return group(read_run(tmp_path))


def test_curves_are_over_three_axes_and_the_legend_tells_when_they_are_at_the_target(series):
    data = tables(figures.learning(series, ["loss", "accuracy"], 0.9))
    names = {"fedavg: 90% first at 6.0 s", "fedasync (2 seeds): 90% first at 2.0 s"}
    accuracy = [row for row in data["x mean low high cell over"] if row["mean"] != "1"]
    assert {row["cell"] for row in accuracy} == names
    rounds = {
        over: [(r["x"], r["mean"]) for r in accuracy if r["over"] == over and "avg" in r["cell"]]
        for over in ("t", "version", "client_updates")
    }
    assert rounds == {
        "t": [("0", "0.1"), ("3", "0.5"), ("6", "0.95")],
        "version": [("0", "0.1"), ("1", "0.5"), ("2", "0.95")],
        "client_updates": [("0", "0.1"), ("2", "0.5"), ("4", "0.95")],
    }


def test_curve_of_seeds_is_their_mean_and_range_interpolated_where_every_seed_has_a_value():
    """B has no plateau after its end, and the mean has no step there.

    t:    0     1     2     3     4
    A:   .2          .6    .7    .8
    B:         .6    .8   1.0
    """
    evaluations = [(0, 0.2), (2, 0.6), (4, 0.8)], [(1, 0.6), (3, 1)], []
    cells = [Cell("x", history=history_of(evaluations=each)) for each in evaluations]
    line = figures.curve(group(cells)[0], "t", "accuracy")
    assert [*line.x] == [1, 2, 3]
    np.testing.assert_allclose(line["mean"], [0.5, 0.7, 0.85])
    np.testing.assert_allclose(line.low, [0.4, 0.6, 0.7])
    np.testing.assert_allclose(line.high, [0.6, 0.8, 1.0])
    for target, phrase in ((0.8, "80% first at 3.5 s"), (0.9, "1 of them reach 90%")):
        drawn = tables(figures.learning(group(cells[:2]), ["accuracy"], target))
        assert drawn["x mean low high cell over"][0]["cell"] == f" (2 seeds): {phrase}"
    assert figures.curve(group(cells[2:])[0], "t", "accuracy").empty


def test_staleness_is_a_share_of_each_age(series):
    rows = tables(figures.staleness(series))["age share left right"]
    assert [(row["age"], row["share"]) for row in rows] == [
        ("0", "1"), ("0", "0.666667"), ("2", "0.333333"),
    ]  # fmt: skip


def test_timeline_shows_training_waiting_losses_and_versions(series):
    chart = timeline(series)
    titles = [panel["title"]["text"] for panel in figures.specification(chart)["vconcat"]]
    assert titles == [
        "fedavg: 67% training, 4 updates, 2 versions",
        "fedasync: 100% training, 3 updates, 3 versions",
    ]
    data = tables(chart)
    bars = [
        (row["colour"], row["client"], float(row["start"]), float(row["end"]))
        for row in data["kind client low high start end colour opacity note"]
    ]
    colour = series[0].look.colour
    assert sorted(bar[1:] for bar in bars if bar[0] == colour) == [
        ("0", 0, 1), ("0", 3, 4), ("1", 0, 3), ("1", 3, 6),
    ]  # fmt: skip
    assert [bar[1:] for bar in bars if bar[0] == WAITING] == [("0", 1, 3), ("0", 4, 6)]
    marks = [(row["kind"], row["start"]) for row in data["kind client low start note"]]
    assert marks == [*(("new version", t) for t in ("3", "6", "1", "2", "3")), ("update lost", "3")]


def test_timeline_has_transfers_below_the_training_and_every_sign(tmp_path):
    events = [
        {**event, "parts": [0.1, 0.5, 0.2]} for event in EVENTFUL if event["kind"] == "dispatch"
    ]
    others = [event for event in EVENTFUL if event["kind"] != "dispatch"]
    events = sorted([*events, *others], key=lambda event: event["t"])
    write_cell(tmp_path, events=events, algorithm="fedbuff")
    series = group(read_run(tmp_path))
    data = tables(timeline(series))
    transfers = [
        row for row in data["kind client low high start end colour opacity note"]
        if row["kind"] == "transfers"
    ]  # fmt: skip
    assert (transfers[0]["start"], transfers[0]["end"]) == ("0", "0.1")
    assert all(float(row["high"]) % 1 == pytest.approx(0.8) for row in transfers)
    kinds = {row["kind"] for row in data["kind client low start note"]}
    assert kinds == {
        "update lost", "gets a fresh model", "checkpoint", "clusters formed", "new version",
        "late or duplicate reply", "recalled",
    }  # fmt: skip


def test_lanes_are_sorted_by_the_last_clusters_and_marks_describe_the_event(tmp_path):
    cluster = {"version": 0, "client": [0, 1, 2], "cluster": [0, 1, 0], "dropped": []}
    events = [
        *(dispatch(0.0, client) for client in range(3)),
        {"kind": "cluster", "t": 0.5, **cluster},
        *(arrival(1.0 + client, client) for client in range(3)),
    ]
    write_cell(tmp_path, events=events, algorithm="eafl")
    chart = timeline(group(read_run(tmp_path)))
    data = tables(chart)
    lanes = {
        row["client"]: float(row["high"]) - 0.42
        for row in data["kind client low high start end colour opacity note"]
    }
    assert lanes == pytest.approx({"1": 0, "0": 1, "2": 2})
    assert "cluster 2" in str(figures.specification(chart))
    notes = [row["note"] for row in data["kind client low start note"]]
    assert notes == ["version 0, clusters of 2, 1 clients"]


@pytest.mark.parametrize(
    ("order", "training", "transfers"),
    [
        ({"parts": None}, [(0, 10)], []),
        ({"parts": (0, 10, 0)}, [(0, 10)], []),  # known for its joules
        ({"parts": (1, 6, 3)}, [(1, 7)], [(0, 1), (7, 10)]),
        ({"parts": (1, 6, 3), "ended": "failure"}, [(1, 10)], [(0, 1)]),
        ({"parts": (1, 6, 3), "beside": True}, [(0, 6)], [(0, 4)]),
        ({"parts": (1, 6, 3), "fresh": (3,)}, [(1, 3), (4, 7)], [(0, 1), (3, 4), (7, 10)]),
    ],
)
def test_a_client_transfers_before_after_or_beside_its_training(order, training, transfers):
    history = history_of([(0, 0, 10)])
    for key, value in order.items():
        setattr(history.orders[0], key, value)
    assert activity(Cell("x", history=history), history.orders[0]) == (training, transfers)


def test_clients_scores_have_a_band_to_the_worst_decile(tmp_path):
    events = [*ROUNDS, clients_evaluate(4, 3, 1, 0.4, 0.1), clients_evaluate(7, 6, 2, 0.8, 0.5)]
    write_cell(tmp_path / "fedavg", events=events, algorithm="fedavg")
    write_cell(tmp_path / "fedasync-seed0", events=ASYNCHRONOUS, algorithm="fedasync")
    unknown = clients_evaluate(7, 6, 2, None, None)  # and seed 0 ended before any evaluation
    write_cell(tmp_path / "fedasync-seed1", events=[*ROUNDS, unknown], algorithm="fedasync")
    series = group(read_run(tmp_path))
    figures.learning(series[1:], ["accuracy"], 0.9, on_clients=True)  # has no point
    chart = figures.learning(series, ["accuracy"], 0.9, on_clients=True)
    rows = [row for row in tables(chart)["x mean low high cell over"] if row["over"] == "t"]
    assert [(row["x"], row["mean"], row["low"]) for row in rows] == [
        ("3", "0.4", "0.1"), ("6", "0.8", "0.5"),
    ]  # fmt: skip
    assert {row["cell"] for row in rows} == {"fedavg: 80.0%, worst decile 50.0%"}


def test_a_picture_is_written_again_with_its_existing_pdf(tmp_path, series):
    chart = figures.staleness(series)
    path = tmp_path / "figures" / "staleness.png"
    save(chart, path, pdf=True)
    first = path.read_bytes()
    path.with_suffix(".pdf").write_bytes(b"old")
    save(chart, path)
    assert path.read_bytes() == first  # equal figures give equal bytes
    assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
    assert {each.name for each in path.parent.iterdir()} == {"staleness.png", "staleness.pdf"}


# -- styles of cells -------------------------------------------------------------------------------


def test_every_algorithm_has_a_look_of_its_own_under_the_name_that_runs_report():
    names = [OmegaConf.load(path).name for path in (CONF / "algorithm").glob("*.yaml")]
    assert sorted(ALGORITHMS) == sorted(names)
    for algorithms in (ALGORITHMS, ["fedbuff"] * 36, ["fedbuff"] * 12 + ["fedasync"] * 12):
        assert len(set(looks(algorithms))) == len(algorithms)
