"""Processes from outside: freezing them, their processor time and their memory (Linux, /proc)."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def freeze(pids: Iterable[int]) -> None:
    """Stop processes where they are; what they were doing is neither lost nor done."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def thaw(pids: Iterable[int]) -> None:
    """Let frozen processes go on."""
    for pid in pids:
        os.kill(pid, signal.SIGCONT)


def cpu_seconds(pids: Iterable[int]) -> float:
    """User and system time of processes with all their threads, in clock ticks."""
    ticks = 0
    for pid in pids:
        # The name in parentheses, the second field, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / TICKS


def pss_mb(pids: Iterable[int]) -> dict[str, float]:
    """Proportional set size of processes in MB: all of it, and its parts.

    Pages that n processes share count 1/n for each, so the sum is what all of them take together.

    Returns:
        Keys ``Pss``, ``Pss_Anon`` (private memory), ``Pss_Shmem`` (the arena) and ``Pss_File``
        (code; the one part that unrelated processes with the same libraries change).
    """
    total = dict.fromkeys(("Pss", "Pss_Anon", "Pss_Shmem", "Pss_File"), 0.0)
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, amount = line.split()[:2]
            if name[:-1] in total:
                total[name[:-1]] += int(amount) / 1024
    return total
