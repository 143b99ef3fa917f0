"""AlexNet, VGG and residual networks (He et al. 2016) for small images."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.tasks.models import Shape, require_shape
from fl_app.tasks.models.plain import convolutions, dense
from fl_app.tasks.vision import torchvision


class Block(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut that has no parameters.

    If the size halves, the shortcut takes every second pixel and pads channels with zeros.
    """

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outer)
        self.stride = stride
        self.more = outer - inner

    def forward(self, images: Tensor) -> Tensor:
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(images)))))
        if self.more:
            images = images[:, :, :: self.stride, :: self.stride]
            images = F.pad(images, (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return torch.relu(residual + images)


class BiasedBlock(nn.Module):
    """Two 3x3 convolutions with bias and no normalisation; a 1x1 convolution as shortcut."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1)
        same = stride == 1 and inner == outer
        self.shortcut = nn.Identity() if same else nn.Conv2d(inner, outer, 1, stride)

    def forward(self, images: Tensor) -> Tensor:
        residual = self.conv2(F.relu(self.conv1(images)))
        return torch.relu(residual + self.shortcut(images))


def _residual(
    block: Callable[[int, int, int], nn.Module], inner: int, widths: Sequence[int], depth: int
) -> list[nn.Module]:
    """`depth` blocks of each width; a block that widens the image halves its size."""
    sizes = pairwise([inner, *(width for width in widths for _ in range(depth))])
    return [block(inner, outer, 2 if outer > inner else 1) for inner, outer in sizes]


def resnet20(shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-20 as He et al. use it on CIFAR, 16-32-64 channels; 269,722 parameters, 10 classes."""
    require_shape("resnet20", shape, min(shape[1:]) >= 8, "at least 8x8")
    first = nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False)
    layers = [first, nn.BatchNorm2d(16), nn.ReLU(), *_residual(Block, 16, (16, 32, 64), 3)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *dense([64, num_classes]))


def resnet_r(shape: Shape, num_classes: int) -> nn.Module:
    """Overlap-FedAvg's ResNet-18, convolutions biased, not normalised; 11,169,162 parameters."""
    require_shape("resnet_r", shape, shape == (3, 32, 32), "3x32x32")
    layers = convolutions(3, (64,), padding=1)
    layers += _residual(BiasedBlock, 64, (64, 128, 256, 512), 2)
    return nn.Sequential(*layers, nn.AvgPool2d(4), *dense([512, num_classes]))


def resnet18_gn(shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-18 of torchvision, GroupNorm of two groups [A]; 11,181,642 parameters, 10 classes."""
    require_shape("resnet18_gn", shape, shape[0] == 3, "of three channels")
    norm = partial(nn.GroupNorm, 2)
    return torchvision().models.resnet18(num_classes=num_classes, norm_layer=norm)


def alexnet(shape: Shape, num_classes: int) -> nn.Module:
    """AlexNet for 32x32: five convolutions and one classifier; 2,472,266 parameters, 10 classes.

    NOTE: FedASMU does not say which form it uses; this is the usual one for CIFAR.
    """
    require_shape("alexnet", shape, min(shape[1:]) >= 32, "at least 32x32")
    layers: list[nn.Module] = [nn.Conv2d(shape[0], 64, 11, 4, 5), nn.ReLU(), nn.MaxPool2d(2)]
    layers += convolutions(64, (192, "M"), 5, 2)
    layers += convolutions(192, (384, 256, 256), padding=1)
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), *dense([256, num_classes]))


def vgg11(shape: Shape, num_classes: int) -> nn.Module:
    """VGG-11 with batch normalisation and one classifier; 9,231,114 parameters, 10 classes.

    NOTE: FedASMU does not say which form it uses; this is the usual one for CIFAR.
    """
    require_shape("vgg11", shape, min(shape[1:]) >= 32, "at least 32x32")
    plan = (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512)
    layers = convolutions(shape[0], plan, padding=1, norm=nn.BatchNorm2d)
    return nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), *dense([512, num_classes]))


def vgg_r(shape: Shape, num_classes: int) -> nn.Module:
    """Overlap-FedAvg's small VGG, without normalisation; 2,440,394 parameters, 10 classes.

    Weights of a convolution of k*k and `out` channels are drawn from N(0, 2 / (k*k*out)).
    """
    require_shape("vgg_r", shape, shape == (3, 32, 32), "3x32x32")
    plan = (32, "M", 64, "M", 128, 128, "M", 256, 256, "M", 256, 256, "M")
    layers = convolutions(3, plan, padding=1)
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2.0 / (9 * layer.out_channels)))
    return nn.Sequential(*layers, *dense([256, 256, 256, num_classes]))
