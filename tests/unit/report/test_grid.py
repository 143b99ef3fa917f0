"""The accuracy of a sweep's cells over two of its keys."""

import re

import pytest
from omegaconf import OmegaConf

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
    assert (axes.get_xlabel(), axes.get_ylabel()) == KEYS
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    assert texts == {(1, 0): "50%", (0, 1): "85%", (1, 1): "10%"}
    assert (tmp_path / "figures" / "grid.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ([cell("a", None, 0, 0.5)], "--grid=algorithm.client.local_lr must be a key of a: it has"),
        ([cell("a", 0.1, 0, None)], "--grid: no cell has a summary with an accuracy"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, cells, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        write_grid(cells, KEYS, tmp_path / "grid.png")
