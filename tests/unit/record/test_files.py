"""The files of a run, its log, and its progress on the console."""

import io
import json
import math
import subprocess
from collections import Counter
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers import EVENTFUL, aggregate, with_orders
from rich.console import Console
from torch import nn

from fl_app.core.events import (
    Aggregated,
    Arrived,
    Checkpointed,
    ClientsEvaluated,
    Dispatched,
    Evaluated,
    from_json,
)
from fl_app.devices.fleet import Energy
from fl_app.engine.engine import Outcome
from fl_app.record import provenance as module
from fl_app.record import summary as measures
from fl_app.record.folder import RunFolder
from fl_app.record.history import Evaluation, History
from fl_app.record.log import FLUSH_EVERY, MAX_LINES, JsonLines, Log, read_events
from fl_app.record.progress import LINE_EVERY, Progress
from fl_app.record.provenance import provenance, source_commit
from fl_app.record.summary import columns, late, of_last_evaluation, of_outcome, stability
from fl_app.tasks.task import Task


def dispatch(t, client=3):
    return Dispatched(t, client, order=0, version=0, bytes=8)


def arrival(t=0.5, order=0):
    return Arrived(t, 3, order, base_version=0, age=0)


def evaluation(version, t, **metrics):
    return Evaluated(t, version, metrics)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (math.nan, None),
        (-math.inf, None),
        (np.float32("nan"), None),
        (np.array([0.5, np.inf]), [0.5, None]),
        ({"deep": [1, (math.nan, "x")]}, {"deep": [1, [None, "x"]]}),
        (np.int64(7), 7),
        (np.float32(0.5), 0.5),
        (np.arange(2), [0, 1]),
    ],
)
def test_event_values_are_always_valid_json(tmp_path, value, expected):
    sink = JsonLines(tmp_path / "events.jsonl")
    sink.emit(Evaluated(1.0, 1, {"loss": value}))
    sink.close()
    line = json.dumps(expected, separators=(",", ":"))
    text = (tmp_path / "events.jsonl").read_text()
    assert text == f'{{"kind":"evaluate","t":1.0,"version":1,"loss":{line}}}\n'


def test_events_reach_the_disk_after_seconds_of_wall_time_or_many_events(tmp_path, monkeypatch):
    wall = Mock(return_value=100.0)
    monkeypatch.setattr("fl_app.record.log.time", SimpleNamespace(monotonic=wall))
    path = tmp_path / "events.jsonl"
    sink = JsonLines(path)
    sink.emit(dispatch(0.0))
    assert path.read_text() == ""
    wall.return_value += FLUSH_EVERY
    sink.emit(dispatch(1.0))
    assert path.read_text().count("\n") == 2
    for _ in range(MAX_LINES):
        sink.emit(dispatch(2.0))
    assert path.read_text().count("\n") == 2 + MAX_LINES
    sink.close()
    live = RunFolder(tmp_path / "live", History(), live=True)
    live.lock()
    live.emit(dispatch(0.0))
    assert (tmp_path / "live" / "events.jsonl").read_text()
    live.close()


def on_clients(version, t, **means):
    figures = {}
    for name, mean in means.items():
        figures |= {f"{name}_mean": mean, f"{name}_std": 0.25, f"{name}_worst_decile": 0.0}
    return ClientsEvaluated(t, version, t - 1, 10, clients=4, num_examples=40, metrics=figures)


TOTALS = "client_updates,bytes_down,bytes_up,orders_wasted"
ROWS = f"""\
version,t,accuracy,loss,{TOTALS},client_eval_clients,client_eval_examples,client_eval_f1_mean,\
client_eval_f1_std,client_eval_f1_worst_decile
0,0.0,0.125,,0,0,0,0,,,,,
10,1.0,0.25,1.5,1,8,0,0,,,,,
20,3.0,,,1,8,0,0,4,40,0.5,0.25,0.0
30,4.0,,,1,8,0,0,,,,,
"""


