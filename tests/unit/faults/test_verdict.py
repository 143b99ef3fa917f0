"""What makes a row pass or fail, on the files of a run made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from faults.verdict import Row, judge

OTHERS = dict(others=[0, 1], calm=[(0.0, 50.0)], disturbed=(50.0, 100.0))


def write(run: Path, *, events: list[dict[str, Any]], stopped: str = "num_versions") -> None:
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (run / "summary.json").write_text(json.dumps({"stopped": stopped}))
    np.savez(run / "model.npz", w=np.ones(2, np.float32))


def history(slow_from: float = 1000.0) -> list[dict[str, Any]]:
    """Two clients that answer every 10 s, the second one every 50 s from some time on."""
    first = [(10.0 * i, 0) for i in range(1, 11)]
    second = [(t, 1) for t in range(10, 101, 10) if t <= slow_from or t % 50 == 0]
    events: list[dict[str, Any]] = []
    for version, (t, client) in enumerate(sorted([*first, *second])):
        events += [
            {"kind": "dispatch", "t": t - 1.0, "client": client, "version": version},
            {"kind": "arrival", "t": t, "client": client, "base_version": version, "age": 0},
            {"kind": "aggregate", "t": t, "version": version + 1, "client": [client], "age": [0]},
        ]
    return events


def test_a_run_that_withstood_it(tmp_path: Path) -> None:
    events = history()
    events += [
        {"kind": "failure", "t": 60.0, "client": 2, "base_version": 1, "reason": "node vanished"},
        {"kind": "reject", "t": 70.0, "client": 2, "base_version": 1, "reason": "late"},
        {"kind": "reject", "t": 20.0, "client": 2, "base_version": 0, "reason": "before"},
    ]
    write(tmp_path, events=events)
    row = Row("link-cut", "seen", **OTHERS)
    judge([row], tmp_path, "")
    assert (row.verdict, row.problems, row.versions) == ("passed", [], 20)
    assert (row.failures, row.rejected, row.seconds) == (1, 1, 50.0)
    assert row.kept == pytest.approx(1.0)


def test_others_that_were_slowed(tmp_path: Path) -> None:
    write(tmp_path, events=history(slow_from=50.0))
    rows = [Row("slow", **OTHERS), Row("server", disturbed=(50.0, 100.0))]
    judge(rows, tmp_path, "")
    assert rows[0].problems == ["the others kept 60% of their rate"]
    assert rows[0].verdict == "failed"
    assert (rows[1].verdict, rows[1].kept) == ("passed", None), "nobody was undisturbed"


def test_what_is_wrong_with_the_run_is_wrong_with_all_its_rows(tmp_path: Path) -> None:
    cheated = {
        "kind": "aggregate",
        "t": 101.0,
        "version": 21,
        "client": [3],
        "order": [99],
        "age": [0],
    }
    write(tmp_path, events=[*history(), {**cheated, "order": [99]}], stopped="interrupted")
    np.savez(tmp_path / "model.npz", w=np.array([1.0, np.nan], np.float32))
    rows = [Row("a"), Row("b", problems=["its own"])]
    judge(rows, tmp_path, "")
    assert rows[0].problems == [
        "the run stopped with interrupted",
        "array 'w' is not finite",
        "version 21 holds an update of client 3 from version 20 that never arrived",
    ]
    assert rows[1].problems == ["its own", *rows[0].problems]


def test_a_run_that_did_not_end(tmp_path: Path) -> None:
    row = Row("a")
    judge([row], tmp_path, "not within 240 s: it ends")
    assert row.problems == ["the run: not within 240 s: it ends"]
    row = Row("a")
    judge([row], tmp_path, "")
    assert row.problems == ["there is no summary"]


def test_what_cannot_be_injected_is_neither_passed_nor_failed() -> None:
    assert Row("packet-loss", untested="needs netem").verdict == "untested"
