"""Searches: keys of their own, what is tried, and a study that may be killed anywhere."""

import re
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from fl_app.search.settings import Settings, split
from fl_app.search.space import grid, override, parse
from fl_app.search.study import CellStudy, open_journal

# -- the keys search.* and what they refuse --------------------------------------------------------


def test_words_of_the_search_are_told_from_those_of_the_experiment():
    words = ["experiment=quickstart", "search.trials=3", "search.seeds=[0,1]", "seed=3"]
    words += ["search.space=a=interval(0,1) b=choice(1,2)"]
    settings, others = split(words)
    assert others == ["experiment=quickstart", "seed=3"]
    assert settings == Settings(trials=3, seeds=[0, 1], space="a=interval(0,1) b=choice(1,2)")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search.trails=3"], "unknown key 'search.trails'; did you mean trials"),
        (["search.trials=0"], "search.trials=0 must be an integer >= 1"),
        (["search.trials=many"], "search: Value 'many'"),
        (["search.seeds=[1,1]"], "search.seeds=[1, 1] must be seeds, each once"),
        (
            ["search.seeds=[0,1]", "search.test_seeds=[1,2]"],
            "search.test_seeds=[1, 2] must be none",
        ),
        (["search.seeds=[0,1"], "search: while parsing a flow sequence"),
        (["search.measure=mean"], "search.measure=mean must be one of last10, final, best"),
    ],
)
def test_bad_values_are_refused(words, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        split(words)


# -- what is tried --------------------------------------------------------------------------------


def test_words_describe_distributions():
    words = ["f=choice(1,2)", "a=choice(1,x,'a b')", "b=interval(0.1,2)", "b=interval(0.1,3)"]
    words += ["c=tag(log,interval(0.01,1))", "d=int(interval(1,9))", "e=range(2,10,3)", "f=null"]
    assert parse(words) == {
        "a": CategoricalDistribution([1, "x", "a b"]),
        "b": FloatDistribution(0.1, 3.0),
        "c": FloatDistribution(0.01, 1.0, log=True),
        "d": IntDistribution(1, 9),
        "e": IntDistribution(2, 8, step=3),
    }


@pytest.mark.parametrize(
    "word",
    [
        *("a=1", "a", "a=interval(2,1)", "a=interval(0,inf)", "a=tag(log,interval(0,1))"),
        *("a=choice([1,2],[3])", "a=range(0.5,3,0.5)", "a=glob(*)", "a=1,"),
    ],
)
def test_words_that_leave_no_choice_are_refused(word):
    with pytest.raises(ValueError, match=r"^search\.space: "):
        parse([word])


def test_the_grid_is_even_over_the_first_key_and_leaves_the_others_configured():
    """1/9, 1/3, 1 and 3 of 0.25; the key "d" is configured outside of its range."""
    space = parse(
        ["a=tag(log,interval(0.0278,0.75))", "b=choice(3,4)", "c=interval(0,1)", "d=interval(5,6)"]
    )
    first = grid(space, 4, {"a": 0.3, "b": 4, "c": 0.5, "d": 7})
    assert [values.pop("a") for values in first] == [0.0278, 0.08338, 0.2501, 0.75]
    assert first == [{"b": 4, "c": 0.5}] * 4


@pytest.mark.parametrize("value", ["a,b", "it's", "", "3", "true", "null", "[1]", 0.5, 3, True])
def test_an_override_of_a_value_is_read_as_that_value(value):
    assert OverridesParser.create().parse_override(override("key", value)).value() == value


# -- a study depends on nothing but its seed ------------------------------------------------------

SPACE = parse(["x=interval(-1.0,1.0)", "y=choice(a,b,c)"])
TRIALS = 9


class Killed(Exception):
    pass


class Doomed(JournalFileBackend):
    """A journal whose process dies while it writes, after a number of writes."""

    def __init__(self, path, writes):
        super().__init__(str(path))
        self._path = path
        self._writes = writes

    def append_logs(self, logs):
        self._writes -= 1
        if self._writes < 0:
            with self._path.open("ab") as file:
                file.write(b'{"op_code": 4, "wor')
            Path(f"{self._path}.lock").touch()
            raise Killed
        super().append_logs(logs)


def study(storage, seed=0):
    return CellStudy(storage, "cell", SPACE, grid(SPACE, 3, {"y": "b"}), TRIALS, seed)


def carry_out(own):
    """With a score that is best at x = 0.3 and y = "c"."""
    for number in range(TRIALS):
        if not own.begin(number):
            continue
        values = own._trial.params
        score = 1 - (values["x"] - 0.3) ** 2 + (values["y"] == "c")
        if values["x"] < -0.9:
            own.fail("diverged")
        else:
            own.complete({0: score, 1: score - 0.1})
    return [(t.number, t.params, t.state, t.value, t.user_attrs) for t in own.study.trials]


def test_a_study_tries_the_grid_first(tmp_path):
    own = study(open_journal(tmp_path / "study.jsonl"))
    told = carry_out(own)
    trials = own.study.trials
    assert len(trials) == TRIALS
    assert [(t.params["x"], t.params["y"]) for t in trials[:3]] == [(-1, "b"), (0, "b"), (1, "b")]
    assert trials[0].user_attrs["error"] == "diverged"
    assert trials[0].state == TrialState.PRUNED
    best = own.best
    assert best is not None
    assert best.value == max(t.value or 0 for t in trials)
    assert own.setting == [f"x={best.params['x']}", f"y='{best.params['y']}'"]
    assert best.user_attrs["scores"] == {"0": best.value + 0.05, "1": best.value - 0.05}
    other = carry_out(study(open_journal(tmp_path / "other.jsonl"), seed=1))
    assert other[:3] == told[:3]  # the grid
    assert other[3:] != told[3:]


def test_a_study_that_was_killed_anywhere_is_the_same(tmp_path):
    path = tmp_path / "whole.jsonl"
    whole = carry_out(study(open_journal(path)))
    moments = range(0, path.read_bytes().count(b"\n"), 5)
    assert len(moments) > 8
    for moment in moments:
        path = tmp_path / f"{moment}.jsonl"
        with pytest.raises(Killed):
            carry_out(study(JournalStorage(Doomed(path, moment))))
        assert carry_out(study(open_journal(path))) == whole, moment
