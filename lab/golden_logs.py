"""Digests of every algorithm's event log and model, in every runtime and after a resume.

A refactoring must not change them:

    python -m lab.golden_logs --write digests.json      # before
    python -m lab.golden_logs --check digests.json      # after; lists what differs, status 1

All runtimes of an algorithm, and a run that was resumed, must have the digests of the plain run.
Other processors and other versions of torch or NumPy may round differently: compare on one machine.
"""

import argparse
import hashlib
import json
import logging
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import fl_app
from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Event
from fl_app.record.log import JsonLines

ALGORITHMS = sorted(path.stem for path in Path("conf/algorithm").glob("*.yaml"))
COMMON = ("num_clients=10", "num_versions=6", "eval_every=3", "seed=3")
RUNTIMES = {
    "inprocess": ["runtime.workers=0"],
    "workers": ["runtime.workers=2"],
    "ray": ["runtime=ray"],
}
FILES = ("events.jsonl", "model.npz")


def run_digests(folder: Path, *words: str) -> dict[str, str]:
    """The digests of a run's files, or the message by which it was refused or failed."""
    try:
        fl_app.run(*COMMON, *words, output=folder, progress=False)
    except (ValueError, RunError) as problem:
        return {"refused": str(problem).splitlines()[0]}
    return {name: hashlib.sha256((folder / name).read_bytes()).hexdigest()[:16] for name in FILES}


@contextmanager
def interrupt_at(target: int) -> Iterator[None]:
    """A context in which Ctrl-C comes when a run publishes its version `target`."""
    emit = JsonLines.emit

    def interrupt(self: JsonLines, event: Event) -> None:
        emit(self, event)
        if isinstance(event, Aggregated) and event.version == target:
            signal.raise_signal(signal.SIGINT)

    with patch.object(JsonLines, "emit", interrupt):
        yield


def collect(algorithms: Sequence[str], runtimes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Digests by ``ALGORITHM/RUNTIME``; ``resumed`` is the plain run, stopped in the middle."""
    results = {}
    with tempfile.TemporaryDirectory() as scratch:
        for algorithm in algorithms:
            for runtime in runtimes:
                folder = Path(scratch) / algorithm / runtime
                words = [f"algorithm={algorithm}", *RUNTIMES.get(runtime, RUNTIMES["inprocess"])]
                if runtime == "resumed":
                    with interrupt_at(3):
                        run_digests(folder, *words)
                    words += ["resume=auto"]
                results[f"{algorithm}/{runtime}"] = run_digests(folder, *words)
            print(algorithm, file=sys.stderr)
    return results


def main() -> int:
    """Write or check digests."""
    parser = argparse.ArgumentParser(description=__doc__)
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write", type=Path, metavar="FILE")
    task.add_argument("--check", type=Path, metavar="FILE")
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--runtimes", nargs="+", default=["inprocess", "workers", "resumed"])
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    results = collect(arguments.algorithms, arguments.runtimes)
    if arguments.write:
        arguments.write.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        return 0
    expected = json.loads(arguments.check.read_text())
    differing = [name for name, value in results.items() if expected.get(name) != value]
    for name in differing:
        print(name, "was", expected.get(name), "is", results[name])
    print(f"{len(results) - len(differing)} of {len(results)} are as they were")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
