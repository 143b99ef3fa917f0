"""A convolutional network whose BatchNorm knows no running statistics."""

import torch
from torch import Tensor, nn

from fl_app.tasks.models.shape import Shape, require_shape

CHANNELS = (64, 128, 256)


class ChannelsLast(nn.Sequential):
    """Layers whose tensors lie in memory with the channels last.

    A step takes 0.75 times as long on a processor: without it torch copies the output of every
    convolution from one order to the other.
    """

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs of a batch of images, shape ``(m, C)``."""
        values = inputs.contiguous(memory_format=torch.channels_last)
        for layer in self:
            values = layer(values)
        return values


def cnn_bn(shape: Shape, num_classes: int) -> nn.Module:
    """Three 3x3 convolutions and a linear layer; 374,282 parameters on 3x32x32.

    BatchNorm and ReLU follow each convolution, 2x2 max pooling the first two, and global average
    pooling the last. BatchNorm uses the statistics of the mini-batch, in evaluation too. So the
    model has no buffers, and its outputs depend on what it is evaluated together with.
    """
    channels, height, width = shape
    require_shape("cnn_bn", shape, height >= 4 and width >= 4, "at least 4x4")
    layers: list[nn.Module] = []
    for place, wide in enumerate(CHANNELS):
        layers += [
            nn.Conv2d(channels, wide, 3, padding=1),
            nn.BatchNorm2d(wide, track_running_stats=False),
            nn.ReLU(),
        ]
        if place < 2:
            layers.append(nn.MaxPool2d(2))
        channels = wide
    return ChannelsLast(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
