"""``python -m bench.machines``: memory of a run on several machines of a Ray cluster.

The machines are Ray nodes on this one, and the run is a command like any other: LeNet on made-up
data, every client trains on one mini-batch. As it is, 10,000 clients with 1,000 at work train on
three machines with a worker each. One JSON object tells

- ``megabytes``: proportional set size of all processes together, the largest that was seen,
  ``early`` after a tenth of the training and ``late`` after four fifths; ``of_it`` is the largest
  by its parts: the command, its workers, Ray's node managers (raylets), the head's own process
  (GCS), and all further processes that Ray starts. Not among them is this script, which only looks,
- ``store_megabytes``: what the object stores of all machines hold, likewise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from bench.processes import pss_mb
from fl_app.core.errors import RunError

EVERY = 1.0  # seconds between two looks
STORE = 150 << 20  # bytes of each machine's object store, if nothing else is said
EXAMPLES = 4  # of a client


@dataclass(frozen=True)
class Look:
    """What was seen at a moment.

    Attributes:
        parts: megabytes of the processes, by what they are.
        store: megabytes in the object stores.
    """

    parts: dict[str, float]
    store: float

    @property
    def megabytes(self) -> float:
        """Of all processes."""
        return sum(self.parts.values())


def look(command: int, cluster: Any) -> Look:
    """Look at all processes that this one has started, and at the object stores.

    Args:
        command: process id of the run's command.
        cluster: of `ray.cluster_utils`.
    """
    driver = psutil.Process(command)
    own = {command, *(child.pid for child in driver.children(recursive=True))}
    parts: defaultdict[str, float] = defaultdict(float)
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, OSError):  # it has ended
            part = "command" if process.pid in own else _part(" ".join(process.cmdline()))
            parts[part] += pss_mb([process.pid])["Pss"]
    return Look(dict(parts), _store_mb(cluster))


def _part(command: str) -> str:
    if "ray::ClusterWorker" in command:
        return "workers"
    program = Path(command.partition(" ")[0]).name
    return {"raylet": "raylets", "gcs_server": "gcs"}.get(program, "other processes of Ray")


def _store_mb(cluster: Any) -> float:
    from ray._private import internal_api

    node_stats: Any = internal_api.node_stats
    used = 0.0
    for node in cluster.global_state.node_table():
        if node["Alive"]:
            place = node["NodeManagerAddress"], node["NodeManagerPort"]
            stats = node_stats(*place, include_memory_info=False).store_stats
            used += stats.object_store_bytes_used
    return used / 1e6


def measure(
    algorithm: str,
    *,
    clients: int,
    at_work: int,
    versions: int,
    machines: int,
    workers: int,
    store: int = STORE,
) -> dict[str, Any]:
    """Run it; see the module.

    Args:
        algorithm: name of the algorithm.
        clients: of the federation.
        at_work: orders under way.
        versions: of the run.
        machines: Ray nodes.
        workers: on each machine.
        store: bytes of each machine's object store.

    Raises:
        RunError: the run failed.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    from ray.cluster_utils import Cluster

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = Cluster()
        stack.callback(cluster.shutdown)
        for _ in range(machines):
            cluster.add_node(num_cpus=workers, object_store_memory=store)
        words = [f"algorithm={algorithm}", f"algorithm.schedule.concurrency={at_work}"]
        words += ["algorithm.client.local_steps=1", f"algorithm.client.batch_size={EXAMPLES}"]
        words += ["task=synthetic", f"task.num_examples={EXAMPLES * clients}", "partition=iid"]
        words += [f"num_clients={clients}", f"num_versions={versions}", f"eval_every={versions}"]
        words += ["runtime=ray", f"runtime.address={cluster.address}", "checkpoint_final=false"]
        command = [sys.executable, "-m", "fl_app", f"hydra.run.dir={folder}", *words]
        process = stack.enter_context(subprocess.Popen(command, stdout=sys.stderr))
        stack.callback(process.kill)
        looks = []
        while process.poll() is None:
            with suppress(psutil.Error):  # the command has ended
                seen = look(process.pid, cluster)
                if _trains(folder):
                    looks.append(seen)
            time.sleep(EVERY)
        if process.returncode:
            raise RunError(f"the run ended with status {process.returncode}")
        summary = json.loads((folder / "summary.json").read_text())
    largest = max(looks, key=lambda seen: seen.megabytes)
    early, late = looks[len(looks) // 10], looks[len(looks) * 4 // 5]
    return {
        "work": f"{algorithm} on {machines} machines",
        "clients": clients,
        "at_work": at_work,
        "versions": summary["num_versions"],
        "updates": summary["client_updates"],
        "max_staleness": summary["max_staleness"],
        "workers": machines * workers,
        "looks": len(looks),
        "megabytes": {
            "largest": round(largest.megabytes),
            "early": round(early.megabytes),
            "late": round(late.megabytes),
        },
        "of_it": {part: round(size) for part, size in sorted(largest.parts.items())},
        "store_megabytes": {
            "largest": round(max(seen.store for seen in looks), 1),
            "early": round(early.store, 1),
            "late": round(late.store, 1),
        },
    }


def _trains(folder: Path) -> bool:
    with suppress(OSError):
        return (folder / "events.jsonl").stat().st_size > 0
    return False


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.machines", description=__doc__)
    parser.add_argument("--algorithm", default="fedbuff")
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--at-work", type=int, default=1000, help="orders under way")
    parser.add_argument("--versions", type=int, default=1500)
    parser.add_argument("--machines", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1, help="on each machine")
    options = parser.parse_args()
    seen = measure(
        options.algorithm,
        clients=options.clients,
        at_work=options.at_work,
        versions=options.versions,
        machines=options.machines,
        workers=options.workers,
    )
    print(json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
