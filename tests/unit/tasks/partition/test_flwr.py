"""The partitioners of flwr-datasets by name."""

import inspect
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fl_app.tasks.digits import digits
from fl_app.tasks.partition import Flwr, make_partition
from fl_app.tasks.partition.flower import Dataset, FederatedDataset, partitioner

LABELS = np.arange(200) % 5
OWNERS = np.arange(200) % 8
# With 4 clients.
ARGUMENTS: dict[str, dict[str, Any]] = {
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
    "inner_dirichlet": {"alpha": 0.5, "partition_sizes": [20, 60, 60, 60]},
    "linear": {},
    "natural_id": {},
    "pathological": {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"},
    "shard": {"num_shards_per_partition": 2},
    "size": {"partition_sizes": [20, 60, 60, 60]},
    "square": {},
}
NUM_CLIENTS = {"natural_id": 8, "distribution": 5}


def deal(name: str, num_clients: int | None = 4, seed: int = 0, **arguments: Any) -> list[Any]:
    flwr = Flwr(name, **(ARGUMENTS[name] | arguments))
    return make_partition(flwr, LABELS, num_clients, seed, OWNERS)


def of_examples() -> list[type]:
    kinds = [getattr(partitioner, name) for name in partitioner.__all__]
    return [k for k in kinds if k is not partitioner.Partitioner and "Vertical" not in k.__name__]


@pytest.mark.filterwarnings("ignore:Specifying null_placement")  # of datasets, when it sorts
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_partitioner_gives_each_example_to_one_client(name: str) -> None:
    parts = deal(name, NUM_CLIENTS.get(name, 4))
    assert sorted(np.concatenate(parts).tolist()) == list(range(200))
    again = deal(name, NUM_CLIENTS.get(name, 4))
    assert [part.tolist() for part in parts] == [part.tolist() for part in again]


def test_no_partitioner_and_no_argument_is_left_out() -> None:
    assert len(ARGUMENTS) == len(of_examples())
    takes = {key for kind in of_examples() for key in inspect.signature(kind).parameters}
    with_number = [k for k in of_examples() if "num_partitions" in inspect.signature(k).parameters]
    assert sum(Flwr(n, **k).decides for n, k in ARGUMENTS.items()) == 14 - len(with_number)
    assert {field.name for field in fields(Flwr)} == (takes - {"num_partitions"}) | {"partitioner"}


def test_clients_are_those_of_a_federated_dataset(tmp_path: Path) -> None:
    rows = Dataset.from_dict({"place": range(200), "label": LABELS})
    rows.to_parquet(tmp_path / "data.parquet")
    data = FederatedDataset(
        dataset="parquet",
        data_files=str(tmp_path / "data.parquet"),
        cache_dir=str(tmp_path),
        partitioners={"train": partitioner.DirichletPartitioner(4, "label", 0.9, 3, seed=7)},
        seed=7,
    )
    flwr = Flwr("dirichlet", alpha=0.9, min_partition_size=3, seed=7)
    parts = make_partition(flwr, LABELS, 4, seed=0)
    for client_id, own in enumerate(parts):
        assert own.tolist() == sorted(data.load_partition(client_id)["place"][:])


def test_partitions_follow_from_the_runs_seed_or_from_their_own() -> None:
    first, second = (deal("iid", seed=seed)[0].tolist() for seed in (0, 1))
    assert first != second
    own = [make_partition(Flwr("iid", seed=5), LABELS, 4, seed)[0].tolist() for seed in (0, 1)]
    assert own[0] == own[1]


def test_natural_ids_are_owners() -> None:
    assert [part.tolist() for part in deal("natural_id", 8)] == [
        list(range(owner, 200, 8)) for owner in range(8)
    ]
    assert len(deal("natural_id", None)) == 8
    with pytest.raises(
        ValueError, match=r"num_clients=4 must be 8, or left out, with partition=flwr\(natural"
    ):
        deal("natural_id", 4)
    with pytest.raises(ValueError, match="needs the owner of each training example"):
        make_partition(Flwr("natural_id"), LABELS, 8, 0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"partitioner": "diri"}, "partition.partitioner=diri must be one of continuous, diri"),
        ({"partitioner": "vertical_even"}, "partition.partitioner=vertical_even .* columns"),
        ({"alpha": 1.0}, "partition.alpha=1.0 must be left out: .*=iid takes no arguments"),
        ({"partition_by": "label"}, "partition.partition_by=label must be left out: .*=iid takes"),
        ({"partitioner": "shard", "alpha": 1.0}, "takes partition_by, num_shards_per_partition, "),
        ({"partitioner": "dirichlet"}, "partition.alpha is missing: .*=dirichlet takes partition_"),
        ({"partitioner": "dirichlet", "alpha": -1.0}, r"flwr\(dirichlet, alpha=-1.0\) is refused"),
        (
            {"partitioner": "grouped_natural_id", "group_size": 2, "mode": "loose"},
            "partition.mode=loose must be one of allow-smaller, ",
        ),
        (
            {"partitioner": "id_to_size_fnc", "partition_id_to_size_fn": "math:none"},
            "module 'math' has no attribute 'none'",
        ),
    ],
)
def test_arguments_are_checked_without_data(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Flwr(**arguments)


def test_a_partition_that_cannot_be_made_says_why() -> None:
    told = r"partition=flwr\(square\) cannot distribute 200 .*num_clients=40.* not greater than 0"
    with pytest.raises(ValueError, match=told):
        deal("square", 40)


def test_data_without_columns_have_labels_alone() -> None:
    way = {"num_classes_per_partition": 2, "class_assignment_mode": "deterministic"}
    task = digits(partition=Flwr("pathological", partition_by="label", **way), num_clients=20)
    assert {np.count_nonzero(task.label_counts(i)) for i in range(20)} == {2}
    with pytest.raises(ValueError, match=r"partition_by=city must be null or label: only a table"):
        digits(partition=Flwr("pathological", partition_by="city", **way), num_clients=20)
