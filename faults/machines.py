"""Machines of a Ray cluster that are lost in the middle of a run: ``python -m faults.machines``.

Every run trains on three machines, which are Ray nodes on this one. At a random moment one of them
is killed with its worker, though never the machine that the command is connected to. At the end the
files of the run must be, byte for byte, those of a run in one process.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from faults.field import Disappointed

MACHINES = 3
STORE = 100 << 20  # bytes of each machine's object store
LIMIT = 240.0  # seconds that a run may take
VERSIONS = 60
LATEST = 50  # version at which a machine is lost: later ones may be made without its worker
RUN = [
    *("devices=uniform_110x", "num_clients=20", "algorithm.client.local_epochs=6"),
    *("tensorboard=false", f"num_versions={VERSIONS}", "eval_every=1"),
]
SAME = ("events.jsonl", "metrics.csv", "model.npz")


class Machines:
    """Ray nodes on this machine, with a processor each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self._cluster: Any = Cluster()
        self._others: list[Any] = []
        self._cluster.add_node(num_cpus=1, object_store_memory=STORE)
        while len(self._others) < MACHINES - 1:
            self.join()

    @property
    def address(self) -> str:
        """Of the head, to which commands of this machine are connected."""
        return str(self._cluster.address)

    def join(self) -> None:
        """Add a machine."""
        self._others.append(self._cluster.add_node(num_cpus=1, object_store_memory=STORE))

    def lose(self, rng: random.Random) -> None:
        """Kill all processes of a machine that is not the head."""
        lost = self._others.pop(rng.randrange(len(self._others)))
        self._cluster.remove_node(lost, allow_graceful=False)

    def close(self) -> None:
        """End all."""
        self._cluster.shutdown()


def lose_machines(runs: int, rng: random.Random, folder: Path) -> list[str]:
    """Lose a machine in each of some runs; returns what is wrong afterwards.

    Args:
        runs: how many.
        rng: draws machines and moments.
        folder: for the files of the runs.
    """
    expected = folder / "in-one-process"
    with command(expected, ["runtime.workers=0"]) as process:
        process.wait(LIMIT)
    problems = []
    machines = Machines()
    try:
        for number in range(1, runs + 1):
            place = folder / f"run-{number}"
            try:
                told = lose_one(machines, rng, place)
            except Disappointed as error:
                problems.append(f"run {number}: {error}")
                continue
            wrong = [name for name in SAME if differ(expected / name, place / name)]
            problems += [f"run {number}: {name} has other bytes" for name in wrong]
            print(f"run {number}: {told}; {'other' if wrong else 'the same'} files", flush=True)
    finally:
        machines.close()
    return problems


def lose_one(machines: Machines, rng: random.Random, folder: Path) -> str:
    """Carry out a run, and lose one of its machines; returns what was lost when.

    Raises:
        Disappointed: the run failed, or had no worker on that machine.
    """
    version, pause = rng.randrange(LATEST), rng.random() / 10
    words = ["runtime=ray", f"runtime.address={machines.address}"]
    with command(folder, words) as process:
        while newest(folder) < version and process.poll() is None:
            time.sleep(0.005)
        time.sleep(pause)
        began, version = time.monotonic(), newest(folder)
        if process.poll() is None:
            machines.lose(rng)
            machines.join()
        status = process.wait(LIMIT)
    output = output_of(folder)
    if status:
        raise Disappointed(f"the command ended with status {status}: {output}")
    lost = output.count("a worker is lost")
    if not lost:
        raise Disappointed(f"at version {version}, no worker was lost: {output}")
    seconds = time.monotonic() - began
    return f"a machine and {lost} worker lost at version {version}, {seconds:.0f} s before the end"


@contextmanager
def command(folder: Path, words: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A run in a process, which ends with this context."""
    folder.mkdir(parents=True)
    line = [sys.executable, "-m", "fl_app", f"hydra.run.dir={folder}", *RUN, *words]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(line, stdout=output, stderr=subprocess.STDOUT)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def output_of(folder: Path) -> str:
    """What the command of a run has printed."""
    return (folder / "output").read_text(errors="replace")


def newest(folder: Path) -> int:
    """The newest version of a run that was evaluated; -1 = none."""
    path = folder / "metrics.csv"
    rows = path.read_text().splitlines()[1:] if path.exists() else []
    return int(rows[-1].partition(",")[0] or -1) if rows else -1


def differ(one: Path, other: Path) -> bool:
    """Whether two files differ, or one is missing."""
    return not (one.exists() and other.exists()) or one.read_bytes() != other.read_bytes()


def main() -> int:
    """Run the command line; return 0 if nothing was lost, else 1."""
    parser = argparse.ArgumentParser(prog="python -m faults.machines", description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="two runs")
    parser.add_argument("--seed", type=int, default=0, help="of machines and moments")
    parser.add_argument("--folder", type=Path, help="new; for the runs (a temporary one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all processes end
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch) / "runs").resolve()
        runs = 2 if options.quick else options.runs
        problems = lose_machines(runs, random.Random(options.seed), folder)
    print(*problems or ["nothing was lost"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
