"""Scaling by hand on two pixels and two channels."""

import numpy as np
import pytest
import torch

from fl_app.tasks.scaling import make_scaling, moments

TRAIN = np.array([[[[0]], [[4]]], [[[16]], [[8]]]], np.uint8)  # (2, 2, 1, 1)
TEST = np.array([[[[8]], [[8]]]], np.uint8)


@pytest.mark.parametrize(
    ("scaling", "train", "test"),
    [
        ("raw255", [[0.0, 4.0], [16.0, 8.0]], [[8.0, 8.0]]),
        ("unit", [[0.0, 0.25], [1.0, 0.5]], [[0.5, 0.5]]),
        # Channel 0: mean 8, deviation 8; channel 1: mean 6, deviation 2; the test set follows.
        ("standardised", [[-1.0, -1.0], [1.0, 1.0]], [[0.0, 1.0]]),
    ],
)
def test_values(scaling: str, train: list[list[float]], test: list[list[float]]) -> None:
    scale = make_scaling(scaling, 16.0, moments(TRAIN))
    for images, expected in ((TRAIN, train), (TEST, test)):
        stored = torch.from_numpy(images)
        scaled = scale(stored)
        assert scaled.dtype == torch.float32
        assert scaled.flatten(1).tolist() == expected
        assert stored.tolist() == images.tolist()


def test_moments_are_numpys() -> None:
    images = np.random.default_rng(0).integers(0, 256, (50, 3, 4, 5), np.uint8)
    assert moments(images) == pytest.approx(
        np.array([images.mean((0, 2, 3)), images.std((0, 2, 3))]), rel=1e-12
    )


def test_a_channel_that_is_all_one_value_becomes_zero() -> None:
    images = np.full((2, 1, 2, 2), 7, np.uint8)
    scale = make_scaling("standardised", 255.0, moments(images))
    assert scale(torch.from_numpy(images)).abs().max() == 0


def test_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match=r"task\.scaling=raw must be one of raw255, unit, stand"):
        make_scaling("raw", 16.0, moments(TRAIN))
