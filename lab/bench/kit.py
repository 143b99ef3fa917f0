"""``python -m lab.bench.kit``: seconds of an order in a federation of the edge kit.

``python -m fl_app.field init`` makes a kit, with certificates and keys. ``keep`` runs its SuperLink
and its nodes on loopback, and ``run`` its run in ``server.env``. An order takes the time from its
dispatch to the arrival of its update. The first order of every node is listed on its own.

- ``made``: everything as the kit is made.
- ``slow``: with WARM=0 on the nodes and runtime.warm=false in the run.

With ``--nodes 1`` a node has a core for itself on a machine with two.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fl_app.field.kit import Kit, new_kit
from fl_app.field.loopback import HOST, free_ports
from fl_app.field.supervise import GRACE, end
from fl_app.record.history import History, OrderRecord
from fl_app.record.log import read_events

WAYS: dict[str, tuple[dict[str, str], list[str]]] = {
    "made": ({}, []),
    "slow": ({"WARM": "0"}, ["runtime.warm=false"]),
}


def measure(name: str, nodes: int, versions: int) -> dict[str, Any]:
    """Seconds of the orders of one federation."""
    settings, overrides = WAYS[name]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        port, link, *ports = free_ports(2 + nodes)
        superlink = {"SUPERLINK": f"{HOST}:{link}"}
        reached = {"SUPERLINK": f"{HOST}:{port if shutil.which('caddy') else link}"}
        kit = folder / "kit"
        new_kit(kit, nodes=nodes, hosts=[HOST], port=port)
        words = [*Kit.read(kit / "server").overrides, f"num_versions={versions}", *overrides]
        output = folder / "run"
        with contextlib.ExitStack() as stack:
            stack.enter_context(kept(kit / "server", superlink))
            for i in range(nodes):
                stack.enter_context(
                    kept(kit / f"node-{i}", {"PORT": str(ports[i]), **reached, **settings})
                )
            command = [*FIELD, "run", "--output", str(output), str(kit / "server"), *words]
            with started(command, folder / "run.log", superlink) as run:
                if run.wait():
                    raise RuntimeError((folder / "run.log").read_text()[-3000:])
        history = History(keep_orders=True)
        for event in read_events(output / "events.jsonl"):
            history.emit(event)
    return {"work": name, "nodes": nodes, **told(history.orders)}


def told(orders: Sequence[OrderRecord]) -> dict[str, Any]:
    """The seconds of orders whose updates arrived, in figures."""
    first: list[float] = []
    later: list[float] = []
    for order in orders:
        if order.ended == "arrival" and order.end is not None:
            (later if order.sequence else first).append(order.end - order.start)
    return {
        "seconds_of_an_order": round(statistics.median(later), 2),
        "least": round(min(later), 2),
        "most": round(max(later), 2),
        "first": round(statistics.median(first), 1),
        "orders": len(later),
    }


FIELD = [sys.executable, "-m", "fl_app.field"]


@contextlib.contextmanager
def kept(folder: Path, settings: dict[str, str]) -> Iterator[None]:
    """A folder of the kit, kept running."""
    with started([*FIELD, "keep", str(folder)], folder / "bench.log", settings, keeps=True):
        yield


@contextlib.contextmanager
def started(
    command: Sequence[str], log: Path, settings: dict[str, str], keeps: bool = False
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process in a group of its own, ended at the end."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command,
            env={**os.environ, **settings},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process, 2 * GRACE if keeps else GRACE)  # a keeper ends its processes first


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(prog="python -m lab.bench.kit", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS), metavar="W")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--versions", type=int, default=20, help="of the run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the nodes end, too
    for name in options.only:
        print(json.dumps(measure(name, options.nodes, options.versions)), flush=True)


if __name__ == "__main__":
    main()
