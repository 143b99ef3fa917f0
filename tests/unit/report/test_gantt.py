import pytest
from run_folders import EVENTFUL, ROUNDS, arrival, dispatch, write_cell

from fl_app.report.gantt import timeline_of
from fl_app.report.reading import read_cell
from fl_app.report.style import INK, WAITING, looks
from fl_app.report.timeline import timeline


@pytest.fixture
def eventful(tmp_path):
    write_cell(tmp_path, events=EVENTFUL, algorithm="fedbuff")
    return read_cell(tmp_path)


def look_of(cell):
    return looks([cell.algorithm])[0]


def traces(figure):
    return {trace["name"]: trace for trace in figure["data"]}


def test_timeline_has_a_bar_per_order_and_a_sign_per_moment(eventful):
    """Clients from fast to slow by mean duration: 0 (1, 2, 8), 1 (2, 5, 3) and 2 (5)."""
    shown = timeline(eventful)
    assert shown.clients == [1, 0, 2]
    row = {1: 0, 0: 1, 2: 2}
    found = traces(timeline_of(eventful, shown, look_of(eventful), 5.0))
    bars = {
        name: sorted(zip(trace["y"], trace["base"], trace["x"], strict=True))
        for name, trace in found.items()
        if trace["type"] == "bar"
    }
    assert bars == {
        "trains": [(row[1], 2, 5), (row[0], 0, 1)],
        "trains in vain": [(row[1], 0, 2), (row[0], 1, 2), (row[2], 0, 5)],
        "under way": [(row[1], 8, 3), (row[0], 3, 8)],
    }
    top = 3.2
    signs = {
        name: list(zip(trace["x"], trace["y"], strict=True))
        for name, trace in found.items()
        if trace.get("mode") == "markers"
    }
    assert signs == {
        "failed": [(2, row[1])],
        "deadline passed": [(5, row[2])],
        "rejected": [(3, row[0])],
        "late or duplicate reply": [(6, row[2]), (6.5, top)],
        "paused": [(0.5, row[0])],
        "gets a fresh model": [(0.5, row[0])],
        "checkpoint": [(1, top)],
        "clusters formed": [(2, top)],
        "recalled": [(3.5, row[0])],
    }
    assert len({trace["marker"]["symbol"] for n, trace in found.items() if n in signs}) == 9
    assert found["new version"]["x"] == [1, 1, None, 7, 7, None]


def test_timeline_of_rounds_shows_who_waits(tmp_path):
    write_cell(tmp_path, events=ROUNDS, algorithm="fedavg")
    cell = read_cell(tmp_path)
    found = traces(timeline_of(cell, timeline(cell), look_of(cell), 6.0))
    waits = found["waits for others"]
    assert list(zip(waits["y"], waits["base"], waits["x"], strict=True)) == [(0, 1, 2), (0, 4, 2)]
    assert waits["marker"]["color"] == WAITING
    assert "failed" not in found


def test_timeline_begins_at_the_end_of_the_clock_where_something_happens(eventful):
    layout = timeline_of(eventful, timeline(eventful), look_of(eventful), 5.0)["layout"]
    assert layout["xaxis"]["range"] == [0.0, 5.0]
    assert [b["label"] for b in layout["updatemenus"][0]["buttons"]] == ["first 5 s", "all"]
    eventful.on_wall_clock = True
    layout = timeline_of(eventful, timeline(eventful), look_of(eventful), 5.0)["layout"]
    assert layout["xaxis"]["range"] == [6.0, 11.0]
    assert layout["xaxis"]["title"]["text"] == "wall time (s)"
    layout = timeline_of(eventful, timeline(eventful), look_of(eventful), 10.0)["layout"]
    assert layout["xaxis"]["range"] == [0.0, 11.0]  # nearly all of it
    assert "updatemenus" not in layout


def test_what_clients_said_is_no_markup(eventful):
    found = traces(timeline_of(eventful, timeline(eventful), look_of(eventful), 5.0))
    texts = [text for *_, text in found["trains in vain"]["customdata"]]
    assert "given version 0<br>failed: KeyError: &#x27;&lt;b&gt;bold&lt;/b&gt;&#x27;" in texts
    assert "given version 0<br>arrived 0 versions old" in [
        text for *_, text in found["trains"]["customdata"]
    ]
    assert "&lt;b&gt;" in found["failed"]["customdata"][0][1]


def test_signs_are_dark_on_any_colour(eventful):
    found = traces(timeline_of(eventful, timeline(eventful), look_of(eventful), 5.0))
    assert found["failed"]["marker"]["color"] == INK


def test_timeline_has_lanes_by_cluster_and_transfers_below_training(tmp_path):
    given = [{**dispatch(0.0, client), "parts": [1, 3, 1]} for client in range(3)]
    formed = {"kind": "cluster", "t": 5.0, "version": 0, "dropped": [], "order": []}
    clusters = {**formed, "client": [0, 1, 2], "cluster": [1, 0, 1]}
    write_cell(tmp_path, events=[*given, *(arrival(5.0, c) for c in range(3)), clusters])
    cell = read_cell(tmp_path)
    figure = timeline_of(cell, timeline(cell), look_of(cell), 5.0)
    assert figure["layout"]["yaxis"]["ticktext"] == ["cluster 2", "cluster 1"]
    found = traces(figure)
    lanes = {
        who: y
        for y, (who, *_) in zip(found["trains"]["y"], found["trains"]["customdata"], strict=True)
    }
    assert lanes["0"] + 1 == lanes["2"] < lanes["1"] - 1  # and a gap
    assert found["trains"]["base"] == [1, 1, 1]
    assert found["transfers"]["base"] == [0, 4, 0, 4, 0, 4]
    assert found["transfers"]["y"][0] < lanes["0"]
