"""``python -m lab.bench``: one JSON object a line for every workload."""

import argparse
import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from lab.bench import batches, cluster, exchange, memory, server_step, throughput
from lab.bench.workloads import CROWD, WORKLOADS


def main() -> None:
    """Measure one workload after the other, each in processes of its own."""
    names = [workload.work for workload in (*WORKLOADS, *batches.WORKLOADS, CROWD)]
    names += [exchange.WORK, server_step.WORK, *cluster.WORKS]
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
    # Spawned: memory and allocator start from nothing, whatever was measured before.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=1) as fresh:
        for workload in WORKLOADS:
            if workload.work in options.only:
                job = fresh.submit(
                    throughput.measure,
                    workload,
                    options.repeats,
                    options.seconds,
                    not options.plain_limit,
                )
                print(json.dumps(job.result()), flush=True)
        for workload in batches.WORKLOADS:
            for algorithm in batches.ALGORITHMS if workload.work in options.only else ():
                job = fresh.submit(
                    batches.measure,
                    workload,
                    algorithm,
                    options.batch,
                    options.repeats,
                    options.seconds,
                )
                print(json.dumps(job.result()), flush=True)
        if CROWD.work in options.only:
            print(json.dumps(fresh.submit(memory.measure, options.versions).result()), flush=True)
        if exchange.WORK in options.only:
            print(json.dumps(fresh.submit(exchange.measure, options.repeats).result()), flush=True)
        if server_step.WORK in options.only:
            job = fresh.submit(server_step.measure, 4 * options.repeats)
            print(json.dumps(job.result()), flush=True)
        for work in cluster.WORKS:
            if work in options.only:
                job = fresh.submit(cluster.measure, work, options.repeats, options.seconds)
                print(json.dumps(job.result()), flush=True)


if __name__ == "__main__":
    main()
