import json

import pytest

from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Dispatched, Evaluated, Failed, to_json
from fl_app.field.control import Unreachable
from fl_app.field.runs import Supervisor

AWAY = "away"
LOST = "lost"
ACCEPTED = "accepted"


class Scripted:
    """A SuperLink that tells a story: of every run, its statuses in turn; ``away`` in between.

    ``lost`` is a run that it went away from while it was submitted; ``accepted`` one that it has
    taken, though it went away before it said so.

    What a run does to its folder happens as soon as it is submitted.
    """

    def __init__(self, output, *runs) -> None:
        self.output, self._runs = output, list(runs)
        self.submitted: list[list[str]] = []
        self.paused: list[float] = []
        self.told: list[str] = []
        self._statuses: list[str] = []
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
        if self._runs[0] == LOST:
            self._runs.pop(0)
            raise RunError("`flwr run`: connection reset")
        run = self._runs.pop(0)
        if self._runs[:1] == [ACCEPTED]:
            self._runs.pop(0)
            self._begin(run, overrides)
            raise RunError("`flwr run`: connection reset")
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
        self.supervisor = Supervisor(
            self, pause=self.paused.append, tell=self.told.append, **options
        )
        self.supervisor.complete(overrides, self.output)
        assert self._runs == []


def nothing(output) -> None: ...


def log(output) -> None:
    output.mkdir(exist_ok=True)
    with (output / "events.jsonl").open("a") as file:
        file.write(json.dumps(to_json(Evaluated(0.0, 0, {}))) + "\n")


def ends(stopped):
    def end(output) -> None:
        log(output)
        (output / "summary.json").write_text(json.dumps({"stopped": stopped}))

    return end


DONE = (nothing, "starting", "running", "finished:completed")
DIED = (log, "running", "finished:failed")


def test_a_run_that_completes_is_submitted_once(tmp_path):
    link = Scripted(tmp_path / "run", DONE)
    link.complete("algorithm=fedbuff", "num_versions=3")
    assert link.submitted == [["algorithm=fedbuff", "num_versions=3"]]
    assert link.told[-1] == "run 1 is finished:completed"


def test_a_run_whose_server_app_or_database_died_is_resumed(tmp_path):
    link = Scripted(tmp_path / "run", DIED, (log, "running", "finished:unknown"), DONE)
    link.complete("num_versions=3")
    assert link.submitted == [["num_versions=3"], *[["num_versions=3", "resume=auto"]] * 2]
    assert "run 1 is finished:failed: the details; again in 5 s" in link.told


def test_a_run_whose_superlink_died_waits_for_it_and_is_resumed(tmp_path):
    died = (log, "running", AWAY, AWAY, AWAY, "finished:failed")
    link = Scripted(tmp_path / "run", AWAY, died, AWAY, AWAY, DONE)
    link.complete("seed=1")
    assert link.submitted == [["seed=1"], ["seed=1", "resume=auto"]]
    assert link.told.count("waiting for the SuperLink: nobody answers") == 3  # told once each


def test_a_run_is_not_replaced_whenever_it_died(tmp_path):
    link = Scripted(tmp_path / "run", DONE)
    with pytest.raises(ValueError, match="overwrite=true must be left out here: a run that died"):
        link.complete("overwrite=true")
    assert link.submitted == []


def test_an_interrupted_run_is_resumed(tmp_path):
    """A ServerApp that is asked to end writes a summary, and has not ended of its own."""
    link = Scripted(tmp_path / "run", (ends("interrupted"), "running", "finished:failed"), DONE)
    link.complete()
    assert link.submitted == [[], ["resume=auto"]]


def test_a_run_that_ended_of_its_own_is_not_submitted_again(tmp_path):
    link = Scripted(tmp_path / "run", (ends("Diverged: not finite"), "finished:failed"))
    with pytest.raises(RunError, match="the details; it ended with Diverged: not finite"):
        link.complete()


def test_a_run_that_the_user_stopped_is_not_submitted_again(tmp_path):
    link = Scripted(tmp_path / "run", (log, "running", "finished:stopped"))
    with pytest.raises(RunError, match="run 1 is finished:stopped"):
        link.complete()


def test_a_run_that_was_accepted_though_the_answer_was_lost_is_not_submitted_again(tmp_path):
    link = Scripted(tmp_path / "run", DONE, ACCEPTED)
    link.complete("seed=1")
    assert link.submitted == [["seed=1"]]
    assert f"run 1 is under way in {tmp_path / 'run'}: no other run is submitted" in link.told


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
        def grow(output) -> None:
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


def test_a_finished_run_is_not_overwritten(tmp_path):
    ends("num_versions")(tmp_path)
    link = Scripted(tmp_path)
    with pytest.raises(ValueError, match=r"--output=.* must be a folder without a finished run"):
        link.complete()


def test_a_run_that_ended_early_goes_on_if_the_user_says_so(tmp_path):
    """After a full disk was mended, say; whoever goes on removes the summary at once."""
    ends("RunError: No space left on device")(tmp_path)

    def goes_on(output) -> None:
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
    Evaluated(0.0, 0, {"rmse": 9.0, "loss": 81.0}),
    Dispatched(0.0, 0, 0, 0),
    Arrived(3.0, 0, 0, 0, age=0),
    Failed(4.0, 1, 1, 0, "deadline passed"),
    Aggregated(6.0, 1, [0], [0], [0]),
    Evaluated(6.0, 1, {"rmse": 0.5, "loss": 0.25}),
]


def test_version_score_and_failures_are_told_every_minute(tmp_path, capsys):
    def begin(output) -> None:
        (output / "config.yaml").write_text("num_versions: 40\n")
        (output / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in EVENTS))

    link = Scripted(tmp_path / "run", (begin, *["running"] * 30, "finished:completed"))
    link.complete(
        wall=lambda: sum(link.paused),
    )
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + round(sum(link.paused)) // 60 + 1  # soon, each minute, at the end
    assert {*lines} == {"run 1: 1/40 versions 1 updates at 0/min rmse 0.5 1 failed"}
