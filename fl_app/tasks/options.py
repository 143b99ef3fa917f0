"""Bounds on the values of a task's keys.

They have a module of their own because checking them must not import torch.
"""

from collections.abc import Sequence

from fl_app.core.errors import require, require_at_least

IMAGE_MODELS = (
    *("logistic", "mlp", "cnn", "lenet", "cnn_emnist", "cnn_celeba", "cnn_asmu", "mlp_overlap"),
    *("mnistnet", "cnn_cifar", "alexnet", "vgg11", "vgg_r", "resnet18", "resnet20", "resnet_r"),
)
TEXT_MODELS = ("textcnn", "transformer")
MODELS = IMAGE_MODELS + TEXT_MODELS
QUIRKS = ("cnn_cifar",)  # models with a second form, that of their authors' code
SCALINGS = ("raw255", "unit", "standardised")
AUGMENTATIONS = (None, "crop_flip")
TRAIN_SPLITS = ("train", "validation")  # of WikiText-2
SOURCES = ("local", "hub", "synthetic")


def check_model(model: str, *, text: bool, quirk: bool = False) -> None:
    """Refuse a model that does not exist or does not accept a task's inputs.

    Args:
        model: its name.
        text: whether inputs are sequences of tokens instead of images.
        quirk: whether its second form is asked for.

    Raises:
        ValueError: no model has this name, it accepts other inputs, or it has no second form.
    """
    require(model in MODELS, "task.model", model, f"one of {', '.join(MODELS)}", "unknown model")
    kind = "sequences" if model in TEXT_MODELS else "images"
    fits = (kind == "sequences") == text
    require(fits, "task.model", model, "one that fits the task's inputs", f"it takes {kind}")
    require(
        model in QUIRKS or not quirk,
        "task.model_quirk",
        quirk,
        f"false with task.model={model}",
        f"only {', '.join(QUIRKS)} has one",
    )


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
    require(
        len(sources) > 0 and not isinstance(sources, str) and set(sources) <= set(SOURCES),
        "task.sources",
        sources,
        f"a list of {', '.join(SOURCES)}",
        "the data would come from nowhere",
    )


def check_synthetic(
    *, shape: Sequence[int], num_classes: int, num_examples: int, num_test: int, noise: float
) -> None:
    """Refuse synthetic images that cannot be made.

    Raises:
        ValueError: a value is out of its bounds (`fl_app.tasks.synthetic.synthetic`).
    """
    require(
        len(shape) == 3 and min(shape) >= 1,
        "task.shape",
        shape,
        "three numbers >= 1: channels, height, width",
        "there would be no image",
    )
    require_at_least("task.num_classes", num_classes, 2, "there would be nothing to tell apart")
    require_at_least("task.num_examples", num_examples, num_classes, "a class would be missing")
    require_at_least("task.num_test", num_test, num_classes, "a class would not be tested")
    require_at_least("task.noise", noise, 0, "a deviation cannot be negative")
