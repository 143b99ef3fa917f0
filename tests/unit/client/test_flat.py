"""A module and its one vector: where what lies, and that copies are copies."""

import numpy as np
import pytest
import torch
from helpers import vec
from torch import nn

from fl_app.client.flat import FlatModel


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def test_a_module_becomes_one_vector_with_parameters_first() -> None:
    module = normalised()
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    model = FlatModel(module)
    layout = model.layout
    assert layout.names == list(expected)
    assert layout.size == 3 * 4 + 4 + 4 + 4 + 4 + 4 + 1 + 4 * 2 + 2
    assert layout.num_trainable == layout.size - 9
    for name, array in layout.named(model.read()).items():
        np.testing.assert_array_equal(array, expected[name].numpy())
        assert array.dtype == expected[name].numpy().dtype
    assert torch.cat([p.detach().reshape(-1) for p in model.params]).tolist() == (
        model.read()[: layout.num_trainable].tolist()
    )


def test_load_and_read_are_inverse_with_an_integer_buffer() -> None:
    model = FlatModel(normalised())
    vector = np.arange(model.layout.size, dtype=np.float32)
    model.load(vector)
    np.testing.assert_array_equal(model.read(), vector)
    np.testing.assert_array_equal(model.read(start=model.layout.num_trainable), vector[-9:])
    counter = model.layout.slices["1.num_batches_tracked"].start
    state = model.module.state_dict()
    assert state["1.num_batches_tracked"].dtype == torch.int64
    assert state["1.num_batches_tracked"].item() == counter
    assert state["3.bias"].tolist() == vector[model.layout.slices["3.bias"]].tolist()
    vector[counter] = 6.7  # as a mean of counters comes out
    model.load(vector)
    assert model.module.state_dict()["1.num_batches_tracked"].item() == 7


def test_training_moves_buffers_in_the_vector() -> None:
    model = FlatModel(normalised())
    model.load(np.zeros(model.layout.size, np.float32))
    model.module(torch.ones(5, 3))
    state = model.layout.named(model.read())
    assert state["1.num_batches_tracked"] == 1
    assert state["1.running_mean"].tolist() == [0, 0, 0, 0]
    model.module(torch.ones(5, 3))
    assert model.layout.named(model.read())["1.num_batches_tracked"] == 2


def test_vectors_are_copied_in_and_out() -> None:
    model = FlatModel(normalised())
    vector = np.ones(model.layout.size, np.float32)
    model.load(vector)
    vector[:] = 5
    first = model.read()
    model.load(vector)
    assert (first == 1).all()
    out = np.empty_like(vector)
    assert model.read(out) is out
    assert (out == 5).all()


def test_frozen_parameters_are_buffers() -> None:
    module = nn.Linear(2, 1)
    module.weight.requires_grad_(False)
    model = FlatModel(module)
    assert model.layout.num_trainable == 1
    assert [parameter.shape for parameter in model.params] == [(1,)]
    model.load(vec(7, 5, 6))
    assert module.bias.tolist() == [7]
    assert module.weight.tolist() == [[5, 6]]


def test_tied_weights_are_refused() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[1].weight = module[0].weight
    with pytest.raises(ValueError, match="one tensor under two names"):
        FlatModel(module)
