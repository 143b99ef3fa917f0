"""``python -m bench.node_memory``: the memory of a device, all its processes together.

A SuperLink and one SuperNode run on loopback, and the node trains orders one at a time: LeNet on
made-up images of 28x28. Every process of the node is looked at three times a second through
``/proc/PID/smaps``. One JSON object a line:

- ``peak_mb``: the most that all processes of the node took together at one moment.
- ``pss_at_peak_mb``: the same moment, with only a share of the files that other processes use.
- ``waits_mb``: what they take between two orders, the median of such moments.
- ``at_peak``: the processes at the peak, each with its own memory (MB) and that of files.

Memory counts as the kernel counts it, in MB of 2**20 bytes. Pages of a process alone count once,
and pages that n processes share 1/n for each (PSS). Pages of files, such as libraries, are also in
use by the SuperLink, which on a real federation is another machine. So of each mapped file the
process counts that has most of it in memory.
"""

import argparse
import contextlib
import json
import os
import re
import secrets
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fl_app.field.demo import APP, demo
from fl_app.field.loopback import Federation, federation_in

MARK = "BENCH_NODE_MEMORY"  # environment variable of the node's processes
EVERY = 0.3  # seconds between two looks
COMMON = ["algorithm=fedavg", "runtime=deployment", "task=synthetic", "partition=iid"]
COMMON += ["num_clients=1", "algorithm.schedule.buffer_size=1", "tensorboard=false"]
COMMON += [
    "eval_every=1000000",
    "task.num_examples=400",
    "task.num_test=100",
    "algorithm.client.local_epochs=2",
]
MAPPING = re.compile(r"[0-9a-f]+-[0-9a-f]+ .{4} ([0-9a-f]+) (\S+) (\d+)")
WAYS = {
    "stock": ["flower-supernode"],
    "warm": [sys.executable, "-m", "fl_app.node.warm"],
}


@dataclass
class Look:
    """The node's processes at one moment.

    Attributes:
        pss: MB as the kernel adds them up, with 1/n of files' pages that n processes use.
        own: by process id, MB that belong to no file.
        files: of each mapped part of a file, MB in memory.
        mapped: by process id, MB of files.
        names: of the processes.
    """

    pss: float = 0.0
    own: dict[int, float] = field(default_factory=dict)
    files: dict[tuple[str, str, str], float] = field(default_factory=dict)
    mapped: dict[int, float] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """MB of all processes together."""
        return sum(self.own.values()) + sum(self.files.values())


def look(mark: str) -> Look:
    """Look at all processes that have this value of `MARK` in their environment."""
    found = Look()
    wanted = f"{MARK}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                _add(found, process)
    return found


def _add(found: Look, process: Path) -> None:
    own = mapped = 0.0
    place: tuple[str, str, str] | None = None
    resident = anonymous = proportional = 0.0
    for line in [*(process / "smaps").read_text().splitlines(), "0-0 ---p 0 0:0 0"]:
        if match := MAPPING.match(line):
            if place is not None:
                # Pages that were written to are the process's own, also those of a file.
                share = proportional / resident if resident else 0.0
                own += anonymous * share if place[2] != "0" else proportional
                if place[2] != "0":
                    clean = resident - anonymous
                    mapped += clean
                    found.files[place] = max(found.files.get(place, 0.0), clean)
            place = (match[1], match[2], match[3])
            resident = anonymous = proportional = 0.0
        elif line.startswith("Rss:"):
            resident = _mb(line)
        elif line.startswith("Pss:"):
            proportional = _mb(line)
            found.pss += proportional
        elif line.startswith("Anonymous:"):
            anonymous = _mb(line)
    pid = int(process.name)
    found.own[pid], found.mapped[pid] = own, mapped
    words = (process / "cmdline").read_bytes().split(b"\0")
    found.names[pid] = " ".join(Path(word.decode()).name for word in words[:4] if word)


def _mb(line: str) -> float:
    return int(line.split()[1]) / 1024


class Watch(threading.Thread):
    """Looks at the node until it is told to stop."""

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self._mark = mark
        self.looks: list[Look] = []
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(EVERY):
            self.looks.append(look(self._mark))

    def stop(self) -> None:
        """Stop looking."""
        self._over.set()
        self.join()


def measure(way: str, model: str, backend: str, versions: int) -> dict[str, Any]:
    """The memory of a node during a run.

    Args:
        way: key of `WAYS`.
        model: of the task.
        backend: ``"torch"`` or ``"numpy"``.
        versions: orders of the run.
    """
    command = WAYS[way]
    words = [*COMMON, f"task.model={model}", f"runtime.backend={backend}"]
    mark = secrets.token_hex(8)
    watch = Watch(mark)
    with federation([f"{MARK}={mark}", *command]) as (running, folder):
        watch.start()
        try:
            demo(running, folder / "run", [*words, f"num_versions={versions}"], versions)
        finally:
            watch.stop()
    looks = [each for each in watch.looks if each.own]
    peak = max(looks, key=lambda each: each.total)
    fewest = min(len(each.own) for each in looks[len(looks) // 2 :])
    waits = [each.total for each in looks[len(looks) // 2 :] if len(each.own) == fewest]
    return {
        "way": way,
        "model": model,
        "backend": backend,
        "peak_mb": round(peak.total),
        "pss_at_peak_mb": round(peak.pss),
        "waits_mb": round(statistics.median(waits)),
        "own_at_peak_mb": round(sum(peak.own.values())),
        "at_peak": [
            {"process": peak.names[pid], "own": round(own), "files": round(peak.mapped[pid])}
            for pid, own in peak.own.items()
        ],
    }


@contextlib.contextmanager
def federation(command: Sequence[str]) -> Iterator[tuple[Federation, Path]]:
    """A SuperLink and one SuperNode.

    Args:
        command: of the node, after variables for its environment.
    """
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        folder = Path(scratch)
        path = filter(None, [os.environ.get("PYTHONPATH"), str(APP)])
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        os.environ["FL_APP_STATE_DIR"] = str(folder / "state")
        with federation_in(folder / "federation") as running:
            running.start(1, supernode=["/usr/bin/env", *command])
            yield running, folder
        time.sleep(1.0)  # a worker ends with its SuperNode


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench.node_memory", description=__doc__)
    parser.add_argument("--way", nargs="+", choices=list(WAYS), default=["warm"])
    parser.add_argument(
        "--backend", nargs="+", choices=["torch", "numpy"], default=["torch", "numpy"]
    )
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--versions", type=int, default=6, help="orders of each run")
    options = parser.parse_args()
    for backend in options.backend:
        for way in options.way:
            print(json.dumps(measure(way, options.model, backend, options.versions)), flush=True)


if __name__ == "__main__":
    main()
