"""Models: what maps inputs of a given shape to outputs.

Those of torch are imported when they are first used, because a machine without torch has the
others (`fl_app.tasks.models.arrays`).
"""

from typing import TYPE_CHECKING, Any

from fl_app.tasks.models.shape import Shape

if TYPE_CHECKING:
    from fl_app.tasks.models.named import MODELS, QUIRKS, architecture

__all__ = ["MODELS", "QUIRKS", "Shape", "architecture"]


def __getattr__(name: str) -> Any:
    if name in ("MODELS", "QUIRKS", "architecture"):
        from fl_app.tasks.models import named

        return getattr(named, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
