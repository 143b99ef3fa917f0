"""The digits: sizes, scaling, and that a plain torch loop learns them."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from fl_app.tasks.digits import digits
from fl_app.tasks.partition import Dirichlet, Iid


def test_sizes_and_classes() -> None:
    task = digits(partition=Iid(), num_clients=10)
    assert task.inputs.shape == (1437, 1, 8, 8)
    assert task.test_inputs.shape == (360, 1, 8, 8)
    assert task.targets.dtype == task.test_targets.dtype == torch.int64
    assert task.num_clients == 10
    # scikit-learn's counts per class; stratified: a fifth of each, up to rounding.
    counts = np.array([178, 182, 177, 183, 181, 182, 181, 179, 174, 180])
    tested = np.bincount(task.test_targets)
    assert (np.bincount(task.targets) + tested).tolist() == counts.tolist()
    assert np.abs(tested - counts * 360 / 1797).max() < 1


def test_images_and_split_are_those_of_scikit_learn() -> None:
    """The task does not import it."""
    pixels, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(labels.size), test_size=360, stratify=labels, random_state=0
    )
    task = digits(partition=Iid(), num_clients=1, scaling="raw255")
    for inputs, targets, places in (
        (task.inputs, task.targets, train),
        (task.test_inputs, task.test_targets, test),
    ):
        np.testing.assert_array_equal(inputs.flatten(1), pixels[places])
        np.testing.assert_array_equal(targets, labels[places])


@pytest.mark.parametrize(("scaling", "maximum"), [("unit", 1.0), ("raw255", 16.0)])
def test_scaling(scaling: str, maximum: float) -> None:
    task = digits(partition=Iid(), num_clients=1, scaling=scaling)
    assert (task.inputs.min().item(), task.inputs.max().item()) == (0.0, maximum)


def test_data_do_not_depend_on_the_seed_but_the_partition_does() -> None:
    one, other = (digits(partition=Dirichlet(), num_clients=50, seed=seed) for seed in (0, 1))
    assert torch.equal(one.inputs, other.inputs)
    assert torch.equal(one.test_targets, other.test_targets)
    assert [p.tolist() for p in one.partition] != [p.tolist() for p in other.partition]


def test_more_clients_than_images_are_refused() -> None:
    with pytest.raises(ValueError, match="num_clients=1438 must be at most 1437"):
        digits(partition=Iid(), num_clients=1438)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn"])
def test_a_plain_loop_learns_them(model: str) -> None:
    torch.manual_seed(0)
    task = digits(partition=Iid(), num_clients=1, model=model)
    net = task.model()
    params = list(net.parameters())
    rng = np.random.default_rng(0)
    for _ in range(300):
        inputs, target = task.batch(rng.integers(1437, size=32))
        gradient = torch.autograd.grad(task.loss(net(inputs), target), params)
        with torch.no_grad():
            for p, g in zip(params, gradient, strict=True):
                p.sub_(g, alpha=0.2)
    metrics = task.test(net)
    assert metrics["accuracy"] > 0.9
    assert metrics["loss"] < 0.5
    assert task.test(net) == metrics
