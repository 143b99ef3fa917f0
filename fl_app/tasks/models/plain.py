"""Plain networks: linear models, perceptrons, and the papers' small convolutional networks."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod

from torch import nn

from fl_app.tasks.models import Shape, require_shape


def dense(sizes: Sequence[int]) -> list[nn.Module]:
    """Linear layers of these sizes behind each other, with ReLU between them."""
    layers: list[nn.Module] = []
    for inner, outer in pairwise(sizes):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return [nn.Flatten(), *layers[:-1]]


def convolutions(
    channels: int,
    plan: Sequence[int | str],
    kernel: int = 3,
    padding: int = 0,
    norm: Callable[[int], nn.Module] | None = None,
) -> list[nn.Module]:
    """Convolutions with ReLU, with the numbers of channels in `plan`; "M" is 2x2 max pooling.

    Args:
        channels: of the images.
        plan: the layers.
        kernel: height and width of each convolution.
        padding: of each convolution.
        norm: makes what normalises so many channels before each ReLU; None = nothing.
    """
    layers: list[nn.Module] = []
    for step in plan:
        if isinstance(step, str):
            layers.append(nn.MaxPool2d(2))
        else:
            norms = [] if norm is None else [norm(step)]
            layers += [nn.Conv2d(channels, step, kernel, padding=padding), *norms, nn.ReLU()]
            channels = step
    return layers


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
    layers = convolutions(channels, (8, "M", 16, "M"), padding=1)
    return nn.Sequential(*layers, *dense([size, num_classes]))


def lenet(shape: Shape, num_classes: int) -> nn.Sequential:
    """LeNet-5 with ReLU and max pooling.

    62,006 parameters on 3x32x32, 61,706 on 1x28x28. On the latter the first convolution is padded
    by 2, so that both have 400 features before the linear layers.
    """
    channels, height, width = shape
    require_shape("lenet", shape, (height, width) in ((28, 28), (32, 32)), "28x28 or 32x32")
    layers = convolutions(channels, (6, "M"), 5, 2 if height == 28 else 0)
    layers += convolutions(6, (16, "M"), 5)
    return nn.Sequential(*layers, *dense([400, 120, 84, num_classes]))


def cnn_emnist(shape: Shape, num_classes: int) -> nn.Sequential:
    """WKAFL's and EAFL's network for MNIST and EMNIST; 582,026 parameters, 10 classes."""
    require_shape("cnn_emnist", shape, shape == (1, 28, 28), "1x28x28")
    layers = convolutions(1, (32, "M", 64, "M"), 5)
    return nn.Sequential(*layers, *dense([1024, 512, num_classes]))


def cnn_celeba(shape: Shape, num_classes: int) -> nn.Sequential:
    """WKAFL's network for CelebA; 1,600,792 parameters, 2 classes."""
    require_shape("cnn_celeba", shape, shape == (3, 84, 84), "3x84x84")
    return nn.Sequential(*convolutions(3, (10, "M"), 4), *dense([16_000, 100, num_classes]))


def cnn_asmu(shape: Shape, num_classes: int) -> nn.Sequential:
    """FedASMU's CNN, two 2x2 convolutions; 297,066 parameters on 3x32x32, 10 classes.

    NOTE: the paper names neither activation nor padding; here it has ReLU and no padding.
    """
    channels, height, width = shape
    require_shape("cnn_asmu", shape, height >= 3 and width >= 3, "at least 3x3")
    layers = convolutions(channels, (64, 32), 2)
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
    layers = convolutions(3, (32, "M", 64, "M"), 5)
    return nn.Sequential(*layers, *dense([1600, 512, num_classes]))


def cnn_cifar_quirk(shape: Shape, num_classes: int) -> nn.Sequential:
    """CNNCifar of its authors' code: ReLU and softmax on the logits, before the loss's softmax."""
    return cnn_cifar(shape, num_classes).extend([nn.ReLU(), nn.Softmax(-1)])


def cnn_bn(shape: Shape, num_classes: int) -> nn.Module:
    """Three 3x3 convolutions and a linear layer; 374,282 parameters on 3x32x32.

    BatchNorm and ReLU follow each convolution, 2x2 max pooling the first two, and global average
    pooling the last. BatchNorm uses the statistics of the mini-batch, in evaluation too. So the
    model has no buffers, and its outputs depend on what it is evaluated together with.
    """
    require_shape("cnn_bn", shape, min(shape[1:]) >= 4, "at least 4x4")
    norm = partial(nn.BatchNorm2d, track_running_stats=False)
    layers = convolutions(shape[0], (64, "M", 128, "M", 256), padding=1, norm=norm)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), *dense([256, num_classes]))
