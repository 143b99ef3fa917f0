import re
from itertools import combinations

import matplotlib
import numpy as np
import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image
from run_folders import (
    ASYNCHRONOUS,
    ROUNDS,
    arrival,
    clients_evaluate,
    dispatch,
    failure,
    write_cell,
)

from fl_app.record.score import ACCURACY
from fl_app.report.figures import (
    MAX_LINES,
    SLIM,
    WAITING,
    draw_multiples,
    draw_on_clients,
    draw_score,
    draw_staleness,
    draw_timeline,
    write_figures,
)
from fl_app.report.reading import read_run
from fl_app.report.series import group
from fl_app.report.style import RC, looks, save


@pytest.fixture
def series(tmp_path):
    lost = [*ASYNCHRONOUS, failure(3.0, 0, 2), dispatch(3.0, 1, 3)]
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_cell(tmp_path / "fedasync-seed0", events=lost, algorithm="fedasync")
    write_cell(tmp_path / "fedasync-seed1", events=ASYNCHRONOUS[:-1], algorithm="fedasync")
    return group(read_run(tmp_path))


def bars(axes, colour):
    """Row and time span of the bars of one colour, sorted."""
    spans = []
    for drawn in axes.findobj(PolyCollection):
        if np.allclose(drawn.get_facecolor()[0], to_rgba(colour)):
            for path in drawn.get_paths():
                low, high = path.vertices.min(axis=0), path.vertices.max(axis=0)
                spans.append((round((low[1] + high[1]) / 2), round(low[0], 1), round(high[0], 1)))
    return sorted(spans)


def test_accuracy_marks_when_each_series_reaches_the_target(series):
    axes = Figure().subplots()
    draw_score(axes, series, looks(["fedavg", "fedasync"]), ACCURACY, 0.9, "virtual time (s)", None)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "fedavg: 90% first at 6.0 s",
        "fedasync (2 seeds): mean 90% first at 2.0 s",
        "lowest to highest seed",
    ]
    marks = [line.get_xydata().tolist() for line in axes.lines if line.get_marker() == "o"]
    assert marks == [[[6.0, 0.9]], [[2.0, 0.9]]]
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 0.1], [3, 0.5], [6, 0.95]])
    band, sign = axes.findobj(PolyCollection)  # of the series with seeds, and of the legend
    assert band.get_paths()[0].vertices.max() == 2.0  # where the first seed ends
    assert not sign.get_paths()
    (tail,) = [line for line in axes.lines if line.get_linewidth() == 0.5]
    np.testing.assert_allclose(tail.get_xydata(), [[2, 0.92], [3, 0.85]])


def test_accuracy_far_below_the_target_is_not_pressed_down(series):
    axes = Figure().subplots()
    draw_score(axes, series[:1], looks(["fedavg"]), ACCURACY, 1.0, "virtual time (s)", None)
    assert axes.get_legend().get_texts()[0].get_text() == "fedavg: never 100%"
    assert axes.get_ylim()[1] == pytest.approx(1.05)
    axes = Figure().subplots()
    del series[0].cells[0].history.evaluations[1:]
    draw_score(axes, series[:1], looks(["fedavg"]), ACCURACY, 1.0, "virtual time (s)", None)
    assert axes.get_ylim()[1] == pytest.approx(0.105)


def test_staleness_histograms_share_their_ages(series):
    figure = Figure()
    draw_staleness(figure, series, looks(["fedavg", "fedasync"]), columns=2)
    fedavg, fedasync = figure.axes
    assert [patch.get_height() for patch in fedavg.patches] == [1.0]
    assert [patch.get_height() for patch in fedasync.patches] == [4 / 6, 0.0, 2 / 6]
    assert fedavg.get_xlim() == fedasync.get_xlim()
    assert fedasync.texts[0].get_text() == "mean 0.7, max 2"


