"""flwr-datasets, and a partitioner of this project as one of it.

Everything imports flwr-datasets from here, and here only when it is needed: it takes seconds.
"""

import os

import numpy as np

# Else it would report names of data sets, such as the paths of a user's folders.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

from datasets import Dataset
from flwr_datasets import FederatedDataset, partitioner

from fl_app.tasks.partition.base import Indices, Partitioner, make_partition


class FromIndices(partitioner.Partitioner):  # type: ignore[misc]  # it carries no types
    """A partitioner for `flwr_datasets.FederatedDataset`.

        fds = FederatedDataset(
            dataset="ylecun/mnist", shuffle=False,
            partitioners={"train": FromIndices(Shards(), num_partitions=20)},
        )

    Args:
        partitioner: distributes the rows.
        num_partitions: N >= 1.
        partition_by: column with the classes, or, for `Natural`, with the owners.
        seed: seed of the partition; the seed of a run gives the run's clients.

    Raises:
        ValueError: see `make_partition`; `load_partition` raises it.
    """

    def __init__(
        self,
        partitioner: Partitioner,
        num_partitions: int,
        partition_by: str = "label",
        seed: int = 0,
    ) -> None:
        super().__init__()
        self._partitioner = partitioner
        self._num_partitions = num_partitions
        self._partition_by = partition_by
        self._seed = seed
        self._parts: list[Indices] = []

    def load_partition(self, partition_id: int) -> Dataset:
        if not self._parts:
            _, values = np.unique(self.dataset[self._partition_by][:], return_inverse=True)
            self._parts = make_partition(
                self._partitioner, values, self._num_partitions, self._seed, owners=values
            )
        return self.dataset.select(self._parts[partition_id])

    @property
    def num_partitions(self) -> int:
        return self._num_partitions


__all__ = ["Dataset", "FederatedDataset", "FromIndices", "partitioner"]
