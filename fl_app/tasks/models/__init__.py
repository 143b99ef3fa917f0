"""Models by name. A model maps inputs of a given shape to logits.

Nothing imports torch here, because names are checked before torch is imported.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib.machinery import PathFinder
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from fl_app.core.errors import require

if TYPE_CHECKING:
    from torch import nn

# (channels, height, width) of an image, (length, vocabulary size) of a sequence of tokens, (d,) of
# a row of a table.
Shape: TypeAlias = tuple[int, ...]

FLAT_MODELS = ("logistic", "mlp", "mlp_overlap")  # they take inputs of any shape
TEXT_MODELS = ("textcnn", "transformer", "char_lstm")
MODELS = (
    *FLAT_MODELS,
    *("cnn", "lenet", "cnn_emnist", "cnn_celeba", "cnn_asmu", "mnistnet", "cnn_cifar"),
    *("cnn_cifar_quirk", "cnn_bn", "alexnet", "vgg11", "vgg_r", "resnet20", "resnet_r"),
    *("resnet18_gn", *TEXT_MODELS),
)
FORM = "package.module:callable"
CHUNK = 500  # examples per forward pass of a test: they hide overhead and fit into caches
OWN = re.compile(r"[\w.]+:[\w.]+")  # matches `FORM`


def check_model(model: str, *, text: bool) -> None:
    """Refuse a model that does not exist or does not accept a task's inputs.

    Args:
        model: its name.
        text: whether inputs are sequences of tokens.

    Raises:
        ValueError: no model has this name, or it accepts other inputs.
    """
    if OWN.fullmatch(model):
        return
    known = model in MODELS or model in torchvision_models()
    module, _, name = model.rpartition(".")
    reason = f"unknown model; did you mean {module}:{name}?" if module else "unknown model"
    bound = f"one of {', '.join(MODELS)}, a classification model of torchvision, or {FORM}"
    require(known, "task.model", model, bound, reason)
    kind = "sequences" if model in TEXT_MODELS else "images"
    fits = (kind == "sequences") == text
    require(fits, "task.model", model, "one that fits the task's inputs", f"it takes {kind}")


def torchvision_models() -> set[str]:
    """Names of torchvision's classification models, from its files: its import loads torch."""
    spec = PathFinder.find_spec("torchvision")
    folder = Path(spec.origin or "").parent / "models" if spec else Path()
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    return {*re.findall(r"@register_model\(\)\n.*?^def (\w+)", text, re.MULTILINE | re.DOTALL)}


def architecture(name: str, shape: Shape, num_outputs: int) -> "Callable[[], nn.Module]":
    """A callable that makes new models, with weights from torch's global random state.

    Args:
        name: one of `MODELS`, a classification model of torchvision, or
            ``package.module:callable`` (see `fl_app.tasks.models.foreign.maker_of`).
        shape: shape of one input: (channels, height, width) of an image, (length, vocabulary size)
            of a sequence of tokens, (d,) of a row of a table.
        num_outputs: of the model for one input, such as logits; for a language model, the
            vocabulary size.

    Raises:
        ValueError: the model does not accept such inputs, or it cannot be imported. The callable
            raises it if no model has this name, or it does not accept inputs of this size.
    """
    # Imported here, because they load torch.
    from fl_app.tasks.models import deep, foreign, plain, text
    from fl_app.tasks.vision import torchvision

    if ":" in name:
        return foreign.maker_of(foreign.imported("task.model", name), shape, num_outputs)
    if name not in MODELS:
        check_model(name, text=False)
    of_text = name in TEXT_MODELS
    if name in FLAT_MODELS:
        shape = (prod(shape),)
    elif len(shape) != (2 if of_text else 3):
        needed = "a public data set of texts" if of_text else "images (channels, height, width)"
        raise ValueError(
            f"task.model={name} needs {needed}, the task's inputs are "
            f"{'x'.join(map(str, shape))}: {', '.join(FLAT_MODELS)} take any numbers"
            f"{', and x[:, None] adds one channel' * (len(shape) == 2)}"
        )
    if name not in MODELS:
        known = torchvision().models
        return partial(known.get_model, name, weights=None, num_classes=num_outputs)
    modules: tuple[Any, ...] = (plain, deep, text)
    make = next(getattr(module, name) for module in modules if hasattr(module, name))
    return partial(make, shape, num_outputs)


def require_shape(name: str, shape: Shape, fits: bool, needed: str) -> None:
    """Refuse a shape.

    Raises:
        ValueError: `fits` is false. The message says `needed`, the shape that the model accepts.
    """
    if not fits:
        what = "images" if len(shape) == 3 else "sequences"
        raise ValueError(
            f"task.model={name} needs {what} {needed}, the task's are {'x'.join(map(str, shape))}"
            f"{if_last(shape)}"
        )


def if_last(shape: Shape) -> str:
    """The end of an error message: a remedy for images whose channels may be last."""
    last = len(shape) == 3 and shape[2] in (1, 3, 4)
    return "; if channels come last, give x.transpose(0, 3, 1, 2)" if last else ""


def chunk_of(shape: Shape) -> int:
    """Test examples of a shape per forward pass: activations of 500 large images take gigabytes."""
    return max(1, min(CHUNK, CHUNK * 3 * 32 * 32 // prod(shape)))
