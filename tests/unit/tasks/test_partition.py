"""Partitions: complete, disjoint, decided by the seed, skewed as papers say, and unchanged."""

import dataclasses
import math
import pickle
import zlib

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.devices.compute import TwoSpeed
from fl_app.tasks.objective import Classification, Regression
from fl_app.tasks.partition import Iid, Natural, make_partition
from fl_app.tasks.partition.dirichlet import Dirichlet, SlowLabels
from fl_app.tasks.partition.flwr import Flwr
from fl_app.tasks.partition.papers import IidFraction, LabelQuantity, Shards
from fl_app.tasks.task import Task

LABELS = np.arange(1437) % 10  # about the digits' training set
SORTED = np.repeat(np.arange(10), 1000)


def deal(partitioner, labels=LABELS, n=20, seed=0):
    return make_partition(partitioner, labels, n, seed)


@pytest.mark.parametrize(
    ("partitioner", "digest"),
    [
        (Iid(), 1_545_899_573),
        (Dirichlet(), 3_317_126_549),
        (Dirichlet(0.05, 30), 1_831_715_547),  # single examples move
        (Dirichlet(balance=False), 389_129_489),
        (Dirichlet(mode="by_client"), 1_512_369_423),
        (Dirichlet(1e-4, 1), 2_172_643_006),  # shares underflow
        (Dirichlet(1e-4, 1, mode="by_client"), 685_406_318),
        (Dirichlet(math.inf), 1_545_899_573),
        (IidFraction(), 3_881_075_056),
        (Shards(10), 1_519_128_158),
        (Shards(10, contiguous=True), 3_241_917_813),
        (SlowLabels(), 3_369_533_509),
        (SlowLabels(0.1, [9], others=True), 1_427_440_152),
    ],
    ids=str,
)
def test_every_example_is_dealt_once_and_partitions_do_not_change(partitioner, digest):
    """Published runs name a seed, so partitions must not change."""
    parts = deal(partitioner)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1437))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert min(part.size for part in parts) >= getattr(partitioner, "min_size", 1)
    assert crc(parts) == digest
    assert crc(deal(partitioner, seed=1)) != digest


@pytest.mark.parametrize(
    "parts", [[np.arange(9)], [np.arange(9), np.arange(5, 10)], [np.ones(9, bool)] * 2]
)
def test_a_partitioner_gives_indices_for_each_client(parts):
    with pytest.raises(ValueError, match=r"must be a partitioner (of 2 clients|that gives)"):
        make_partition(lambda labels, num_clients, rng: parts, np.zeros(9, int), 2, 0)


def crc(parts):
    return zlib.crc32(np.concatenate([*parts, [part.size for part in parts]]).tobytes())


@pytest.mark.parametrize(
    ("partitioner", "digest"),
    [
        (Iid(max_size=20), 1_496_546_816),
        (Dirichlet(max_size=40), 12_542_475),
        (LabelQuantity(), 2_126_211_677),
        (LabelQuantity(3, 10, 30), 918208849),
        (LabelQuantity(2, 10, 30, disjoint=True), 2_699_584_885),
        (LabelQuantity(10, 1, 1), 1_857_846_106),  # one example of ten classes is possible
        (Natural(40), 4_043_506_072),
    ],
    ids=str,
)
def test_some_leave_examples_out(partitioner, digest):
    owners = (np.arange(1437) * 7 % 31) ** 2 % 29
    parts = make_partition(partitioner, LABELS, 10, 0, owners)
    assert np.concatenate(parts).size < 1437
    assert all(np.unique(part).size == part.size >= 1 for part in parts)
    assert crc(parts) == digest


def test_disjoint_clients_share_nothing_and_cannot_have_more_than_there_is():
    everything = np.concatenate(deal(LabelQuantity(2, 10, 30, disjoint=True)))
    assert np.unique(everything).size == everything.size
    with pytest.raises(ValueError, match=r"partition\.disjoint=True cannot be met: 1000 clients"):
        deal(LabelQuantity(disjoint=True), LABELS, 1000)


# -- properties from papers ------------------------------------------------------------------------


def test_slow_clients_hold_their_own_labels():
    parts = deal(SlowLabels(0.3, [2, 7]), SORTED)
    seconds = TwoSpeed(num_clients=20, slow_share=0.3, slowdown=5.0).mean_seconds
    slow = np.array(seconds) == 5.0
    classes = [set(SORTED[part].tolist()) for part in parts]
    assert [labels <= {2, 7} for labels in classes] == slow.tolist()
    assert [labels.isdisjoint({2, 7}) for labels in classes] == (~slow).tolist()
    parts = deal(SlowLabels(0.3, [9], others=True), SORTED)
    tenth = np.array([(SORTED[part] == 9).sum() for part in parts])
    assert (tenth > 0).tolist() == slow.tolist()
    assert np.ptp(tenth[slow]) <= 1
    assert all((SORTED[part] != 9).any() for part in parts)


