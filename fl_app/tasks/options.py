"""Bounds on the values of a task's keys.

They have a module of their own because checking them must not import torch.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from fl_app.core.errors import require, require_at_least
from fl_app.tasks.schema import KINDS, MISSING, read_schema

# Partitioners of flwr-datasets that decide how many clients there are.
DECIDING = ("natural_id", "grouped_natural_id", "size", "inner_dirichlet")
USUAL_CLIENTS = 50  # of a run that does not say, and whose data do not either
IMAGE_MODELS = (
    *("logistic", "mlp", "cnn", "lenet", "cnn_emnist", "cnn_celeba", "cnn_asmu", "mlp_overlap"),
    *("mnistnet", "cnn_cifar", "cnn_cifar_quirk", "alexnet", "vgg11", "vgg_r", "resnet18"),
    *("resnet20", "resnet_r", "cnn_bn"),
)
TEXT_MODELS = ("textcnn", "transformer")
MODELS = IMAGE_MODELS + TEXT_MODELS
FLAT_MODELS = ("logistic", "mlp", "mlp_overlap")  # which take inputs of any shape
# Classification models of torchvision beside those of the same names above.
TORCHVISION_MODELS = (
    *("convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121"),
    *("densenet161", "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1"),
    *("efficientnet_b2", "efficientnet_b3", "efficientnet_b4", "efficientnet_b5"),
    *("efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l", "efficientnet_v2_m"),
    *("efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75"),
    *("mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small"),
    *("regnet_x_16gf", "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf"),
    *("regnet_x_800mf", "regnet_x_8gf", "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf"),
    *("regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf", "regnet_y_800mf", "regnet_y_8gf"),
    *("resnet101", "resnet152", "resnet34", "resnet50", "resnext101_32x8d", "resnext101_64x4d"),
    *("resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0", "shufflenet_v2_x1_5"),
    *("shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b", "swin_s", "swin_t"),
    *("swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn"),
    *("vgg19", "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32"),
    *("wide_resnet101_2", "wide_resnet50_2"),
)
FORM = "package.module:callable"
OWN = re.compile(r"[\w.]+:[\w.]+")  # of `FORM`
SCALINGS = ("raw255", "unit", "standardised")
AUGMENTATIONS = (None, "crop_flip")
TRAIN_SPLITS = ("train", "validation")  # of WikiText-2
SOURCES = ("local", "hub", "synthetic")


def check_model(model: str, *, text: bool) -> None:
    """Refuse a model that does not exist or does not accept a task's inputs.

    Args:
        model: its name.
        text: whether inputs are sequences of tokens instead of images.

    Raises:
        ValueError: no model has this name, or it accepts other inputs.
    """
    if OWN.fullmatch(model):
        return
    known = model in MODELS or model in TORCHVISION_MODELS
    bound = f"one of {', '.join(MODELS)}, a classification model of torchvision, or {FORM}"
    require(known, "task.model", model, bound, "unknown model")
    kind = "sequences" if model in TEXT_MODELS else "images"
    fits = (kind == "sequences") == text
    require(fits, "task.model", model, "one that fits the task's inputs", f"it takes {kind}")


def check_options(
    *,
    scaling: str = "unit",
    augment: str | None = None,
    train_split: str = "train",
    sources: Sequence[str] = ("local", "hub"),
) -> None:
    """Refuse unknown values of a task's keys.

    Raises:
        ValueError: a value is not listed above.
    """
    for key, value, known in (
        ("task.scaling", scaling, SCALINGS),
        ("task.train_split", train_split, TRAIN_SPLITS),
    ):
        require(value in known, key, value, f"one of {', '.join(known)}", "unknown")
    require(augment in AUGMENTATIONS, "task.augment", augment, "null or crop_flip", "unknown")
    fits = len(sources) > 0 and not isinstance(sources, str) and set(sources) <= set(SOURCES)
    bound = f"a list of {', '.join(SOURCES)}"
    require(fits, "task.sources", sources, bound, "the data would come from nowhere")


def check_synthetic(
    *, shape: Sequence[int], num_classes: int, num_examples: int, num_test: int, noise: float
) -> None:
    """Refuse synthetic images that cannot be made.

    Raises:
        ValueError: a value is out of its bounds (`fl_app.tasks.synthetic.synthetic`).
    """
    bound = "three numbers >= 1: channels, height, width"
    fits = len(shape) == 3 and min(shape) >= 1
    require(fits, "task.shape", shape, bound, "there would be no image")
    require_at_least("task.num_classes", num_classes, 2, "there would be nothing to tell apart")
    require_at_least("task.num_examples", num_examples, num_classes, "a class would be missing")
    require_at_least("task.num_test", num_test, num_classes, "a class would not be tested")
    require_at_least("task.noise", noise, 0, "a deviation cannot be negative")


def check_own_data(
    *,
    path: str | None,
    schema: str | Mapping[str, Any] | None,
    kind: str = "auto",
    test_share: float = 0.2,
    missing: str | None = None,
) -> None:
    """Refuse keys of a task on the user's own data, before these are looked at.

    Raises:
        ValueError: a value is out of its bounds, or there are neither data nor a schema.
    """
    bound = "the place of the data; null needs task.schema"
    told = "nothing would say what the model's inputs and outputs are"
    require(path is not None or schema is not None, "task.path", "null", bound, told)
    known = read_schema(schema)
    kinds: Sequence[str | None] = ("auto", *KINDS)
    rules: Sequence[str | None] = (None, *MISSING)
    if known is not None:
        kinds, rules = ("auto", known.kind), (None, known.missing)
    for key, value, values in (("task.kind", kind, kinds), ("task.missing", missing, rules)):
        bound = ", ".join(each or "null" for each in values) + (
            "" if known is None else " as in task.schema"
        )
        require(value in values, key, value, bound, "nodes and server would differ")
    require_at_least("task.test_share", test_share, 0, "it is a share of the examples")
    require(test_share < 1, "task.test_share", test_share, "below 1", "none would be trained on")


def check_images(*, size: int | Sequence[int], channels: int) -> None:
    """Refuse a shape that images cannot be given.

    Raises:
        ValueError: a value is out of its bounds.
    """
    sides = [size] if isinstance(size, int) else list(size)
    fits = len(sides) in (1, 2) and all(isinstance(side, int) and side >= 1 for side in sides)
    bound = "a number of pixels >= 1, or [height, width]"
    require(fits, "task.size", size, bound, "there would be no image")
    require(channels in (1, 3), "task.channels", channels, "1 (grey) or 3 (colours)", "unknown")


def image_shape(size: int | Sequence[int], channels: int) -> tuple[int, int, int]:
    """(channels, height, width) from the values of the configuration."""
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    return channels, height, width
