"""The shape of one input of a model, and the error for a shape that a model does not accept."""

from typing import TypeAlias

from fl_app.tasks.options import FLAT_MODELS

# (channels, height, width) of an image, (length, vocabulary size) of a sequence of tokens, (d,) of
# a row of a table.
Shape: TypeAlias = tuple[int, ...]


def require_shape(name: str, shape: Shape, fits: bool, needed: str) -> None:
    """Refuse a shape.

    Raises:
        ValueError: `fits` is false. The message says `needed`, the shape that the model accepts.
    """
    if not fits:
        what = "images" if len(shape) == 3 else "sequences"
        raise ValueError(
            f"task.model={name} needs {what} {needed}, the task's are {'x'.join(map(str, shape))}"
        )


def require_images(name: str, shape: Shape) -> None:
    """Refuse a model that takes images where inputs are none.

    Raises:
        ValueError: naming the models that take inputs of any shape.
    """
    if not (len(shape) == 3 or name in FLAT_MODELS):
        raise ValueError(
            f"task.model={name} needs images (channels, height, width), the task's inputs are "
            f"{'x'.join(map(str, shape))}: use {', '.join(FLAT_MODELS)}, or give images of one "
            "channel a dimension for it"
        )
