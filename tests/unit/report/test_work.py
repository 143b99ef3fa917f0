"""A comparison of unequal work is told; one at equal time is no comparison of unequal work."""

import io

import pytest
from rich.console import Console
from run_folders import ASYNCHRONOUS, ROUNDS, history_of, write_cell

from fl_app.report import write_report
from fl_app.report.cells import Cell
from fl_app.report.comparison import last, print_comparison
from fl_app.report.printing import print_table
from fl_app.report.reading import read_run
from fl_app.report.work import at_work, work_of


def cell(client_updates, stopped="num_versions", config=""):
    summary = {"stopped": stopped}
    history = history_of(client_updates=client_updates)
    return Cell("a", "fedbuff", False, summary, history=history, config=config)


UNEQUAL = (
    "Unequal work: 100 to 1,000 client updates a cell; compare at equal updates with "
    "max_updates=1000 num_versions=null."
)
MINUTE, HOUR = "max_seconds: 60", "max_seconds: 3600"


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([], ""),
        ([cell(100)], ""),
        ([cell(1000), cell(1100)], ""),
        ([cell(1000), cell(100), cell(300)], UNEQUAL),
        ([cell(100, "seconds", MINUTE), cell(1000, "seconds", HOUR)], UNEQUAL),
        ([cell(100, "seconds", MINUTE), cell(1000, "num_versions", MINUTE)], UNEQUAL),
        (
            [cell(100, "seconds", MINUTE), cell(1000, "seconds", MINUTE)],
            "Every cell had max_seconds=60, and did different work: 100 to 1,000 client updates a "
            "cell.",
        ),
        (
            [cell(100, "target_accuracy", MINUTE), cell(1000, "seconds", MINUTE)],
            "Every cell had max_seconds=60, and did different work: 100 to 1,000 client updates a "
            "cell.",
        ),
        (
            [cell(100, "target_accuracy"), cell(1000, "target_accuracy")],
            "Every cell ended at its target accuracy, after different work: 100 to 1,000 client "
            "updates a cell.",
        ),
        (
            [
                cell(100, "target_accuracy", "max_updates: 9"),
                cell(1000, "updates", "max_updates: 9"),
            ],
            "Every cell had max_updates=9, and did different work: 100 to 1,000 client updates a "
            "cell.",
        ),
        ([cell(0), cell(1000)], UNEQUAL.replace("100 to", "0 to")),
        ([cell(3, "interrupted"), cell(1000), cell(2, None)], ""),
    ],
)
def test_work_is_told_where_it_differs_and_what_was_equal_instead(cells, text):
    assert work_of(cells) == text


def test_what_cells_do_for_an_update_is_told_where_it_differs():
    """Three orders at once, of which two ended when the last began; and ten at once."""
    spans = [(0, 0.0, 1.0), (1, 0.0, 1.0), (2, 0.5, None), (1, 1.0, 2.0)]
    few, many = (
        Cell("a", "fedbuff", False, {"work_per_update": work}, history=history_of(orders))
        for work, orders in (
            ("10 steps", spans),
            ("1 mini-batch", [(client, 0.0, None) for client in range(10)]),
        )
    )
    assert (at_work(few), at_work(many)) == (3, 10)
    assert work_of([few, few]) == ""
    assert work_of([few, many]) == (
        "Cells differ in what they do per update: 10 steps, 1 mini-batch, and in how many clients "
        "are at work: 3 to 10."
    )


def test_table_page_and_markdown_tell_it(tmp_path):
    """Two cells of as many versions: four client updates, and three."""
    summary = {"stopped": "num_versions"}
    write_cell(tmp_path / "fedavg", events=ROUNDS, summary=summary, algorithm="fedavg")
    write_cell(tmp_path / "fedasync", events=ASYNCHRONOUS, summary=summary, algorithm="fedasync")
    told = (
        "Unequal work: 3 to 4 client updates a cell; compare at equal updates with max_updates=4 "
        "num_versions=null."
    )
    out = io.StringIO()
    print_table(write_report(tmp_path, figures=False), Console(file=out, width=1000))
    assert told in out.getvalue().splitlines()
    assert told in (tmp_path / "report.html").read_text()
    out = io.StringIO()
    print_comparison(read_run(tmp_path), last(1), 0.9, Console(file=out, width=1000))
    assert told in out.getvalue().splitlines()
