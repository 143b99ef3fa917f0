"""Folders of images: layouts, formats, sizes, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fl_app.tasks.image_folder import image_folder
from fl_app.tasks.own_task import OwnTask
from fl_app.tasks.partition import Iid

Draw = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder without the cache of these tests."""
    (tmp_path / "images").mkdir()
    return tmp_path / "images"


@pytest.fixture
def draw(root: Path) -> Draw:
    def draw(*names: str, colour: tuple[int, ...] | int = (255, 0, 0), size: int = 8) -> None:
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = "L" if isinstance(colour, int) else "RGB"
            Image.new(mode, (size, size), colour).save(path)

    return draw


def build(path: Path, *, num_clients: int = 1, **keys: Any) -> OwnTask:
    given = {"size": 4, "test_share": 0.0, **keys}
    return image_folder(partition=Iid(), num_clients=num_clients, path=str(path), **given)


def test_a_folder_for_each_class(root: Path, draw: Draw) -> None:
    draw("cat/a.png", "cat/b.bmp", colour=(200, 100, 0))
    draw("dog/a.jpg", colour=7)
    (root / "cat" / "notes.txt").write_text("no image")
    (root / "readme.md").write_text("no folder")
    (root / ".thumbnails").mkdir()
    task = build(root)
    assert task.inputs.shape == (3, 3, 4, 4)
    assert task.inputs.dtype == torch.uint8
    assert task.inputs[:, :, 0, 0].tolist() == [[200, 100, 0], [200, 100, 0], [7, 7, 7]]
    assert task.targets.tolist() == [0, 0, 1]
    assert task.schema.outputs == ("cat", "dog")
    assert task.name == "image_folder-images"


def test_inputs_of_the_model_are_standardised_by_channel(root: Path, draw: Draw) -> None:
    draw("cat/a.png", colour=(0, 10, 5))
    draw("dog/a.png", colour=(100, 30, 5))
    inputs, _ = build(root).batch(np.array([0, 1]))
    np.testing.assert_allclose(inputs[:, :, 0, 0], [[-1, -1, 0], [1, 1, 0]], atol=1e-6)
    inputs, _ = build(root, scaling="unit", channels=1, size=[2, 3]).batch(np.array([1]))
    assert inputs.shape == (1, 1, 2, 3)
    assert 0 < inputs.min() < inputs.max() + 1e-6 < 1


def test_a_folder_for_each_client_and_class(root: Path, draw: Draw) -> None:
    draw("ann/cat/a.png", "ann/dog/a.png", "bob/dog/a.png", "bob/dog/b.png")
    (root / "bob" / "cat").mkdir()  # a class of which a client has nothing
    task = build(root, num_clients=2)
    assert [task.targets[own].tolist() for own in task.partition] == [[0, 1], [1, 1]]
    task = build(root, num_clients=3, client=False)
    assert [own.size for own in task.partition] == [2, 1, 1]


def test_a_share_for_testing(root: Path, draw: Draw) -> None:
    draw(*(f"{label}/{i}.png" for label in ("cat", "dog") for i in range(5)))
    task = build(root, test_share=0.4)
    assert task.test_targets is not None
    assert task.test_targets.tolist() == [0, 0, 1, 1]
    assert len(task.targets) == 6


def test_a_schema_states_shape_classes_and_scaling(root: Path, draw: Draw) -> None:
    """A device has one class of the two, whose folder of the other is empty."""
    draw("server/cat/a.png", colour=(0, 0, 0))
    draw("server/dog/a.png", colour=(100, 100, 100))
    server = build(root / "server")
    draw("device/dog/a.png", colour=(50, 50, 50), size=20)
    (root / "device" / "cat").mkdir()
    task = build(root / "device", schema=server.schema.to_json(), size=99)
    inputs, targets = task.batch(np.array([0]))
    assert targets.tolist() == [1]
    np.testing.assert_allclose(inputs, torch.zeros(1, 3, 4, 4), atol=1e-6)
    draw("device/bird/a.png")
    with pytest.raises(ValueError, match=r"has 'bird' .* none of cat, dog"):
        build(root / "device", schema=server.schema.to_json())


@pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_other_modes(root: Path, draw: Draw, mode: str) -> None:
    draw("dog/a.png")
    (root / "cat").mkdir()
    image = Image.new(mode, (8, 8))
    image.save(root / "cat" / ("a.tif" if mode == "CMYK" else "a.png"))
    assert build(root).inputs.shape == (2, 3, 4, 4)


def test_photos_are_turned_upright(root: Path, draw: Draw) -> None:
    draw("dog/a.png")
    (root / "cat").mkdir()
    pixels = np.zeros((8, 8), np.uint8)
    pixels[:4] = 255  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # the camera was upside down
    Image.fromarray(pixels).save(root / "cat" / "a.png", exif=exif)
    assert build(root, channels=1).inputs[0, 0, [0, 3], 0].tolist() == [0, 255]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "must hold a folder for each class"),
        (["a.png"], "must hold a folder for each class"),
        (["cat/a.png"], "only the class 'cat'"),
        (["cat/a.png", "ann/dog/a.png"], r"must hold .*, and .*cat has no folders in it"),
    ],
)
def test_other_layouts_are_refused(root: Path, draw: Draw, names: list[str], message: str) -> None:
    draw(*names)
    with pytest.raises(ValueError, match=message):
        build(root)


@pytest.mark.parametrize("contents", [b"", b"no image", b"\x89PNG\r\n\x1a\n cut short"])
def test_an_unreadable_image_is_named(root: Path, draw: Draw, contents: bytes) -> None:
    draw("cat/a.png", "dog/a.png")
    (root / "dog" / "b.png").write_bytes(contents)
    with pytest.raises(ValueError, match=r"dog/b\.png must be an image that can be read, but"):
        build(root)
