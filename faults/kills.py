"""Processes of a federation that are killed at random: ``python -m faults.kills``.

Five nodes of a kit with keys train on one run. Again and again one process gets SIGKILL: the
ServerApp, the SuperLink, a SuperNode or a ClientApp. After each kill every client must answer,
which shows in the event log as an update that arrives. At the end the log must hold every version
once, each of updates that had arrived.
"""

import argparse
import random
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

from faults.field import NODES, Disappointed, Field, Run
from faults.story import never_arrived
from fl_app.core.events import Aggregated, Arrived

SERVER = ("flwr-serverapp", "fl_app.field.superlink")
NODE = ("fl_app.field.supernode", "flwr-clientapp")
BACK = 120.0  # seconds within which every client must answer
SECONDS = 4.0  # that a client trains
RUN = [
    *("algorithm=fedbuff", "runtime=deployment", f"num_clients={NODES}", "partition=iid"),
    *("task=synthetic", "task.model=lenet", "task.num_examples=500", "task.num_test=100"),
    *("algorithm.client.local_epochs=1", "tensorboard=false", "eval_every=1000000"),
    *(f"algorithm.schedule.concurrency={NODES}", "algorithm.schedule.buffer_size=2"),
    *("deadline=90", "checkpoint_every=1", "num_versions=1000000"),
]


def kill_often(field: Field, run: Run, times: int, rng: random.Random) -> list[str]:
    """Kill processes at random moments; returns what is wrong afterwards.

    Args:
        field: the federation.
        run: under way in it.
        times: how often.
        rng: draws processes and moments.
    """
    problems, slowest = [], 0.0
    for i in range(times):
        time.sleep(rng.uniform(0.0, 2 * SECONDS))
        where, name = rng.choice(
            [("server", name) for name in SERVER]
            + [(f"node-{node}", name) for node in range(NODES) for name in NODE]
        )
        found = field.processes(where, name)
        began = time.monotonic()
        version = newest(run)
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        try:
            seconds = until_all_answer(run, began)
        except Disappointed as error:
            problems.append(f"kill {i + 1}, {name} of {where}: {error}")
            continue
        slowest = max(slowest, seconds)
        told = f"{i + 1}: {name} of {where} ({len(found)} processes), version {version}"
        print(f"{told}: all {NODES} clients answered within {seconds:.0f} s", flush=True)
    print(f"{times} kills; every client was back within {slowest:.0f} s")
    events = run.events()
    problems += never_arrived(events)
    versions = [event.version for event in events if isinstance(event, Aggregated)]
    if versions != list(range(1, len(versions) + 1)):
        problems.append("the log does not hold every version once")
    return problems


def newest(run: Run) -> int:
    """The newest version of a run."""
    return max((e.version for e in run.events() if isinstance(e, Aggregated)), default=0)


def until_all_answer(run: Run, since: float) -> float:
    """Seconds from a moment until an update of every client has arrived.

    Args:
        run: in which they answer.
        since: the moment, of `time.monotonic`.

    Raises:
        Disappointed: a client does not answer in time.
    """
    missing = set(range(NODES))
    known = {id_of(event) for event in run.events() if isinstance(event, Arrived)}
    while missing:
        if time.monotonic() - since > BACK:
            raise Disappointed(f"clients {sorted(missing)} did not answer within {BACK:g} s")
        time.sleep(0.5)
        fresh = [event for event in run.events() if isinstance(event, Arrived)]
        missing -= {event.client for event in fresh if id_of(event) not in known}
    return time.monotonic() - since


def id_of(event: Arrived) -> tuple[int, int, float]:
    """What tells an arrival from others: a resumed run uses the numbers of lost orders again."""
    return event.order, event.client, event.t


def main() -> int:
    """Run the command line; return 0 if every client came back and nothing was lost, else 1."""
    parser = argparse.ArgumentParser(prog="python -m faults.kills", description=__doc__)
    parser.add_argument("--times", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0, help="of processes and moments")
    parser.add_argument("--folder", type=Path, help="new; for logs and the run (a temporary one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all processes end
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch) / "field").resolve()
        field = Field(folder)
        try:
            field.start(keys=True)
            field.give(range(NODES), seconds=SECONDS)
            run = field.submit(RUN, folder / "run")
            problems = kill_often(field, run, options.times, random.Random(options.seed))
        finally:
            field.stop()
    print(*problems or ["nothing was lost"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
