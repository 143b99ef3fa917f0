"""``python -m bench.crowd``: many SuperNodes on this machine, and what their updates cost a server.

A SuperLink and 50 SuperNodes run on loopback for ten minutes, with ClientApps that sleep instead of
training and send LeNet's 61,706 parameters back; 15 of them are at work at any time, for 50 at once
are more than two cores can keep alive. One JSON object tells

- ``lost``: orders of the first four fifths of the time without an answer at its end, ``failures``,
- ``handling_ms``: what the engine spends on an arrival, aggregation included, median and worst,
- ``cpu_ms_per_update``: processor time of the ServerApp, with all its asking and waiting, over the
  updates; without the first fifth of the time,
- ``megabytes``: of the ServerApp's memory after a fifth of the time and at its end, before what
  draws the report is imported.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from bench.device import NOOP, WARM
from fl_app.field.demo import APP, demo
from fl_app.field.loopback import federation_in
from fl_app.record.history import History
from fl_app.record.log import read_events

SERVER = """
import os
import time
from fl_app import server_app
from fl_app.engine.clock import Arrived
from fl_app.engine.engine import Engine

app = server_app.app
handle = Engine._handle

def timed(self, event):
    began = time.perf_counter()
    handle(self, event)
    if isinstance(event, Arrived):
        with open(os.environ["BENCH_HANDLING"], "a") as file:
            file.write(f"{time.perf_counter() - began!r}\\n")

Engine._handle = timed
"""
PARTITION = 'int(context.node_config["partition-id"])'


class Watch(threading.Thread):
    """Looks at the ServerApp's memory and processor time every few seconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.seen: list[tuple[float, float, float]] = []  # when, megabytes, processor seconds

    def run(self) -> None:
        """Until the ServerApp has ended."""
        server = None
        while True:
            time.sleep(2.0)
            with contextlib.suppress(psutil.Error):
                server = server or next(iter(_servers()), None)
                if server is not None:
                    times = server.cpu_times()
                    used = server.memory_info().rss / 1e6
                    if used:  # else it has just ended
                        self.seen.append((time.monotonic(), used, times.user + times.system))


def _servers() -> list[psutil.Process]:
    mine = psutil.Process().children(recursive=True)
    return [p for p in mine if any("flwr-serverapp" in word for word in p.cmdline()[:2])]


def crowd(nodes: int, seconds: float, pause: float, at_work: int) -> dict[str, Any]:
    """Run it; see the module."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        folder = Path(scratch)
        os.environ["BENCH_HANDLING"] = str(folder / "handling")
        os.environ["BENCH_STAMPS"] = str(folder / "stamps")
        os.environ["PYTHONPATH"] = str(APP)
        client = NOOP["noop/client.py"].replace(
            '{"partition-id": 0}', f'{{"partition-id": {PARTITION}}}'
        )
        client = client.replace("    metrics =", f"    time.sleep({pause})\n    metrics =", 1)
        texts = {**NOOP, "noop/client.py": client, "noop/server.py": SERVER}
        for path, text in texts.items():
            (folder / "app" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "app" / path).write_text(text)
        watch = Watch()
        with federation_in(folder / "federation", limit=seconds + 1200) as federation:
            federation.start(nodes, supernode=WARM)
            watch.start()
            words = ["runtime=deployment", "algorithm=fedbuff", "task=synthetic"]
            words += ["partition=iid", f"num_clients={nodes}", "task.num_examples=1600"]
            words += [f"algorithm.schedule.concurrency={at_work}", "eval_every=1000000"]
            words += ["num_versions=1000000", f"max_seconds={seconds}", "tensorboard=false"]
            summary = demo(federation, folder / "run", words, 1, folder / "app")
        history = History(keep_orders=True)
        for event in read_events(folder / "run" / "events.jsonl"):
            history.emit(event)
        handling = [1e3 * float(line) for line in (folder / "handling").read_text().split()]
    unanswered = [order for order in history.orders if not order.ended]
    during = [look for look in watch.seen if look[0] - watch.seen[0][0] < seconds]
    _, early_megabytes, early_cpu = during[len(during) // 5]
    _, megabytes, cpu = during[-1]
    return {
        "work": "crowd",
        "nodes": nodes,
        "at_work": at_work,
        "seconds": round(summary["wall_seconds"]),
        "updates": history.client_updates,
        "slowest_node": min(history.arrivals[client] for client in history.sequences),
        "lost": sum(order.start < 0.8 * seconds for order in unanswered),
        "failures": summary["failures"],
        "rejected": summary["rejected"],
        "handling_ms": [round(statistics.median(handling), 2), round(max(handling), 2)],
        "cpu_ms_per_update": round(1e3 * (cpu - early_cpu) / (0.8 * history.client_updates), 1),
        "megabytes": [round(early_megabytes), round(megabytes)],
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--pause", type=float, default=30.0, help="seconds of a training")
    parser.add_argument("--at-work", type=int, default=15, help="orders under way, >= 10")
    options = parser.parse_args()
    seen = crowd(options.nodes, options.seconds, options.pause, options.at_work)
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
