"""AlexNet and VGG for small images."""

import math

from torch import nn

from fl_app.tasks.models import Shape, require_shape
from fl_app.tasks.models.plain import MaxPool2d, dense


def alexnet(shape: Shape, num_classes: int) -> nn.Module:
    """AlexNet for 32x32: five convolutions and one classifier; 2,472,266 parameters, 10 classes.

    NOTE: FedASMU does not say which form it uses; this is the usual one for CIFAR.
    """
    channels, height, width = shape
    require_shape("alexnet", shape, height >= 32 and width >= 32, "at least 32x32")
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 11, 4, 5), nn.ReLU(), MaxPool2d(2)]
    layers += [nn.Conv2d(64, 192, 5, 1, 2), nn.ReLU(), MaxPool2d(2)]
    for inner, outer in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inner, outer, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), *dense([256, num_classes]))


def vgg11(shape: Shape, num_classes: int) -> nn.Module:
    """VGG-11 with batch normalisation and one classifier; 9,231,114 parameters, 10 classes.

    NOTE: FedASMU does not say which form it uses; this is the usual one for CIFAR.
    """
    require_shape("vgg11", shape, min(shape[1:]) >= 32, "at least 32x32")
    plan = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512)
    return nn.Sequential(
        *_convolutions(shape[0], plan, norm=True),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
        nn.Linear(512, num_classes),
    )


def vgg_r(shape: Shape, num_classes: int) -> nn.Module:
    """Overlap-FedAvg's small VGG, without normalisation; 2,440,394 parameters, 10 classes.

    Weights of a convolution of k*k and `out` channels are drawn from N(0, 2 / (k*k*out)).
    """
    require_shape("vgg_r", shape, shape == (3, 32, 32), "3x32x32")
    plan = (32, "M", 64, "M", 128, 128, "M", 256, 256, "M", 256, 256, "M")
    layers = _convolutions(3, plan, norm=False)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (9 * layer.out_channels)))
    return nn.Sequential(
        *layers,
        *dense([256, 256, 256, num_classes]),
    )


def _convolutions(channels: int, plan: tuple[int | str, ...], *, norm: bool) -> list[nn.Module]:
    """3x3 convolutions with the numbers of channels in `plan`; "M" is max pooling."""
    layers: list[nn.Module] = []
    for step in plan:
        if isinstance(step, str):
            layers.append(MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, step, 3, 1, 1))
        if norm:
            layers.append(nn.BatchNorm2d(step))
        layers.append(nn.ReLU())
        channels = step
    return layers
