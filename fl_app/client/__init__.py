"""What a client does with an order: local training.

The trainer is imported when it is first used, because torch takes seconds to import. Checks of a
configuration need its bounds (`fl_app.client.settings`) alone.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_app.client.trainer import LocalTrainer as LocalTrainer


def __getattr__(name: str) -> Any:
    if name == "LocalTrainer":
        from fl_app.client.trainer import LocalTrainer

        return LocalTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
