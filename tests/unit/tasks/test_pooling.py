"""Max pooling is torch's, whatever the images, in training and in tests."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fl_app.tasks.models import architecture
from fl_app.tasks.models.pooling import MaxPool2d


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


IMAGES: dict[str, Callable[[], Tensor]] = {
    "even": lambda: random(3, 6, 8, 6),
    "odd": lambda: random(2, 5, 7, 9),
    "one row": lambda: random(2, 1, 3, 2),
    "channels last": lambda: random(3, 6, 8, 8).contiguous(memory_format=torch.channels_last),
    "ties": lambda: random(3, 6, 8, 8).round(),
    "after ReLU": lambda: random(3, 6, 8, 8).relu(),
    "infinite": lambda: torch.where(random(2, 3, 8, 8) > 1, math.inf, -math.inf),
    "not a number": lambda: torch.where(random(2, 3, 8, 8) > 1, math.nan, 1.0),
}


@pytest.mark.parametrize("name", IMAGES)
def test_inference_gives_what_torch_gives(name: str) -> None:
    images = IMAGES[name]()
    with torch.inference_mode():
        pooled, expected = MaxPool2d(2)(images), nn.MaxPool2d(2)(images)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", IMAGES)
def test_training_is_torchs_own_also_where_maxima_are_equal(name: str) -> None:
    gradients = []
    for pool in (MaxPool2d(2), nn.MaxPool2d(2)):
        images = IMAGES[name]().requires_grad_()
        pooled = pool(images)
        (gradient,) = torch.autograd.grad(pooled, images, random(*pooled.shape))
        gradients.append(gradient)
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    "settings",
    [{"kernel_size": 3}, {"kernel_size": 2, "stride": 1}, {"kernel_size": 2, "padding": 1},
     {"kernel_size": 2, "dilation": 2}, {"kernel_size": 2, "ceil_mode": True}],
    ids=str,
)  # fmt: skip
def test_other_windows_are_left_to_torch(settings: dict[str, int]) -> None:
    images = random(2, 3, 7, 7)
    with torch.inference_mode():
        assert torch.equal(MaxPool2d(**settings)(images), nn.MaxPool2d(**settings)(images))


def test_models_have_it() -> None:
    for name in ("lenet", "vgg11"):
        model = architecture(name, (3, 32, 32), 10)()
        pools = [type(part) for part in model.modules() if isinstance(part, nn.MaxPool2d)]
        assert set(pools) == {MaxPool2d}