def test_timeline_shows_training_waiting_losses_and_versions(series):
    figure = Figure()
    drawn = looks(["fedavg", "fedasync"])
    draw_timeline(figure, series, drawn, "virtual time (s)")
    fedavg, fedasync = figure.axes
    # Row 0 is client 0, the fast one.
    assert bars(fedavg, drawn[0].colour) == [(0, 0, 1), (0, 3, 4), (1, 0, 3), (1, 3, 6)]
    assert bars(fedavg, WAITING) == [(0, 1, 3), (0, 4, 6)]
    assert bars(fedasync, drawn[1].colour)[:3] == [(0, 0, 1), (0, 1, 2), (0, 2, 3)]
    assert bars(fedasync, WAITING) == []
    assert [line.get_xydata().tolist() for line in fedasync.lines] == [[[3.0, 0.0]]]
    (ticks,) = fedavg.findobj(LineCollection)
    assert [segment[0][0] for segment in ticks.get_segments()] == [3.0, 6.0]
    assert fedavg.get_title("right") == "67% training, 4 updates, 2 versions"
    assert [label.get_text() for label in fedavg.get_yticklabels()] == ["0", "1"]


def test_timeline_shows_clusters_fresh_models_and_training_beside_transfers(tmp_path):
    beside = {"parts": [1, 3, 1], "beside": True}
    events = [{**dispatch(0.0, client), **beside} for client in range(3)]
    events += [arrival(4.0, client) for client in range(3)]
    formed = {"kind": "cluster", "t": 4.0, "version": 0, "dropped": [], "order": []}
    events += [{**formed, "client": [0, 1, 2], "cluster": [1, 0, 1]}, dispatch(4.0, 0)]
    refresh = {"kind": "refresh", "t": 5.0, "client": 0, "version": 0}
    write_cell(tmp_path, events=[*events, refresh, arrival(6.0, 0)])
    figure = Figure()
    draw_timeline(figure, group(read_run(tmp_path)), looks(["eafl"]), "virtual time (s)")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cluster 2", "cluster 1"]
    # Lanes 0 and 1 are of the second cluster, which is pale: clients 0 and 2.
    (own,) = looks(["eafl"])
    assert bars(axes, own.colour) == [(2, 0, 3)]
    assert bars(axes, SLIM) == [(0, 0, 2), (1, 0, 2), (2, 0, 2)]
    (fresh,) = axes.lines
    assert fresh.get_xydata().tolist() == [[5.0, 0.0]]
    told = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"transfers", "gets a fresh model", "clusters formed"} <= {*told}


def test_timeline_of_many_clients_is_a_sample_that_says_so(tmp_path):
    write_cell(tmp_path, events=[dispatch(0.0, client) for client in range(40)] + ROUNDS)
    figure = Figure()
    draw_timeline(figure, group(read_run(tmp_path)), looks(["x"]), "virtual time (s)", 20)
    assert figure.get_supylabel() == "20 of 40 clients"
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == ["fast", "slow"]


def test_run_that_was_interrupted_at_once_has_crisp_pictures_of_what_there_is(tmp_path):
    write_cell(tmp_path, events=[], algorithm="fedavg")
    before = dict(matplotlib.rcParams)
    write_figures(read_run(tmp_path), 0.9, tmp_path / "figures")
    assert not (tmp_path / "figures" / "accuracy.png").exists()
    for name in ("staleness", "timeline", "overview"):
        assert not (tmp_path / "figures" / f"{name}.pdf").exists()
        picture = (tmp_path / "figures" / f"{name}.png").read_bytes()
        assert picture.startswith(b"\x89PNG")
        assert int.from_bytes(picture[16:20]) >= 500  # pixels across
    assert dict(matplotlib.rcParams) == before


