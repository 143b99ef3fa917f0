"""How cells compare over chosen evaluations, seeds together: every figure worked out by hand."""

import io
import re

import pytest
from rich.console import Console
from run_folders import ASYNCHRONOUS, ROUNDS, history_of, write_cell

from fl_app.report.__main__ import main
from fl_app.report.cells import Cell
from fl_app.report.comparison import between, compare, last, print_comparison


def cell(name, accuracies, *, every=10.0, seconds=0.0, client_updates=0, **fields):
    """Evaluated every so many seconds; a version and three client updates from one to the next."""
    evaluations = [(every * n, accuracy) for n, accuracy in enumerate(accuracies)]
    history = history_of((), evaluations, seconds, each=3, client_updates=client_updates)
    fields = {"label": name.partition("-seed")[0], "summary": {}, **fields}
    return Cell(name, name, False, history=history, **fields)


def rows(cells, choice, target=0.5):
    """The printed table as lists of texts, its header first."""
    out = io.StringIO()
    Console(file=out, width=300).print(compare(cells, choice, target))
    header, rule, *body = out.getvalue().strip().splitlines()
    assert set(rule.strip()) == {"|", "-"}
    return [
        [text.strip() for text in line.strip().strip("|").split("|")] for line in (header, *body)
    ]


def accuracies(cells, choice):
    return {row[0]: row[2] for row in rows(cells, choice)[1:]}


def test_seeds_share_a_row_and_the_best_cell_comes_first():
    sent = {"bytes_down": 3_000_000, "bytes_up": 1_000_000}
    cells = [
        cell("slow-seed0", [0.1, 0.2, 0.3, 0.4], seconds=35.0, client_updates=9),
        cell(
            "fast-seed0",
            [0.1, 0.5, 0.5, 0.6, 0.8],
            seconds=30.0,
            client_updates=10,
            summary=sent,
            reports={"effective_clients": [(1, 2.0), (2, 9.0), (3, 4.0)]},
        ),
        cell(
            "fast-seed1",
            [0.1, 0.3, 0.4, 0.4],
            seconds=32.0,
            client_updates=14,
            summary={"bytes_down": 5_000_000, "bytes_up": 1_000_000},
            reports={"effective_clients": [(1, 1.0), (2, 2.0)]},
        ),
    ]
    # The last two evaluations: 60 and 80, 40 and 40; 30 and 40.
    assert rows(cells, last(2)) == [
        [
            *("cell", "accuracy", "by seed", "within a run"),
            *("first at 50%: seconds", "updates", "versions", "stays at 50%: seconds"),
            *("seconds in all", "updates in all", "MB", "effective clients"),
        ],
        [
            *("fast", "55.0 ± 21.2", "70.0, 40.0", "5.0"),
            *("10, never", "3, never", "1, never", "40, never", "31", "12", "5", "2.8"),
        ],
        [
            *("slow", "35.0", "35.0", "5.0"),
            *("never", "never", "never", "never", "35", "9", "-", "-"),
        ],
    ]


@pytest.mark.parametrize(
    ("choice", "accuracy"),
    [
        (last(1), "40.0"),
        (last(99), "25.0"),
        (between("t", 10, 20), "25.0"),
        (between("t", 20, 29.9), "30.0"),
        (between("client_updates", 4, 9), "35.0"),
        (between("version", 2, 2), "30.0"),
        (between("t", 21, 29), "30.0"),  # none between: the newest model that was known
        (between("t", 100, 200), "40.0"),
    ],
)
def test_evaluations_that_count(choice, accuracy):
    assert accuracies([cell("a", [0.1, 0.2, 0.3, 0.4])], choice) == {"a": accuracy}


def test_a_cell_without_an_evaluation_comes_last_and_spoils_no_mean():
    cells = [cell("b-seed0", []), cell("a-seed0", []), cell("a-seed1", [0.5])]
    assert accuracies(cells, last(3)) == {"a": "-, 50.0", "b": "-"}
    assert [row[1] for row in rows(cells, last(3))[1:]] == ["50.0", "-"]


@pytest.mark.parametrize(
    ("choose", "text"),
    [
        (lambda: last(0), "last=0 must be at least 1: "),
        (lambda: between("t", 3, 2), "mean=3 2 must be two numbers, the first at least 0"),
        (lambda: between("t", -1, 2), "mean=-1 2 must be"),
        (lambda: between("t", float("nan"), 2), "mean=nan 2 must be"),
    ],
)
def test_what_would_choose_nothing_is_refused(choose, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        choose()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--last", "1", "--target-accuracy", "70"], "target_accuracy=70.0 must be above 0 and at"),
        (["--last", "1", "--over", "version"], "--over=version needs --mean: nothing else has"),
        (["--last", "1", "--mean", "0", "5"], "argument --mean: not allowed with argument --last"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_read(
    tmp_path, capsys, options, text
):
    with pytest.raises(SystemExit):
        main([str(tmp_path / "nothing"), *options])
    assert text in capsys.readouterr().err


def test_what_a_table_for_a_paper_must_not_hide_is_told_below_it():
    def printed(*cells):
        out = io.StringIO()
        print_comparison(cells, last(1), 0.5, Console(file=out, width=300))
        return [line for line in out.getvalue().splitlines() if line.strip() and "|" not in line]

    good = cell("good", [0.5], summary={"data": "local", "stopped": "seconds"})
    assert printed(good) == []
    assert printed(
        good,
        cell("made-seed0", [0.5], summary={"data": "stand-in", "stopped": "num_versions"}),
        cell("far-seed1", [0.5], summary={"stopped": "Diverged: not finite"}),
        cell("killed", [0.5]),
        cell("far-seed2", [0.5], summary={"stopped": "updates"}),
    ) == [
        "Deviations over seeds are sample deviations (n - 1).",
        "NOT THE REAL DATA but a stand-in: made-seed0",
        "NOT RUN TO THEIR END: far-seed1 (Diverged: not finite), killed (no summary)",
    ]


@pytest.mark.parametrize(
    ("options", "accuracies"),
    [
        (["--last", "2"], {"fedasync": "88.5", "fedavg": "72.5"}),
        (["--last", "final"], {"fedasync": "85.0", "fedavg": "95.0"}),
        (["--mean", "0", "2.5"], {"fedasync": "51.0", "fedavg": "10.0"}),
        (
            ["--mean", "1", "2", "--over", "version", "--only", "fedavg"],
            {"fedavg": "72.5"},
        ),
    ],
)
def test_the_command_prints_the_comparison_and_writes_nothing(
    tmp_path, capsys, options, accuracies
):
    write_cell(tmp_path / "fedavg", events=ROUNDS, algorithm="fedavg")
    write_cell(tmp_path / "fedasync", events=ASYNCHRONOUS, algorithm="fedasync")
    before = sorted(tmp_path.rglob("*"))
    main([str(tmp_path), *options])
    lines = [line.split("|") for line in capsys.readouterr().out.splitlines() if "| fed" in line]
    assert {line[1].strip(): line[2].strip() for line in lines} == accuracies
    assert sorted(tmp_path.rglob("*")) == before
