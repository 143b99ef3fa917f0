"""What is tried: distributions from words, the first trials, and overrides of values."""

import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fl_app.search.settings import Settings, split
from fl_app.search.space import grid, override, parse


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


# -- the keys search.* and what they refuse --------------------------------------------------------


def test_words_of_the_search_are_told_from_those_of_the_experiment():
    words = ["experiment=quickstart", "search.trials=3", "search.seeds=[0,1]", "seed=3"]
    words += ["search.space=a=interval(0,1) b=choice(1,2)", "search.rungs=[10,20]"]
    settings, others = split(words)
    assert others == ["experiment=quickstart", "seed=3"]
    assert settings == Settings(
        trials=3, seeds=[0, 1], space="a=interval(0,1) b=choice(1,2)", rungs=[10, 20]
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["search.trails=3"], "unknown key 'search.trails'; did you mean trials"),
        (["search.trials"], "unknown key 'search.trials'"),
        (["search.trials=0"], "search.trials=0 must be an integer >= 1"),
        (["search.trials=many"], "search: Value 'many'"),
        (["search.parallel=0"], "search.parallel=0 must be an integer >= 1"),
        (["search.seeds=[]"], "search.seeds=[] must be seeds, each once"),
        (["search.seeds=[1,1]"], "search.seeds=[1, 1] must be seeds, each once"),
        (
            ["search.seeds=[0,1]", "search.test_seeds=[1,2]"],
            "search.test_seeds=[1, 2] must be none",
        ),
        (["search.rungs=[20,10]"], "search.rungs=[20.0, 10.0] must be above 0 and ascending"),
        (["search.seeds=[0,1"], "search: while parsing a flow sequence"),
        (["search.measure=mean"], "search.measure=mean must be one of last10, final, best"),
        (["search.grid=-1"], "search.grid=-1 must be an integer >= 0"),
    ],
)
def test_bad_values_are_refused(words, told):
    with pytest.raises(ValueError, match=re.escape(told)):
        split(words)
