"""Partitioners: which client holds which training examples.

A partitioner maps labels, the number of clients and a random generator to one index array per
client. It works on counts and index arrays alone, so 3,000 clients cost milliseconds.
`fl_app.tasks.partition.flower.FromIndices` turns it into a partitioner of flwr-datasets.

NOTE: flwr-datasets has classes of the same names, which are not used here. They distribute Hugging
Face data sets only, and their import takes seconds. They also differ:

- `IidPartitioner` and `DirichletPartitioner` cut the data (each class) in stored order.
- `DirichletPartitioner` raises after 10 tries for the minimum size (with 50 clients, 1,437 examples
  and at least 10 each, for every second seed).
- `ShardPartitioner` gives the same number of shards to all clients.
- `NaturalIdPartitioner` uses all owners; otherwise it agrees with `Natural`.
"""

from fl_app.tasks.partition.base import Indices, Partitioner, make_partition
from fl_app.tasks.partition.dirichlet import Dirichlet
from fl_app.tasks.partition.iid import Iid, IidFraction
from fl_app.tasks.partition.label_quantity import LabelQuantity
from fl_app.tasks.partition.natural import Natural
from fl_app.tasks.partition.shards import Shards
from fl_app.tasks.partition.slow_labels import SlowLabels
from fl_app.tasks.partition.tenth_class import TenthClass

# By name, with their own defaults.
PARTITIONS: dict[str, type[Partitioner]] = {
    "iid": Iid,
    "dirichlet": Dirichlet,
    "label_quantity": LabelQuantity,
    "iid_fraction": IidFraction,
    "shards": Shards,
    "natural": Natural,
    "tenth_class": TenthClass,
    "slow_labels": SlowLabels,
}

__all__ = [
    "PARTITIONS",
    "Dirichlet",
    "Iid",
    "IidFraction",
    "Indices",
    "LabelQuantity",
    "Natural",
    "Partitioner",
    "Shards",
    "SlowLabels",
    "TenthClass",
    "make_partition",
]
