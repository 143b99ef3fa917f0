"""Models by name. A model maps inputs of a given shape to logits."""

from collections.abc import Callable
from functools import partial

from torch import nn

from fl_app.tasks.models import plain
from fl_app.tasks.models.cnn_bn import cnn_bn
from fl_app.tasks.models.foreign import imported, maker_of, torchvision_model
from fl_app.tasks.models.residual import resnet18, resnet20, resnet_r
from fl_app.tasks.models.shape import Shape, require_images
from fl_app.tasks.models.text import textcnn, transformer
from fl_app.tasks.models.vgg import alexnet, vgg11, vgg_r
from fl_app.tasks.options import check_model

Model = Callable[[Shape, int], nn.Module]

MODELS: dict[str, Model] = {
    "logistic": plain.logistic,
    "mlp": plain.mlp,
    "cnn": plain.cnn,
    "lenet": plain.lenet,
    "cnn_emnist": plain.cnn_emnist,
    "cnn_celeba": plain.cnn_celeba,
    "cnn_asmu": plain.cnn_asmu,
    "mlp_overlap": plain.mlp_overlap,
    "mnistnet": plain.mnistnet,
    "cnn_cifar": plain.cnn_cifar,
    "cnn_cifar_quirk": plain.cnn_cifar_quirk,
    "cnn_bn": cnn_bn,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "vgg_r": vgg_r,
    "resnet18": resnet18,
    "resnet20": resnet20,
    "resnet_r": resnet_r,
    "textcnn": textcnn,
    "transformer": transformer,
}


def architecture(
    name: str,
    shape: Shape,
    num_outputs: int,
    *,
    tokens: bool | None = None,
) -> Callable[[], nn.Module]:
    """A callable that makes new models, with weights from torch's global random state.

    Args:
        name: a key of `MODELS`, a classification model of torchvision, or
            ``package.module:callable`` (see `fl_app.tasks.models.foreign.maker_of`).
        shape: shape of one input: (channels, height, width) of an image, (length, vocabulary size)
            of a sequence of tokens, (d,) of a row of a table.
        num_outputs: of the model for one input, such as logits; for a language model, the
            vocabulary size.
        tokens: whether inputs are sequences of tokens; None = if the shape has two dimensions.

    Raises:
        ValueError: no model has this name, it does not accept such inputs, or it cannot be
            imported. The callable raises it if the model does not accept inputs of
            this size.
    """
    tokens = len(shape) == 2 if tokens is None else tokens
    check_model(name, text=tokens)
    if name in MODELS:
        if not tokens:
            require_images(name, shape)
        return partial(MODELS[name], shape, num_outputs)
    if ":" in name:
        return maker_of(imported("task.model", name), shape, num_outputs)
    return partial(torchvision_model, name, num_outputs)