def test_a_client_has_all_of_one_owner():
    owners = np.array([5, 2, 2, 3, 3, 3])
    parts = make_partition(Natural(2), owners, 2, 0, owners)
    assert [part.tolist() for part in parts] == [[1, 2], [3, 4, 5]]


# -- flwr-datasets ---------------------------------------------------------------------------------

# With 4 clients, or as many as the partitioner decides.
ARGUMENTS = {
    "continuous": {"strictness": 0.5},
    "dirichlet": {"alpha": 1.0},
    "distribution": {
        "distribution_array": [[1.0, 1.0]] * 5,
        "num_unique_labels_per_partition": 2,
        "preassigned_num_samples_per_label": 1,
    },
    "exponential": {},
    "grouped_natural_id": {"group_size": 2, "mode": "strict"},
    "id_to_size_fnc": {"partition_id_to_size_fn": "builtins:abs"},
    "iid": {},
    "inner_dirichlet": {"alpha": [0.5] * 5, "partition_sizes": [20, 60, 60, 60]},
    "linear": {},
    "natural_id": {},
    "pathological": {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"},
    "shard": {"num_shards_per_partition": 2},
    "size": {"partition_sizes": [20, 60, 60, 60]},
    "square": {},
}
FIVE, OWNERS = np.arange(200) % 5, np.arange(200) % 8


@pytest.mark.filterwarnings("ignore:Specifying null_placement")  # of datasets, when it sorts
def test_every_partitioner_of_flwr_datasets_gives_each_example_to_one_client():
    from flwr_datasets import partitioner as theirs

    kinds = [kind for kind in theirs.__all__ if "Vertical" not in kind and kind != "Partitioner"]
    assert len(kinds) == len(ARGUMENTS)
    for name, arguments in ARGUMENTS.items():
        flwr = Flwr(name, **arguments)
        num_clients = None if flwr.decides else 5 if name == "distribution" else 4
        parts = make_partition(flwr, FIVE, num_clients, 0, OWNERS)
        assert sorted(np.concatenate(parts).tolist()) == list(range(200)), name
        assert crc(parts) == crc(make_partition(flwr, FIVE, num_clients, 0, OWNERS)), name


# -- refusals --------------------------------------------------------------------------------------


def greedy(labels, num_clients, rng):
    return [np.arange(labels.size), *[np.array([], np.int64)] * (num_clients - 1)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: deal(Iid(), LABELS[:10], 11), "num_clients=11 must be at most 10, .*no data"),
        (lambda: deal(greedy, n=8), r"7 of 8 clients .*clients 1, 2, 3, 4, 5, \.\.\.\)"),
        (
            lambda: make_partition(Natural(9), np.arange(3), None, 0, np.array([1, 1, 2])),
            "partition.min_size=9 must be at most 2, the most examples of an owner",
        ),
        (lambda: deal(Natural()), "partition=natural needs .* task.client=COLUMN"),
        (
            lambda: make_partition(Natural(2), np.arange(3), 2, 0, np.array([1, 1, 2])),
            "num_clients=2 must be at most 1, the owners of at least",
        ),
        (lambda: deal(Dirichlet(0.3, 80)), "min_size=80 must be at most 71 with 1437 training"),
        (lambda: Dirichlet(max_size=9), "max_size=9 must be at least partition.min_size=10"),
        (lambda: deal(IidFraction(0.9), n=150), "num_clients=150 must be at most 144, the"),
        (lambda: LabelQuantity(1, 10, 9), "partition.max_size=9 must be at least"),
        (lambda: deal(LabelQuantity(11)), "partition.num_labels=11 must be at most 10"),
        (lambda: deal(LabelQuantity(1, 10, 144)), "partition.max_size=144 must be at most 143"),
        (lambda: deal(Shards(100)), "partition.shard_size=100 must be at most 71 with 1437"),
        (lambda: SlowLabels(labels=[1, 1]), "partition.labels=.* must be a list of classes, each"),
        (lambda: deal(SlowLabels(1.0)), "partition.slow_share=1.0 must be smaller"),
        (lambda: deal(SlowLabels(labels=[11])), "labels=.* must be some but not all of the class"),
        (
            lambda: deal(SlowLabels(1.0, [9], others=True), n=144),
            "partition.labels=.* classes of at least 144 examples",
        ),
        (lambda: Flwr("diri"), "partitioner=diri must be one of .*, dirichlet, .*, iid"),
        (lambda: Flwr(alpha=1.0), r"flwr\(iid, alpha=1.0\) is .* takes no arguments.*alpha"),
        (lambda: Flwr("dirichlet"), "DirichletPartitioner takes alpha.* missing .* 'alpha'"),
        (lambda: Flwr("vertical_even"), "partition.partitioner=vertical_even must be one of"),
        (lambda: deal(Flwr("square"), FIVE, 40), "cannot distribute 200 .*not greater than 0"),
        (
            lambda: make_partition(Flwr("natural_id"), FIVE, 4, 0, OWNERS),
            r"num_clients=4 must be 8, or left out, with partition=flwr\(natural",
        ),
    ],
)  # fmt: skip
def test_impossible_partitions_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# -- tasks -----------------------------------------------------------------------------------------


