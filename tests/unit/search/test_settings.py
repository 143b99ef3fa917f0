"""The keys search.* and what they refuse."""

import re

import pytest

from fl_app.search.settings import Settings, split


def test_words_of_the_search_are_told_from_those_of_the_experiment() -> None:
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
def test_bad_values_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        split(words)
