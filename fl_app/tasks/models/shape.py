"""The shape of one input of a model, and the error for a shape that a model does not accept."""

from typing import TypeAlias

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
