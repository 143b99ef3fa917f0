"""A study depends on nothing but its seed."""

from optuna.trial import TrialState

from fl_app.search.space import grid, parse
from fl_app.search.study import CellStudy, open_journal

SPACE = parse(["x=interval(-1.0,1.0)", "y=choice(a,b,c)"])
TRIALS = 9


def study(storage, seed=0):
    return CellStudy(storage, "cell", SPACE, grid(SPACE, 3, {"y": "b"}), TRIALS, seed)


def carry_out(own):
    """With a score that is best at x = 0.3 and y = "c", and half of it at the rung."""
    for number in range(TRIALS):
        if not own.begin(number):
            continue
        values = own._trial.params
        score = 1 - (values["x"] - 0.3) ** 2 + (values["y"] == "c")
        if values["x"] < -0.9:
            own.fail("diverged")
            continue
        for rung in range(2):
            if rung not in own.reported:
                reached = score * (1 + rung) / 2
                own.report(rung, {0: reached, 1: reached - 0.1})
            if not own.goes_on(rung, 1):
                break
    return [
        (t.number, t.params, t.state, t.value, t.intermediate_values, t.user_attrs)
        for t in own.study.trials
    ]


def test_a_study_tries_the_grid_first_and_ends_bad_trials_early(tmp_path):
    own = study(open_journal(tmp_path / "study.jsonl"))
    told = carry_out(own)
    trials = own.study.trials
    assert len(trials) == TRIALS
    assert [(t.params["x"], t.params["y"]) for t in trials[:3]] == [(-1, "b"), (0, "b"), (1, "b")]
    assert trials[0].user_attrs["error"] == "diverged"
    assert trials[0].state == TrialState.PRUNED
    pruned = [t for t in trials if t.state == TrialState.PRUNED and "error" not in t.user_attrs]
    assert pruned
    assert all(len(t.intermediate_values) == 1 for t in pruned)
    best = own.best
    assert best.value == max(t.value or 0 for t in trials)
    assert own.setting == [f"x={best.params['x']}", f"y='{best.params['y']}'"]
    assert best.user_attrs["scores"] == {"0": best.value + 0.05, "1": best.value - 0.05}
    other = carry_out(study(open_journal(tmp_path / "other.jsonl"), seed=1))
    assert other[:3] == told[:3]  # the grid
    assert other[3:] != told[3:]
