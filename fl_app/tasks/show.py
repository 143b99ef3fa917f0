"""Draws a partition: ``python -m fl_app.tasks.show task=mnist partition=shards num_clients=20``.

It takes the same overrides as a run. It prints the partition in numbers, and the path of the
picture that flwr-datasets draws of it: the examples of each class on each client.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from fl_app.cli import compose
from fl_app.client.build import build_task
from fl_app.core.extras import require_installed
from fl_app.tasks.task import Task

FOLDER = Path("outputs/partitions")
MOST = 200  # characters of a file's name


def draw(task: Task, title: str, path: Path) -> NDArray[np.int64]:
    """Write the picture of a partition that flwr-datasets draws to a PNG file.

    Returns:
        What it shows: examples of each class on each client, shape ``(N, C)``.
    """
    from matplotlib.figure import Figure

    from fl_app.tasks.partition.flower import (
        ClassLabel,
        Dataset,
        Features,
        FromIndices,
        plot_label_distributions,
    )

    labels, names = task.classes()
    partitioner = FromIndices(lambda *_: list(task.partition), task.num_clients, "class")
    kinds = Features({"class": ClassLabel(names=list(names))})
    partitioner.dataset = Dataset.from_dict({"class": labels}, features=kinds)
    size = min(4 + 0.12 * task.num_clients, 14), min(2 + 0.25 * len(names), 12)
    figure = Figure(figsize=size, layout="constrained")
    _, _, counts = plot_label_distributions(
        partitioner, "class", "heatmap", axis=figure.add_subplot(), title=title, legend=True
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    shown: NDArray[np.int64] = counts.to_numpy()
    return shown


def table_of(task: Task, counts: NDArray[np.int64]) -> Table:
    """The partition in numbers."""
    used = np.concatenate(list(task.partition))
    total, distinct = len(task.targets), np.unique(used).size
    table = Table("", "least", "median", "most", title=f"{task.name} ({task.source})")
    for name, values in (
        ("examples of a client", counts.sum(1)),
        ("classes of a client", (counts > 0).sum(1)),
        ("clients with a class", (counts > 0).sum(0)),
    ):
        numbers = (values.min(), np.median(values), values.max())
        table.add_row(name, *(f"{value:g}" for value in numbers))
    table.caption = f"{distinct} of {total} examples used" + (
        f",\n{used.size - distinct} times an example that another client has, too"
        if used.size > distinct
        else ""
    )
    return table


def main(arguments: list[str]) -> int:
    """Draw the partition of the overrides; returns 0, or 2 if they are refused."""
    if {"-h", "--help"} & set(arguments):
        print(__doc__)
        return 0
    try:
        require_installed("flwr_datasets")
        config = compose(arguments)
        task: Any = build_task(config)
        if not task.num_clients:
            raise ValueError(f"task={task.name} has no data here: there is no partition to show")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    kind, keys = "Owners", []  # as the data themselves say
    if not getattr(task, "by_owner", False):
        kind = config.partition["_target_"].rpartition(".")[2]
        told = config.partition.items()
        keys = [f"{k}={v}" for k, v in told if k != "_target_" and v is not None]
    name = "-".join((task.name, kind, *keys))[:MOST]  # a list may be long
    path = FOLDER / f"{name}-{task.num_clients}-clients.png"
    counts = draw(task, f"{task.name}, {kind}({', '.join(keys)})", path)
    Console().print(table_of(task, counts))
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
