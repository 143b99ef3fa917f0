"""Nodes that send garbage with every order: ``python -m faults.garbage``.

Three honest nodes and five hostile ones of a kit with keys train on one run. First all of them are
honest. Then every reply of a hostile node has 100 MB of random bytes. The memory of ServerApp and
SuperLink must stay below `BOUND`, the SuperLink's database below `DISK`, and honest nodes must keep
`KEPT` of their rate. With ``guard.bench_after`` every hostile node must be benched.
"""

import argparse
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from faults.field import Disappointed, Field, Run
from faults.injections import Injection, Seen
from faults.story import Span, never_arrived, share
from faults.verdict import KEPT
from fl_app.core.events import Benched, Event, Failed

HONEST, HOSTILE = (0, 1, 2), (3, 4, 5, 6, 7)
NODES = len(HONEST) + len(HOSTILE)
SECONDS = 8.0  # that a client trains
BOUND = 1024.0  # MiB of each of the two processes
DISK = 1024.0  # MiB of the database, which holds what was not yet refused
DATABASE = "state.db"
SERVER = {"ServerApp": "flwr-serverapp", "SuperLink": "fl_app.field.superlink"}
MIB = 2**20
RUN = [
    *("algorithm=fedbuff", "runtime=deployment", f"num_clients={NODES}", "partition=iid"),
    *("task=synthetic", "task.model=lenet", "task.num_examples=800", "task.num_test=100"),
    *("algorithm.client.local_epochs=1", "tensorboard=false", "eval_every=1000000"),
    *(f"algorithm.schedule.concurrency={NODES}", "algorithm.schedule.buffer_size=2"),
    *("deadline=90", "checkpoint_every=10", "num_versions=1000000"),
]


class Peaks(threading.Thread):
    """Looks again and again at the memory of the server's processes, and at its database.

    Args:
        field: the federation.

    Attributes:
        most: of each process by its name, MiB of resident memory; of the database, MiB on the disk.
    """

    def __init__(self, field: Field) -> None:
        super().__init__(daemon=True)
        self._field, self._ended = field, threading.Event()
        self.most = dict.fromkeys((*SERVER, DATABASE), 0.0)

    def run(self) -> None:
        found: dict[str, list[psutil.Process]] = {}
        while not self._ended.wait(0.5):
            for name, words in SERVER.items():
                if not found.get(name):
                    found[name] = self._field.processes("server", words)
                try:
                    held = [process.memory_info().rss / MIB for process in found[name]]
                    self.most[name] = max([self.most[name], *held])
                except psutil.Error:  # it has ended: it is looked for again
                    found[name] = []
            with suppress(FileNotFoundError):  # its log is there while it is written to
                files = self._field.kit("server").glob(f"{DATABASE}*")
                size = sum(path.stat().st_size for path in files) / MIB
                self.most[DATABASE] = max(self.most[DATABASE], size)

    def end(self) -> dict[str, float]:
        """Stop looking; the largest values."""
        self._ended.set()
        self.join()
        return self.most


def garbage(seconds: float) -> Injection:
    """Hostile nodes send garbage, for some time and until all of them are benched."""

    def inject(run: Run) -> Seen:
        field = run.field
        field.give(HOSTILE, seconds=SECONDS, faults=["garbage"] * 10_000)
        interval, peaks = span(field, run, seconds)
        if above := too_much(peaks):
            raise Disappointed(above[0])
        refused = refusals(run.events(), interval)
        if not refused:
            raise Disappointed("no garbage was refused")
        most = ", ".join(f"{name} {held:.0f} MiB" for name, held in peaks.items())
        yield (
            "garbage-of-five",
            f"{len(refused)} replies refused in {seconds:.0f} s; at most {most}",
        )
        run.until(lambda: benched(run.events()) == {*HOSTILE}, "all hostile nodes are benched")
        yield "garbage-benched", f"{len(HOSTILE)} clients benched; the others go on"

    return Injection(["garbage-of-five", "garbage-benched"], inject, HOSTILE)


