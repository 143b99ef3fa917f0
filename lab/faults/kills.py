"""Processes of a federation that are killed at random: ``python -m lab.faults.kills``.

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
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from fl_app.core.events import Aggregated, Arrived, Event
from lab.faults.field import NODES, Disappointed, Field, Run, wait_for
from lab.faults.story import never_arrived

SERVER = ("flwr-serverapp", "flower-superlink")
NODE = ("fl_app.node.warm", "flwr-clientapp")
PROCESSES = [("server", name) for name in SERVER]
PROCESSES += [(f"node-{node}", name) for node in range(NODES) for name in NODE]
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
    """Kill processes at random moments; returns what is wrong afterwards."""
    problems: list[str] = []
    published: list[Aggregated] = []  # the newest version at each kill
    for i in range(times):
        where, name = rng.choice(PROCESSES)
        try:
            time.sleep(rng.uniform(0.0, 2 * SECONDS))
            published += newest(run)
            kill(field, where, name)
            began = time.monotonic()
            known = {id_of(event) for event in run.events() if isinstance(event, Arrived)}
            seen = f"all answer after {until_all_answer(run, began, known):.0f} s"
        except Disappointed as error:
            seen = str(error)
            problems.append(f"{i + 1}: {name} of {where}: {seen}")
        print(f"{i + 1}: {name} of {where}: {seen}", flush=True)
    return problems + of_log(run.events(), published)


def kill(field: Field, where: str, name: str) -> None:
    """Kill the processes of one kind and place, once there are some.

    Raises:
        Disappointed: there are none.
    """
    found: list[psutil.Process] = []

    def there() -> bool:
        found[:] = field.processes(where, name)
        return bool(found)

    wait_for(there, f"{where} has a process {name}", BACK)
    for process in found:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def of_log(events: Sequence[Event], published: Sequence[Aggregated]) -> list[str]:
    """What is wrong in the log of a run.

    Args:
        events: of the run.
        published: versions that were there at some time.
    """
    problems = never_arrived(events)
    versions = {event.version: event for event in events if isinstance(event, Aggregated)}
    if [e.version for e in events if isinstance(e, Aggregated)] != [*range(1, len(versions) + 1)]:
        problems.append("the log does not hold every version once")
    for event in published:
        if versions.get(event.version) != event:
            problems.append(f"version {event.version} was rolled back")
    return problems


def newest(run: Run) -> list[Aggregated]:
    """The newest version of a run, if it has one."""
    return [event for event in run.events() if isinstance(event, Aggregated)][-1:]


def until_all_answer(run: Run, since: float, known: Collection[tuple[int, int, float]]) -> float:
    """Seconds from a moment until an update of each client has arrived, and a new version.

    Args:
        run: in which they answer.
        since: the moment, of `time.monotonic`.
        known: arrivals before it.

    Raises:
        Disappointed: a client does not answer in time, or there is no version.
    """
    versions = sum(isinstance(event, Aggregated) for event in run.events())
    while (seconds := time.monotonic() - since) < BACK:
        events = run.events()
        new = [e for e in events if isinstance(e, Arrived) and id_of(e) not in known]
        missing = sorted({*range(NODES)} - {event.client for event in new})
        if not missing and sum(isinstance(e, Aggregated) for e in events) > versions:
            return seconds
        time.sleep(0.5)
    raise Disappointed(f"clients {missing} did not answer, or no version came, within {BACK:g} s")


def id_of(event: Arrived) -> tuple[int, int, float]:
    """What tells an arrival from others: a resumed run uses the numbers of lost orders again."""
    return event.order, event.client, event.t


def main() -> int:
    """Run the command line; return 0 if every client came back and nothing was lost, else 1."""
    parser = argparse.ArgumentParser(prog="python -m lab.faults.kills", description=__doc__)
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
            rng = random.Random(options.seed)
            problems = kill_often(field, run, options.times, rng)
        finally:
            field.stop()
    print(*problems or ["nothing was lost"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
