"""Plain networks: linear models, perceptrons, and the papers' small convolutional networks."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import nn

from fl_app.tasks.models import Shape, require_shape

CHANNELS = (64, 128, 256)  # of `cnn_bn`


def dense(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers of these sizes behind each other, with ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return [nn.Flatten(), *layers[:-1]]


def pooled(channels: int, wide: int, kernel: int, padding: int = 0) -> list[nn.Module]:
    """A convolution with ReLU, and 2x2 max pooling."""
    return [nn.Conv2d(channels, wide, kernel, padding=padding), nn.ReLU(), nn.MaxPool2d(2)]


def logistic(shape: Shape, num_classes: int) -> nn.Sequential:
    """Multinomial logistic regression; 650 parameters on 8x8 digits."""
    return nn.Sequential(*dense([prod(shape), num_classes]))


def mlp(shape: Shape, num_classes: int) -> nn.Sequential:
    """One hidden layer of 32 ReLU units; 2,410 parameters on 8x8 digits."""
    return nn.Sequential(*dense([prod(shape), 32, num_classes]))


def cnn(shape: Shape, num_classes: int) -> nn.Sequential:
    """Two 3x3 convolutions with pooling, for small images; 1,898 parameters on 8x8 digits."""
    channels, height, width = shape
    require_shape("cnn", shape, height >= 4 and width >= 4, "at least 4x4")
    size = 16 * (height // 4) * (width // 4)
    return nn.Sequential(
        *pooled(channels, 8, 3, 1), *pooled(8, 16, 3, 1), *dense([size, num_classes])
    )


def lenet(shape: Shape, num_classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling.

    62,006 parameters on 3x32x32, 61,706 on 1x28x28. On the latter the first convolution is padded
    by 2, so that both have 400 features before the linear layers.
    """
    channels, height, width = shape
    require_shape("lenet", shape, (height, width) in ((28, 28), (32, 32)), "28x28 or 32x32")
    first = pooled(channels, 6, 5, 2 if height == 28 else 0)
    return nn.Sequential(*first, *pooled(6, 16, 5), *dense([400, 120, 84, num_classes]))


def cnn_emnist(shape: Shape, num_classes: int) -> nn.Sequential:
    """WKAFL's and EAFL's network for MNIST and EMNIST; 582,026 parameters, 10 classes."""
    require_shape("cnn_emnist", shape, shape == (1, 28, 28), "1x28x28")
    return nn.Sequential(*pooled(1, 32, 5), *pooled(32, 64, 5), *dense([1024, 512, num_classes]))


def cnn_celeba(shape: Shape, num_classes: int) -> nn.Sequential:
    """WKAFL's network for CelebA; 1,600,792 parameters, 2 classes."""
    require_shape("cnn_celeba", shape, shape == (3, 84, 84), "3x84x84")
    return nn.Sequential(*pooled(3, 10, 4), *dense([16_000, 100, num_classes]))


def cnn_asmu(shape: Shape, num_classes: int) -> nn.Sequential:
    """FedASMU's CNN, two 2x2 convolutions; 297,066 parameters on 3x32x32, 10 classes.

    NOTE: the paper names neither activation nor padding; here it has ReLU and no padding.
    """
    channels, height, width = shape
    require_shape("cnn_asmu", shape, height >= 3 and width >= 3, "at least 3x3")
    layers = [nn.Conv2d(channels, 64, 2), nn.ReLU(), nn.Conv2d(64, 32, 2), nn.ReLU()]
    return nn.Sequential(*layers, *dense([32 * (height - 2) * (width - 2), num_classes]))


def mlp_overlap(shape: Shape, num_classes: int) -> nn.Sequential:
    """Overlap-FedAvg's perceptron, two hidden layers of 200; 199,210 parameters on 1x28x28."""
    return nn.Sequential(*dense([prod(shape), 200, 200, num_classes]))


def mnistnet(shape: Shape, num_classes: int) -> nn.Sequential:
    """Overlap-FedAvg's MnistNet, no ReLU after the second convolution; 1,199,882 parameters.

    NOTE: its code ends in a log-softmax. It is left out, as cross-entropy after it is the same.
    """
    require_shape("mnistnet", shape, shape == (1, 28, 28), "1x28x28")
    layers = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, *dense([9216, 128, num_classes]))


def cnn_cifar(shape: Shape, num_classes: int) -> nn.Sequential:
    """Overlap-FedAvg's CNNCifar; 878,538 parameters, 10 classes."""
    require_shape("cnn_cifar", shape, shape == (3, 32, 32), "3x32x32")
    return nn.Sequential(*pooled(3, 32, 5), *pooled(32, 64, 5), *dense([1600, 512, num_classes]))


def cnn_cifar_quirk(shape: Shape, num_classes: int) -> nn.Sequential:
    """CNNCifar of its authors' code: ReLU and softmax on the logits, before the loss's softmax."""
    return cnn_cifar(shape, num_classes).extend([nn.ReLU(), nn.Softmax(-1)])


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
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
