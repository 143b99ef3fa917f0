"""What a client does with an order: local training.

The trainer is imported when it is first used. Checks of a configuration need its bounds
(`fl_app.client.bounds`), and those need no torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_app.client.trainer import LocalTrainer as LocalTrainer
    from fl_app.client.trainer import TrainingTask as TrainingTask
    from fl_app.client.trainer import initial_vector as initial_vector


def __getattr__(name: str) -> Any:
    if name in ("LocalTrainer", "TrainingTask", "initial_vector"):
        from fl_app.client import trainer

        return getattr(trainer, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
