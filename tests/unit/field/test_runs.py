"""A run that is supervised, and processes that are kept running."""

import json

import pytest

from fl_app.core.errors import RunError
from fl_app.core.events import (
    Aggregated,
    Arrived,
    Dispatched,
    Evaluated,
    Failed,
    Rejected,
    to_json,
)
from fl_app.field.control import Unreachable
from fl_app.field.runs import Supervisor

AWAY = "away"
ACCEPTED = "accepted"


class Scripted:
    """A SuperLink that tells a story: of every run, its statuses in turn; ``away`` in between.

    ``accepted`` is a run that it has taken, though it went away before it said so.

    What a run does to its folder happens as soon as it is submitted.
    """

    def __init__(self, output, *runs):
        self.output, self._runs = output, list(runs)
        self.submitted = []
        self.paused = []
        self.told = []
        self._statuses = []
        self.nodes_online = [1]  # now, later, and so on

    def online(self):
        return self.nodes_online.pop(0) if len(self.nodes_online) > 1 else self.nodes_online[0]

    def under_way(self, output):
        assert output == self.output
        return (len(self.submitted), self.submitted[-1]) if self._statuses else None

    def submit(self, overrides, output):
        assert output == self.output
        assert not self._statuses, "two runs in one folder"
        if self._runs[0] == AWAY:
            self._runs.pop(0)
            raise Unreachable("nobody answers")
        run = self._runs.pop(0)
        if self._runs[:1] == [ACCEPTED]:
            self._runs.pop(0)
            self._begin(run, overrides)
            raise Unreachable("connection reset")
        return self._begin(run, overrides)

    def _begin(self, run, overrides):
        does, *self._statuses = run
        does(self.output)
        self.submitted.append(list(overrides))
        return len(self.submitted)

    def status(self, run_id):
        assert run_id == len(self.submitted)
        status = self._statuses.pop(0)
        if status == AWAY:
            raise Unreachable("nobody answers")
        return status, "the details" if status == "finished:failed" else ""

    def complete(self, *overrides, **options):
        supervisor = Supervisor(self, pause=self.paused.append, tell=self.told.append, **options)
        supervisor.complete(overrides, self.output)
        assert self._runs == []


def nothing(output): ...


def log(output):
    output.mkdir(exist_ok=True)
    with (output / "events.jsonl").open("a") as file:
        file.write(json.dumps(to_json(Evaluated(0.0, 0, {}))) + "\n")


def ends(stopped):
    def end(output):
        log(output)
        (output / "summary.json").write_text(json.dumps({"stopped": stopped}))

    return end


def refuses(output):
    (output / "refused.txt").write_text("task.loss=my:los is unknown")


DONE = (nothing, "starting", "running", "finished:completed")
DIED = (log, "running", "finished:failed")


@pytest.mark.parametrize(
    ("runs", "resumed", "told"),
    [
        ([DIED, (log, "running", "finished:unknown"), DONE], 2, "run 1 is finished:failed: the de"),
        (
            [AWAY, (log, AWAY, AWAY, "finished:failed"), AWAY, DONE],
            1,
            "waiting for the SuperLink: n",
        ),
        # A ServerApp that is asked to end writes a summary, and has not ended of its own.
        (
            [(ends("interrupted"), "running", "finished:failed"), DONE],
            1,
            "run 1 is finished:failed",
        ),
        ([DONE, ACCEPTED], 0, "run 1 is under way in "),
    ],
    ids=["server app", "superlink", "interrupted", "accepted"],
)
def test_a_run_is_resumed_whatever_died(tmp_path, runs, resumed, told):
    link = Scripted(tmp_path / "run", *runs)
    link.complete("seed=1")
    assert link.submitted == [["seed=1"], *[["seed=1", "resume=auto"]] * resumed]
    assert any(line.startswith(told) for line in link.told)
    waits = link.told.count("waiting for the SuperLink: nobody answers")
    assert waits == 3 * (AWAY in runs)  # once each, however often it was asked


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ((ends("Diverged: not finite"), "finished:failed"), "it ended with Diverged: not finite"),
        ((log, "running", "finished:stopped"), "run 1 is finished:stopped"),
        ((refuses, "running", "finished:failed"), "the details: task.loss=my:los is unknown"),
    ],
)
def test_a_run_that_ended_or_was_stopped_is_not_submitted_again(tmp_path, run, reason):
    with pytest.raises(RunError, match=reason):
        Scripted(tmp_path / "run", run).complete()


