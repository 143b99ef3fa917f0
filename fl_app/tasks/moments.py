"""Moments of the channels of images, and scalings that follow from them."""

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks.options import check_options


def moments(images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Exact mean and deviation of every channel, shape ``(2, channels)``, without a float copy.

    Args:
        images: shape ``(n, channels, height, width)``.
    """
    values = np.arange(256.0)
    both = []
    for channel in range(images.shape[1]):
        share = np.bincount(images[:, channel].ravel(), minlength=256) / images[:, channel].size
        mean = share @ values
        both.append((mean, np.sqrt(share @ (values - mean) ** 2)))
    return np.array(both).T


def factor_and_offset(
    scaling: str, maximum: float, train_moments: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The two arrays of a scaling, each of shape ``(1,)`` or ``(channels, 1, 1)``.

    Args:
        scaling: ``"raw255"`` leaves the original values, ``"unit"`` maps them to [0, 1],
            ``"standardised"`` gives every channel of the training set mean 0 and deviation 1.
        maximum: largest possible value of a pixel, 255 for most images.
        train_moments: `moments` of the training set.

    Raises:
        ValueError: `scaling` is unknown.
    """
    check_options(scaling=scaling)
    if scaling == "standardised":
        mean, deviation = train_moments.reshape(2, -1, 1, 1)
        deviation = np.where(deviation > 0, deviation, 1.0)
        return (1.0 / deviation).astype(np.float32), (-mean / deviation).astype(np.float32)
    factor = 1.0 / maximum if scaling == "unit" else 1.0
    return np.array([factor], np.float32), np.zeros(1, np.float32)
