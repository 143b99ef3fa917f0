"""MOON by hand: a model whose features are two numbers, and which only the contrast moves.

The head is zero, so that output, loss and their gradients are zero; what is left is v, the features
of every example. From v = z_g = (1, 0) with z_p = (0, 1), T = 1/2:

    cos(z, z_g) = 1, cos(z, z_p) = 0:    term = mu log(1 + exp(-2)) = 0.1269280 mu
    d cos(z, z_g) / dv = 0, d cos(z, z_p) / dv = (0, 1):
    gradient = mu / (1 + exp(2)) 2 (0, 1) = 0.2384058 mu (0, 1)

With mu = 5 and rate 0.1 a step leads to (1, -0.1192029).
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from helpers import Quadratic, order_for, vec
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_app.algorithms.moon import MOON
from fl_app.algorithms.moon.trainer import MOONTrainer
from fl_app.core.types import GlobalModel, Update
from fl_app.tasks.models import architecture


class Plane(nn.Module):
    """Features v, whatever the input, and a head of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.v = nn.Parameter(torch.zeros(2))
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.v.expand(len(x), 2))
        return output


class Nothing:
    """A task whose loss is the square of the output."""

    name = "nothing"
    source = "generated"
    num_clients = 2
    has_test_set = False

    def model(self) -> nn.Module:
        return Plane()

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        return np.arange(4)

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        return torch.zeros(len(indices), 1), torch.zeros(len(indices), dtype=torch.int64)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.square().mean()

    def test(self, model: nn.Module) -> Mapping[str, float]:
        raise AssertionError("not asked for")

    def evaluate(self, model: nn.Module, client_id: int) -> tuple[Mapping[str, float], int]:
        raise AssertionError("not asked for")


class Noting(MOONTrainer):
    """Notes the term of every batch."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(Nothing(), **settings)
        self.terms: list[float] = []

    def penalty(self, params: list[Tensor], received: list[Tensor]) -> Tensor:
        term = super().penalty(params, received)
        self.terms.append(term.item())
        return term


def layout(v: tuple[float, float]) -> Any:
    return vec(*v, 0, 0)  # v, then the head


ORDER = MOON(contrast=5.0, temperature=0.5).dispatch(GlobalModel(layout((1, 0)), 1), client_id=0)


def test_the_first_order_compares_the_received_model_with_itself() -> None:
    trainer = Noting(local_lr=0.1, local_steps=1)
    upload = trainer.train(order_for(0, 0, *ORDER))
    assert trainer.terms == pytest.approx([5 * math.log(2)])
    assert upload.vector[:2].tolist() == [1.0, 0.0]
    assert upload.loss == 0.0  # of the task alone
    assert upload.state["previous"].tolist() == [1, 0, 0, 0]


def test_a_step_leads_away_from_the_previous_model() -> None:
    trainer = Noting(local_lr=0.1, local_steps=1)
    before = layout((0, 1))
    upload = trainer.train(order_for(0, 1, *ORDER, state={"previous": before}))
    assert trainer.terms == pytest.approx([5 * 0.1269280])
    assert upload.vector[:2].tolist() == pytest.approx([1.0, -0.1192029])
    assert upload.state["previous"].tolist() == upload.vector.tolist()
    assert before.tolist() == [0, 1, 0, 0]
    assert ORDER[0].tolist() == [1, 0, 0, 0]


def test_the_second_step_is_compared_with_the_received_model_too() -> None:
    """z = (1, -s), s = 0.1192029, of length l = sqrt(1 + s^2) = 1.0070798:

    cos(z, z_g) = 1 / l = 0.9929700, cos(z, z_p) = -s / l = -0.1183649,
    term = 5 log(1 + exp(2 (-0.1183649 - 0.9929700))) = 5 * 0.1028449
    """
    trainer = Noting(local_lr=0.1, local_steps=2)
    trainer.train(order_for(0, 1, *ORDER, state={"previous": layout((0, 1))}))
    assert trainer.terms == pytest.approx([5 * 0.1269280, 5 * 0.1028449], rel=1e-5)


def test_the_trainers_own_values_hold_where_the_order_says_nothing() -> None:
    trainer = Noting(local_lr=0.1, local_steps=1, contrast=1.0, temperature=1.0)
    trainer.train(order_for(0, 1, ORDER[0], {}, state={"previous": layout((0, 1))}))
    assert trainer.terms == pytest.approx([math.log(1 + math.exp(-1))])


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("mlp", (1, 8, 8), 32),
        ("cnn", (1, 8, 8), 64),
        ("lenet", (1, 28, 28), 84),
        ("resnet20", (3, 8, 8), 64),
        ("alexnet", (3, 32, 32), 256),
        ("vgg_r", (3, 32, 32), 256),
        ("textcnn", (6, 20), 300),
        ("transformer", (6, 10), 200),
    ],
)
def test_features_are_what_the_last_linear_layer_is_given(
    name: str, shape: tuple[int, ...], size: int
) -> None:
    class Any10(Nothing):
        def model(self) -> nn.Module:
            return architecture(name, shape, 10)()

    torch.manual_seed(0)
    trainer = MOONTrainer(Any10())
    inputs = torch.randint(10, (3, 6)) if len(shape) == 2 else torch.randn(3, *shape)
    trainer.model.module(inputs)
    assert trainer._features.of_head.shape[-1] == size
    assert trainer._features.of_head.requires_grad
    frozen = trainer._received.features(inputs)
    assert frozen.shape == trainer._features.of_head.shape
    assert not frozen.requires_grad
    assert torch.equal(frozen, trainer._received.features(inputs))  # without dropout
    assert torch.equal(frozen, trainer._previous.features(inputs))
    trainer._previous.load(trainer.model.read() + 1)
    assert not torch.equal(frozen, trainer._previous.features(inputs))


def test_a_model_without_a_linear_layer_is_refused() -> None:
    with pytest.raises(ValueError, match=re.escape("task.model=Position must have a linear layer")):
        MOONTrainer(Quadratic.scattered(2))


def test_server_averages_by_examples() -> None:
    """10/40 (2, 8) + 30/40 (6, 0) = (5, 2)."""
    updates = [Update(0, 3, vec(2, 8), "model", 10, 0.0), Update(1, 3, vec(6, 0), "model", 30, 0.0)]
    strategy = MOON()
    assert strategy.aggregate(GlobalModel(vec(1, 1), 3), updates).tolist() == [5.0, 2.0]
    assert strategy.report["weight"] == [0.25, 0.75]