@pytest.mark.parametrize(
    ("events", "text"),
    [
        (
            [
                evaluation(0, 0.0, accuracy=np.float32(0.125), loss=np.float64("nan")),
                dispatch(0.0),
                arrival(),
                evaluation(10, 1.0, accuracy=0.25, loss=1.5),
                on_clients(20, 3.0, f1=0.5),
                evaluation(30, 4.0, accuracy=None, loss=math.inf),
            ],
            ROWS,
        ),
        ([], "version,t,accuracy,loss\n"),
    ],
)
def test_every_evaluation_is_a_row(tmp_path, events, text):
    history = History()
    files = RunFolder(tmp_path, history)
    files.lock()
    files.begin({})
    for event in events:
        history.emit(event)
        files.emit(event)
    files.finish(Outcome(np.zeros(2, np.float32)), {}, {}, 0.9)
    assert (tmp_path / "metrics.csv").read_text() == text


def work(order, version=None):
    """The events of an order, and of the version that its update makes."""
    yield Dispatched(0.0, 3, order, version=0)
    yield arrival(order=order)
    if version is not None:
        yield Aggregated(0.0, version, client=[3], order=[order], age=[0])


def make_progress(total, label, **settings):
    """A progress display, and a function that emits an event to it and to its history."""
    history = History()
    sink = Progress(history, label, (total, None, None), **settings)

    def tell(event):
        history.emit(event)
        sink.emit(event)

    return sink, tell


def test_progress_prints_lines_soon_then_now_and_then_and_at_the_end_where_it_cannot_draw():
    wall, out = Mock(return_value=100.0), io.StringIO()
    sink, tell = make_progress(20, "fedbuff", console=Console(file=out), wall=wall)
    for version in range(1, 9):
        for event in work(version, version):
            tell(event)
        tell(evaluation(version, 0.0, accuracy=version / 10))
        wall.return_value += LINE_EVERY / 4
    for event in work(9):
        tell(event)
    tell(evaluation(8, 0.0, accuracy=None))
    sink.close()
    assert out.getvalue().splitlines() == [
        "fedbuff: 1/20 versions 1 updates at 24/min acc 10.0%",
        "fedbuff: 5/20 versions 5 updates at 24/min acc 50.0%",
        "fedbuff: 8/20 versions 9 updates at 27/min acc -",
    ]


def test_progress_bar_is_drawn_ten_times_a_second_at_most_and_left_standing():
    wall, out = Mock(return_value=100.0), io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    sink, tell = make_progress(1000, "[fedbuff]", console=console, wall=wall)
    for version in range(1, 1001):
        for event in work(version, version):
            tell(event)
        wall.return_value += 0.001
    count = out.getvalue().count("[fedbuff]")
    assert 8 <= count <= 12
    sink.close()
    assert "1000/1000 versions" in out.getvalue().splitlines()[-2]
    assert "1,000 updates at 1,000/s" in out.getvalue().splitlines()[-2]


# -- the log ---------------------------------------------------------------------------------------

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
    "line",
    [
        *(b"", b"7", b"\0\0\0\0", b"\xff\xfe"),
        *(
            b'{"kind":"checkp',
            b'{"t":1.0}',
            b'{"kind":"checkpoint"}',
            b'{"kind":"dispatch","t":1.0}',
        ),
    ],
)
def test_damaged_lines_are_left_out(tmp_path, line):
    path = tmp_path / "events.jsonl"
    first, second = LINES.encode().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + second + line + b"\n")
    with pytest.warns(UserWarning, match="events.jsonl: damaged lines left out: 2"):
        assert list(read_events(path)) == [Checkpointed(0.5, 2), Checkpointed(1.5, 4)]


