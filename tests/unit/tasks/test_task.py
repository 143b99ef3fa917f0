"""Batches, losses, metrics and validation examples of a task, for each kind of targets."""

import dataclasses
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.tasks.objective import Classification, Regression
from fl_app.tasks.partition import Iid
from fl_app.tasks.partition.dirichlet import Dirichlet
from fl_app.tasks.task import Task


class Same(nn.Module):
    """Takes inputs as outputs, and notes how it was called."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))
        self.drop = nn.Dropout(0.5)
        self.calls = []

    def forward(self, inputs):
        self.calls.append((len(inputs), self.training, torch.is_inference_mode_enabled()))
        return self.drop(inputs + self.shift)


def task_of(objective, outputs, targets, **more):
    tests = {"test_inputs": outputs, "test_targets": targets, "test_chunk": 500}
    given = {"name": "same", "objective": objective, "architecture": Same}
    return Task(**{**given, "inputs": outputs, "targets": targets, **tests, **more})


def logits(classes, targets, **more):
    """Whose model gives a class 1 and the other 0: right ones cost log(1 + 1/e), wrong 1 more."""
    return task_of(Classification(2), torch.eye(2)[classes], torch.tensor(targets), **more)


RIGHT = math.log(1 + math.exp(-1))


def test_a_batch_is_a_copy_of_the_named_examples_in_order():
    task = task_of(Classification(5), torch.arange(10.0).view(5, 2), torch.arange(5))
    inputs, targets = task.batch(np.array([3, 0]))
    assert inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert targets.tolist() == [3, 0]
    inputs.zero_()
    assert task.inputs[3].tolist() == [6.0, 7.0]
    sent = pickle.loads(pickle.dumps(task))
    assert torch.equal(sent.inputs, task.inputs)
    for channels in (1, 3):  # pixels of a channel lie apart
        images = torch.rand(4, channels, 5, 6)
        inputs, _ = dataclasses.replace(task, inputs=images).batch(np.array([2, 0]))
        assert torch.equal(inputs, images[[2, 0]])
        assert inputs.stride() == (30 * channels, 1, 6 * channels, channels)


def add_one(inputs):
    return inputs + 1


def times_ten(inputs):
    return inputs * 10


def test_training_batches_are_augmented_then_prepared_and_the_test_set_only_prepared():
    task = logits([0, 1], [0, 0], augment=times_ten, prepare=add_one)
    assert task.batch(np.array([0]))[0].tolist() == [[11.0, 1.0]]
    # Logits are what they were plus one each, which changes nothing; times ten it would.
    assert task.test(Same())["loss"] == pytest.approx(RIGHT + 0.5)
    scaled = dataclasses.replace(task, prepare=times_ten)
    assert scaled.test(Same())["loss"] != pytest.approx(RIGHT + 0.5)


def test_metrics_of_classes():
    metrics = logits([0, 1, 0, 1], [0, 1, 1, 1]).test(Same())
    expected = {"accuracy": 0.75, "loss": RIGHT + 0.25, "commonest_prediction": 0.5}
    assert metrics == pytest.approx(expected)
    assert logits([0] * 4, [0, 1, 1, 0]).test(Same())["commonest_prediction"] == 1.0
    task = logits([0] * 4, [0, 1, 1, 0])
    output = torch.tensor([[0.0, 0.0], [math.log(3), 0.0]])
    loss = (math.log(2) + math.log(4 / 3)) / 2
    assert task.loss(output, torch.tensor([1, 0])).item() == pytest.approx(loss)
    assert task.test(Same(), recall=True)["recall_1"] == 0
    assert task.label_counts().tolist() == [2, 2]


def test_metrics_of_sequences_are_means_over_tokens():
    """Logits (0, 0) cost log 2 whatever the word, (log 3, 0) cost log 4/3 if it is the first."""
    words = torch.zeros(1, 3, 2)
    words[0, 2, 0] = math.log(3)
    sequences = Classification(2, sequences=True)
    task = task_of(sequences, words, torch.tensor([[0, 1, 0]]))
    expected = {"perplexity": (16 / 3) ** (1 / 3), "loss": math.log(16 / 3) / 3, "accuracy": 2 / 3}
    assert task.test(Same()) == pytest.approx(expected, rel=1e-6)
    assert sequences.losses(words, task.targets).tolist() == pytest.approx([math.log(16 / 3) / 3])
    diverged = task_of(sequences, torch.tensor([[[0.0, 1e4]]]), torch.tensor([[0]]))
    assert diverged.test(Same())["perplexity"] == math.inf


@pytest.mark.parametrize("chunk", [500, 3, 1])
def test_metrics_of_numbers(chunk):
    """Errors 1, -1, 0, 2 of targets 1, 2, 3, 6 with mean 3: 6 of a variation of 14."""
    outputs = torch.tensor([2.0, 1.0, 3.0, 8.0])  # as a model without a second dimension gives
    numbers = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    metrics = task_of(Regression(1), outputs, numbers, test_chunk=chunk).test(Same())
    expected = {"rmse": math.sqrt(1.5), "mae": 1.0, "loss": 1.5, "r2": 1 - 6 / 14}
    assert metrics == pytest.approx(expected)


def test_metrics_that_cannot_be_known_are_no_numbers():
    """The first output explains all, the second nothing: (1 + 0) / 2."""
    targets = torch.tensor([[1e6, 1.0], [1e6 + 2, 3.0]])
    outputs = torch.tensor([[1e6, 2.0], [1e6 + 2, 2.0]])
    assert task_of(Regression(2), outputs, targets).test(Same())["r2"] == pytest.approx(0.5)
    equal = torch.full((3, 1), 0.1)
    assert math.isnan(task_of(Regression(1), equal, equal).test(Same())["r2"])
    task = task_of(Regression(1), equal, equal, test_inputs=None, test_targets=None)
    with pytest.raises(ValueError, match="task=same has no test set: nothing can be tested"):
        task.test(Same())
    with pytest.raises(ValueError, match=r"task=same \(regression\) has no test set of single cl"):
        task.label_counts()


def absolute(output, target):
    return (output - target).abs().mean()


def test_an_own_loss():
    outputs, targets = torch.tensor([2.0, 1.0, 3.0]), torch.tensor([[1.0], [2.0], [3.0]])
    task = task_of(Regression(1, absolute), outputs, targets, test_chunk=2)
    assert task.test(Same())["loss"] == pytest.approx(2 / 3)


# -- clients --------------------------------------------------------------------------------------


def test_partitions_go_by_tenths_of_numbers():
    numbers = torch.arange(40.0)[:, None]
    assert Regression(1).strata(numbers).tolist() == [i // 4 for i in range(40)]
    drawn = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    task = task_of(Regression(1), drawn, drawn).with_clients(Dirichlet(), 10, seed=0)
    assert min(part.size for part in task.partition) >= 10


def held_out(share, num_examples=40, seed=3):
    numbers = torch.arange(float(num_examples))[:, None]
    task = task_of(Regression(1), numbers, numbers)
    return task.with_clients(Iid(), 4, seed=0).with_holdout(share, seed)


def test_a_share_of_every_client_is_kept_for_validation():
    whole, task = held_out(0.001), held_out(0.3)
    for client_id in range(4):
        own = set(task.partition[client_id]), set(task.validation[client_id])
        assert (len(own[0]), len(own[1])) == (7, 3)
        assert own[0] | own[1] == {*whole.partition[client_id], *whole.validation[client_id]}
        assert len(whole.validation[client_id]) == 1  # at least one
    again, other = held_out(0.3), held_out(0.3, seed=4)
    assert [part.tolist() for part in again.validation] == [p.tolist() for p in task.validation]
    assert [part.tolist() for part in other.validation] != [p.tolist() for p in task.validation]
    model = Same()
    nn.init.constant_(model.shift, 2.0)
    metrics, num_examples = task.evaluate(model, 1)
    assert (num_examples, metrics["rmse"]) == (3, 2.0)
    plain = task_of(Regression(1), task.inputs, task.targets).with_clients(Iid(), 4, seed=0)
    assert plain.evaluate(model, 1)[1] == 10
    single = held_out(0.5, num_examples=4)
    assert [part.size for part in single.partition] == [1] * 4
    assert single.evaluate(Same(), 0) == ({}, 0)
