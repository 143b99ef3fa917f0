"""Steps become rows, whatever happens in them."""

import subprocess

import pytest

from boards.row import Disappointed, Impossible, attempt, line, show, wait_for
from fl_app.core.errors import RunError


def seen() -> str:
    return "as it should"


def lacking() -> str:
    raise Impossible("podman is missing: apt install podman")


def failing() -> str:
    raise Disappointed("it did not start")


def isolated() -> str:
    raise Disappointed("no package index can be reached: connect this machine to a network")


def refused() -> str:
    raise RunError("the SuperLink did not start")


def hanging() -> str:
    raise subprocess.TimeoutExpired("sleep", 3)


def test_every_step_is_a_row() -> None:
    rows = list(attempt("part", [("one", seen), ("two", seen)]))
    assert [(row.part, row.what, row.verdict, row.detail) for row in rows] == [
        ("part", "one", "passed", "as it should"),
        ("part", "two", "passed", "as it should"),
    ]
    assert all(0 <= row.seconds < 1 for row in rows)


@pytest.mark.parametrize(
    ("step", "verdict", "detail"),
    [
        (lacking, "impossible", "podman is missing"),
        (failing, "failed", "it did not start"),
        (isolated, "impossible", "connect this machine to a network"),
        (refused, "failed", "the SuperLink did not start"),
        (hanging, "failed", "timed out after 3 seconds"),
    ],
)
def test_what_needs_a_failed_step_is_not_tried(step, verdict, detail) -> None:
    steps = [("one", seen), ("two", step), ("three", seen), ("four", seen)]
    rows = list(attempt("part", steps))
    assert [(row.what, row.verdict) for row in rows] == [
        ("one", "passed"),
        ("two", verdict),
        ("three; four", verdict),
    ]
    assert detail in rows[1].detail
    assert rows[2].detail == "not tried, for want of: two"


def test_mistakes_of_the_harness_are_not_hidden() -> None:
    def wrong() -> str:
        raise KeyError("name")

    with pytest.raises(KeyError):
        list(attempt("part", [("one", wrong)]))


def test_rows_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(attempt("part", [("[one]", failing)]))
    assert line(rows[0]) == "part: [one]: failed, 0 s: it did not start"
    show(rows)
    assert "[one]" in capsys.readouterr().out


def test_waiting_ends() -> None:
    answers = iter([False, True])
    assert wait_for(lambda: next(answers), "it answers", 5.0, every=0.0) < 5
    with pytest.raises(Disappointed, match=r"not within 0 s: never"):
        wait_for(lambda: False, "never", 0.0, every=0.0)
