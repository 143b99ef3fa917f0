"""Zeno++ against hand-derived values (Xie et al. 2020, in the form of WKAFL's code).

w_t = [1, 1], eta = 0.5, rho = 0.2, epsilon = 0.1, v = [3, 4], of length 5.

    g = [0, 2]: g~ = [0, 5], score = 20 - 0.2 25 = 15:     w = [1, 1 - 0.5 5] = [1, -1.5]
    g = [4, -3]: g~ = [4, -3], score = 0 - 5 = -5:         refused
    rho = 0 and g = [4, -3]: score = 0 >= -0.1:            w = [1 - 2, 1 + 1.5] = [-1, 2.5]
"""

import numpy as np
import pytest
from helpers import vec

import fl_app
from fl_app.algorithms.zeno import Zeno
from fl_app.core.errors import RunError
from fl_app.core.types import GlobalModel, Update


def arrival(*gradient: float) -> Update:
    return Update(0, 5, vec(*gradient), "gradient", 10, 0.1)


def at(version: int) -> GlobalModel:
    return GlobalModel(vec(1, 1), version=version)


def prepared(**values: float) -> tuple[Zeno, list[int]]:
    """A strategy, and the versions for which it asked for a gradient."""
    strategy, asked = Zeno(server_lr=0.5, **values), []

    def gradient(params, version, num_examples, batch_size):
        asked.append(version)
        return vec(3, 4)

    strategy.prepare(gradient)
    return strategy, asked


@pytest.mark.parametrize(
    ("gradient", "penalty", "expected"),
    [((0, 2), 0.2, (1, -1.5)), ((4, -3), 0.2, None), ((4, -3), 0.0, (-1, 2.5))],
)
def test_a_gradient_that_agrees_makes_a_step_of_the_servers_length(gradient, penalty, expected):
    strategy, _ = prepared(penalty=penalty)
    refusal = strategy.admit(at(5), arrival(*gradient))
    if expected is None:
        assert refusal == "score=-5 is below -strategy.tolerance=-0.1"
    else:
        assert refusal is None
        np.testing.assert_allclose(strategy.aggregate(at(5), [arrival(*gradient)]), expected)


def test_the_server_computes_a_gradient_anew_every_k_versions():
    strategy, asked = prepared(validate_every=2)
    for version in (3, 3, 4, 5, 6, 7):
        strategy.admit(at(version), arrival(0, 2))
    assert asked == [3, 5, 7]


def test_without_examples_on_the_server_it_says_so():
    with pytest.raises(RunError, match="needs training examples on the server"):
        Zeno().admit(at(0), arrival(1, 1))


def test_it_learns_from_examples_of_the_server_and_repeats_to_the_bit(tmp_path):
    words = ("algorithm=zeno", "num_versions=300", "eval_every=300", "tensorboard=false")
    runs = [fl_app.run(*words, output=tmp_path / name, progress=False) for name in "ab"]
    logs = [(tmp_path / name / "events.jsonl").read_bytes() for name in "ab"]
    assert logs[0] == logs[1]
    assert runs[0].metrics["accuracy"].iloc[-1] > 0.5
