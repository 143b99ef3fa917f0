import numpy as np

from fl_app.record import targets
from fl_app.record.history import Evaluation

# Means of five from number 4 on: .38, .52, .6, .56, .6
NOISY = [0.1, 0.2, 0.7, 0.4, 0.5, 0.8, 0.6, 0.5, 0.6]


def version(of, accuracies, *arguments):
    """That of the evaluation which `of` finds in evaluations with these accuracies."""
    evaluations = [
        Evaluation(number, 10.0 * number, 3 * number, {"accuracy": accuracy})
        for number, accuracy in enumerate(accuracies)
    ]
    found = of(evaluations, *arguments)
    return found and found.version


def first_at(*arguments):
    return version(targets.first_at, *arguments)


def stays_at(*arguments):
    return version(targets.stays_at, *arguments)


def test_lucky_evaluation_is_the_first_but_does_not_stay():
    assert first_at(NOISY, 0.5) == 2
    assert first_at(NOISY, 0.5, 5) == 5
    assert stays_at(NOISY, 0.5) == 5
    assert stays_at(NOISY, 0.59) == 8  # after the .56
    assert first_at(NOISY, 0.59, 5) == 6
    assert stays_at(NOISY, 0.9) is first_at(NOISY, 0.9) is None


def test_it_is_the_definition():
    """From there on every mean of five is at the target, and the one before is not."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        values = rng.random(rng.integers(5, 20)).tolist()
        means = [np.mean(values[end - 5 : end]) for end in range(5, len(values) + 1)]
        expected = next(
            (at for at in range(len(means)) if all(mean >= 0.45 for mean in means[at:])), None
        )
        assert stays_at(values, 0.45) == (None if expected is None else expected + 4)
