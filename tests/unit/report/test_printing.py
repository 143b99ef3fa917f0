"""The table on the console: what it says, and what it leaves out where there is little room."""

import io

import pytest
from rich.console import Console
from rich.text import Text
from run_folders import ROUNDS, SUMMARY, write_cell, write_pair, write_seeds

from fl_app.report.printing import print_table
from fl_app.report.reading import read_run
from fl_app.report.table import Table, make_table


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def table_of(tmp_path):
    write_pair(tmp_path)
    return make_table(read_run(tmp_path), 0.9)


def printed(table, **options):
    out = io.StringIO()
    print_table(table, Console(file=out, **options))
    return out.getvalue()


def test_printed_table_breaks_no_line_in_a_file(tmp_path):
    lines = [" ".join(line.split()) for line in printed(table_of(tmp_path)).splitlines()]
    assert lines[-2:] == [
        "fedavg 95.0% 95.0% 6.0 4 - 0.0 4 2 10 steps - 0 0 0 2.5 1.0 812 num_versions",
        "fedasync 85.0% 92.0% 2.0 2 - 0.7 3 2 - - 2 0 0 - - - -",
    ]


def test_best_of_several_cells_is_bold(tmp_path):
    text = printed(table_of(tmp_path), force_terminal=True, width=200)
    assert "\x1b[1m95.0%\x1b[0m" in text
    assert "\x1b[1m2.0\x1b[0m" in text
    assert "\x1b[1m85.0%" not in text
    one = Table(table_of(tmp_path).rows[:1], 0.9)
    assert "\x1b[1m" not in printed(one, force_terminal=True, width=200)


def test_names_in_brackets_are_no_markup(tmp_path):
    write_cell(tmp_path / "[red]", events=ROUNDS, summary={"stopped": "Diverged: [red] nan"})
    text = printed(make_table(read_run(tmp_path), 0.9))
    assert "[red]" in text
    assert "Diverged: [red] nan" in text


def test_printed_mean_has_its_spread_and_only_means_compete(tmp_path):
    write_seeds(tmp_path)
    table = make_table(read_run(tmp_path), 0.9)
    lines = [" ".join(line.split()) for line in printed(table).splitlines()]
    assert lines[-1] == "Of several seeds: mean and sample standard deviation (n - 1)."
    assert lines[-2].startswith(
        "fedasync (2 seeds) 88.5% \u00b14.9 92.0% \u00b10.0 2.0 \u00b10.0 2 "
    )
    text = printed(table, force_terminal=True, width=200)
    assert "\x1b[1m2.0 \u00b10.0\x1b[0m" in text
    assert "\x1b[1m95.0%\x1b[0m" in text
    assert text.count("\x1b[1m") == 4


def test_made_up_data_are_announced_below_the_table(tmp_path):
    write_cell(tmp_path / "real", events=ROUNDS, summary={**SUMMARY, "data": "local"})
    write_cell(tmp_path / "made-up", events=ROUNDS, summary={**SUMMARY, "data": "stand-in"})
    file = io.StringIO()
    print_table(make_table(read_run(tmp_path), 0.9), Console(file=file, width=160))
    assert file.getvalue().splitlines()[-1] == "NOT THE REAL DATA but a stand-in: made-up"


def wide(tmp_path, *names, events=ROUNDS, **summary):
    """A table that with all its columns takes 110 characters beside the names."""
    for name in names:
        summary = {**SUMMARY, **summary}
        write_cell(tmp_path / name, events=events, summary=summary, algorithm="fedavg")
    return make_table(read_run(tmp_path), 0.9)


LONG = "fedasync local_lr=0.1 staleness_function=polynomial partition=dirichlet"


def lines_of(table, width):
    lines = printed(table, force_terminal=True, no_color=True, width=width).splitlines()
    assert all(len(Text.from_ansi(line).plain) <= width for line in lines)
    return [Text.from_ansi(line).plain.rstrip() for line in lines]


def test_a_narrow_terminal_gets_the_columns_that_matter_most(tmp_path):
    table = wide(tmp_path, "fedavg", "fedbuff")
    at_100, at_80, at_60 = (lines_of(table, width) for width in (100, 80, 60))
    for lines in (at_100, at_80, at_60):
        assert lines[1].split()[:3] == ["cell", "final", "best"]
        assert lines[2].split()[:3] == ["fedavg", "95.0%", "95.0%"]
        assert lines[4].startswith("Left out for lack of room: ")
    assert len(at_60[1].split()) < len(at_80[1].split()) < len(at_100[1].split())
    assert "wall upd/s, stopped" in " ".join(at_80[4:])


def test_long_names_take_some_lines_broken_at_spaces(tmp_path):
    lines = lines_of(wide(tmp_path, LONG, "fedbuff"), 80)
    assert [" ".join(line.split()) for line in lines[2:6]] == [
        "fedasync local_lr=0.1 95.0% 95.0% 6.0 4",
        "staleness_function=polynomial",
        "partition=dirichlet",
        "fedbuff 95.0% 95.0% 6.0 4",
    ]


def test_what_ended_a_run_unusually_is_told_below_the_table(tmp_path):
    table = wide(tmp_path, "fedavg", stopped="Diverged: not finite")
    assert lines_of(table, 80)[-1] == "NOT RUN TO THEIR END: fedavg (Diverged: not finite)"


def test_a_file_gets_all_columns_and_no_broken_line(tmp_path):
    text = printed(wide(tmp_path, LONG, "fedbuff"))
    assert text.splitlines()[2].split()[:5] == [*LONG.split(), "95.0%"]
    assert "Left out" not in text
    assert len(text.splitlines()) == 4


def test_columns_limits_a_pipe(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = printed(wide(tmp_path, LONG, "fedbuff")).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[2].startswith("fedasync local_lr=0.1 ")
    assert "Left out for lack of room" in lines[6]