def test_picture_for_print_is_the_same_bytes_again_and_embeds_true_type(tmp_path, series):
    for name in ("one", "two"):
        with matplotlib.rc_context(RC):
            figure = Figure(layout="constrained")
            draw_score(
                figure.subplots(), series, looks(["x", "y"]), ACCURACY, 0.9, "time (s)", None
            )
            save(figure, tmp_path / name / "accuracy.png", pdf=True)
    for name in ("accuracy.png", "accuracy.pdf"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    document = (tmp_path / "one" / "accuracy.pdf").read_bytes()
    assert b"/FontFile2" in document  # TrueType
    assert b"/Type3" not in document
    assert b"CreationDate" not in document


def test_cells_of_a_sweep_are_small_multiples_each_before_all_others(tmp_path):
    for number in range(MAX_LINES + 1):
        write_cell(tmp_path / f"cell{number}", events=ROUNDS, algorithm="fedbuff")
    series = group(read_run(tmp_path))
    figure = Figure()
    draw_multiples(
        figure, series, looks(["fedbuff"] * len(series)), ACCURACY, 0.9, "virtual time (s)", 4
    )
    assert len(figure.axes) == len(series)
    for axes, each in zip(figure.axes, series, strict=True):
        assert axes.get_title() == each.name
        colours = [line.get_color() for line in axes.lines if len(line.get_xdata()) == 3]
        assert colours.count(WAITING) == len(series)
        assert len(colours) == len(series) + 1


def test_overview_of_many_cells_names_some_and_greys_the_others(tmp_path):
    for number in range(4):
        write_cell(tmp_path / f"cell{number}", events=ROUNDS, algorithm="fedbuff")
    series = group(read_run(tmp_path))
    axes = Figure().subplots()
    draw_score(
        axes, series, looks(["fedbuff"] * 4), ACCURACY, 0.9, "virtual time (s)", None, told=1
    )
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [f"{series[0].name}: 90% first at 6.0 s", "the other 3"]


LONG = "fedasync local_lr=0.001 staleness_function=polynomial labels_per_client_of_a_federation="


def overlapping(figure):
    """Texts of a figure, but for numbers, that lie on each other or beyond its edges."""
    figure.draw_without_rendering()
    texts = [t for t in figure.findobj(Text) if re.search("[a-z]", t.get_text())]
    boxes = {text: text.get_window_extent() for text in texts}
    width, height = figure.get_size_inches() * figure.dpi
    pairs = [
        (a.get_text(), b.get_text())
        for a, b in combinations(texts, 2)
        if boxes[a].overlaps(boxes[b])
    ]
    cut = [
        t.get_text()
        for t, box in boxes.items()
        if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height
    ]
    return pairs + cut


@pytest.mark.parametrize(
    ("draw", "width"), [("staleness", 10.6), ("timeline", 9), ("multiples", 10.6), ("accuracy", 7)]
)
def test_long_names_lie_on_nothing_else(tmp_path, draw, width):
    for number in range(4):
        write_cell(tmp_path / f"{LONG}{number}", events=ROUNDS, algorithm="fedasync")
    series = group(read_run(tmp_path))
    drawn = looks(["fedasync"] * 4)
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(width, 8), layout="constrained")
        if draw == "staleness":
            draw_staleness(figure, series, drawn, columns=4)
        elif draw == "timeline":
            draw_timeline(figure, series, drawn, "virtual time (s)")
        elif draw == "multiples":
            draw_multiples(figure, series, drawn, ACCURACY, 0.9, "virtual time (s)", columns=4)
        else:
            draw_score(figure.subplots(), series, drawn, ACCURACY, 0.9, "virtual time (s)", None)
        assert overlapping(figure) == []


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_pictures_cut_no_long_name(tmp_path):
    """Nothing is drawn on their edges, and the plots have room left beside the names."""
    for number in range(3):
        write_cell(tmp_path / f"{LONG}{number}", events=ROUNDS, algorithm="fedasync")
    write_figures(read_run(tmp_path), 0.9, tmp_path / "figures")
    for path in sorted((tmp_path / "figures").glob("*.png")):
        with Image.open(path) as picture:
            pixels = np.asarray(picture.convert("L"))
        for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
            assert (edge == 255).all(), path.name


def test_what_clients_measured_has_a_picture(tmp_path):
    events = [*ROUNDS, clients_evaluate(4, 3, 1, 0.4, 0.1), clients_evaluate(7, 6, 2, 0.8, 0.5)]
    write_cell(tmp_path / "fedavg", events=events, algorithm="fedavg")
    write_cell(tmp_path / "fedasync", events=ASYNCHRONOUS, algorithm="fedasync")
    cells = read_run(tmp_path)
    write_figures(cells[:1], 0.9, tmp_path / "figures")
    assert (tmp_path / "figures" / "clients.png").is_file()
    axes = Figure().subplots()
    series = group(cells)
    draw_on_clients(axes, series, looks([e.algorithm for e in series]), "accuracy", "seconds")
    (line,) = axes.lines
    np.testing.assert_allclose(line.get_xydata(), [[3, 0.4], [6, 0.8]])
    (label,) = axes.get_legend().get_texts()
    assert label.get_text() == "fedavg: 80.0%, worst decile 50.0%"
