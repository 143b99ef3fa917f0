"""The accuracy of a sweep's cells over two of its keys."""

import re

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from fl_app.report.cells import Cell
from fl_app.report.grid import write_grid

KEYS = ("algorithm.client.local_lr", "algorithm.strategy.momentum")


def cell(name, rate, momentum, accuracy):
    config = {"algorithm": {"client": {"local_lr": rate}, "strategy": {"momentum": momentum}}}
    summary = {} if accuracy is None else {"last10_accuracy": accuracy}
    text = OmegaConf.to_yaml(OmegaConf.create(config))
    return Cell(name, "overlap_fedavg", False, summary, config=text)


def test_every_cell_is_at_its_place_and_seeds_are_averaged(tmp_path):
    cells = [
        cell("a", 0.1, 0, 0.5),
        cell("b-seed0", 0.01, 0.9, 0.8),
        cell("b-seed1", 0.01, 0.9, 0.9),
        cell("c", 0.1, 0.9, 0.1),
        cell("still-going-on", 0.01, 0, None),
    ]
    (axes,) = write_grid(cells, KEYS, tmp_path / "figures" / "grid.png").axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.01", "0.1"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "0.9"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("local_lr", "momentum")
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(1, 0): "50%", (0, 1): "85%", (1, 1): "10%"}
    assert (tmp_path / "figures" / "grid.png").stat().st_size > 1000


def drawn(cells, *keys, path):
    figure = write_grid(cells, keys, path / "figures" / "grid.png")
    (axes,) = figure.axes
    return axes


def test_short_names_of_keys_do_where_no_other_key_ends_so(tmp_path):
    cells = [cell("a", 0.1, 0, 0.5), cell("b", 0.01, 0.9, 0.8)]
    axes = drawn(cells, "local_lr", "strategy.momentum", path=tmp_path)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("local_lr", "momentum")


def test_the_title_says_over_what_else_the_mean_is(tmp_path):
    cells = [cell(str(n), 0.1, n % 2, 0.5) for n in range(4)]
    for n, each in enumerate(cells):
        each.overrides = {"algorithm.strategy.momentum": n % 2, "seed": n // 2, "num_versions": 9}
    title = drawn(cells, "local_lr", "momentum", path=tmp_path).get_title("left")
    assert title == "accuracy, mean of the\nlast ten evaluations, over seed"


def test_words_lists_and_null_have_places_too(tmp_path):
    """Numbers by size, then the others as they come."""
    values = ["shards", 10, None, 9, [1, 2]]
    cells = [cell(str(n), n % 2, 0, 0.5) for n in range(5)]
    for each, value in zip(cells, values, strict=True):
        each.overrides = {"partition": value}
    axes = drawn(cells, "partition", "local_lr", path=tmp_path)
    texts = [label.get_text() for label in axes.get_xticklabels()]
    assert texts == ["9", "10", "shards", "null", "[1, 2]"]


@pytest.mark.parametrize("columns", [1, 2, 9])
def test_no_label_is_cut(tmp_path, columns):
    """With its margins, everything that is drawn lies within the picture."""
    long = "dirichlet_with_a_long_name"
    cells = [cell(str(n), f"{long}{n}", f"{long}{n % 2}", 0.5) for n in range(columns)]
    figure = write_grid(cells, KEYS, tmp_path / "grid.png")
    (axes,) = figure.axes
    figure.draw_without_rendering()
    box = axes.get_window_extent()
    assert box.width >= 60 * columns  # at 160 dots an inch, room for the accuracies
    assert box.height >= 40
    with Image.open(tmp_path / "grid.png") as picture:
        border = np.asarray(picture.convert("L"))
    for edge in (border[0], border[-1], border[:, 0], border[:, -1]):
        assert (edge == 255).all()


def test_a_key_that_a_cell_lacks_is_refused(tmp_path):
    lacking = cell("b", 0.1, 0, 0.5)
    lacking.config = "{}"
    text = "--grid=algorithm.client.local_lr must be a key of b: it has no place"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        write_grid([cell("a", 0.1, 0, 0.5), lacking], KEYS, tmp_path / "grid.png")


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
def test_ambiguous_and_unknown_keys_are_refused_with_what_there_is(tmp_path, key, text):
    cells = [cell(str(n), 0.1, n, 0.5) for n in range(2)]
    for n, each in enumerate(cells):
        each.overrides = {
            "algorithm.strategy.momentum": n,
            "seed": n,
            "algorithm.client.rate": 1,
            "algorithm.strategy.rate": 1,
        }
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        write_grid(cells, ("seed", key), tmp_path / "grid.png")


def test_cells_without_a_summary_are_refused(tmp_path):
    text = "--grid: no cell has a summary with a score"
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        write_grid([cell("a", 0.1, 0, None)], KEYS, tmp_path / "grid.png")
