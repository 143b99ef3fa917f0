"""Durations of orders on real nodes: recorded to a file, and replayed from it.

The file is a CSV with a header and one row per order that brought an update:

| column | is |
|---|---|
| client | id of the client, a partition id or a node id |
| order | the order's sequence number, from 0 |
| start | when the order was given, seconds since the run began |
| seconds | from then until its update had come: download, training and upload |
| bytes_down | size of the order: the model, and vectors that travel beside it |
| bytes_up | size of the update received |
"""

import csv
import logging
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from fl_app.core.errors import is_number, require
from fl_app.record.files import DURATION_COLUMNS

log = logging.getLogger(__name__)


class Replay:
    """Orders take the seconds that were recorded, transfers included.

    The run's clients take the recorded clients in the order of their ids, and start over with the
    first if the run has more clients. A client with more orders than were recorded starts over
    with the first recorded order.

    Args:
        file: CSV as written by `Recorder`.
        num_clients: N >= 1.
        num_bytes: size of the run's model.
        download_share: size of an order over that of a model; a warning is logged if another size
            was recorded.

    Attributes:
        mean_seconds: of every client's recorded orders.

    Raises:
        ValueError: the file does not exist, or holds no orders or other things than those.
    """

    def __init__(
        self, *, file: str, num_clients: int, num_bytes: int, download_share: float = 1.0
    ) -> None:
        recorded, sizes = _read(Path(file))
        order_bytes = round(num_bytes * download_share)
        if sizes != {order_bytes}:
            log.warning(
                "devices.file=%s was recorded with models of %s bytes, this run's have %d: "
                "durations are replayed as they are",
                *(file, ", ".join(map(str, sorted(sizes))), order_bytes),
            )
        self._seconds = [recorded[client % len(recorded)] for client in range(num_clients)]
        self.mean_seconds = [fmean(orders) for orders in self._seconds]

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the order with sequence number `sequence`, whenever it is given."""
        orders = self._seconds[client_id]
        return orders[sequence % len(orders)]


def _read(path: Path) -> tuple[list[list[float]], set[int]]:
    """Durations by client id and sequence number, and the sizes of the models."""
    require(path.is_file(), "devices.file", path, "a file", "there is nothing to replay")
    orders: dict[int, list[tuple[int, float]]] = defaultdict(list)
    sizes: set[int] = set()
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        for row in reader:
            try:
                client, order, seconds, size = _order(row)
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"devices.file={path}, line {reader.line_num}: {error!r}; columns must be "
                    f"{','.join(DURATION_COLUMNS)}, seconds a finite number above 0"
                ) from error
            orders[client].append((order, seconds))
            sizes.add(size)
    require(bool(orders), "devices.file", path, "a record of orders", "it holds none")
    return [[seconds for _, seconds in sorted(orders[client])] for client in sorted(orders)], sizes


def _order(row: dict[str, Any]) -> tuple[int, int, float, int]:
    seconds = float(row["seconds"])
    if not (is_number(seconds) and seconds > 0):
        raise ValueError(f"seconds={seconds}")
    return int(row["client"]), int(row["order"]), seconds, int(row["bytes_down"])
