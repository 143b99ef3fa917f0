"""Device files: the seconds that kinds of boards take for an order, and a server for its work.

A device file is JSON (Flower leaves other tables out when it bundles the app for the nodes):

    {
      "about": "where the seconds come from",
      "boards": {"rpi5": 10, "rpi4": 5},
      "kinds": {
        "rpi5": {"seconds": 30.0, "spread": 0.02, "first": 90.0, "examples": 2500,
                 "network": {"down": 1.25e6, "up": 1.25e6, "latency": 0.01}},
        ...
      },
      "server": {"dispatch": 0.1, "receipt": 0.2, "aggregation": 0.1, "evaluation": 9.0,
                 "poll": 1.0}
    }

`boards`, `server`, and of a kind all but `seconds` may be missing. `seconds` may be a list, with a
number for each of its boards in turn. Further keys, such as the ``interval`` of a fit, are for
readers.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from fl_app.core.errors import explaining, require
from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, Checked, bounded, count, several

# Overlap-FedAvg gives the seconds of one iteration under FedAvg (five local epochs and the
# communication) and under Overlap-FedAvg (five local epochs alone); the difference is the
# communication. NOTE: it is 3 to 12 seconds per million parameters, so no bandwidth explains it.
# parameters -> seconds of five local epochs on the largest client, seconds of communication
TABLE_4 = {
    199_210: (28.85, 2.35),  # MLP, MNIST
    1_199_882: (28.31, 4.65),  # MnistNet, Fashion-MNIST
    1_204_655: (42.15, 5.04),  # MnistNet, EMNIST
    878_538: (45.33, 2.74),  # CNNCifar, CIFAR-10
    2_440_394: (49.33, 15.07),  # VGG_R, CIFAR-10
    11_169_162: (115.31, 41.57),  # ResNet_R, CIFAR-10
    11_215_332: (115.30, 40.72),  # ResNet_R, CIFAR-100
    13_828_478: (87.90, 45.29),  # Transformer, WikiText-2
}
SERVER = ("dispatch", "receipt", "aggregation", "evaluation", "poll")


BYTES = "nothing would ever arrive"
MEANS = several("a number > 0, or one for each board", POSITIVE.holds)


@dataclass(frozen=True)
class Link(Checked):
    """The link between a board and the server.

    Attributes:
        down: bytes per second to the board, > 0.
        up: bytes per second from the board, > 0.
        latency: seconds before the first byte of a transfer, >= 0.
    """

    _group = "network"

    down: float = bounded(0.0, POSITIVE, BYTES)
    up: float = bounded(0.0, POSITIVE, BYTES)
    latency: float = bounded(0.0, NON_NEGATIVE, "it would arrive before it was sent")


@dataclass(frozen=True)
class Kind(Checked):
    """The duration of orders on one kind of board.

    Attributes:
        seconds: mean of an order on each of its boards in turn, > 0, without the transfers of
            `network`. If there are more boards, it begins again with the first.
        spread: standard deviation over mean, >= 0.
        first: further seconds of a client's first order, in which the app starts, >= 0.
        examples: number of training examples of such an order, > 0; the seconds of another client
            are in proportion to its examples. None = they are the same for every client.
        network: the board's link; None = transfers are part of `seconds`.
    """

    _group = ""

    seconds: tuple[float, ...] = bounded((), MEANS, "an order takes time")
    spread: float = bounded(0.0, NON_NEGATIVE, "a spread cannot be negative")
    first: float = bounded(0.0, NON_NEGATIVE, "an app cannot start before it begins")
    examples: float | None = bounded(None, POSITIVE, "seconds are in proportion to them")
    network: Link | None = None


class Table(NamedTuple):
    """A device file.

    Attributes:
        boards: kind -> how many there were.
        kinds: by name.
        server: keywords of `fl_app.engine.server.Server`.
    """

    boards: Mapping[str, int]
    kinds: Mapping[str, Kind]
    server: Mapping[str, Any]


def read_table(name: str, key: str = "devices.table") -> Table:
    """Read a device file.

    Args:
        name: of a file in ``fl_app/devices/tables`` without its ending, or a path.
        key: of the configuration, for messages.

    Raises:
        ValueError: there is no such file, or a value in it is missing or out of its bounds.
    """
    table = resources.files("fl_app.devices") / "tables" / f"{name}.json"
    path = Path(name).expanduser()
    packaged = "/" not in name and table.is_file()
    bound = "a file, or the name of a table of fl_app/devices/tables"
    require(packaged or path.is_file(), key, name, bound, "the boards' seconds are unknown")
    with explaining(f"{key}={name} is no device file", "; python -m lab.rack.fit writes one"):
        text = table.read_text(encoding="utf-8") if packaged else path.read_text(encoding="utf-8")
        content = json.loads(text)
        kinds = content["kinds"].items()
        return Table(
            boards=dict(content.get("boards", {})),
            kinds={str(kind): _kind(str(kind), values) for kind, values in kinds},
            server={k: v for k, v in content.get("server", {}).items() if k in SERVER},
        )


def _kind(name: str, values: Mapping[str, Any]) -> Kind:
    """A kind of boards; further keys are for readers."""
    settings = {field.name: values[field.name] for field in fields(Kind) if field.name in values}
    means = settings.get("seconds", ())
    settings["seconds"] = tuple(means) if isinstance(means, list | tuple) else (means,)
    with explaining(f"kinds.{name}"):
        if settings.get("network") is not None:
            settings["network"] = Link(**settings["network"])
        return Kind(**settings)


def boards_of(
    table: str, boards: Mapping[str, int] | None, num_clients: int
) -> tuple[list[str], list[Kind]]:
    """The name of each client's kind, and the kind of each client."""
    file = read_table(table)
    counts = file.boards if boards is None else boards
    fits = isinstance(counts, Mapping) and all(map(count(0).holds, counts.values()))
    bound = "kinds with numbers such as {rpi5:10,rpi4:5}, or null"
    require(fits, "devices.boards", counts, bound, "it says which board every client is")
    known = ", ".join(file.kinds)
    for kind in counts:
        bound = f"of {known} with devices.table={table}"
        consequence = "what an order takes on another board is unknown"
        require(kind in file.kinds, "devices.boards", kind, bound, consequence)
    names = [kind for kind, number in counts.items() for _ in range(number)]
    fits, bound = len(names) == num_clients, f"num_clients={num_clients} boards of {known}"
    require(fits, "devices.boards", dict(counts), bound, "every client is one board")
    return names, [file.kinds[name] for name in names]


def table_4(num_bytes: int) -> tuple[float, float]:
    """The row of `TABLE_4` for a model of so many bytes.

    Raises:
        ValueError: there is none.
    """
    num_params = num_bytes // 4
    require(
        num_params in TABLE_4,
        "task.model's number of parameters",
        num_params,
        f"one of {', '.join(map(str, TABLE_4))} with devices=overlap",
        "Overlap-FedAvg measured mlp_overlap, mnistnet, cnn_cifar, vgg_r, resnet_r and transformer",
    )
    return TABLE_4[num_params]


def rows_of(name: str) -> list[dict[str, Any]]:
    """The rows of a measured table in ``fl_app/devices/tables``."""
    text = (resources.files("fl_app.devices") / "tables" / name).read_text(encoding="utf-8")
    return json.loads(text)
