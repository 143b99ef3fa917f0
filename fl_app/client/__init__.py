"""What a client does with an order: local training.

The trainer is imported when it is first used, because torch takes seconds to import. Checks of a
configuration need its bounds (`fl_app.client.settings`) alone.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_app.client.initial import initial_vector as initial_vector
    from fl_app.client.trainer import LocalTrainer as LocalTrainer

MODULES = {"LocalTrainer": "trainer", "initial_vector": "initial"}


def __getattr__(name: str) -> Any:
    if name in MODULES:
        return getattr(import_module(f"fl_app.client.{MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
