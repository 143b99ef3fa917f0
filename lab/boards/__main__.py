"""``python -m lab.boards [PART...]``: try boards and containers on an ordinary machine.

A line for each thing that was tried is printed at once. What this machine lacks is "impossible",
with how to get it. Exits with 1 if something failed.
"""

import argparse
import fcntl
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from lab.boards import compose, systemd
from lab.boards.podman import CACHE
from lab.boards.steps import Impossible, Row

Part = Callable[[Path], Iterator[Row]]
PARTS: Mapping[str, Part] = {"systemd": systemd.run, "compose": compose.run}


def main() -> int:
    """The command line; returns 0 if nothing failed, 130 after Ctrl-C, else 1."""
    parser = argparse.ArgumentParser(prog="python -m lab.boards", description=__doc__)
    names = ", ".join(PARTS)  # no part is a choice, too: then all of them
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=names)
    options = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: leaves no container
    with (CACHE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            parser.error(
                f"{CACHE} is in use: another `python -m lab.boards` would lose its containers"
            )
        return carry_out({name: PARTS[name] for name in options.parts or PARTS})


def carry_out(parts: Mapping[str, Part]) -> int:
    """Carry out parts and print their rows; returns the exit status.

    Args:
        parts: by name, in their order.
    """
    work = CACHE / "work"
    rows: list[Row] = []
    try:
        for name, part in parts.items():
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            for row in possible(name, part, work):
                rows.append(row)
                told = f"{row.part}: {row.what}: {row.verdict}, {row.seconds:.0f} s: {row.detail}"
                print(told, flush=True)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if lacking := [f"{row.part}: {row.what}" for row in rows if row.verdict == "impossible"]:
        print("NOT TRIED, as this machine lacks something (see above):", *lacking, sep="\n  ")
    return int(any(row.verdict == "failed" for row in rows))


def possible(name: str, part: Part, work: Path) -> Iterator[Row]:
    """The rows of a part; one row if this machine lacks what all of it needs."""
    try:
        yield from part(work)
    except Impossible as error:
        yield Row(name, "all of it", "impossible", 0.0, str(error))


if __name__ == "__main__":
    sys.exit(main())
