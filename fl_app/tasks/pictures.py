"""Images of any format, size and mode as arrays of one shape."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import numpy as np
from PIL import Image, ImageOps

from fl_app.core.errors import explaining
from fl_app.core.types import Array

MODES = {1: "L", 3: "RGB"}


def decode(images: Sequence[tuple[str, Path | IO[bytes]]], shape: Sequence[int]) -> Array:
    """Decode images, turned upright as their camera says and resized, shape ``(n, *shape)``.

    Args:
        images: the name of each, for messages, and its file.
        shape: of one image, (channels, height, width) with 1 channel (grey) or 3 (colours).

    Raises:
        ValueError: naming the first image that cannot be read.
    """
    channels, height, width = shape

    def pixels(entry: tuple[str, Path | IO[bytes]]) -> Array:
        name, file = entry
        unreadable = explaining(f"{name} must be an image that can be read")
        with unreadable, Image.open(file) as image:
            image.draft(MODES[channels], (2 * width, 2 * height))  # large photos at a fraction
            return pixels_of(image, MODES[channels], (width, height))

    with ThreadPoolExecutor() as threads:
        return np.stack([*threads.map(pixels, images)])


def pixels_of(image: Image.Image, mode: str, size: tuple[int, int] | None = None) -> Array:
    """An image as bytes, channels first, turned upright and, if a size is given, resized.

    Raises:
        ValueError: its pixels have 32 bits.
    """
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):  # a conversion would cut off all but the darkest pixels
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    elif upright.mode in ("I", "F"):
        raise ValueError("its pixels have 32 bits and no known range")
    elif upright.mode in ("P", "PA"):  # palettes may have transparent colours
        upright = upright.convert("RGBA")
    converted = upright.convert(mode)
    if size is not None:
        converted = converted.resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(converted)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
