"""Measured seconds become a device file: ``python -m lab.rack.fit LOG...``.

    python -m lab.rack.fit outputs/.../events.jsonl --output mine.json
    python -m fl_app devices=boards devices.table=mine.json num_clients=8

A LOG is the ``events.jsonl`` of a run on real nodes, which also tells what its server's work took.
Every client is a kind of its own, unless ``--kinds`` puts several into one. Transfers are part of
the seconds, for the server sees only when an order left and when its update came.
"""

import argparse
import json
import math
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist, fmean, median, stdev
from typing import Any

from fl_app.core.events import Aggregated, Arrived, Dispatched, Evaluated
from fl_app.core.files import atomic_write
from fl_app.record.history import History
from fl_app.record.log import read_events

TWO_SIDED = NormalDist().inv_cdf(0.975)


@dataclass
class Measured:
    """Seconds of orders, and of a server's work.

    Attributes:
        orders: kind -> seconds of all its orders but the clients' first ones.
        first: kind -> seconds of its clients' first orders.
        clients: kind -> its clients.
        work: kind of a server's work -> seconds of each piece.
    """

    orders: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    first: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    clients: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    work: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, kind: str, client: int, seconds: float, first: bool) -> None:
        """Take in one order."""
        (self.first if first else self.orders)[kind].append(seconds)
        self.clients[kind].add(client)


def fit(measured: Measured, about: str) -> dict[str, Any]:
    """The contents of a device file.

    `seconds` is the mean over a kind's orders, `interval` its 95 % interval under independent
    orders, `spread` their standard deviation over the mean. `first` is by how much a client's first
    order is longer, in the mean. Of the server's work it has medians: some pieces of work are
    interrupted by other processes.

    Raises:
        ValueError: a kind has no order but first ones.
    """
    kinds = {}
    for kind in sorted(measured.orders.keys() | measured.first.keys()):
        seconds = measured.orders.get(kind, [])
        if not seconds:
            raise ValueError(
                f"kind {kind} has no order but its clients' first ones: record a longer run"
            )
        mean = fmean(seconds)
        deviation = stdev(seconds) if len(seconds) > 1 else 0.0
        half = TWO_SIDED * deviation / math.sqrt(len(seconds))
        first = measured.first.get(kind)
        kinds[kind] = {
            "seconds": round(mean, 6),
            "interval": [round(mean - half, 6), round(mean + half, 6)],
            "spread": round(deviation / mean, 6),
            "first": round(max(fmean(first) - mean, 0.0), 6) if first else 0.0,
            "orders": len(seconds),
        }
    table: dict[str, Any] = {
        "about": about,
        "boards": {kind: len(measured.clients[kind]) for kind in kinds},
        "kinds": kinds,
    }
    if measured.work:
        table["server"] = {
            what: round(max(median(seconds), 0.0), 6) for what, seconds in measured.work.items()
        }
    return table


def read_log(
    path: Path,
    into: Measured,
    kinds: Mapping[int, str],
    since: float = 0.0,
    until: float = math.inf,
) -> None:
    """Add what a log tells.

    Args:
        path: of the log.
        into: gets it.
        kinds: of clients that are not a kind of their own.
        since: orders that were given earlier are left out, seconds.
        until: so are orders that ended later.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path} must be the events.jsonl of a run: there is nothing to fit")
    history, before = History(), None
    for event in read_events(path):
        history.emit(event)
        if event.t > until:
            break
        if isinstance(event, Arrived):
            order = history.waiting[event.order]
            # An order whose dispatch a damaged log lacks seems to have taken no time.
            if since <= order.start < event.t:
                name = kinds.get(order.client, f"client-{order.client}")
                into.add(name, order.client, event.t - order.start, order.sequence == 0)
        if before is not None and event.t >= since:
            match before, event:
                case Aggregated(), Evaluated():
                    into.work["evaluation"].append(event.t - before.t)
                case Arrived(), Aggregated():
                    into.work["aggregation"].append(event.t - before.t)
                case Dispatched(), Dispatched():
                    into.work["dispatch"].append(event.t - before.t)
        before = event


def parse_kinds(texts: Sequence[str]) -> dict[int, str]:
    """Clients of kinds such as ``rpi5=0-9,12``.

    Raises:
        ValueError: a text has another form, or two kinds have one client.
    """
    kinds: dict[int, str] = {}
    for text in texts:
        name, equals, places = text.partition("=")
        try:
            if not (name and equals):
                raise ValueError("no kind")
            for place in places.split(","):
                first, dash, last = place.partition("-")
                clients = range(int(first), int(last if dash else first) + 1)
                if not clients:
                    raise ValueError("an empty range")
                if taken := kinds.keys() & clients:
                    raise ValueError(f"client {min(taken)} has a kind already")
                kinds |= dict.fromkeys(clients, name)
        except ValueError as error:
            raise ValueError(
                f"--kinds {text} must be like rpi5=0-9,12, each client of one kind: {error}"
            ) from error
    return kinds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0, or 2 if a file was refused."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.rack.fit",
        description="Turn measured seconds into a device file for devices=boards.",
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="events.jsonl")
    parser.add_argument("--kinds", nargs="*", default=[], metavar="KIND=CLIENTS", help="rpi5=0-9")
    parser.add_argument("--since", type=float, default=0.0, help="leave out orders given earlier")
    parser.add_argument("--until", type=float, default=math.inf, help="and those that ended later")
    parser.add_argument("--output", type=Path, help="file to write; default: print it")
    given = parser.parse_args(arguments)
    measured = Measured()
    try:
        kinds = parse_kinds(given.kinds)
        paths = [path.resolve() for path in given.logs]
        if twice := [str(path) for path in given.logs if paths.count(path.resolve()) > 1]:
            raise ValueError(f"{twice[0]} is given twice: its orders would count twice")
        for path in given.logs:
            read_log(path, measured, kinds, given.since, given.until)
        if not measured.clients:
            raise ValueError("the logs hold no order of this time: there is nothing to fit")
        table = fit(measured, about=f"fitted to {', '.join(path.name for path in given.logs)}")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    text = json.dumps(table, indent=2) + "\n"
    if given.output is None:
        print(text, end="")
        return 0
    try:
        with atomic_write(given.output) as file:
            file.write(text.encode())
    except OSError as error:
        print(f"error: {given.output} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    counts = Counter({kind: values["orders"] for kind, values in table["kinds"].items()})
    print(f"{given.output}: {counts.total()} orders of {len(counts)} kinds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
