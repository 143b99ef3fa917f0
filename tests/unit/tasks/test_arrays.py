"""Arrays of NumPy: tables, images, text labels, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fl_app.tasks.arrays import arrays
from fl_app.tasks.own_task import OwnTask
from fl_app.tasks.partition import (
    Iid,
)

X = np.array([[0.0, 5.0], [2.0, 5.0], [0.0, 5.0], [2.0, 5.0]])
Y = np.array([0, 1, 0, 1])
Save = Callable[..., str]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    def save(**named: Any) -> str:
        np.savez(tmp_path / "data.npz", **named)
        return str(tmp_path / "data.npz")

    return save


def build(path: str | None, *, num_clients: int = 1, **keys: Any) -> OwnTask:
    given = {"test_share": 0.0, **keys}
    return arrays(partition=Iid(), num_clients=num_clients, path=path, **given)


def test_numbers_are_standardised_as_the_training_examples(save: Save) -> None:
    task = build(save(x_train=X, y_train=Y, x_test=[[4.0, 6.0]], y_test=[1]))
    assert task.inputs.tolist() == [[-1, 0], [1, 0], [-1, 0], [1, 0]]
    assert task.test_inputs is not None
    assert task.test_inputs.tolist() == [[3, 1]]
    assert task.inputs.dtype == torch.float32
    assert task.targets.tolist() == [0, 1, 0, 1]
    assert (task.name, task.source) == ("arrays-data", "own")
    raw = build(save(x_train=X, y_train=Y), scaling="raw255")
    assert raw.inputs.tolist() == X.tolist()


def test_the_owners_of_examples(save: Save) -> None:
    path = save(x_train=X, y_train=Y, client=["b", "a", "b", "b"])
    assert [own.tolist() for own in build(path, num_clients=2).partition] == [[1], [0, 2, 3]]
    assert [own.size for own in build(path, num_clients=4, client=False).partition] == [1] * 4


@pytest.mark.parametrize("shape", [(4, 6, 5), (4, 3, 6, 5), (4, 6, 5, 3)])
def test_bytes_are_images_with_channels_first_or_last(save: Save, shape: tuple[int, ...]) -> None:
    images = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    task = build(save(x_train=images, y_train=Y), scaling="unit")
    channels = 1 if len(shape) == 3 else 3
    assert task.inputs.shape == (4, channels, 6, 5)
    assert task.inputs.dtype == torch.uint8
    batch, _ = task.batch(np.array([1]))
    last = images[1].reshape(6, 5, -1) if shape[1] == 6 else images[1].transpose(1, 2, 0)
    np.testing.assert_allclose(batch[0].permute(1, 2, 0), last / 255, rtol=1e-6)
    assert task.model()(batch).shape == (1, 2)


def test_a_schema_states_shape_classes_and_moments(save: Save) -> None:
    schema = build(save(x_train=X, y_train=Y)).schema.to_json()
    task = build(save(x_train=[[4.0, 6.0]], y_train=[1]), schema=schema)
    assert task.inputs.tolist() == [[3, 1]]
    assert build(None, schema=schema).model()(torch.zeros(1, 2)).shape == (1, 2)
    with pytest.raises(ValueError, match=r"shape \(3,\), and task.schema .* state \(2,\)"):
        build(save(x_train=[[4.0, 6.0, 1.0]], y_train=[1]), schema=schema)
    with pytest.raises(ValueError, match="has '2' in row 1"):
        build(save(x_train=[[4.0, 6.0]], y_train=[2]), schema=schema)
    with pytest.raises(ValueError, match="has 2 columns of targets, and the model predicts 1"):
        build(save(x_train=[[4.0, 6.0]], y_train=[[0, 1]]), schema=schema)


@pytest.mark.parametrize(
    ("named", "keys", "message"),
    [
        ({"x_train": X}, {}, "has no y_train, only x_train"),
        ({"x": X, "y_train": Y}, {}, "has no x_train, only x, y_train"),
        ({"x_train": X, "y_train": Y, "x_test": X}, {}, "has no y_test"),
        ({"x_train": X, "y_train": Y[:3]}, {}, r"y_train has the shape \(3,\), and must have"),
        ({"x_train": X[:, 0], "y_train": Y}, {}, r"shape \(4,\), and must be numbers of shape"),
        ({"x_train": X.astype(str), "y_train": Y}, {}, "x_train has the type .* must be numbers"),
        ({"x_train": X[:0], "y_train": Y[:0]}, {}, "of shape \\(n"),
        ({"x_train": X, "y_train": Y * 0}, {}, "only the class '0'"),
        ({"x_train": np.where(X == 2, np.nan, X), "y_train": Y}, {}, "NaN .* in row 2"),
        ({"x_train": X, "y_train": np.array([0, 1, np.nan, 1])}, {}, "y_train has NaN .* in row 3"),
        ({"x_train": X, "y_train": Y, "client": [1, 2]}, {}, r"client has the shape \(2,\)"),
        (
            {"x_train": X, "y_train": Y, "x_test": X[:, :1], "y_test": Y}, {},
            r"x_test has examples of shape \(1,\), and .* state \(2,\)",
        ),
        (
            {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y + 1}, {},
            "has '2' in row 2",
        ),
        ({"x_train": X, "y_train": Y}, {"scaling": "unit"}, "task.scaling=unit must be standard"),
        ({"x_train": X, "y_train": np.array([None, 1, 2, 3])}, {}, "objects are not read"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    save: Save, named: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(save(**named), **keys)


def test_a_constant_column_is_not_divided_by_rounding(save: Save) -> None:
    """The deviation of a thousand times 0.1 is 1e-17, not 0."""
    x = np.full((1000, 1), 0.1)
    task = build(save(x_train=x, y_train=np.arange(1000) % 2, x_test=[[0.2]], y_test=[1]))
    assert task.test_inputs is not None
    assert task.test_inputs.item() == pytest.approx(0.1)
