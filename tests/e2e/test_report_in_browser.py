"""The HTML report as a browser shows it."""

import re
from pathlib import Path

import pytest
from browser import brightness, measured, needs_browser, opened
from run_folders import ASYNCHRONOUS, EVENTFUL, ROUNDS, arrival, dispatch, failure, write_cell

from fl_app.report import PAGE, write_report

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180), needs_browser]

MEASURES = """
    drawn: [...page.querySelectorAll(".figure")].map(
      figure => figure.querySelector(".main-svg") !== null),
    wide: [...page.querySelectorAll(".figure")].map(
      figure => figure.querySelector(".main-svg")?.clientWidth),
    paper: colour(page.querySelector("section"), "backgroundColor"),
    ink: colour(page.querySelector("h1"), "color"),
    plot: colour(page.querySelector(".figure .main-svg"), "backgroundColor"),
    tick: colour(page.querySelector(".figure .xtick text"), "fill"),
"""


def figures(text: str) -> list[str]:
    """The drawn figures, one after another."""
    return re.split(r'<div class="figure js-plotly-plot" id="figure-\d+"', text)[1:]


def test_report_of_a_run_is_drawn_without_complaints(tmp_path: Path) -> None:
    write_cell(tmp_path, events=EVENTFUL, summary={"stopped": "seconds"}, algorithm="fedbuff")
    (tmp_path / "metrics.csv").write_text(
        "version,t,accuracy,loss,bytes_down,bytes_up\n0,0.0,0.1,1,0,0\n2,7.0,0.8,1,4000,800\n"
    )
    (tmp_path / "partition.csv").write_text("client,cat,dog\n0,3,0\n1,0,2\n")
    write_report(tmp_path, figures=False)
    text, complaints = opened((tmp_path / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    drawn = figures(text)
    assert len(drawn) == 8
    assert all('class="main-svg"' in figure for figure in drawn)
    accuracy, loss, dealt, timeline, ages, participation, traffic, reports = drawn
    assert 'class="hm"' in dealt
    for curve in (accuracy, loss, traffic, reports):
        assert 'class="js-line"' in curve
    assert timeline.count('class="point"') >= 7  # an order each
    for sign in ("failed", "deadline passed", "rejected", "paused", "checkpoint", "new version"):
        assert f">{sign}</text>" in timeline
    assert 'class="point"' in ages
    assert ">lost</text>" in participation


def test_report_of_an_experiment_is_drawn_without_complaints(tmp_path: Path) -> None:
    for seed, events in enumerate((ASYNCHRONOUS, ASYNCHRONOUS[:9])):
        write_cell(tmp_path / f"fedasync-seed{seed}", events=events, algorithm="fedasync")
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_report(tmp_path, figures=False)
    text, complaints = opened((tmp_path / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    drawn = figures(text)
    assert len(drawn) == 6
    assert all('class="main-svg"' in figure for figure in drawn)
    assert ">fedasync</text>" in drawn[0]
    assert 'class="js-fill"' in drawn[0]  # the band of the seeds


def test_report_of_thousands_of_clients_opens(tmp_path: Path) -> None:
    events = []
    for round_ in range(10):
        start = 10.0 * round_
        events += [dispatch(start, client) for client in range(3000)]
        events += [
            (failure if client % 50 == round_ else arrival)(start + 1 + client / 3000, client)
            for client in range(3000)
        ]
    write_cell(tmp_path, events=events)
    write_report(tmp_path, figures=False)
    text, complaints = opened((tmp_path / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    assert "60 of 3,000 clients" in text
    assert figures(text)[0].count('class="point"') >= 600


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run and many cells with long names, the pages of both."""
    folder = tmp_path_factory.mktemp("pages")
    write_cell(folder / "run", events=EVENTFUL, summary={"stopped": "seconds"}, algorithm="fedbuff")
    write_report(folder / "run", figures=False)
    many = folder / "many"
    for cell in range(24):
        name = f"fedbuff-with-a-name-that-tells-local-lr-and-buffer-size-{cell}"
        write_cell(many / name, events=ASYNCHRONOUS, algorithm="fedbuff")
    write_report(many, figures=False)
    return folder


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["run", "many"])
def test_page_fits_a_phone_and_the_dark(sweep: Path, name: str, width: int, dark: bool) -> None:
    page = sweep / name / PAGE
    found = measured(page, page.parent, width, dark=dark, measures=MEASURES)
    assert found["width"] == width
    assert found["needed"] <= width
    assert len(found["drawn"]) >= 5
    assert all(found["drawn"])
    assert all(0.7 * min(width, 500) < wide <= width for wide in found["wide"])
    for paper in ("paper", "plot"):
        assert (brightness(found[paper]) < 60) == dark
    for ink in ("ink", "tick"):
        assert (brightness(found[ink]) > 200) == dark


def test_job_of_a_sweep_is_drawn_with_the_library_beside_it(tmp_path: Path) -> None:
    write_cell(tmp_path / "0", events=EVENTFUL, algorithm="fedbuff")
    write_report(tmp_path / "0", figures=False, shared=tmp_path)
    text, complaints = opened((tmp_path / "0" / PAGE).as_uri(), tmp_path / "profile")
    assert complaints == []
    assert len(figures(text)) == 6
    assert 'id="no-library" hidden=""' in text
    (tmp_path / "plotly.min.js").unlink()
    text, _ = opened((tmp_path / "0" / PAGE).as_uri(), tmp_path / "profile2")
    assert 'id="no-library">' in text  # the warning
    assert figures(text) == []
