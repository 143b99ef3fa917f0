"""Losses and metrics of classes, of several labels at once, and of numbers."""

import math

import pytest
import torch
from torch import nn

from fl_app.tasks.objective import Classification, MultiLabel, Objective, Regression
from fl_app.tasks.partition import PARTITIONS, Dirichlet, Iid
from fl_app.tasks.task import Task


class Same(nn.Module):
    """Gives its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.shift


def task_of(
    objective: Objective, outputs: torch.Tensor, targets: torch.Tensor, chunk: int = 500
) -> Task:
    return Task(
        name="same",
        objective=objective,
        architecture=Same,
        inputs=outputs,
        targets=targets,
        test_inputs=outputs,
        test_targets=targets,
        test_chunk=chunk,
    )


@pytest.mark.parametrize("chunk", [500, 3])
def test_metrics_of_numbers(chunk: int) -> None:
    """Errors 1, -1, 0, 2 of targets 1, 2, 3, 6 with mean 3: 6 of a variation of 14."""
    outputs = torch.tensor([2.0, 1.0, 3.0, 8.0])  # as a model without a second dimension gives
    task = task_of(Regression(1), outputs, torch.tensor([[1.0], [2.0], [3.0], [6.0]]), chunk)
    assert task.test(Same()) == pytest.approx(
        {"rmse": math.sqrt(1.5), "mae": 1.0, "loss": 1.5, "r2": 1 - 6 / 14}
    )


def test_r2_is_a_mean_over_outputs_and_unknown_for_equal_targets() -> None:
    """The first output explains all, the second nothing: (1 + 0) / 2."""
    targets = torch.tensor([[1e6, 1.0], [1e6 + 2, 3.0]])
    outputs = torch.tensor([[1e6, 2.0], [1e6 + 2, 2.0]])
    assert task_of(Regression(2), outputs, targets).test(Same())["r2"] == pytest.approx(0.5)
    equal = torch.full((3, 1), 0.1)
    assert math.isnan(task_of(Regression(1), equal, equal).test(Same())["r2"])


@pytest.mark.parametrize("chunk", [500, 1])
def test_metrics_of_several_labels(chunk: int) -> None:
    """Two of four entries are positive, three predicted so, two of them rightly."""
    outputs = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    targets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    metrics = task_of(MultiLabel(2), outputs, targets, chunk).test(Same())
    right = math.log(1 + math.exp(-1))
    assert metrics == pytest.approx(
        {"accuracy": 0.75, "loss": right + 0.25, "exact_match": 0.5, "f1": 0.8}
    )
    nothing = task_of(MultiLabel(2), -outputs.abs(), torch.zeros(2, 2)).test(Same())
    assert nothing["accuracy"] == 1.0
    assert math.isnan(nothing["f1"])


def test_own_loss_and_metrics() -> None:
    from torchmetrics import MeanAbsolutePercentageError  # takes seconds to import
    from torchmetrics.classification import MulticlassF1Score

    def absolute(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return (output - target).abs().mean()

    further = {"percentage": MeanAbsolutePercentageError()}
    outputs, targets = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([[1.0], [2.0], [3.0]])
    task = task_of(Regression(1, absolute, further), outputs, targets, chunk=2)
    for _ in range(2):  # nothing is left of the first time
        metrics = task.test(Same())
        assert metrics["loss"] == pytest.approx(2 / 3)
        assert metrics["percentage"] == pytest.approx((1 + 0.5 + 0) / 3)
    assert task.loss(outputs, targets).item() == pytest.approx(2 / 3)
    classes = Classification(2, metrics={"f1": MulticlassF1Score(2, average="macro")})
    right = task_of(classes, torch.eye(2), torch.tensor([0, 1])).test(Same())
    assert right["f1"] == 1.0


def test_partitions_go_by_tenths_of_numbers_and_by_equal_labels() -> None:
    numbers = torch.arange(40.0)[:, None]
    assert Regression(1).strata(numbers).tolist() == [i // 4 for i in range(40)]
    labels = torch.tensor([[1.0, 0.0], [0.0, 0.0], [1.0, 0.0]])
    first, second, third = MultiLabel(2).strata(labels).tolist()
    assert first == third != second
    task = task_of(Regression(1), numbers, numbers)
    assert (task.num_clients, task.with_clients(Dirichlet(0.5), 4, seed=0).num_clients) == (0, 4)


@pytest.mark.parametrize("name", sorted(PARTITIONS.keys() - {"natural"}))
def test_every_partition_distributes_numbers(name: str) -> None:
    numbers = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    task = task_of(Regression(1), numbers, numbers).with_clients(PARTITIONS[name](), 10, seed=0)
    assert min(part.size for part in task.partition) >= 1


def held_out(share: float, num_examples: int = 40) -> Task:
    numbers = torch.arange(float(num_examples))[:, None]
    task = task_of(Regression(1), numbers, numbers)
    return task.with_clients(Iid(), 4, seed=0).with_holdout(share, seed=3)


def test_a_share_of_every_client_is_kept_for_validation() -> None:
    whole, task = held_out(0.001), held_out(0.3)
    for client_id in range(4):
        own = set(task.partition[client_id]), set(task.validation[client_id])
        assert (len(own[0]), len(own[1])) == (7, 3)
        assert not own[0] & own[1]
        assert own[0] | own[1] == {*whole.partition[client_id], *whole.validation[client_id]}
        assert len(whole.validation[client_id]) == 1  # at least one
    again = task.with_holdout(0.3, seed=3)  # of all that the client has
    assert [part.tolist() for part in again.validation] == [p.tolist() for p in task.validation]
    other = task.with_holdout(0.3, seed=4)
    assert [part.tolist() for part in other.validation] != [p.tolist() for p in task.validation]


def test_a_client_is_evaluated_on_its_validation_examples() -> None:
    task = held_out(0.3)
    model = Same()
    with torch.no_grad():
        model.shift.fill_(2.0)
    metrics, num_examples = task.evaluate(model, 1)
    assert (num_examples, metrics["rmse"]) == (3, 2.0)
    plain = task_of(Regression(1), task.inputs, task.targets).with_clients(Iid(), 4, seed=0)
    assert plain.evaluate(model, 1)[1] == 10


def test_a_client_with_one_example_trains_on_it() -> None:
    task = held_out(0.5, num_examples=4)
    assert [part.size for part in task.partition] == [1] * 4
    assert task.evaluate(Same(), 0) == ({}, 0)


def test_a_task_without_test_set() -> None:
    numbers = torch.arange(4.0)[:, None]
    task = Task(
        name="own",
        objective=Regression(1),
        architecture=Same,
        inputs=numbers,
        targets=numbers,
        partition=[torch.arange(4).numpy()],
    )
    assert not task.has_test_set
    with pytest.raises(ValueError, match="task=own has no test set: nothing can be tested"):
        task.test(Same())
    with pytest.raises(ValueError, match=r"task=own has no classes \(regression\)"):
        task.label_counts(0)
