import math

import pytest
from run_folders import ASYNCHRONOUS, EVENTFUL, ROUNDS, clients_evaluate, dispatch, write_cell

from fl_app.record.score import ACCURACY
from fl_app.report import plots
from fl_app.report.charts import MAX_POINTS
from fl_app.report.reading import read_cell, read_run
from fl_app.report.series import group
from fl_app.report.style import looks
from fl_app.report.table import make_table


@pytest.fixture
def series(tmp_path):
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_cell(tmp_path / "fedasync-seed0", events=ASYNCHRONOUS, algorithm="fedasync")
    write_cell(tmp_path / "fedasync-seed1", events=ASYNCHRONOUS[:9], algorithm="fedasync")
    return group(read_run(tmp_path))


def drawn(series):
    return looks([each.algorithm for each in series])


@pytest.fixture
def eventful(tmp_path):
    write_cell(tmp_path / "x", events=EVENTFUL, algorithm="fedbuff")
    return read_cell(tmp_path / "x")


def look_of(cell):
    return looks([cell.algorithm])[0]


def traces(figure):
    return {trace["name"]: trace for trace in figure["data"]}


def test_learning_is_a_line_and_with_seeds_a_band(series):
    """Seed 1 ends at t=2: mean and band end there, and seed 0 goes on as a thin line."""
    figure = plots.learning(series, drawn(series), "accuracy", 0.9)
    fedavg, band, tail, fedasync = figure["data"]
    assert (fedavg["x"], fedavg["y"]) == ([0, 3, 6], [0.1, 0.5, 0.95])
    assert (fedasync["x"], fedasync["y"]) == ([0, 2], [0.1, 0.92])
    assert (band["x"], band["y"]) == ([0, 2, 2, 0], [0.1, 0.92, 0.92, 0.1])
    assert (tail["x"][:2], tail["y"][:2]) == ([2, 3], [0.92, 0.85])
    assert math.isnan(tail["x"][2])
    assert fedavg["line"]["color"] != fedasync["line"]["color"]
    assert figure["layout"]["shapes"][0]["y0"] == 0.9


def test_learning_is_also_over_versions_and_updates(series):
    figure = plots.learning(series[:1], drawn(series[:1]), "loss")
    buttons = figure["layout"]["updatemenus"][0]["buttons"]
    assert [button["label"] for button in buttons] == [
        "virtual time (s)",
        "versions",
        "client updates",
    ]
    assert [button["args"][0]["x"] for button in buttons] == [[[0, 3, 6]], [[0, 1, 2]], [[0, 2, 4]]]
    assert buttons[1]["args"][1] == {"xaxis.title.text": "versions"}
    assert figure["data"][0]["y"] == [1, 1, 1]


def test_long_curve_keeps_its_ends(tmp_path):
    events = [{**ROUNDS[0], "t": float(t), "version": t} for t in range(5000)]
    write_cell(tmp_path, events=events)
    (line,) = plots.learning(group(read_run(tmp_path)), looks(["x"]), "loss")["data"]
    assert len(line["x"]) == MAX_POINTS
    assert (line["x"][0], line["x"][-1]) == (0, 4999)


def test_staleness_of_one_series_is_a_histogram(series):
    (bars,) = plots.staleness(series[1:], drawn(series[1:]))["data"]
    assert (bars["x"], bars["y"]) == ([0, 1, 2], [0.8, 0, 0.2])


def test_staleness_of_several_series_is_cumulative_up_to_the_oldest(series):
    """fedavg has only age 0; fedasync 4 of 5 updates, and one of age 2."""
    fedavg, fedasync = plots.staleness(series, drawn(series))["data"]
    assert (fedavg["x"], fedavg["y"]) == ([0, 2], [1, 1])
    assert (fedasync["x"], fedasync["y"]) == ([0, 1, 2, 2], [0.8, 0.8, 1, 1])


def test_participation_counts_used_and_lost_orders_most_used_first(eventful):
    found = traces(plots.participation(eventful, look_of(eventful)))
    assert found["aggregated"]["customdata"] == ["0", "1", "2"]
    assert found["aggregated"]["y"] == [1, 1, 0]
    assert found["lost"]["y"] == [1, 1, 1]


