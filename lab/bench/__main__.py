"""``python -m lab.bench``: how fast one machine simulates; a JSON object a line."""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from lab.bench.workloads import compare, races


def main() -> None:
    """Measure one workload after the other, each in processes of its own."""
    names = [*dict.fromkeys(race.name for race in races(1))]
    parser = argparse.ArgumentParser(prog="python -m lab.bench", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="W")
    parser.add_argument("--repeats", type=int, default=5, help="paired measurements")
    parser.add_argument("--seconds", type=float, default=6.0, help="of each side in one of them")
    parser.add_argument("--batch", type=int, default=16, help="runtime.batch of B1 and B2")
    options = parser.parse_args()
    # Spawned: memory and allocator start from nothing, whatever was measured before.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as fresh:
        for race in races(options.batch):
            if race.name in options.only:
                result = fresh.submit(compare, race, options.repeats, options.seconds).result()
                print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
