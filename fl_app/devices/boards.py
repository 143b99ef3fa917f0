"""Boards of named kinds, and a server, with the seconds of a device file."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import Any

from fl_app.core.errors import require
from fl_app.devices.draws import uniform
from fl_app.devices.table import Kind, read_table
from fl_app.engine.server import Server

NORMAL = NormalDist()


class Boards:
    """Every client is a board of a named kind; the first clients are the first kind's.

    An order of client i takes ``m_i X``, and a client's first order ``first`` seconds more. X is
    log-normal with mean 1 and the standard deviation ``spread``. ``m_i`` is the board's mean, times
    the client's number of examples over that of the kind.

    Args:
        num_clients: N.
        num_examples: n_i of every client, all > 0.
        table: a device file, or its name in ``fl_app/devices/tables`` (`fl_app.devices.table`).
        boards: kind -> how many; None = as the table says.
        seed: seed of the run.

    Attributes:
        kinds: of every client, its name.
        mean_seconds: m_i of every client.

    Raises:
        ValueError: there is no such table or kind, or not N boards.
    """

    def __init__(
        self,
        *,
        num_clients: int,
        num_examples: Sequence[int],
        table: str,
        boards: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        self.kinds, kinds = boards_of(table, boards, num_clients)
        number: Counter[str] = Counter()  # of a kind's next board
        self.mean_seconds: list[float] = []
        for name, kind, examples in zip(self.kinds, kinds, num_examples, strict=True):
            seconds = kind.seconds[number[name] % len(kind.seconds)]
            number[name] += 1
            share = 1.0 if kind.examples is None else examples / kind.examples
            self.mean_seconds.append(seconds * share)
        self._sigmas = [math.sqrt(math.log1p(kind.spread**2)) for kind in kinds]
        self._first = [kind.first for kind in kinds]
        self._seed = seed

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        """Virtual seconds of the client's order with sequence number `sequence` given at `now`."""
        seconds = self.mean_seconds[client_id]
        sigma = self._sigmas[client_id]
        if sigma:
            draw = uniform(self._seed, client_id, sequence)
            normal = NORMAL.inv_cdf(max(draw, 2.0**-53))  # which refuses 0
            seconds *= math.exp(sigma * (normal - sigma / 2))
        return seconds + (0.0 if sequence else self._first[client_id])


class BoardLinks:
    """The links of `Boards`, as their device file has them.

    A transfer takes ``latency + num_bytes / speed``, and no time on a board without a link there.

    Args:
        num_bytes: size of a model.
        num_clients: N.
        table: as of `Boards`.
        boards: as of `Boards`.
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: as `Boards`.
    """

    def __init__(
        self,
        *,
        num_bytes: int,
        num_clients: int,
        table: str,
        boards: Mapping[str, int] | None = None,
        download_share: float = 1.0,
        upload_share: float = 1.0,
    ) -> None:
        links = [kind.network for kind in boards_of(table, boards, num_clients)[1]]
        down, up = num_bytes * download_share, num_bytes * upload_share
        self._down = [link.latency + down / link.down if link else 0.0 for link in links]
        self._up = [link.latency + up / link.up if link else 0.0 for link in links]

    def download(self, client_id: int, sequence: int) -> float:
        """Seconds until the client has the model of its order number `sequence`."""
        return self._down[client_id]

    def upload(self, client_id: int, sequence: int) -> float:
        """Seconds from the end of training until the server has the update."""
        return self._up[client_id]


class MeasuredServer(Server):
    """A server with the seconds of a device file; a value that is given replaces the file's.

    Args:
        table: as of `Boards`; None = what is not given takes no time.
        dispatch: as of `Server`, and so are those that follow.
        receipt: see `Server`.
        aggregation: see `Server`.
        evaluation: see `Server`.
        poll: see `Server`.
        serial: see `Server`; true if the file does not say it either.

    Raises:
        ValueError: there is no such table, or a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        table: str | None = None,
        dispatch: float | None = None,
        receipt: float | None = None,
        aggregation: float | None = None,
        evaluation: float | None = None,
        poll: float | None = None,
        serial: bool | None = None,
    ) -> None:
        settings = {} if table is None else dict(read_table(table, "devices.server.table").server)
        given: dict[str, Any] = {
            "dispatch": dispatch,
            "receipt": receipt,
            "aggregation": aggregation,
            "evaluation": evaluation,
            "poll": poll,
            "serial": serial,
        }
        settings |= {key: value for key, value in given.items() if value is not None}
        super().__init__(**settings)


def boards_of(
    table: str, boards: Mapping[str, int] | None, num_clients: int
) -> tuple[list[str], list[Kind]]:
    """Of every client, the name of its kind and the kind."""
    read = read_table(table)
    counts = read.boards if boards is None else boards
    require(
        isinstance(counts, Mapping),
        "devices.boards",
        counts,
        "kinds with numbers such as {rpi5:10,rpi4:5}, or null",
        "it says which board every client is",
    )
    known = ", ".join(read.kinds)
    for kind, count in counts.items():
        require(
            kind in read.kinds,
            "devices.boards",
            kind,
            f"of {known} with devices.table={table}",
            "what an order takes on another board is unknown",
        )
        require(
            isinstance(count, int) and not isinstance(count, bool) and count >= 0,
            f"devices.boards.{kind}",
            count,
            "an integer >= 0",
            "it is a number of boards",
        )
    names = [kind for kind, count in counts.items() for _ in range(count)]
    require(
        len(names) == num_clients,
        "devices.boards",
        dict(counts),
        f"num_clients={num_clients} boards of {known}",
        "every client is one board",
    )
    return names, [read.kinds[name] for name in names]
