"""Digits and synthetic images, and how images are scaled and augmented."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fl_app.tasks.made import Digits, Synthetic
from fl_app.tasks.partition import Dirichlet, Iid
from fl_app.tasks.scaling import PADDING, crop_flip, make_scaling, moments_of
from fl_app.tasks.vision import torchvision


def test_images_and_split_of_the_digits_are_those_of_scikit_learn():
    """The task does not import it."""
    pixels, labels = load_digits(return_X_y=True)
    places = np.arange(labels.size)
    split = train_test_split(places, test_size=360, stratify=labels, random_state=0)
    task = Digits()().with_clients(Dirichlet(), 50, 0)
    tests = (task.test_inputs, task.test_targets)
    for (inputs, targets), own in zip(((task.inputs, task.targets), tests), split, strict=True):
        np.testing.assert_array_equal(inputs.flatten(1), pixels[own] / 16)
        np.testing.assert_array_equal(targets, labels[own])
    other = Digits()(seed=1).with_clients(Dirichlet(), 50, 1)
    assert torch.equal(other.inputs, task.inputs)
    assert [p.tolist() for p in task.partition] != [p.tolist() for p in other.partition]
    with pytest.raises(ValueError, match="num_clients=1438 must be at most 1437"):
        Digits()().with_clients(Iid(), 1438, 0)


def made(num_clients=1, seed=0, **values):
    return Synthetic(**values)(seed=seed).with_clients(Iid(), num_clients, seed)


def test_synthetic_images_are_as_asked():
    sizes = {"num_classes": 4, "num_examples": 42, "num_test": 9}
    task = made(num_clients=7, model="cnn", shape=(3, 5, 6), **sizes)
    assert (task.inputs.shape, task.test_inputs.shape) == ((42, 3, 5, 6), (9, 3, 5, 6))
    assert set(task.test_targets.tolist()) == {0, 1, 2, 3}
    assert [p.size for p in task.partition] == [6] * 7
    small = {"shape": (1, 2, 2), "num_examples": 10, "num_test": 10}
    task = made(noise=0, **small)
    assert torch.equal(task.inputs, task.test_inputs)  # templates are shared
    assert len(np.unique(task.inputs.flatten(1), axis=0)) == 10
    assert torch.equal(task.inputs, made(noise=0, **small).inputs)
    assert not torch.equal(task.inputs, made(noise=0, seed=1, **small).inputs)
    noisy = made(num_examples=2000, num_test=20, noise=0.5)
    deviation = noisy.inputs[noisy.targets == 3].std(0).square().mean().sqrt().item()
    assert deviation == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"shape": (28, 28)}, r"task\.shape="),
        ({"shape": (1, 0, 28)}, r"task\.shape="),
        ({"num_classes": 1}, r"task\.num_classes=1"),
        ({"num_examples": 9}, r"task\.num_examples=9"),
        ({"num_test": 0}, r"task\.num_test=0"),
        ({"noise": -0.1}, r"task\.noise=-0\.1"),
        ({"model": "lenett"}, r"task\.model=lenett"),
        ({"num_examples": 10, "num_clients": 11}, r"num_clients=11"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        made(**values)


TRAIN = np.array([[[[0]], [[4]]], [[[16]], [[8]]]], np.uint8)  # (2, 2, 1, 1)


@pytest.mark.parametrize(
    ("scaling", "train", "test"),
    [
        ("raw255", [[0.0, 4.0], [16.0, 8.0]], [[8.0, 8.0]]),
        ("unit", [[0.0, 0.25], [1.0, 0.5]], [[0.5, 0.5]]),
        # Channel 0: mean 8, deviation 8; channel 1: mean 6, deviation 2; the test set follows.
        ("standardised", [[-1.0, -1.0], [1.0, 1.0]], [[0.0, 1.0]]),
    ],
)
def test_scaling(scaling, train, test):
    scale = make_scaling(scaling, 16.0, moments_of(TRAIN))
    for images, expected in ((TRAIN, train), (np.full((1, 2, 1, 1), 8, np.uint8), test)):
        scaled = scale(torch.from_numpy(images))
        assert (scaled.dtype, scaled.flatten(1).tolist()) == (torch.float32, expected)
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), np.uint8)
    expected = np.array([images.mean((0, 2, 3)), images.std((0, 2, 3))])
    assert np.array(moments_of(images)) == pytest.approx(expected, rel=1e-12)
    constant = np.full((2, 1, 2, 2), 7, np.uint8)
    standardised = make_scaling("standardised", 255.0, moments_of(constant))
    assert standardised(torch.from_numpy(constant)).abs().max() == 0


def test_each_image_is_cropped_and_mirrored_on_its_own_and_uniformly():
    """As torchvision does to one image."""
    torchvision()
    from torchvision.transforms.v2 import functional as F

    torch.manual_seed(0)
    image = torch.randint(1, 256, (3, 6, 7), dtype=torch.uint8)
    padded, shifts = F.pad(image, [PADDING]), range(2 * PADDING + 1)
    known = {}
    for top, left in ((top, left) for top in shifts for left in shifts):
        cropped = F.crop(padded, top, left, 6, 7)
        known[cropped.contiguous().numpy().tobytes()] = (top, left, 0)
        known[F.horizontal_flip(cropped).contiguous().numpy().tobytes()] = (top, left, 1)
    batch = image.repeat(5000, 1, 1, 1)
    result = crop_flip(batch)
    assert torch.equal(batch[-1], image)  # it is left alone
    drawn = np.array([known[one.contiguous().numpy().tobytes()] for one in result])
    for column, values in zip(drawn.T, (9, 9, 2), strict=True):
        assert np.abs(np.bincount(column, minlength=values) / 5000 - 1 / values).max() < 0.02
