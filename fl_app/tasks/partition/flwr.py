"""The partitioners of flwr-datasets by name."""

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pkgutil import resolve_name
from typing import Any, Literal, get_args, get_origin

import numpy as np

from fl_app.core.errors import require
from fl_app.core.extras import told_if_missing
from fl_app.tasks.options import DECIDING
from fl_app.tasks.partition.base import LABEL, Indices

OWNERS = ("natural_id", "grouped_natural_id")  # where it is the column of the owners
OWN = ("partitioner", "partition_by", "seed")  # keys that every partitioner has here


@dataclass(frozen=True)
class Flwr:
    """A partitioner of flwr-datasets by name, with the arguments of its constructor.

    The rows are shuffled with the seed before, as `flwr_datasets.FederatedDataset` does. So with
    equal rows and the same `seed`, clients have the examples of its partitions. ``num_partitions``
    is the number of clients. NOTE: vertical partitioners distribute columns and are refused.

    Args:
        partitioner: name of the class in small letters, without ``Partitioner``: ``"iid"``,
            ``"dirichlet"``, ``"natural_id"``, ...
        partition_by: column by which it distributes; None = the classes or, for natural ids, the
            owners. Only the columns of a table or of a Hugging Face data set have names.
        seed: of shuffling and of the partitioner; None = it follows from the run's seed.
        alpha: of ``dirichlet`` and ``inner_dirichlet``, > 0.
        min_partition_size: of ``dirichlet``, examples that every client gets at least.
        self_balancing: of ``dirichlet``, whether full clients get no more examples.
        num_shards_per_partition: of ``shard``.
        shard_size: of ``shard``, examples.
        keep_incomplete_shard: of ``shard``, whether the last one may be smaller.
        num_classes_per_partition: of ``pathological``.
        class_assignment_mode: of ``pathological``, ``"random"``, ``"deterministic"`` or
            ``"first-deterministic"``.
        partition_sizes: of ``size`` and ``inner_dirichlet``, examples of every client.
        partition_id_to_size_fn: of ``id_to_size_fnc``, ``package.module:callable``.
        strictness: of ``continuous``, in [0, 1]; 0 = iid, 1 = sorted by the column.
        group_size: of ``grouped_natural_id``, owners of a client.
        mode: of ``grouped_natural_id``, what becomes of a last group that is smaller:
            ``"allow-smaller"``, ``"allow-bigger"``, ``"drop-reminder"`` or ``"strict"``.
        sort_unique_ids: of ``grouped_natural_id``, whether owners are sorted before.
        distribution_array: of ``distribution``, a row of weights for each class.
        num_unique_labels_per_partition: of ``distribution``.
        preassigned_num_samples_per_label: of ``distribution``.
        rescale: of ``distribution``, whether weights are shares of a class; else examples.
        shuffle: the order within a client; it changes no client's examples.

    None = the constructor's default.

    Raises:
        ValueError: the partitioner is unknown, does not take an argument, lacks one, or refuses a
            value; or flwr-datasets is not installed.
    """

    partitioner: str = "iid"
    partition_by: str | None = None
    seed: int | None = None
    alpha: float | Sequence[float] | None = None
    min_partition_size: int | None = None
    self_balancing: bool | None = None
    num_shards_per_partition: int | None = None
    shard_size: int | None = None
    keep_incomplete_shard: bool | None = None
    num_classes_per_partition: int | None = None
    class_assignment_mode: str | None = None
    partition_sizes: Sequence[int] | None = None
    partition_id_to_size_fn: str | None = None
    strictness: float | None = None
    group_size: int | None = None
    mode: str | None = None
    sort_unique_ids: bool | None = None
    distribution_array: Sequence[Sequence[float]] | None = None
    num_unique_labels_per_partition: int | None = None
    preassigned_num_samples_per_label: int | None = None
    rescale: bool | None = None
    shuffle: bool | None = None

    def __post_init__(self) -> None:
        known = _partitioners()
        name = f"partition.partitioner={self.partitioner}"
        require(
            not self.partitioner.startswith("vertical_"),
            "partition.partitioner",
            self.partitioner,
            "one that distributes examples",
            "it distributes columns, and clients train one model, whose inputs are all columns",
        )
        require(
            self.partitioner in known,
            "partition.partitioner",
            self.partitioner,
            f"one of {', '.join(known)}",
            "flwr-datasets has no other",
        )
        parameters = inspect.signature(known[self.partitioner]).parameters
        own = {key: p for key, p in parameters.items() if key != "num_partitions"}
        takes = f"{name} takes {', '.join(own) or 'no arguments'}"
        given = self._arguments()
        for key, value in {**given, "partition_by": self.partition_by}.items():
            require(value is None or key in own, f"partition.{key}", value, "left out", takes)
        for key, parameter in own.items():
            if parameter.default is parameter.empty and key not in (*OWN, *given):
                raise ValueError(f"partition.{key} is missing: {takes}")
            if key in given and get_origin(parameter.annotation) is Literal:
                among = get_args(parameter.annotation)
                bound = f"one of {', '.join(among)}"
                require(given[key] in among, f"partition.{key}", given[key], bound, takes)
        self._make(len(self.alpha) if isinstance(self.alpha, Sequence) else 1, 0)

    def __str__(self) -> str:
        told = ", ".join(f"{key}={value}" for key, value in self._arguments().items())
        return f"flwr({self.partitioner}{told and ', ' + told})"

    @property
    def decides(self) -> bool:
        """Whether the number of clients follows from examples and arguments."""
        return self.partitioner in DECIDING

    @property
    def by_owner(self) -> bool:
        """Whether examples are distributed by their owners."""
        return self.partitioner in OWNERS and self.partition_by is None

    def __call__(
        self, labels: Indices, num_clients: int | None, rng: np.random.Generator
    ) -> list[Indices]:
        """One array of indices into `labels` per client; see `Partitioner`.

        Args:
            labels: values of the column by which examples are distributed, shape ``(n,)``.
            num_clients: N; None = as many as it `decides`.
            rng: gives the seed, unless that is given.

        Raises:
            ValueError: the partitioner refuses the examples, or makes another number of clients.
        """
        from fl_app.tasks.partition.flower import Dataset

        seed = int(rng.integers(2**31)) if self.seed is None else self.seed
        rows = Dataset.from_dict({self._by: labels, "row": np.arange(len(labels))})
        partitioner = self._make(num_clients or 1, seed)
        partitioner.dataset = rows.shuffle(seed=seed)
        try:
            parts = [
                np.asarray(partitioner.load_partition(place)["row"][:], np.int64)
                for place in range(partitioner.num_partitions)
            ]
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(
                f"partition={self} cannot distribute {len(labels)} training examples over "
                f"clients (num_clients={num_clients}): {error}"
            ) from error
        require(
            num_clients in (None, len(parts)),
            "num_clients",
            num_clients,
            f"{len(parts)}, or left out, with partition={self}",
            "the partitioner decides how many clients these examples have",
        )
        return parts

    @property
    def _by(self) -> str:
        return self.partition_by or ("owner" if self.by_owner else LABEL)

    def _arguments(self) -> dict[str, Any]:
        """The arguments that are given."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {key: v for key, v in given.items() if v is not None and key not in OWN}

    def _make(self, num_clients: int, seed: int) -> Any:
        """The partitioner of flwr-datasets.

        Raises:
            ValueError: it refuses an argument.
        """
        make = _partitioners()[self.partitioner]
        own = {"num_partitions": num_clients, "partition_by": self._by, "seed": seed}
        keywords = {k: v for k, v in own.items() if k in inspect.signature(make).parameters}
        keywords |= self._arguments()
        try:
            if "distribution_array" in keywords:
                keywords["distribution_array"] = np.array(self.distribution_array)
            if self.partition_id_to_size_fn is not None:
                keywords["partition_id_to_size_fn"] = resolve_name(self.partition_id_to_size_fn)
            return make(**keywords)
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(f"partition={self} is refused by flwr-datasets: {error}") from error


def _partitioners() -> dict[str, Any]:
    """Classes of partitioners that distribute examples, by name."""
    with told_if_missing():  # it takes seconds to import
        from fl_app.tasks.partition.flower import partitioner

    names = {
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", each.removesuffix("Partitioner")).lower(): each
        for each in partitioner.__all__
    }
    return {
        name: getattr(partitioner, each)
        for name, each in names.items()
        if name and not name.startswith("vertical_")
    }