class Same(nn.Module):
    """Returns its inputs as outputs, and records its calls."""

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
    settings = {"name": "same", "objective": objective, "architecture": Same}
    return Task(**{**settings, "inputs": outputs, "targets": targets, **tests, **more})


def logits(classes, targets, **more):
    """The model gives `classes` a 1, others 0: right ones cost log(1 + 1/e), wrong ones 1 more."""
    return task_of(Classification(2), torch.eye(2)[classes], torch.tensor(targets), **more)


RIGHT = math.log(1 + math.exp(-1))


def test_a_batch_is_a_copy_of_the_named_examples_in_order():
    task = task_of(Classification(5), torch.arange(10.0).view(5, 2), torch.arange(5))
    inputs, targets = task.batch(np.array([3, 0]))
    assert inputs.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert targets.tolist() == [3, 0]
    inputs.zero_()
    assert task.inputs[3].tolist() == [6.0, 7.0]
    copy = pickle.loads(pickle.dumps(task))
    assert torch.equal(copy.inputs, task.inputs)
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
    # Adding one to all logits does not change the loss; multiplying by ten does.
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
    """Logits (0, 0) cost log 2 for each word, (log 3, 0) cost log 4/3 for the first word."""
    outputs = torch.zeros(1, 3, 2)
    outputs[0, 2, 0] = math.log(3)
    sequences = Classification(2, sequences=True)
    task = task_of(sequences, outputs, torch.tensor([[0, 1, 0]]))
    expected = {"perplexity": (16 / 3) ** (1 / 3), "loss": math.log(16 / 3) / 3, "accuracy": 2 / 3}
    assert task.test(Same()) == pytest.approx(expected, rel=1e-6)
    assert sequences.losses(outputs, task.targets).tolist() == pytest.approx([math.log(16 / 3) / 3])
    bad = task_of(sequences, torch.tensor([[[0.0, 1e4]]]), torch.tensor([[0]]))
    assert bad.test(Same())["perplexity"] == math.inf


@pytest.mark.parametrize("chunk", [500, 3, 1])
def test_metrics_of_numbers(chunk):
    """Errors 1, -1, 0, 2 of targets 1, 2, 3, 6 with mean 3: 6 of a variation of 14."""
    outputs = torch.tensor([2.0, 1.0, 3.0, 8.0])  # as of a model without a second dimension
    numbers = torch.tensor([[1.0], [2.0], [3.0], [6.0]])
    metrics = task_of(Regression(1), outputs, numbers, test_chunk=chunk).test(Same())
    expected = {"rmse": math.sqrt(1.5), "mae": 1.0, "loss": 1.5, "r2": 1 - 6 / 14}
    assert metrics == pytest.approx(expected)


def test_metrics_that_cannot_be_known_are_no_numbers():
    """The first output explains all variation, the second none: (1 + 0) / 2."""
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
    values = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
    task = task_of(Regression(1), values, values).with_clients(Dirichlet(), 10, seed=0)
    assert min(part.size for part in task.partition) >= 10


def with_holdout(share, num_examples=40, seed=3):
    numbers = torch.arange(float(num_examples))[:, None]
    task = task_of(Regression(1), numbers, numbers)
    return task.with_clients(Iid(), 4, seed=0).with_holdout(share, seed)


def test_a_share_of_every_client_is_kept_for_validation():
    whole, task = with_holdout(0.001), with_holdout(0.3)
    for client_id in range(4):
        parts = set(task.partition[client_id]), set(task.validation[client_id])
        assert (len(parts[0]), len(parts[1])) == (7, 3)
        assert parts[0] | parts[1] == {*whole.partition[client_id], *whole.validation[client_id]}
        assert len(whole.validation[client_id]) == 1  # at least one
    same, other = with_holdout(0.3), with_holdout(0.3, seed=4)
    assert [part.tolist() for part in same.validation] == [p.tolist() for p in task.validation]
    assert [part.tolist() for part in other.validation] != [p.tolist() for p in task.validation]
    model = Same()
    nn.init.constant_(model.shift, 2.0)
    metrics, num_examples = task.evaluate(model, 1)
    assert (num_examples, metrics["rmse"]) == (3, 2.0)
    plain = task_of(Regression(1), task.inputs, task.targets).with_clients(Iid(), 4, seed=0)
    assert plain.evaluate(model, 1)[1] == 10
    single = with_holdout(0.5, num_examples=4)
    assert [part.size for part in single.partition] == [1] * 4
    assert single.evaluate(Same(), 0) == ({}, 0)
