"""Reports of runs that are judged by something else than accuracy, or that were not evaluated."""

import csv
import io
import json

import pytest
from rich.console import Console
from run_folders import aggregate, arrival, dispatch, evaluate, write_cell, write_pair

from fl_app import report
from fl_app.record.score import ACCURACY, LOSS, Score
from fl_app.report.cells import common_score
from fl_app.report.comparison import compare, last
from fl_app.report.figures import specification
from fl_app.report.grid import grid
from fl_app.report.pictures import write_figures
from fl_app.report.printing import print_table
from fl_app.report.reading import read_run
from fl_app.report.table import make_table, write_csv

RMSE = {"score": "rmse", "higher_is_better": False, "stopped": "num_versions"}
OF_ACCURACY = ("accuracy", "acc.", "at 90%", "First at", "Stays at")
WORK = [dispatch(0.0, 0), arrival(1.0, 0), aggregate(1.0, 1, [0], [0])]


def events(*errors):
    tests = [
        {"kind": "evaluate", "t": float(n), "version": n, "rmse": error, "loss": error**2}
        for n, error in enumerate(errors)
    ]
    return [*WORK, *tests]


@pytest.fixture
def folder(tmp_path):
    """Two runs of a regression; the second ends worse than it was."""
    write_cell(tmp_path / "good", events=events(30.0, 7.5, 5.0), summary=RMSE, algorithm="fedavg")
    worse = events(30.0, 8.0, 9.25)
    write_cell(tmp_path / "worse", events=worse, summary=RMSE, algorithm="fedasync")
    return tmp_path


def printed(table):
    file = io.StringIO()
    print_table(table, Console(file=file, width=200))
    return file.getvalue()


def body(page):
    """What a reader of a page sees beside figures and summaries."""
    return page.partition("</head>")[2].partition("Summary and configuration")[0]


def test_the_lowest_error_is_the_best(folder):
    good, worse = make_table(read_run(folder), 0.9).rows
    assert (good.final_score, good.best_score) == (5.0, 5.0)
    assert (worse.final_score, worse.best_score) == (9.25, 8.0)
    assert good.score == Score("rmse", higher_is_better=False)
    assert good.seconds_to_target is None


def test_no_column_is_about_an_accuracy_that_nobody_measured(folder):
    table = make_table(read_run(folder), 0.9)
    write_csv(table, folder / "table.csv")
    with (folder / "table.csv").open(newline="") as file:
        good, worse = csv.DictReader(file)
    assert (good["final_rmse"], worse["best_rmse"]) == ("5.0", "8.0")
    assert not [title for title in good if "accuracy" in title or "target" in title]
    text = printed(table)
    assert text.split()[:2] == ["rmse", "stale"]
    assert "9.25" in text
    report.write_report(folder, figures=False)
    page = (folder / report.PAGE).read_text()
    for words in OF_ACCURACY:
        assert words not in text
        assert words not in body(page)
    assert "Lower values of rmse are better." in page
    assert "Test rmse and loss of the global models." in page
    assert "test accuracy" not in page


def test_the_page_of_a_single_run_has_its_score_and_no_target(folder):
    report.write_report(folder / "good", figures=False)
    page = (folder / "good" / report.PAGE).read_text()
    assert "<dt>rmse best</dt><dd>5</dd>" in page
    assert "first at" not in body(page)


def test_pictures_are_of_the_score(folder):
    write_figures(read_run(folder), 0.9, folder / "figures")
    names = {path.stem for path in (folder / "figures").glob("*.png")}
    assert names == {"rmse", "staleness", "timeline", "overview"}


def test_a_comparison_has_the_lowest_error_first_and_no_percent(folder):
    file = io.StringIO()
    Console(file=file, width=1000).print(compare(read_run(folder), last(2), 0.9))
    head, _, first, second = file.getvalue().strip().splitlines()
    titles = [title.strip() for title in head.split("|")]
    assert titles[1:5] == ["cell", "rmse", "by seed", "within a run"]
    assert "first at" not in head
    assert [text.strip() for text in first.split("|")][1:5] == ["good", "6.25", "6.25", "1.25"]
    assert "worse" in second


def test_a_grid_shows_the_score(folder):
    for name, rate, error in (("good", 0.1, 5.0), ("worse", 1.0, 9.25)):
        text = f"algorithm:\n  name: x\n  client:\n    local_lr: {rate}\nseed: 0\n"
        (folder / name / "config.yaml").write_text(text)
        (folder / name / "summary.json").write_text(json.dumps({**RMSE, "last10_rmse": error}))
    chart = specification(grid(read_run(folder), ("local_lr", "seed")))
    assert chart["datasets"].popitem()[1] == "x,y,score\n0.1,0,5\n1,0,9.25\n"
    assert chart["title"][0].startswith("rmse")


def test_runs_judged_by_different_scores_share_a_report(tmp_path):
    write_pair(tmp_path)
    write_cell(tmp_path / "error", events=events(30.0, 7.5), summary=RMSE, algorithm="x")
    table = report.write_report(tmp_path)
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    assert (rows["fedavg"]["score"], rows["fedavg"]["final_score"]) == ("accuracy", "0.95")
    assert (rows["error"]["score"], rows["error"]["final_score"]) == ("rmse", "7.5")
    assert rows["error"]["seconds_to_target"] == "-"
    assert {"95.0%", "7.5"} <= set(printed(table).split())
    names = {path.stem for path in (tmp_path / "figures").glob("*.png")}
    assert {"accuracy", "rmse"} <= names
    with pytest.raises(ValueError, match=r"^cells are judged by accuracy, rmse: .* --only"):
        common_score(read_run(tmp_path))


def test_a_run_without_a_summary_is_judged_by_what_was_measured(tmp_path):
    write_cell(tmp_path / "a", events=[evaluate(0.0, 0, 0.5)])
    write_cell(tmp_path / "b", events=[{"kind": "evaluate", "t": 0.0, "version": 0, "loss": 2.0}])
    assert [cell.score for cell in read_run(tmp_path)] == [ACCURACY, LOSS]


def test_a_run_that_was_not_evaluated_has_no_score_anywhere(tmp_path):
    for name in ("one", "two"):
        write_cell(tmp_path / name, events=WORK, summary=RMSE, algorithm="fedavg")
    table = report.write_report(tmp_path, figures=False)
    header = (tmp_path / "table.csv").read_text().splitlines()[0]
    for text in (header, printed(table), body((tmp_path / "report.html").read_text())):
        assert not [words for words in (*OF_ACCURACY, "score", "rmse") if words in text]
