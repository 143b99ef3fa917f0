"""Logs as they are found: torn, damaged, or growing."""

import math
import subprocess
from collections import Counter

import numpy as np
import pytest

from fl_app.core.events import Checkpointed, ClientsEvaluated, Evaluated, from_json
from fl_app.engine.engine import Outcome
from fl_app.record import provenance as module
from fl_app.record.history import History
from fl_app.record.log import JsonLines, Log, read_events
from fl_app.record.provenance import provenance, source_commit
from fl_app.record.summary import of_outcome

LINES = '{"kind":"checkpoint","t":0.5,"version":2}\n{"kind":"checkpoint","t":1.5,"version":4}\n'


def test_a_log_that_grows_is_read_on(tmp_path):
    path = tmp_path / "events.jsonl"
    log = Log(path)
    assert list(log.read()) == []
    first, second = LINES.splitlines(keepends=True)
    path.write_text(first + second[:7])
    assert list(log.read()) == [Checkpointed(0.5, 2)]
    path.write_text(LINES)
    assert list(log.read()) == [Checkpointed(1.5, 4)]
    assert list(log.read()) == []


@pytest.mark.parametrize(
    "damaged",
    [
        b'{"kind":"checkp',
        b"\0\0\0\0",
        b"\xff\xfe",
        b"",
        b"7",
        b'{"t":1.0}',
        b'{"kind":"checkpoint"}',
        b'{"kind":"dispatch","t":1.0}',
    ],
)
def test_damaged_lines_are_left_out(tmp_path, damaged):
    path = tmp_path / "events.jsonl"
    first, second = LINES.encode().splitlines(keepends=True)
    path.write_bytes(first + damaged + b"\n" + second + damaged + b"\n")
    with pytest.warns(UserWarning, match="events.jsonl: damaged lines left out: 2"):
        assert list(read_events(path)) == [Checkpointed(0.5, 2), Checkpointed(1.5, 4)]


def test_any_event_may_be_lost():
    """The fold goes on, and counts what is left."""
    flats = [
        {"kind": "dispatch", "t": 0.0, "client": 0, "order": 0, "version": 0},
        {"kind": "dispatch", "t": 0.0, "client": 1, "order": 1, "version": 0},
        {"kind": "arrival", "t": 1.0, "client": 0, "order": 0, "base_version": 0, "age": 0},
        {"kind": "dispatch", "t": 1.0, "client": 0, "order": 2, "version": 0},
        {"kind": "failure", "t": 2.0, "client": 1, "order": 1, "base_version": 0},
        {"kind": "arrival", "t": 3.0, "client": 0, "order": 2, "base_version": 0, "age": 0},
        {"kind": "cluster", "t": 3.0, "version": 0, "client": [0], "cluster": [0],
         "dropped": [0], "order": [0]},
        {"kind": "aggregate", "t": 3.0, "version": 1, "client": [0], "order": [2], "age": [0]},
    ]  # fmt: skip
    for lost in range(len(flats)):
        history = History(keep_orders=True)
        for event in map(from_json, flats[:lost] + flats[lost + 1 :]):
            history.emit(event)
        kinds = Counter(flat["kind"] for flat in flats if flat is not flats[lost])
        assert history.client_updates == kinds["arrival"]
        assert history.failures == kinds["failure"]
        assert history.version == kinds["aggregate"]
        assert history.participation == ({0: 1} if kinds["aggregate"] else {})


def test_a_run_that_goes_on_knows_what_was_not_a_number(tmp_path):
    """R2 is not defined for a client with one example; JSON has null for it."""
    figures = {"r2_mean": math.nan, "r2_std": math.nan, "r2_worst_decile": 0.5, "loss_mean": 1.0}
    live, read = History(), History()
    sink = JsonLines(tmp_path / "events.jsonl")
    for event in (
        Evaluated(1.0, 1, {"accuracy": 0.5, "loss": math.nan}),
        ClientsEvaluated(2.0, 1, 1.0, 5, clients=2, num_examples=10, metrics=figures),
    ):
        live.emit(event)
        sink.emit(event)
    sink.close()
    for event in read_events(tmp_path / "events.jsonl"):
        read.emit(event)
    assert str(read.server_evaluations) == str(live.server_evaluations)  # NaN is not equal to NaN
    assert str(read.client_evaluations) == str(live.client_evaluations)
    summaries = [
        of_outcome(Outcome(np.zeros(2, np.float32)), each, 3, 1.0, 0.9) for each in (live, read)
    ]
    assert summaries[0] == summaries[1]
    assert summaries[1]["final_loss"] is None
    assert summaries[1]["client_eval_r2_mean"] is None


# -- what software a run was made with -------------------------------------------------------------


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A git repository with a package in it, one commit."""
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "x")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "x@example.org")
    (tmp_path / "fl_app").mkdir()
    (tmp_path / "fl_app" / "a.py").write_text("1\n")
    (tmp_path / ".gitignore").write_text("__pycache__\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--no-verify", "-m", "first")
    source_commit.cache_clear()
    yield tmp_path
    source_commit.cache_clear()


def git(folder, *arguments):
    done = subprocess.run(
        ["git", "-c", "commit.gpgsign=false", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def test_commit_is_that_of_the_source_tree(repository):
    assert source_commit(repository) == (git(repository, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize("file", ["a.py", "my_own_algorithm.py"])
def test_source_that_is_not_committed_is_told(repository, file):
    (repository / "fl_app" / file).write_text("2\n")
    assert source_commit(repository)[1] is True


def test_run_resumed_with_other_software_says_what_it_began_with(monkeypatch):
    began = {**provenance(["num_versions=5"]), "commit": "aaa"}
    again = provenance(["num_versions=9"], began)
    assert again["began_with"] == {"commit": "aaa", "overrides": ["num_versions=5"]}
    monkeypatch.setattr(module, "source_commit", lambda folder: ("bbb", False))
    third = provenance(["num_versions=9"], again)
    assert third["began_with"]["commit"] == "aaa"
