"""The partitioners of flwr-datasets by name."""

import inspect
import os
import re
from collections.abc import Sequence
from pkgutil import resolve_name
from typing import Any

import numpy as np

from fl_app.core.errors import explaining, require
from fl_app.core.extras import explaining_imports
from fl_app.core.types import Indices, Rng

# Partitioners that decide the number of clients.
DECIDING = ("natural_id", "grouped_natural_id", "size", "inner_dirichlet")


class Flwr:
    """A partitioner of flwr-datasets by name, with the arguments of its constructor.

    The rows are shuffled with the seed before, as `flwr_datasets.FederatedDataset` does. So with
    equal rows and the same `seed`, clients have the examples of its partitions. ``num_partitions``
    is the number of clients, and ``partition_by`` the classes or, for natural ids, the owners.
    NOTE: vertical partitioners distribute columns and are refused.

    Args:
        partitioner: name of the class in small letters, without ``Partitioner``: ``"iid"``,
            ``"dirichlet"``, ``"natural_id"``, ...
        seed: of shuffling and of the partitioner; None = it follows from the run's seed.
        arguments: of its constructor; None = the constructor's default. ``partition_id_to_size_fn``
            is ``package.module:callable``.

    Attributes:
        decides: whether the number of clients follows from examples and arguments.
        by_owner: whether examples are distributed by their owners.

    Raises:
        ValueError: the partitioner is unknown or refuses its arguments, or flwr-datasets is not
            installed.
    """

    def __init__(self, partitioner: str = "iid", seed: int | None = None, **arguments: Any) -> None:
        self.partitioner, self.seed = partitioner, seed
        self.arguments = {key: v for key, v in arguments.items() if v is not None}
        self.decides = partitioner in DECIDING
        self.by_owner = partitioner.endswith("natural_id")
        alpha = arguments.get("alpha")
        self._make(len(alpha) if isinstance(alpha, Sequence) else 1, 0)

    def __str__(self) -> str:
        parts = [self.partitioner, *(f"{key}={value}" for key, value in self.arguments.items())]
        return f"flwr({', '.join(parts)})"

    def __call__(self, labels: Indices, num_clients: int | None, rng: Rng) -> list[Indices]:
        """One array of indices into `labels` per client; see `Partitioner`.

        Args:
            labels: classes or owners of the examples, shape ``(n,)``.
            num_clients: N; None = as many as it `decides`.
            rng: draws the seed, unless the partitioner has one.

        Raises:
            ValueError: the partitioner refuses the examples, or makes another number of clients.
        """
        from datasets import Dataset

        seed = int(rng.integers(2**31)) if self.seed is None else self.seed
        rows = Dataset.from_dict({"label": labels, "row": np.arange(len(labels))})
        partitioner = self._make(num_clients or 1, seed)
        partitioner.dataset = rows.shuffle(seed=seed)
        what = f"{len(labels)} training examples over clients (num_clients={num_clients})"
        with explaining(f"partition={self} cannot distribute {what}"):
            parts = [
                np.asarray(partitioner.load_partition(place)["row"][:], np.int64)
                for place in range(partitioner.num_partitions)
            ]
        bound = f"{len(parts)}, or left out, with partition={self}"
        fits = num_clients in (None, len(parts))
        require(fits, "num_clients", num_clients, bound, "the partitioner decides how many")
        return parts

    def _make(self, num_clients: int, seed: int) -> Any:
        """The partitioner of flwr-datasets.

        Raises:
            ValueError: it refuses an argument.
        """
        # Otherwise it reports names of data sets, such as the paths of a user's folders.
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        with explaining_imports():  # it takes seconds to import
            from flwr_datasets import partitioner

        names = {re.sub("(?<=.)(?=[A-Z])", "_", n[:-11]).lower(): n for n in partitioner.__all__}
        known = [name for name in names if name and not name.startswith("vertical")]
        exists, bound = self.partitioner in known, f"one of {', '.join(known)}"
        require(exists, "partition.partitioner", self.partitioner, bound, "others do not exist")
        make, arguments = getattr(partitioner, names[self.partitioner]), dict(self.arguments)
        defaults = {"num_partitions": num_clients, "partition_by": "label", "seed": seed}
        parameters = inspect.signature(make).parameters
        accepted = ", ".join(k for k in parameters if k not in defaults) or "no arguments"
        problem = f"partition={self} is refused by flwr-datasets, whose {make.__name__} takes"
        with explaining(f"{problem} {accepted}"):
            if path := arguments.get("partition_id_to_size_fn"):
                arguments["partition_id_to_size_fn"] = resolve_name(path)
            if (rows := arguments.get("distribution_array")) is not None:
                arguments["distribution_array"] = np.array(rows)
            return make(**{k: v for k, v in defaults.items() if k in parameters}, **arguments)