def test_any_event_may_be_lost():
    """The history still counts the other events."""
    waits = {"kind": "arrival", "t": 12.0, "client": 1, "base_version": 2, "age": 0}
    dropped = {"kind": "cluster", "t": 12.0, "version": 2, "client": [1], "cluster": [0]}
    flats = [*with_orders([*EVENTFUL, waits, {**dropped, "dropped": [1]}])]
    for index in range(len(flats)):
        history = History(keep_orders=True)
        rest = flats[:index] + flats[index + 1 :]
        for event in map(from_json, rest):
            history.emit(event)
        kinds = Counter(flat["kind"] for flat in rest)
        assert history.client_updates == kinds["arrival"]
        assert history.failures == kinds["failure"]
        made = {"aggregate", "evaluate"}
        assert history.version == max(e["version"] for e in rest if e["kind"] in made)


def test_a_resumed_run_restores_values_that_are_not_numbers(tmp_path):
    """For example R2 of a client with one example, which is null in JSON."""
    figures = {"r2_mean": math.nan, "r2_std": math.nan, "r2_worst_decile": 0.5, "loss_mean": 1.0}
    live, read = History(), History()
    sink = JsonLines(tmp_path / "events.jsonl")
    for event in (
        Evaluated(1.0, 1, {"accuracy": 0.5, "loss": math.nan}),
        ClientsEvaluated(2.0, 1, 1.0, 5, clients=2, num_examples=10, metrics=figures),
        Aggregated(3.0, 2, client=[0], order=[0], age=[0], report={"gain": math.nan}),
        Aggregated(4.0, 3, client=[0], order=[1], age=[0], report={"gain": 2.0}),
    ):
        live.emit(event)
        sink.emit(event)
    sink.close()
    for event in read_events(tmp_path / "events.jsonl"):
        read.emit(event)
    assert str(read.server_evaluations) == str(live.server_evaluations)  # NaN is not equal to NaN
    assert str(read.client_evaluations) == str(live.client_evaluations)
    summaries = [
        of_outcome(Outcome(np.zeros(2, np.float32)), each, 1.0, 0.9) for each in (live, read)
    ]
    assert summaries[0] == summaries[1]
    assert summaries[1]["final_loss"] is None
    assert summaries[1]["client_eval_r2_mean"] is None
    assert read.reported == live.reported == {"gain": (2.0, 1)}


# -- provenance ------------------------------------------------------------------------------------


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
    process = subprocess.run(
        ["git", "-c", "commit.gpgsign=false", *arguments],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    )
    return process.stdout.strip()


def test_commit_is_that_of_the_source_tree(repository):
    assert source_commit(repository) == (git(repository, "rev-parse", "HEAD"), False)


@pytest.mark.parametrize("file", ["a.py", "my_own_algorithm.py"])
def test_uncommitted_source_is_recorded(repository, file):
    (repository / "fl_app" / file).write_text("2\n")
    assert source_commit(repository)[1] is True


def test_run_resumed_with_other_software_records_the_first_one(monkeypatch):
    first = {**provenance(["num_versions=5"]), "commit": "aaa"}
    second = provenance(["num_versions=9"], first)
    assert second["began_with"] == {"commit": "aaa", "overrides": ["num_versions=5"]}
    monkeypatch.setattr(module, "source_commit", lambda folder: ("bbb", False))
    third = provenance(["num_versions=9"], second)
    assert third["began_with"]["commit"] == "aaa"


# -- measures --------------------------------------------------------------------------------------

# -- numbers --------------------------------------------------------------------------------------


def test_stability_is_the_scatter_of_the_last_ten_accuracies():
    """The last ten are five of 0.1 and five of 0.4.

    log10 differs by log10(4) = 0.60206 between the halves, so its population standard deviation is
    half of that, 0.30103; that of the accuracies is 0.15. Earlier values do not count.
    """
    accuracies = [0.9, 0.001] + 5 * [0.1] + 5 * [0.4]
    log, plain = stability(
        late([Evaluation(n, 0.0, 0, {"accuracy": a}) for n, a in enumerate(accuracies)], "accuracy")
    )
    assert log == pytest.approx(0.30103, abs=1e-6)
    assert plain == pytest.approx(0.15)


# -- a run's events -------------------------------------------------------------------------------

