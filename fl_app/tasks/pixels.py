"""Decode images of any format, size and mode into arrays of one shape."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from fl_app.tasks.sources import reading

MODES = {1: "L", 3: "RGB"}


def image_shape(size: int | Sequence[int], channels: int) -> tuple[int, int, int]:
    """(channels, height, width) from the values of the configuration."""
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return channels, height, width


def is_image(path: Path) -> bool:
    """Whether a file's name says that it is an image of a known format."""
    return path.suffix.lower() in _suffixes() and not path.name.startswith(".")


@cache
def _suffixes() -> set[str]:
    formats = Image.registered_extensions()
    return {suffix for suffix, name in formats.items() if name in Image.OPEN}


def decode(
    images: Sequence[tuple[str, Path | IO[bytes]]], shape: Sequence[int]
) -> NDArray[np.uint8]:
    """Decode images, turned upright as their camera says and resized, shape ``(n, *shape)``.

    Args:
        images: the name of each, for messages, and its file.
        shape: of one image, (channels, height, width) with 1 channel (grey) or 3 (colours).

    Raises:
        ValueError: naming the first image that cannot be read.
    """
    channels, height, width = shape
    decoded = np.empty((len(images), height, width, channels), np.uint8)

    def fill(place: int) -> None:
        name, file = images[place]
        with reading(name, "an image that can be read"), Image.open(file) as image:
            pixels = _converted(image, MODES[channels], (width, height))
        decoded[place] = pixels.reshape(height, width, channels)

    with ThreadPoolExecutor() as threads:
        for _ in threads.map(fill, range(len(images))):
            pass
    return np.ascontiguousarray(decoded.transpose(0, 3, 1, 2))


def _converted(image: Image.Image, mode: str, size: tuple[int, int]) -> NDArray[np.uint8]:
    image.draft(mode, (2 * size[0], 2 * size[1]))  # large photos are decoded at a fraction
    return pixels_of(image, mode, size)


def pixels_of(
    image: Image.Image, mode: str, size: tuple[int, int] | None = None
) -> NDArray[np.uint8]:
    """An image as bytes, turned upright and, if a size is given, resized."""
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # a conversion would cut off all but the darkest pixels
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    elif upright.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits and no known range")
    elif upright.mode in ("P", "PA"):  # palettes may have transparent colours
        upright = upright.convert("RGBA")
    converted = upright.convert(mode)
    return np.asarray(
        converted if size is None else converted.resize(size, Image.Resampling.BILINEAR)
    )
