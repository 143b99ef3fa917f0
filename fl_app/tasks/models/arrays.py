"""Models of NumPy arrays by name, for machines without torch."""

from collections.abc import Callable
from functools import partial

from fl_app.core.errors import require
from fl_app.tasks.models import layers
from fl_app.tasks.models.plain import PLANS, Plan
from fl_app.tasks.models.shape import Shape, require_images
from fl_app.tasks.options import check_model


def array_architecture(
    name: str, shape: Shape, num_outputs: int, *, quirk: bool = False
) -> Callable[[], layers.Sequential]:
    """A callable that makes new networks; `Sequential.initialise` sets their weights.

    Args:
        name: in `fl_app.tasks.models.plain.PLANS`.
        shape: as of `fl_app.tasks.models.architecture`.
        num_outputs: of the model for one input.
        quirk: whether the second form of a model is asked for, which needs torch.

    Raises:
        ValueError: the model needs torch, or does not accept such inputs.
    """
    check_model(name, text=False, quirk=quirk)
    require_array_model(name)
    require(not quirk, "task.model_quirk", quirk, "false with runtime.backend=numpy", "unknown")
    require_images(name, shape)
    return partial(_of_layers, PLANS[name], shape, num_outputs)


def require_array_model(name: str) -> None:
    """Refuse a model that only torch can compute.

    Raises:
        ValueError: naming those that need no torch.
    """
    require(
        name in PLANS,
        "task.model",
        name,
        f"one of {', '.join(PLANS)} with runtime.backend=numpy",
        "the others need torch",
    )


def _of_layers(plan: Plan, shape: Shape, num_outputs: int) -> layers.Sequential:
    network: layers.Sequential = plan(layers, shape, num_outputs)
    return network