EVENTS = [
    {"kind": "evaluate", "t": 0.0, "version": 0, "accuracy": 0.1},
    {"kind": "dispatch", "t": 0.0, "client": 0, "version": 0, "bytes": 40},
    {"kind": "dispatch", "t": 0.0, "client": 1, "version": 0, "bytes": 40},
    {"kind": "dispatch", "t": 0.0, "client": 2, "version": 0, "bytes": 40},
    {"kind": "arrival", "t": 2.0, "client": 0, "base_version": 0, "age": 0, "bytes": 40},
    {"kind": "dispatch", "t": 2.0, "client": 0, "version": 0, "bytes": 40},
    {"kind": "failure", "t": 3.0, "client": 1, "base_version": 0, "reason": "deadline"},
    {"kind": "arrival", "t": 5.0, "client": 0, "base_version": 0, "age": 0, "bytes": 40},
    {**aggregate(5.0, 1, [0, 0], [0, 0]), "weight": [2, 0]},
    {"kind": "evaluate", "t": 5.0, "version": 1, "accuracy": 0.6},
    {"kind": "reject", "t": 7.0, "client": 1, "base_version": 0, "reason": "late"},
    {"kind": "arrival", "t": 9.0, "client": 2, "base_version": 0, "age": 0, "bytes": 40},
    {"kind": "reject", "t": 9.5, "reason": "duplicate"},
    {"kind": "dispatch", "t": 9.5, "client": 1, "version": 1, "bytes": 40},
    {"kind": "aggregate", "t": 9.5, "client": [2], "age": [1], "version": 2},
    {"kind": "reject", "t": 10.5, "client": 1, "base_version": 1, "reason": "too old"},
]


def history(flats=EVENTS, **settings):
    result = History(**settings)
    for event in with_orders(flats):
        result.emit(from_json(event))
    return result


def test_wasted_orders():
    """Client 0's update of weight 0, and client 1's late and refused updates."""
    totals = history()
    assert totals.joules is None
    assert columns(totals) == {
        "client_updates": 3,
        "bytes_down": 5 * 40,
        "bytes_up": 3 * 40,
        "orders_wasted": 3,
    }


@pytest.mark.parametrize(
    ("events", "joules"),
    [
        ([("arrival", 13.0)], 10 + 2 * 5),  # it waited for the server for a second
        ([("arrival", 6.0)], 4 + 2 * 5),  # recalled: 4 s of training
        ([("refresh", 5.0), ("arrival", 13.0)], 10 + 3 * 5),  # one more download
        ([("failure", 3.0)], 2 + 1 * 5),
        ([("failure", 3.0), ("reject", 12.0)], 10 + 2 * 5),  # it continued after its deadline
        ([("arrival", 12.0), ("evaluate_order", 12.0), ("client_evaluate", 15.0)], 27),
    ],
)
def test_joules_of_orders_as_far_as_they_went(events, joules):
    """1 s down, 10 s of training at 1 W, 1 s up at 5 W; an evaluation trains for 2 s."""
    fields = {"client": 1, "order": 4, "version": 0, "base_version": 0, "age": 0}
    fields |= {"num_examples": 0, "metrics": {}}
    flats = [fields | {"kind": "dispatch", "t": 0.0, "parts": [1.0, 10.0, 1.0]}]
    for kind, t in events:
        flats.append(fields | {"kind": kind, "t": t, "parts": [1.0, 2.0, 0.0]})
    totals = history(flats, joules=Energy(compute_watts=1.0, radio_watts=5.0).joules)
    assert totals.joules == joules
    assert columns(totals)["joules"] == joules


