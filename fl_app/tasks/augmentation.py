"""Random changes of training images."""

import torch
from torch import Tensor
from torch.nn import functional as F

PADDING = 4


def crop_flip(images: Tensor) -> Tensor:
    """Pad each image by 4 zeros a side, crop it to its size at random, mirror half of them.

    This is the usual augmentation for CIFAR. NOTE: torchvision's transforms draw once for a whole
    batch. Called image by image they give the same as this function, but take 5.9 ms for a batch of
    32 instead of 0.2 ms.

    Args:
        images: shape ``(n, channels, height, width)``, any type; not changed.
    """
    num_images, _, height, width = images.shape
    padded = F.pad(images, [PADDING] * 4)
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)  # (n, c, 9, 9, height, width)
    top, left = torch.randint(2 * PADDING + 1, (2, num_images), device=images.device)
    cropped = windows[torch.arange(num_images, device=images.device), :, top, left]
    mirrored = torch.rand(num_images, 1, 1, 1, device=images.device) < 0.5
    return torch.where(mirrored, cropped.flip(-1), cropped)


AUGMENTATIONS = {"crop_flip": crop_flip}
