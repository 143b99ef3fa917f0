"""Batches, loss and test of a task."""

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_app.tasks.objective import Classification
from fl_app.tasks.task import CHUNK, Task


class Logits(nn.Module):
    """Takes inputs as logits, and notes how it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(1))
        self.drop = nn.Dropout(0.5)
        self.calls: list[tuple[int, bool, bool]] = []

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls.append((len(inputs), self.training, torch.is_inference_mode_enabled()))
        output: Tensor = self.drop(inputs + self.offset)
        return output


def task_of(test_inputs: Tensor, test_targets: Tensor) -> Task:
    return Task(
        name="logits",
        objective=Classification(2),
        architecture=Logits,
        inputs=torch.arange(10.0).view(5, 2),
        targets=torch.arange(5),
        test_inputs=test_inputs,
        test_targets=test_targets,
        partition=[np.array([0, 3]), np.array([1, 2, 4])],
    )


@pytest.fixture
def task() -> Task:
    return task_of(torch.eye(2)[[0, 1, 0, 1]], torch.tensor([0, 1, 1, 1]))


def test_batch_gives_the_named_examples_in_order(task: Task) -> None:
    inputs, targets = task.batch(np.array([3, 0]))
    assert inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert targets.tolist() == [3, 0]


def test_batch_is_a_copy(task: Task) -> None:
    task.batch(np.array([0]))[0].zero_()
    assert task.inputs[0].tolist() == [0.0, 1.0]


def test_clients_and_their_examples(task: Task) -> None:
    assert task.num_clients == 2
    assert task.train_indices(1).tolist() == [1, 2, 4]


def test_loss_is_mean_cross_entropy(task: Task) -> None:
    # Logits (0, 0): -log(1/2); logits (log 3, 0) and target 0: -log(3/4).
    output = torch.tensor([[0.0, 0.0], [float(np.log(3)), 0.0]])
    loss = task.loss(output, torch.tensor([1, 0]))
    assert loss.item() == pytest.approx((np.log(2) + np.log(4 / 3)) / 2)


def test_metrics_of_known_logits(task: Task) -> None:
    # Three of four right; logits differ by 1: a right one costs log(1 + 1/e), a wrong one 1 more.
    metrics = task.test(Logits())
    assert metrics["accuracy"] == 0.75
    assert metrics["loss"] == pytest.approx(np.log(1 + np.exp(-1)) + 0.25)


def test_share_of_the_commonest_prediction(task: Task) -> None:
    assert task.test(Logits())["commonest_prediction"] == 0.5
    constant = task_of(torch.eye(2)[[0, 0, 0, 0]], torch.tensor([0, 1, 1, 0]))
    assert constant.test(Logits())["commonest_prediction"] == 1.0


def test_pixels_lie_together_and_images_are_the_same() -> None:
    for channels in (1, 3):
        images = torch.rand(4, channels, 5, 6)
        made = replace(task_of(images, torch.zeros(4, dtype=torch.int64)), inputs=images)
        inputs, _ = made.batch(np.array([2, 0]))
        assert torch.equal(inputs, images[[2, 0]])
        assert inputs.stride() == (30 * channels, 1, 6 * channels, channels)


def test_metrics_weigh_examples_alike_over_uneven_chunks() -> None:
    targets = torch.zeros(CHUNK + 500, dtype=torch.int64)
    targets[CHUNK:] = 1  # the short chunk is all wrong
    task = task_of(torch.eye(2)[torch.zeros(CHUNK + 500, dtype=torch.int64)], targets)
    model = Logits()
    metrics = task.test(model)
    assert metrics["accuracy"] == pytest.approx(CHUNK / (CHUNK + 500))
    assert metrics["loss"] == pytest.approx(np.log(1 + np.exp(-1)) + 500 / (CHUNK + 500))
    assert sorted(model.calls) == [(500, False, True), (CHUNK, False, True)]


@pytest.mark.parametrize("prepare", [nn.Module.train, nn.Module.eval])
def test_modes_are_left_as_found(task: Task, prepare: Callable[[nn.Module], object]) -> None:
    model = Logits()
    prepare(model)
    model.drop.eval()  # frozen on its own
    before = [module.training for module in model.modules()]
    task.test(model)
    assert [module.training for module in model.modules()] == before


def test_a_task_can_be_sent_to_another_process(task: Task) -> None:
    sent = pickle.loads(pickle.dumps(task))
    assert torch.equal(sent.inputs, task.inputs)
    assert isinstance(sent.model(), Logits)


def add_one(inputs: Tensor) -> Tensor:
    return inputs + 1


def times_ten(inputs: Tensor) -> Tensor:
    return inputs * 10


def test_training_batches_are_augmented_then_prepared_and_the_test_set_only_prepared(
    task: Task,
) -> None:
    changed = dataclasses.replace(task, augment=times_ten, prepare=add_one)
    assert changed.batch(np.array([0]))[0].tolist() == [[1.0, 11.0]]
    # Logits are what they were plus one each, which changes nothing; times ten it would.
    assert changed.test(Logits())["loss"] == pytest.approx(task.test(Logits())["loss"])
    scaled = dataclasses.replace(task, prepare=times_ten)
    assert scaled.test(Logits())["loss"] != pytest.approx(task.test(Logits())["loss"])


def test_loss_and_metrics_of_sequences_are_means_over_tokens() -> None:
    # Three tokens of two words: logits (0, 0) cost log 2 whatever the word, (log 3, 0) cost
    # log 4/3 if it is the first: in all (2 log 2 + log 4/3) / 3, whose exponential is (16/3)^(1/3).
    logits = torch.zeros(1, 3, 2)
    logits[0, 2, 0] = float(np.log(3))
    targets = torch.tensor([[0, 1, 0]])
    made = dataclasses.replace(
        task_of(logits, targets), objective=Classification(2, sequences=True)
    )
    metrics = made.test(Logits())
    assert metrics["perplexity"] == pytest.approx((16 / 3) ** (1 / 3), rel=1e-6)
    assert metrics["loss"] == pytest.approx(np.log(16 / 3) / 3, rel=1e-6)
    assert metrics["accuracy"] == pytest.approx(2 / 3)


def test_perplexity_of_a_diverged_model_is_infinite() -> None:
    logits = torch.tensor([[[0.0, 1e4]]])
    made = dataclasses.replace(
        task_of(logits, torch.tensor([[0]])), objective=Classification(2, sequences=True)
    )
    assert made.test(Logits())["perplexity"] == np.inf


def test_chunks_are_as_large_as_asked() -> None:
    made = dataclasses.replace(
        task_of(torch.eye(2)[[0, 1, 0]], torch.tensor([0, 1, 1])), test_chunk=2
    )
    model = Logits()
    assert made.test(model)["accuracy"] == pytest.approx(2 / 3)
    assert [count for count, *_ in model.calls] == [2, 1]
