"""``python -m lab.boards [PART...]``: try boards and containers on an ordinary machine.

It prints a line for each step at once. A step that needs something this machine lacks is
"impossible", and the line says how to get it. Exits with 1 if a step failed.
"""

import argparse
import fcntl
import shutil
import signal
import sys
from collections.abc import Iterable

from lab.boards import compose, systemd
from lab.boards.podman import CACHE
from lab.boards.steps import attempt

PARTS = {"systemd": systemd.steps, "compose": compose.steps}


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
        return carry_out(options.parts or PARTS)


def carry_out(parts: Iterable[str]) -> int:
    """Carry out parts and print their rows; returns the exit status."""
    work = CACHE / "work"
    verdicts: dict[str, str] = {}
    try:
        for part in parts:
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir(parents=True)
            for step, verdict, seconds, detail in attempt(PARTS[part](work)):
                print(f"{part}: {step}: {verdict}, {seconds:.0f} s: {detail}", flush=True)
                verdicts[f"{part}: {step}"] = verdict
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    finally:
        shutil.rmtree(work, ignore_errors=True)
    if missing := [step for step, verdict in verdicts.items() if verdict == "impossible"]:
        print("NOT TRIED, as this machine lacks something (see above):", *missing, sep="\n  ")
    return int("failed" in verdicts.values())


if __name__ == "__main__":
    sys.exit(main())