def test_participation_of_thousands_is_an_area(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, c) for c in range(5000)] + ROUNDS[1:6])
    (area,) = plots.participation(read_cell(tmp_path), looks(["x"])[0])["data"]
    assert (len(area["x"]), area["y"][:3], area["fill"]) == (MAX_POINTS, [1, 0, 0], "tozeroy")


def test_traffic_is_in_megabytes(eventful):
    eventful.metrics = {"t": [0.0, 2.0], "bytes_up": [0.0, 5e6], "bytes_down": [1e6, 8e6]}
    found = traces(plots.traffic(eventful, look_of(eventful)))
    assert found["from clients"]["y"] == [0, 5]
    assert found["to clients"]["y"] == [1, 8]


def test_reports_are_shown_one_at_a_time(eventful):
    figure = plots.reports(eventful, look_of(eventful))
    assert [(t["name"], t["visible"]) for t in figure["data"]] == [
        ("staleness", True),
        ("weight", False),
        ("kept", False),
    ]
    assert (figure["data"][1]["x"], figure["data"][1]["y"]) == ([1, 2], [0.5, 0.25])
    button = figure["layout"]["updatemenus"][0]["buttons"][1]
    assert button["args"] == [{"visible": [False, True, False]}, {"yaxis.title.text": "weight"}]


def test_many_reports_are_means_of_neighbours(eventful):
    eventful.reports = {"kept": [(v, float(v % 2)) for v in range(2 * MAX_POINTS)]}
    (line,) = plots.reports(eventful, look_of(eventful))["data"]
    assert line["x"][:2] == [0.5, 2.5]
    assert set(line["y"]) == {0.5}


def test_final_accuracy_has_seeds_and_their_spread(series):
    table = make_table([cell for each in series for cell in each.cells], 0.9)
    fedavg, seeds, mean = plots.final(table, series, drawn(series), ACCURACY)["data"]
    assert (fedavg["x"], fedavg["y"]) == ([0.95], ["fedavg"])
    assert seeds["x"] == [0.85, 0.92]
    assert mean["x"] == [pytest.approx(0.885)]
    assert mean["error_x"]["array"] == [pytest.approx(0.07 / 2**0.5)]
    assert mean["y"] == ["fedasync"]


def test_run_that_was_never_evaluated_draws_what_there_is(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, 1)])
    series = group(read_run(tmp_path))
    (line,) = plots.learning(series, drawn(series), "accuracy", 0.9)["data"]
    assert line["x"] == []
    assert plots.staleness(series, drawn(series))["data"] == []


def test_diverged_loss_is_a_gap(tmp_path):
    write_cell(tmp_path, events=[ROUNDS[0], {**ROUNDS[6], "loss": None}])
    (line,) = plots.learning(group(read_run(tmp_path)), looks(["x"]), "loss")["data"]
    assert line["y"][0] == 1
    assert math.isnan(line["y"][1])


def test_what_clients_measured_is_a_line_with_a_band_to_the_worst_decile(tmp_path):
    events = [clients_evaluate(12, 10, 1, 0.4, 0.1), clients_evaluate(35, 30, 4, 0.8, 0.5)]
    write_cell(tmp_path / "x", events=events, algorithm="fedbuff")
    series = group(read_run(tmp_path))
    figure = plots.on_clients(series, drawn(series), "accuracy")
    band, line = figure["data"]
    assert (line["x"], line["y"], line["customdata"]) == ([10, 30], [0.4, 0.8], [0.1, 0.5])
    assert (band["x"], band["y"]) == ([10, 30, 30, 10], [0.4, 0.8, 0.5, 0.1])
    assert figure["layout"]["yaxis"]["title"]["text"] == "clients' accuracy"
    learned = plots.learning(series, drawn(series), "accuracy", 0.9)
    assert learned["layout"]["yaxis"]["title"]["text"] == "clients' accuracy"