def test_the_summary_of_a_run():
    expected = {
        "std_of_last10_log10_accuracy": None,  # the first evaluation is of the untrained model
        "std_of_last10_accuracy": None,
        "report_accuracy": 0.5,
        "seconds_to_target": 5.0,
        "updates_to_target": 2,
        "versions_to_target": 1,
        "seconds_to_stay_at_target": None,
        "updates_to_stay_at_target": None,
        "versions_to_stay_at_target": None,
        "joules": None,
        "orders_wasted": 3,
        "aggregation": {"drift": 0.5},  # a number that is not finite is not counted
    }
    totals = history()
    report = {"drift": np.float32(0.5), "norm": math.inf}
    totals.emit(Aggregated(10.0, 3, [], [], [], report=report))
    summary = of_outcome(Outcome(np.zeros(2, np.float32)), totals, 1.0, 0.5)
    assert {key: summary[key] for key in expected} == expected


def test_a_collapsed_model_has_finite_weights_and_one_answer():
    def has_collapsed(share, loss):
        metrics = {"accuracy": 0.1, "loss": loss, "commonest_prediction": share}
        return bool(of_last_evaluation(metrics, "accuracy")["collapsed"])

    assert has_collapsed(0.99, 2.3)
    assert not has_collapsed(0.98, 2.3)
    assert not has_collapsed(1.0, math.nan)  # it diverged: see the loss
    assert "collapsed" not in of_last_evaluation({"accuracy": 0.1, "loss": 2.3}, "accuracy")
    poor = {"rmse": 2.7, "loss": 1.0, "r2": -0.003}
    assert of_last_evaluation(poor, "rmse")["collapsed"]
    assert "collapsed" not in of_last_evaluation(poor, "loss")  # an own one, perhaps of logits
    assert not of_last_evaluation({"rmse": 1.0, "loss": 0.1, "r2": 0.86}, "rmse")["collapsed"]


def test_clients_alone_say_nothing_about_a_constant_and_begin_with_a_trained_model():
    """Each client has one class; the means of three versions are 0.2, 0.6 and 1.0."""
    totals = History()
    for version, mean in ((1, 0.2), (2, 0.6), (3, 1.0)):
        names = ("accuracy_mean", "loss_mean", "commonest_prediction_mean", "r2_mean")
        metrics = dict(zip(names, (mean, 0.1, 1.0, -9.0), strict=True))
        totals.emit(ClientsEvaluated(9.0, version, 8.0, 20, 2, 20, metrics))
    summary = of_outcome(Outcome(np.zeros(2, np.float32)), totals, 1.0, 0.5)
    assert summary["last10_accuracy"] == pytest.approx(0.6)
    assert "collapsed" not in summary


# -- class by class -------------------------------------------------------------------------------


def test_recall_of_every_class():
    """Test classes 0 0 1 2; the model predicts one 0 and the 1 correctly."""
    outputs, classes = torch.eye(3)[[0, 1, 1, 1]], torch.tensor([0, 0, 1, 2])
    model = nn.PReLU()  # the identity for positive numbers
    task = Task.from_arrays(outputs, classes, outputs, classes, model=model)
    metrics = task.test(model, recall=True)
    assert metrics == task.test(model) | {"recall_0": 0.5, "recall_1": 1.0, "recall_2": 0.0}
    assert metrics["accuracy"] == 0.5


# -- when a run reaches its target -----------------------------------------------------------------

# Means of five from number 4 on: .38, .52, .6, .56, .6
NOISY = [0.1, 0.2, 0.7, 0.4, 0.5, 0.8, 0.6, 0.5, 0.6]


def version(measure, accuracies, target):
    """The version of the evaluation that `measure` returns for these accuracies."""
    evaluations = [
        Evaluation(number, 10.0 * number, 3 * number, {"accuracy": accuracy})
        for number, accuracy in enumerate(accuracies)
    ]
    evaluation = measure(evaluations, target)
    return evaluation and evaluation.version


def test_lucky_evaluation_is_the_first_but_does_not_stay():
    assert version(measures.first_at, NOISY, 0.5) == 2
    assert version(measures.stays_at, NOISY, 0.5) == 5
    assert version(measures.stays_at, NOISY, 0.59) == 8  # after the .56
    assert version(measures.first_at, NOISY, 0.9) is None
    assert version(measures.stays_at, NOISY, 0.9) is None
