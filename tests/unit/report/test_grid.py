"""The accuracy of a sweep's cells over two of its keys."""

import csv
import io
import re

import pytest
from omegaconf import OmegaConf

from fl_app.report.cells import Cell
from fl_app.report.figures import specification
from fl_app.report.grid import STEP, grid

KEYS = ("algorithm.client.local_lr", "algorithm.strategy.momentum")


def cell(name, rate, momentum, accuracy):
    config = {"algorithm": {"client": {"local_lr": rate}, "strategy": {"momentum": momentum}}}
    summary = {} if accuracy is None else {"last10_accuracy": accuracy}
    text = OmegaConf.to_yaml(OmegaConf.create(config))
    return Cell(name, "overlap_fedavg", False, summary, config=text)


def test_every_cell_is_at_its_place_and_seeds_are_averaged():
    cells = [
        cell("a", 0.1, 0, 0.5),
        cell("b-seed0", 0.01, 0.9, 0.8),
        cell("b-seed1", 0.01, 0.9, 0.9),
        cell("c", 0.1, 0.9, 0.1),
        cell("still-going-on", 0.01, 0, None),
    ]
    chart = specification(grid(cells, KEYS))
    texts, x, y = drawn(cells, *KEYS)
    assert texts == {("0.1", "0"): "0.5", ("0.01", "0.9"): "0.85", ("0.1", "0.9"): "0.1"}
    assert (x["scale"]["domain"], y["scale"]["domain"]) == (["0.01", "0.1"], ["0.9", "0"])
    assert (x["title"], y["title"]) == ("local_lr", "momentum")
    assert (chart["width"], chart["height"]) == (2 * STEP, 2 * STEP)


def drawn(cells, *keys):
    """The scores by their places, and the two axes."""
    chart = specification(grid(cells, keys))
    (text,) = chart["datasets"].values()
    scores = {(row["x"], row["y"]): row["score"] for row in csv.DictReader(io.StringIO(text))}
    axes = chart["layer"][0]["encoding"]
    return scores, axes["x"], axes["y"]


def test_short_names_of_keys_do_where_no_other_key_ends_so():
    cells = [cell("a", 0.1, 0, 0.5), cell("b", 0.01, 0.9, 0.8)]
    _, x, y = drawn(cells, "local_lr", "strategy.momentum")
    assert (x["title"], y["title"]) == ("local_lr", "momentum")


def test_the_title_says_over_what_else_the_mean_is():
    cells = [cell(str(n), 0.1, n % 2, 0.5) for n in range(4)]
    for n, each in enumerate(cells):
        each.overrides = {"algorithm.strategy.momentum": n % 2, "seed": n // 2, "num_versions": 9}
    title = specification(grid(cells, ("local_lr", "momentum")))["title"]
    assert title == ["accuracy, mean of the", "last ten evaluations, over seed"]


def test_words_lists_and_null_have_places_too():
    """Numbers by size, then the others as they come."""
    values = ["shards", 10, None, 9, [1, 2]]
    cells = [cell(str(n), n % 2, 0, 0.5) for n in range(5)]
    for each, value in zip(cells, values, strict=True):
        each.overrides = {"partition": value}
    _, x, _ = drawn(cells, "partition", "local_lr")
    assert x["scale"]["domain"] == ["9", "10", "shards", "null", "[1, 2]"]


def test_a_key_that_a_cell_lacks_is_refused():
    lacking = cell("b", 0.1, 0, 0.5)
    lacking.config = "{}"
    text = "--grid=algorithm.client.local_lr must be a key of b: it has no place"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        grid([cell("a", 0.1, 0, 0.5), lacking], KEYS)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (
            "rate",
            "--grid=rate must be one of algorithm.client.rate, algorithm.strategy.rate: all of "
            "them end so",
        ),
        (
            "locl_lr",
            "--grid=locl_lr must be a key of the configuration, such as momentum, seed: no cell "
            "has it; did you mean local_lr?",
        ),
        (
            "nonsense",
            "--grid=nonsense must be a key of the configuration, such as momentum, seed: no cell "
            "has it",
        ),
    ],
)
def test_ambiguous_and_unknown_keys_are_refused_with_what_there_is(key, text):
    cells = [cell(str(n), 0.1, n, 0.5) for n in range(2)]
    for n, each in enumerate(cells):
        each.overrides = {
            "algorithm.strategy.momentum": n,
            "seed": n,
            "algorithm.client.rate": 1,
            "algorithm.strategy.rate": 1,
        }
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        grid(cells, ("seed", key))


def test_cells_without_a_summary_are_refused():
    text = "--grid: no cell has a summary with a score"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        grid([cell("a", 0.1, 0, None)], KEYS)
