"""Draws a partition: ``python -m fl_app.tasks.show task=mnist partition=shards num_clients=20``.

It takes the same overrides as a run. It prints the partition in numbers, and the path of a picture
of clients and classes in which a circle's area is the number of examples.
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
from fl_app.tasks.objective import Classification
from fl_app.tasks.task import Task

MOST_CLIENTS = 50  # more circles in a row could not be told apart
FOLDER = Path("outputs/partitions")


def class_counts(task: Task) -> NDArray[np.int64]:
    """Examples of each class on each client, shape ``(N, C)``.

    All examples of a task without classes count as one class.
    """
    objective = task.objective
    if not isinstance(objective, Classification) or objective.sequences:
        return np.array([[own.size] for own in task.partition])
    return np.stack([task.label_counts(client_id) for client_id in range(task.num_clients)])


def draw(counts: NDArray[np.int64], title: str, path: Path) -> None:
    """Write a picture of the first clients' counts, shape ``(N, C)``, to a PNG file."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    drawn = counts[:MOST_CLIENTS]
    clients, classes = np.nonzero(drawn)
    num_clients, num_classes = drawn.shape
    step = 0.32  # inches from client to client and from class to class
    rows = min(num_classes, 40)
    figure = Figure(figsize=(1.6 + step * num_clients, 1.4 + step * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    # The largest circle just touches its neighbours; a marker's size is its area in points.
    largest = (72 * step * rows / num_classes) ** 2
    areas = drawn[clients, classes] / drawn.max() * largest
    axes.scatter(clients, classes, s=areas, color="#2a6f97", linewidths=0)
    axes.set_xlim(-0.7, num_clients - 0.3)
    axes.set_ylim(-0.7, num_classes - 0.3)
    axes.set_xticks(_ticks(num_clients))
    axes.set_yticks(_ticks(num_classes))
    axes.set_xlabel("client" if num_clients == len(counts) else f"first clients of {len(counts)}")
    axes.set_ylabel("class")
    axes.set_title(f"{title} (largest circle: {drawn.max()} examples)", fontsize="medium")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(color="0.92", linewidth=0.6)
    axes.set_axisbelow(True)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


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
        require_installed("matplotlib")
        config = compose(arguments)
        task: Any = build_task(config)
        if not task.num_clients:
            raise ValueError(f"task={task.name} has no data here: there is no partition to show")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    counts = class_counts(task)
    kind, keys = "Owners", []  # as the data themselves say
    if not getattr(task, "by_owner", False):
        kind = config.partition["_target_"].rpartition(".")[2]
        keys = [f"{key}={value}" for key, value in config.partition.items() if key != "_target_"]
    path = FOLDER / "-".join((task.name, kind, *keys, f"{task.num_clients}-clients.png"))
    draw(counts, f"{task.name}, {kind}({', '.join(keys)})", path)
    Console().print(table_of(task, counts))
    print(path)
    return 0


def _ticks(count: int) -> range:
    return range(0, count, max(1, count // 20))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
