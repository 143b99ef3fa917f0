"""Residual networks (He et al. 2016) for small images, with and without batch normalisation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.tasks.models import Shape, require_shape
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


def resnet20(shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-20 as He et al. use it on CIFAR, 16-32-64 channels; 269,722 parameters, 10 classes."""
    require_shape("resnet20", shape, min(shape[1:]) >= 8, "at least 8x8")
    layers: list[nn.Module] = [
        nn.Conv2d(shape[0], 16, 3, 1, 1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    inner = 16
    for outer in (16, 32, 64):
        for place in range(3):
            layers.append(Block(inner, outer, 2 if place == 0 and outer > 16 else 1))
            inner = outer
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, num_classes)
    )


def resnet_r(shape: Shape, num_classes: int) -> nn.Module:
    """Overlap-FedAvg's ResNet-18, convolutions biased, not normalised; 11,169,162 parameters."""
    require_shape("resnet_r", shape, shape == (3, 32, 32), "3x32x32")
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 1, 1), nn.ReLU()]
    inner = 64
    for outer in (64, 128, 256, 512):
        layers.append(BiasedBlock(inner, outer, 1 if outer == 64 else 2))
        layers.append(BiasedBlock(outer, outer, 1))
        inner = outer
    return nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(inner, num_classes))


def resnet18(shape: Shape, num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2016) of torchvision, untrained; 11,181,642 parameters, 10 classes."""
    require_shape("resnet18", shape, shape[0] == 3, "with 3 channels")
    model: nn.Module = torchvision().models.resnet18(weights=None, num_classes=num_classes)
    return model