def withstand(field: Field, run: Run, seconds: float, calm_seconds: float) -> list[str]:
    """Let nodes send garbage for some time; returns what is wrong.

    Args:
        field: the federation.
        run: under way in it.
        seconds: of garbage.
        calm_seconds: before it.
    """
    run.until(lambda: run.answered() == {*range(NODES)}, "every node has answered")
    calm, before = span(field, run, calm_seconds)
    field.give(HOSTILE, seconds=SECONDS, faults=["garbage"] * 10_000)
    disturbed, peaks = span(field, run, seconds)
    field.give(HOSTILE, seconds=SECONDS)
    return judge(run.events(), calm, disturbed, before, peaks)


def judge(
    events: Sequence[Event],
    calm: Span,
    disturbed: Span,
    before: dict[str, float],
    peaks: dict[str, float],
) -> list[str]:
    """Say what was seen; returns what is wrong.

    Args:
        events: of the run.
        calm: interval without garbage.
        disturbed: interval with it.
        before: largest memory of the server's processes and size of its database in `calm`, MiB.
        peaks: likewise in `disturbed`.
    """
    hostile = refusals(events, disturbed)
    kept = share(events, HONEST, [calm], disturbed)
    for reason, count in Counter(event.reason[:80] for event in hostile).most_common():
        print(f"{count} orders of hostile nodes: {reason}")
    print(f"{len(benched(events))} clients benched")
    print(f"honest nodes kept {kept:.0%} of their rate")
    for name, most in peaks.items():
        print(f"{name}: at most {most:.0f} MiB, {before[name]:.0f} before")
    problems = never_arrived(events)
    if not hostile:
        problems.append("no garbage was refused")
    if kept < KEPT:
        problems.append(f"honest nodes kept {kept:.0%} of their rate, of at least {KEPT:.0%}")
    return problems + too_much(peaks)


def too_much(peaks: Mapping[str, float]) -> list[str]:
    """A sentence for each bound that was exceeded.

    Args:
        peaks: as `Peaks.most`.
    """
    return [
        f"{name} took {most:.0f} MiB, above the bound of {bound:.0f}"
        for name, most in peaks.items()
        if most > (bound := DISK if name == DATABASE else BOUND)
    ]


def refusals(events: Sequence[Event], interval: Span) -> list[Failed]:
    """The orders of hostile nodes that failed in an interval."""
    return [
        event
        for event in events
        if isinstance(event, Failed)
        and event.client in HOSTILE
        and interval[0] <= event.t <= interval[1]
    ]


def benched(events: Sequence[Event]) -> set[int]:
    """The clients that get no order any more."""
    return {event.client for event in events if isinstance(event, Benched)}


def span(field: Field, run: Run, seconds: float) -> tuple[Span, dict[str, float]]:
    """Wait; the interval, and the largest memory in it."""
    peaks = Peaks(field)
    peaks.start()
    start = run.now()
    run.wait(seconds)
    return (start, run.now()), peaks.end()


def main() -> int:
    """Run the command line; return 0 if the bounds hold, else 1."""
    parser = argparse.ArgumentParser(prog="python -m faults.garbage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of garbage (300)")
    parser.add_argument("--calm", type=float, default=120.0, help="seconds before it (120)")
    parser.add_argument("--folder", type=Path, help="new; for logs and the run (a temporary one)")
    parser.add_argument("overrides", nargs="*", help="such as guard.bench_after=5")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: all processes end
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch) / "field").resolve()
        field = Field(folder, NODES)
        try:
            field.start(keys=True)
            field.give(range(NODES), seconds=SECONDS)
            run = field.submit([*RUN, *options.overrides], folder / "run")
            problems = withstand(field, run, options.seconds, options.calm)
        finally:
            field.stop()
    print(*problems or ["the bounds hold"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