def test_a_run_that_somebody_else_submitted_is_seen_through_and_resumed(tmp_path):
    """After Ctrl-C, which ends the command and not the run, the same command again."""
    link = Scripted(tmp_path / "run", DONE)
    link._begin(DIED, ["seed=1"])
    link.complete("seed=1")
    assert link.submitted == [["seed=1"], ["seed=1", "resume=auto"]]
    assert link.told[0] == f"run 1 is under way in {tmp_path / 'run'}: no other run is submitted"


def test_a_run_under_way_with_other_overrides_is_left_alone(tmp_path):
    link = Scripted(tmp_path / "run")
    link._begin(DIED, ["seed=1", "resume=auto"])
    text = r"--output=.*/run must be .* run 1 is \(seed=1 instead of seed=2\): two runs would write"
    with pytest.raises(ValueError, match=text):
        link.complete("seed=2")
    assert link.submitted == [["seed=1", "resume=auto"]]


def test_a_log_that_is_cut_and_grows_again_is_no_progress(tmp_path):
    """As on a disk that is full: the run goes on from a checkpoint, and ends where it did."""

    def grows_to(size):
        def grow(output):
            output.mkdir(exist_ok=True)
            (output / "events.jsonl").write_text("x" * size)

        return (grow, "running", "finished:failed")

    link = Scripted(tmp_path / "run", grows_to(100), *map(grows_to, (99, 100, 98)))
    with pytest.raises(RunError, match="3 attempts in a row have made no progress"):
        link.complete()


def test_attempts_that_get_further_are_never_too_many(tmp_path):
    vain = (nothing, "finished:failed")
    link = Scripted(tmp_path / "run", *[vain, vain, DIED] * 3, DONE)
    link.complete()
    waits = [told.split()[-2] for told in link.told if "again in" in told]
    assert waits == ["10", "20", "5"] * 3  # they start anew


def test_a_finished_run_is_not_begun_anew(tmp_path):
    ends("num_versions")(tmp_path)
    link = Scripted(tmp_path)
    with pytest.raises(ValueError, match=r"--output=.* must be a folder without a finished run"):
        link.complete()


def test_a_run_that_ended_early_goes_on_if_the_user_says_so(tmp_path):
    """After a full disk was mended, say; whoever goes on removes the summary at once."""
    ends("RunError: No space left on device")(tmp_path)

    def goes_on(output):
        (output / "summary.json").unlink()
        log(output)

    link = Scripted(tmp_path, (goes_on, "running", "finished:failed"), DONE)
    link.complete("resume=auto")
    assert link.submitted == [["resume=auto"]] * 2


def test_a_run_is_not_submitted_before_a_node_is_online(tmp_path):
    """After a power cut the server is back before the boards, and a run waits only a minute."""
    link = Scripted(tmp_path / "run", DIED, DONE)
    link.nodes_online = [1, 0, 0, 2]  # all have gone between the two submissions
    link.complete()
    assert link.told.count("waiting for a node to come online") == 1
    first, resumed = (i for i, told in enumerate(link.told) if "submitted: " in told)
    assert first < link.told.index("waiting for a node to come online") < resumed


EVENTS = [
    Evaluated(0.0, 0, {"accuracy": 0.1, "loss": 2.3}),
    *(Dispatched(0.0, client, client, 0, bytes=100) for client in range(4)),
    Arrived(3.0, 0, 0, 0, age=0, loss=0.5, bytes=40),
    Failed(4.0, 1, 1, 0, "deadline passed"),
    Rejected(5.0, 2, 2, 0, "norm=8.91e+06 is above guard.max_norm=10"),
    Dispatched(5.0, 0, 4, 0, bytes=100),
    Aggregated(6.0, 1, [0], [0], [0]),
    Arrived(45.0, 0, 4, 0, age=1, loss=0.4, bytes=40),
    Aggregated(45.0, 2, [0], [4], [1]),
    Dispatched(45.0, 0, 5, 2, bytes=100),
    Arrived(45.5, 0, 5, 2, age=0, loss=0.4, bytes=40),
]


def test_version_score_and_failures_are_told_every_minute(tmp_path, capsys):
    def begin(output):
        (output / "config.yaml").write_text("num_versions: 40\n")
        (output / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in EVENTS))

    link = Scripted(tmp_path / "run", (begin, *["running"] * 30, "finished:completed"))
    link.complete(wall=lambda: sum(link.paused))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + round(sum(link.paused)) // 60 + 1  # soon, each minute, at the end
    assert link.told.count("the first failure, of client 1: deadline passed") == 1
    assert {*lines} == {"run 1: 2/40 versions 3 updates at 0/min acc 10.0% 1 failed 1 rejected"}
