"""Partitioners: which client holds which training examples.

A partitioner maps labels, the number of clients and a random generator to one index array per
client. It works on counts and index arrays alone, so 3,000 clients cost milliseconds.

`Flwr` is any partitioner of flwr-datasets. Those of the same names differ from the ones here, which
papers need:

- `IidPartitioner` and `DirichletPartitioner` cut the data (each class) in stored order.
- `DirichletPartitioner` raises after 10 tries for the minimum size (with 50 clients, 1,437 examples
  and at least 10 each, for every second seed).
- `ShardPartitioner` gives the same number of shards to all clients.
- `NaturalIdPartitioner` uses all owners; otherwise it agrees with `Natural`.
"""

from fl_app.tasks.partition.base import Iid, Indices, Natural, Partitioner, make_partition
from fl_app.tasks.partition.dirichlet import Dirichlet, SlowLabels
from fl_app.tasks.partition.flwr import Flwr
from fl_app.tasks.partition.papers import IidFraction, LabelQuantity, Shards

__all__ = [
    "Dirichlet",
    "Flwr",
    "Iid",
    "IidFraction",
    "Indices",
    "LabelQuantity",
    "Natural",
    "Partitioner",
    "Shards",
    "SlowLabels",
    "make_partition",
]
