"""A study depends on nothing but its seed: it may be killed at every write of its journal."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fl_app.search.space import grid, parse
from fl_app.search.study import Alone, ByNumber, CellStudy, open_journal

SPACE = parse(["x=interval(-1.0,1.0)", "y=choice(a,b,c)"])
TRIALS = 9


class Killed(Exception):
    pass


class Doomed(JournalFileBackend):
    """A journal whose process dies while it writes, after a number of writes."""

    def __init__(self, path: Path, writes: int) -> None:
        super().__init__(str(path), lock_obj=Alone(str(path)))
        self._path = path
        self._writes = writes

    def append_logs(self, logs: list[dict[str, object]]) -> None:
        self._writes -= 1
        if self._writes < 0:
            with self._path.open("ab") as file:
                file.write(b'{"op_code": 4, "wor')
            raise Killed
        super().append_logs(logs)


def study(storage: JournalStorage, seed: int = 0, rungs: int = 1) -> CellStudy:
    first = grid(SPACE, 3, {"y": "b"})
    return CellStudy(storage, "cell", SPACE, first, TRIALS, seed=seed, rungs=rungs)


def carry_out(own: CellStudy) -> None:
    """With a score that is best at x = 0.3 and y = "c", and half of it at the rung."""
    while (following := own.next()) is not None:
        trial, values, passed = following
        score = 1 - (values["x"] - 0.3) ** 2 + (values["y"] == "c")
        if values["x"] < -0.9:
            own.fail(trial, "diverged")
            continue
        for rung in range(passed, 2):
            reached = score * (1 + rung) / 2
            if not own.report(trial, rung, {0: reached, 1: reached - 0.1}):
                break


def told(own: CellStudy) -> list[object]:
    return [
        (t.number, t.params, t.state, t.value, t.intermediate_values, t.user_attrs)
        for t in own.trials
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> CellStudy:
    own = study(open_journal(tmp_path_factory.mktemp("whole") / "study.jsonl"))
    carry_out(own)
    return own


def test_a_study_tries_the_grid_first_and_ends_bad_trials_early(whole: CellStudy) -> None:
    trials = whole.trials
    assert len(trials) == TRIALS
    assert [(t.params["x"], t.params["y"]) for t in trials[:3]] == [(-1, "b"), (0, "b"), (1, "b")]
    assert {t.state for t in trials} == {TrialState.COMPLETE, TrialState.PRUNED}
    assert trials[0].user_attrs["error"] == "diverged"
    pruned = [t for t in trials if t.state == TrialState.PRUNED and "error" not in t.user_attrs]
    assert pruned
    assert all(len(t.intermediate_values) == 1 for t in pruned)
    best = whole.best
    assert best is not None
    assert best.value == max(t.value for t in trials if t.state == TrialState.COMPLETE)
    assert best.user_attrs["scores"] == {"0": best.value + 0.05, "1": best.value - 0.05}


def writes(path: Path) -> Iterator[int]:
    """Moments of a kill: every seventh write of the journal, but all of the first ones."""
    total = path.read_bytes().count(b"\n")
    yield from (*range(8), *range(8, total, 7))


def test_a_study_that_was_killed_anywhere_is_the_same(tmp_path: Path, whole: CellStudy) -> None:
    path = tmp_path / "whole.jsonl"
    carry_out(study(open_journal(path)))
    moments = list(writes(path))
    assert len(moments) > 15
    for moment in moments:
        path = tmp_path / f"{moment}.jsonl"
        with pytest.raises(Killed):
            carry_out(study(JournalStorage(Doomed(path, moment))))
        again = study(open_journal(path))
        carry_out(again)
        assert told(again) == told(whole), moment


def test_the_estimator_chooses_after_the_grid(whole: CellStudy) -> None:
    """It takes what was tried into account; the same draw at random has another value."""
    ended = whole.trials[-1]
    values = [
        ByNumber(0, at_random).sample_independent(whole.study, ended, "x", SPACE["x"])
        for at_random in (3, TRIALS, TRIALS + 1)
    ]
    assert values[0] == values[1] != values[2]
    assert whole.study.sampler._grid == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(("points", "spared"), [(0, 4), (3, 4), (6, 6)])
def test_no_trial_ends_early_before_four_are_complete_or_as_many_as_the_grid_has(
    points: int, spared: int, tmp_path: Path
) -> None:
    """Each trial is worse than all before it."""
    first = grid(SPACE, points, {"y": "b"}) if points else []
    storage = open_journal(tmp_path / "study.jsonl")
    own = CellStudy(storage, "cell", SPACE, first, TRIALS, seed=0, rungs=1)
    while (following := own.next()) is not None:
        trial = following[0]
        if own.report(trial, 0, {0: -trial.number}):
            own.report(trial, 1, {0: -trial.number})
    states = [trial.state for trial in own.trials]
    assert states == [TrialState.COMPLETE] * spared + [TrialState.PRUNED] * (TRIALS - spared)


def test_of_equal_trials_the_first_is_the_best(tmp_path: Path) -> None:
    own = study(open_journal(tmp_path / "study.jsonl"), rungs=0)
    while (following := own.next()) is not None:
        own.report(following[0], 0, {0: min(following[0].number, 2)})
    assert own.best is not None
    assert own.best.number == 2


def test_another_seed_is_another_study(tmp_path: Path, whole: CellStudy) -> None:
    other = study(open_journal(tmp_path / "study.jsonl"), seed=1)
    carry_out(other)
    assert told(other)[:3] == told(whole)[:3]  # the grid
    assert told(other)[3:] != told(whole)[3:]


def test_without_rungs_no_trial_ends_early(tmp_path: Path) -> None:
    own = study(open_journal(tmp_path / "study.jsonl"), rungs=0)
    while (following := own.next()) is not None:
        own.report(following[0], 0, {0: following[1]["x"]})
    assert {t.state for t in own.trials} == {TrialState.COMPLETE}


def test_an_interrupted_trial_goes_on_at_the_rung_that_it_had_reached(tmp_path: Path) -> None:
    """Its runs are beyond the rungs before, to which they could not return."""
    own = study(open_journal(tmp_path / "study.jsonl"))
    following = own.next()
    assert following is not None
    trial, values, passed = following
    assert passed == 0
    assert own.report(trial, 0, {0: 1.0})
    again = study(open_journal(tmp_path / "study.jsonl")).next()
    assert again is not None
    assert again[1:] == (values, 1)
