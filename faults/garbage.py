"""Nodes that send garbage with every order: ``python -m faults.garbage``.

Three honest nodes and five hostile ones of a kit with keys train on one run. First all of them are
honest. Then every reply of a hostile node has 100 MB of random bytes. The memory of ServerApp and
SuperLink must stay below `BOUND`, and honest nodes must keep `KEPT` of their rate.
"""

import argparse
import signal
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from faults.field import Field, Run
from faults.story import Span, never_arrived, share
from faults.verdict import KEPT
from fl_app.core.events import Event, Failed

HONEST, HOSTILE = (0, 1, 2), (3, 4, 5, 6, 7)
NODES = len(HONEST) + len(HOSTILE)
SECONDS = 8.0  # that a client trains
BOUND = 1024.0  # MiB of each of the two processes
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
    """Looks again and again at the memory of the server's processes.

    Args:
        field: the federation.

    Attributes:
        most: of each process by its name, MiB of resident memory.
    """

    def __init__(self, field: Field) -> None:
        super().__init__(daemon=True)
        self._field, self._ended = field, threading.Event()
        self.most = dict.fromkeys(SERVER, 0.0)

    def run(self) -> None:
        while not self._ended.wait(0.5):
            for name, words in SERVER.items():
                for process in self._field.processes("server", words):
                    with suppress(psutil.Error):
                        held = process.memory_info().rss / MIB
                        self.most[name] = max(self.most[name], held)

    def end(self) -> dict[str, float]:
        """Stop looking; the largest values."""
        self._ended.set()
        self.join()
        return self.most


def withstand(field: Field, run: Run, seconds: float) -> list[str]:
    """Let nodes send garbage for some time; returns what is wrong.

    Args:
        field: the federation.
        run: under way in it.
        seconds: of garbage, and of the calm before it.
    """
    run.until(lambda: run.answered() == {*range(NODES)}, "every node has answered")
    calm, before = _span(field, run, seconds)
    field.give(HOSTILE, seconds=SECONDS, faults=["garbage"] * 10_000)
    disturbed, peaks = _span(field, run, seconds)
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
        before: largest memory of the server's processes in `calm`, MiB.
        peaks: likewise in `disturbed`.
    """
    hostile = [
        event
        for event in events
        if isinstance(event, Failed)
        and event.client in HOSTILE
        and disturbed[0] <= event.t <= disturbed[1]
    ]
    kept = share(events, HONEST, [calm], disturbed)
    for reason, count in Counter(event.reason[:80] for event in hostile).most_common():
        print(f"{count} orders of hostile nodes: {reason}")
    print(f"honest nodes kept {kept:.0%} of their rate")
    for name, most in peaks.items():
        print(f"{name}: at most {most:.0f} MiB, {before[name]:.0f} before")
    problems = never_arrived(events)
    if not hostile:
        problems.append("no garbage was refused")
    if kept < KEPT:
        problems.append(f"honest nodes kept {kept:.0%} of their rate, of at least {KEPT:.0%}")
    problems += [
        f"{name} took {most:.0f} MiB, above the bound of {BOUND:.0f}"
        for name, most in peaks.items()
        if most > BOUND
    ]
    return problems


def _span(field: Field, run: Run, seconds: float) -> tuple[Span, dict[str, float]]:
    """Wait; the interval, and the largest memory in it."""
    peaks = Peaks(field)
    peaks.start()
    start = run.now()
    run.wait(seconds)
    return (start, run.now()), peaks.end()


def main() -> int:
    """Run the command line; return 0 if the bounds hold, else 1."""
    parser = argparse.ArgumentParser(prog="python -m faults.garbage", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="of garbage, and of none")
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
            problems = withstand(field, run, options.seconds)
            files = (folder / "kit" / "server").glob("state.db*")
            print(f"state.db: {sum(path.stat().st_size for path in files) / MIB:.0f} MiB")
        finally:
            field.stop()
    print(*problems or ["the bounds hold"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
