"""Layers of NumPy arrays compute what torch's layers of the same names compute."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.tasks.models import layers


@pytest.mark.parametrize("shape", [(2, 3, 6, 8), (1, 1, 5, 7)])
def test_of_equal_entries_of_a_pool_the_first_gets_the_slope(shape: tuple[int, ...]) -> None:
    """Images of three values: most squares have several largest entries."""
    images = np.random.default_rng(0).integers(0, 3, shape).astype(np.float32)
    inputs = torch.from_numpy(images.copy()).requires_grad_()
    expected = nn.MaxPool2d(2)(inputs)
    slope = np.random.default_rng(1).standard_normal(expected.shape).astype(np.float32)
    expected.backward(torch.from_numpy(slope))
    pool = layers.MaxPool2d(2)
    np.testing.assert_array_equal(pool.forward(images, keep=True), expected.detach().numpy())
    assert inputs.grad is not None
    np.testing.assert_array_equal(pool.backward(slope, wanted=True)[0], inputs.grad.numpy())


@pytest.mark.parametrize("padding", [0, 2])
def test_the_slope_of_a_convolutions_inputs(padding: int) -> None:
    images = np.random.default_rng(0).standard_normal((2, 3, 7, 6)).astype(np.float32)
    theirs = nn.Conv2d(3, 4, 3, padding=padding)
    ours = layers.Conv2d(3, 4, 3, padding=padding)
    for name, parameter in theirs.named_parameters():
        ours.parameters[name] = parameter.detach().numpy()
    inputs = torch.from_numpy(images.copy()).requires_grad_()
    expected = theirs(inputs)
    expected.backward(torch.ones_like(expected))
    outputs = ours.forward(images, keep=True)
    np.testing.assert_allclose(outputs, expected.detach().numpy(), atol=1e-5)
    by_inputs, own = ours.backward(np.ones_like(outputs), wanted=True)
    assert inputs.grad is not None
    np.testing.assert_allclose(by_inputs, inputs.grad.numpy(), atol=1e-5)
    for name, parameter in theirs.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(own[name], parameter.grad.numpy(), atol=1e-4)


def test_no_slope_passes_a_relu_at_0() -> None:
    relu = layers.ReLU()
    assert relu.forward(np.float32([[-1, 0, 2]]), keep=True).tolist() == [[0, 0, 2]]
    slope, _ = relu.backward(np.float32([[1, 1, 1]]), wanted=True)
    assert slope is not None
    assert slope.tolist() == [[0, 0, 1]]


@pytest.mark.parametrize("seed", [0, 7, 2**40 + 3])
def test_the_draws_are_torchs(seed: int) -> None:
    torch.manual_seed(seed)
    expected = torch.empty(1000).uniform_(-0.3, 0.3).numpy()
    np.testing.assert_array_equal(layers.Draws(seed).uniform(0.3, (1000,)), expected)
