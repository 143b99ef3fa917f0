"""What is tried: distributions from words, the first trials, and overrides of values."""

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from fl_app.search.space import at_edge, grid, override, parse, words_of


def test_words_describe_distributions() -> None:
    text = "a=choice(1,x,'a b') b=interval(0.1,2) c=tag(log,interval(0.01,1)) d=int(interval(1,9))"
    assert parse(
        words_of(f'"{text.split(" b=")[0]}" b={text.split(" b=")[1]} e=range(2,10,3)')
    ) == {
        "a": CategoricalDistribution([1, "x", "a b"]),
        "b": FloatDistribution(0.1, 2.0),
        "c": FloatDistribution(0.01, 1.0, log=True),
        "d": IntDistribution(1, 9),
        "e": IntDistribution(2, 8, step=3),
    }


def test_a_later_word_replaces_an_earlier_one_in_its_place() -> None:
    space = parse(["a=choice(1,2)", "b=interval(0,1)", "a=int(interval(3,4))"])
    assert next(iter(space.items())) == ("a", IntDistribution(3, 4))


@pytest.mark.parametrize(
    "word",
    [
        "a=1",
        "a",
        "a=choice(1)",
        "a=choice(x,x)",
        "a=choice(nan,1)",
        "a=range(1,2)",
        "a=interval(2,1)",
        "a=tag(log,interval(0,1))",
        "a=glob(*)",
        "a=range(3,1)",
        "a=1,",
        "a=interval(0,inf)",
        "a=choice([1,2],[3])",
        "a=range(0.5,3)",
        "a=range(1,2.9)",
        "a=tag(lg,interval(0.01,1))",
        "a=tag(log,range(1,9))",
        "a=tag(log,choice(1,2))",
        "+a=choice(1,2)",
        "a@b=choice(x,y)",
    ],
)
def test_words_that_leave_no_choice_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"search\.space"):
        parse([word])


def test_a_quote_that_is_not_closed_is_told() -> None:
    with pytest.raises(ValueError, match=r"^search\.space=a=choice\('x\) cannot be split"):
        words_of("a=choice('x)")


def test_the_grid_is_even_over_the_first_key_and_leaves_the_others_configured() -> None:
    """1/9, 1/3, 1 and 3 of 0.25; the key "d" is configured outside of its range."""
    space = parse(
        ["a=tag(log,interval(0.0278,0.75))", "b=choice(3,4)", "c=interval(0,1)", "d=interval(5,6)"]
    )
    first = grid(space, 4, {"a": 0.3, "b": 4, "c": 0.5, "d": 7})
    assert [values.pop("a") for values in first] == [0.0278, 0.08338, 0.2501, 0.75]
    assert first == [{"b": 4, "c": 0.5}] * 4


def test_grids_of_other_kinds() -> None:
    assert grid(parse(["a=int(interval(0,3))"]), 3, {}) == [{"a": 0}, {"a": 2}, {"a": 3}]
    assert grid(parse(["a=interval(0.0,3.0)"]), 1, {}) == [{"a": 1.5}]
    assert grid(parse(["a=choice(x,y,z)"]), 2, {}) == [{"a": "x"}, {"a": "y"}]
    assert grid(parse(["a=int(interval(1,2))"]), 5, {}) == [{"a": 1}, {"a": 2}]


def test_a_grid_has_the_ends_of_its_range_to_the_last_digit() -> None:
    """Values in between have four digits."""
    space = parse(["a=tag(log,interval(0.12345,2.71828))"])
    rates = [values["a"] for values in grid(space, 3, {})]
    assert rates == [0.12345, 0.5793, 2.71828]
    assert [at_edge(space["a"], rate) for rate in rates] == [True, False, True]
    assert [v["a"] for v in grid(parse(["a=interval(1000.0,1000.5)"]), 2, {})] == [1000.0, 1000.5]


def test_ends_of_a_range_are_told() -> None:
    ends = FloatDistribution(0.5, 2.0)
    assert [at_edge(ends, value) for value in (0.5, 1.0, 2.0)] == [True, False, True]
    assert not at_edge(CategoricalDistribution([1, 2]), 1)


def test_values_become_overrides() -> None:
    values = {"a": 0.5, "b": None, "c": True, "d": "two words", "e": "x"}
    words = [override(key, value) for key, value in values.items()]
    assert words == ["a=0.5", "b=null", "c=true", "d='two words'", "e=x"]


@pytest.mark.parametrize("text", ["a,b", "it's", "", "3", "true", "null", "[1]", "a=b", "x.y/z-1"])
def test_an_override_of_a_text_is_read_as_that_text(text: str) -> None:
    read = OverridesParser.create().parse_override(override("key", text)).value()
    assert read == text
