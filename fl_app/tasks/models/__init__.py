"""Models by name: from the shape of one input to logits."""

from collections.abc import Callable
from functools import partial

from torch import nn

from fl_app.tasks.models.plain import (
    cnn,
    cnn_asmu,
    cnn_celeba,
    cnn_cifar,
    cnn_cifar_quirk,
    cnn_emnist,
    lenet,
    logistic,
    mlp,
    mlp_overlap,
    mnistnet,
)
from fl_app.tasks.models.residual import resnet18, resnet20, resnet_r
from fl_app.tasks.models.shape import Shape
from fl_app.tasks.models.text import textcnn, transformer
from fl_app.tasks.models.vgg import alexnet, vgg11, vgg_r
from fl_app.tasks.options import check_model

__all__ = ["MODELS", "QUIRKS", "Shape", "architecture"]

Model = Callable[[Shape, int], nn.Module]

MODELS: dict[str, Model] = {
    "logistic": logistic,
    "mlp": mlp,
    "cnn": cnn,
    "lenet": lenet,
    "cnn_emnist": cnn_emnist,
    "cnn_celeba": cnn_celeba,
    "cnn_asmu": cnn_asmu,
    "mlp_overlap": mlp_overlap,
    "mnistnet": mnistnet,
    "cnn_cifar": cnn_cifar,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "vgg_r": vgg_r,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet_r": resnet_r,
    "textcnn": textcnn,
    "transformer": transformer,
}
# As in the code of the models' authors, where it does what the paper does not say.
QUIRKS: dict[str, Model] = {"cnn_cifar": cnn_cifar_quirk}


def architecture(
    name: str, shape: Shape, num_classes: int, *, quirk: bool = False
) -> Callable[[], nn.Module]:
    """What makes new models of a name, with weights from torch's global random state.

    Args:
        name: a key of `MODELS`.
        shape: of one input: (channels, height, width) of an image, (length, vocabulary size) of a
            sequence of tokens.
        num_classes: logits for each input; of a language model, the vocabulary size.
        quirk: the form in `QUIRKS`.

    Raises:
        ValueError: no model has this name, it takes no such inputs, or has no quirk; or, when it
            is called, it cannot take images or sequences of this size.
    """
    check_model(name, text=len(shape) == 2, quirk=quirk)
    return partial((QUIRKS if quirk else MODELS)[name], shape, num_classes)
