"""Measured seconds become a device file: ``python -m lab.rack.fit LOG...``.

    python -m lab.rack.fit outputs/.../events.jsonl --output mine.json
    python -m fl_app devices=boards devices.table=mine.json num_clients=8

A LOG is the ``events.jsonl`` of a run on real nodes, which also has the times of the server's work.
Every client is a kind of its own, unless ``--kinds`` puts several into one. Transfers are part of
the seconds, for the server sees only when an order left and when its update came.
"""

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pandas as pd

from fl_app.core.events import to_json
from fl_app.record.log import read_events

TWO_SIDED = NormalDist().inv_cdf(0.975)
RANGE = re.compile(r"(\d+)(?:-(\d+))?")
KIND = re.compile(rf"([^=]+)=((?:{RANGE.pattern},?\b)+)")
WORK = {  # what a server does between two events
    ("aggregate", "evaluate"): "evaluation",
    ("arrival", "aggregate"): "aggregation",
    ("dispatch", "dispatch"): "dispatch",
}


def read_log(
    path: Path, kinds: Mapping[int, str], since: float, until: float
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The orders and the server's work in a log.

    Args:
        path: of the log.
        kinds: of clients that are not a kind of their own.
        since: orders given earlier are left out, seconds.
        until: orders that ended later are left out, seconds.

    Returns:
        Rows with `kind`, `client`, `seconds` and `first`, true for a client's first order; and rows
        with `what` and `seconds`.

    Raises:
        ValueError: there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"{path} must be the events.jsonl of a run: there is nothing to fit")
    events = pd.DataFrame(map(to_json, read_events(path)))
    events = events[events.t <= until]
    columns = ["order", "client", "t"]
    sent = events.loc[events.kind == "dispatch", columns]
    sent["first"] = ~sent.client.duplicated()
    # An order whose dispatch is missing in a damaged log is left out.
    orders = events.loc[events.kind == "arrival", columns].merge(sent, on=columns[:2])
    orders["seconds"] = orders.t_x - orders.t_y
    orders["kind"] = [kinds.get(client, f"client-{client}") for client in orders.client]
    orders = orders[(orders.t_y >= since) & (orders.seconds > 0)]
    pairs = zip(events.kind.shift(), events.kind, strict=True)
    work = pd.DataFrame({"what": map(WORK.get, pairs), "seconds": events.t.diff()})
    return orders, work[events.t >= since].dropna()


def fit(orders: pd.DataFrame, work: pd.DataFrame, about: str) -> dict[str, Any]:
    """The contents of a device file.

    `seconds` is the mean over a kind's orders, `interval` its 95 % interval under independent
    orders, `spread` their standard deviation over the mean. `first` is the mean by which a client's
    first order is longer. The server's work has medians, since other processes interrupt some of
    it.

    Raises:
        ValueError: a kind has no order but first ones.
    """
    kinds = {}
    for kind, group in orders.groupby("kind"):
        seconds, first = group.seconds[~group["first"]], group.seconds[group["first"]]
        if seconds.empty:
            raise ValueError(
                f"kind {kind} has no order but its clients' first ones: record a longer run"
            )
        mean = seconds.mean()
        deviation = seconds.std() if len(seconds) > 1 else 0.0
        half = TWO_SIDED * deviation / math.sqrt(len(seconds))
        kinds[kind] = {
            "seconds": round(mean, 6),
            "interval": [round(mean - half, 6), round(mean + half, 6)],
            "spread": round(deviation / mean, 6),
            "first": round(max(first.mean() - mean, 0.0), 6) if len(first) else 0.0,
            "orders": len(seconds),
        }
    server = work.groupby("what").seconds.median().clip(lower=0.0).round(6)
    return {
        "about": about,
        "boards": orders.groupby("kind").client.nunique().to_dict(),
        "kinds": kinds,
        **({"server": server.to_dict()} if len(server) else {}),
    }


def parse_kinds(texts: Sequence[str]) -> dict[int, str]:
    """Clients of kinds such as ``rpi5=0-9,12``.

    Raises:
        ValueError: a text has another form, or two kinds have one client.
    """
    kinds: dict[int, str] = {}
    for text in texts:
        if not (match := KIND.fullmatch(text)):
            raise ValueError(f"--kinds {text} must be like rpi5=0-9,12")
        for first, last in RANGE.findall(match[2]):
            clients = range(int(first), int(last or first) + 1)
            if not clients or kinds.keys() & clients:
                raise ValueError(
                    f"--kinds {text} must name each client once, and have no empty range"
                )
            kinds |= dict.fromkeys(clients, match[1])
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
    args = parser.parse_args(arguments)
    try:
        kinds = parse_kinds(args.kinds)
        paths = [path.resolve() for path in args.logs]
        if duplicates := [path for path in args.logs if paths.count(path.resolve()) > 1]:
            raise ValueError(f"{duplicates[0]} is given twice: its orders would count twice")
        tables = [read_log(path, kinds, args.since, args.until) for path in args.logs]
        orders, work = map(pd.concat, zip(*tables, strict=True))
        if orders.empty:
            raise ValueError("the logs hold no order of this time: there is nothing to fit")
        table = fit(orders, work, f"fitted to {', '.join(path.name for path in args.logs)}")
        text = json.dumps(table, indent=2)
        if args.output is None:
            print(text)
        else:
            args.output.write_text(text + "\n")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
