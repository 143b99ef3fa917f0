"""Crop and flip: what torchvision does to each image by itself."""

import torch
from torch import Tensor

from fl_app.tasks.augmentation import PADDING, crop_flip
from fl_app.tasks.vision import torchvision


def all_results(image: Tensor) -> dict[bytes, tuple[int, int, bool]]:
    """Every result there is, from torchvision's functions."""
    torchvision()
    from torchvision.transforms.v2 import functional as F

    height, width = image.shape[1:]
    padded = F.pad(image, [PADDING])
    return {
        (F.horizontal_flip(cropped) if flip else cropped).contiguous().numpy().tobytes(): (
            top,
            left,
            flip,
        )
        for top in range(2 * PADDING + 1)
        for left in range(2 * PADDING + 1)
        for cropped in [F.crop(padded, top, left, height, width)]
        for flip in (False, True)
    }


def test_each_image_is_cropped_and_mirrored_on_its_own_and_uniformly() -> None:
    torch.manual_seed(0)
    image = torch.randint(1, 256, (3, 6, 7), dtype=torch.uint8)
    known = all_results(image)
    assert len(known) == 9 * 9 * 2
    batch = image.expand(5000, -1, -1, -1)
    made = crop_flip(batch)
    assert made.shape == batch.shape
    assert made.dtype == torch.uint8
    drawn = [known[one.contiguous().numpy().tobytes()] for one in made]  # or a KeyError
    for values, count in ((9, 0), (9, 1), (2, 2)):
        seen = [row[count] for row in drawn]
        shares = [seen.count(value) / len(drawn) for value in range(values)]
        assert max(abs(share - 1 / values) for share in shares) < 0.02


def test_torchs_random_state_decides_and_the_batch_is_left_alone() -> None:
    batch = torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8).to(torch.uint8)
    before = batch.clone()
    torch.manual_seed(1)
    one = crop_flip(batch)
    torch.manual_seed(1)
    assert torch.equal(crop_flip(batch), one)
    assert not torch.equal(crop_flip(batch), one)
    assert torch.equal(batch, before)
