"""``python -m lab.bench``: one JSON object a line for every workload."""

import argparse
import json
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from lab.bench import alone, races
from lab.bench.workloads import CROWD, WORKLOADS


def main() -> None:
    """Measure one workload after the other, each in processes of its own."""
    names = [workload.work for workload in (*WORKLOADS, *races.TOGETHER, CROWD)]
    names += [alone.EXCHANGE, alone.STEP, *races.CLUSTER]
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="W")
    parser.add_argument("--repeats", type=int, default=5, help="paired measurements")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each side in one of them")
    parser.add_argument("--batch", type=int, default=16, help="runtime.batch of B1 to B4")
    parser.add_argument(
        "--versions", type=int, default=500, help="of M, which runs 3 times as many"
    )
    parser.add_argument(
        "--plain-limit", action="store_true", help="leave the limit's memory allocator as it is"
    )
    parser.add_argument("--quick", action="store_true", help="2 repeats of 2 s, 240 versions")
    options = parser.parse_args()
    if options.quick:
        options.repeats, options.seconds, options.versions = 2, 2.0, 240
    repeats, seconds = options.repeats, options.seconds
    jobs: list[tuple[str, Callable[..., object], tuple[object, ...]]] = [
        *(
            (w.work, races.engine, (w, repeats, seconds, not options.plain_limit))
            for w in WORKLOADS
        ),
        *(
            (w.work, races.together, (w, algorithm, options.batch, repeats, seconds))
            for w in races.TOGETHER
            for algorithm in races.ALGORITHMS
        ),
        (CROWD.work, alone.memory, (options.versions,)),
        (alone.EXCHANGE, alone.exchange, (repeats,)),
        (alone.STEP, alone.server_step, (4 * repeats,)),
        *((work, races.on_cluster, (work, repeats, seconds)) for work in races.CLUSTER),
    ]
    # Spawned: memory and allocator start from nothing, whatever was measured before.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as fresh:
        for work, measure, words in jobs:
            if work in options.only:
                print(json.dumps(fresh.submit(measure, *words).result()), flush=True)


if __name__ == "__main__":
    main()
