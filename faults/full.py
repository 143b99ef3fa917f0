"""Full disks, and a device that was restored from an old copy.

The client of the node counts its orders in its state, as `faults.switched_off.Counting`. So a state
that was lost or used twice shows in the event log.
"""

import shutil
import time
from itertools import pairwise
from pathlib import Path

from faults.field import Disappointed, Run
from faults.injections import Injection, Seen, answers_again, last_order, version_of
from faults.kills import newest, of_log
from fl_app.core.events import Arrived, Failed

FULL = "the disk of this node is full"
WAITS = "waiting for room on the disk"
COUNTING = "algorithm.client._target_=faults.switched_off.Counting"


def node_disk_full(node: int) -> Injection:
    """The disk of a device is full until two orders have failed."""

    def inject(run: Run) -> Seen:
        def failed() -> int:
            return sum(
                isinstance(event, Failed) and event.client == node and FULL in event.reason
                for event in run.events()
            )

        disk = run.field.disks[f"node-{node}"]
        disk.fill()
        run.until(lambda: failed() >= 2, f"two orders of client {node} tell of its full disk")
        disk.free()
        freed = time.monotonic()
        answers_again(run, node, last_order(run, node))
        after = time.monotonic() - freed
        seen = counts(run, node)
        if bad := [(a, b) for a, b in pairwise(seen) if b <= a]:
            raise Disappointed(f"the state of count {bad[0][0]:g} was lost: {bad[0][1]:g} follows")
        yield (
            "node-disk-full",
            f"{failed()} failures: {FULL}; answers {after:.0f} s after there is room, with its "
            "state",
        )

    return Injection(["node-disk-full"], inject, [node])


def server_disk_full(nodes: list[int], seconds: float) -> Injection:
    """The disk of the server is full for some time, also that of the SuperLink's database."""

    def inject(run: Run) -> Seen:
        disk, submitted = run.field.disks["server"], run.submitted()
        published = newest(run)
        before = run.told(WAITS)
        disk.fill()
        began = time.monotonic()
        run.until(lambda: run.told(WAITS) > before, "the supervisor waits for room")
        waits = time.monotonic() - began
        run.wait(seconds)
        if run.submitted() > submitted:
            raise Disappointed("the run was submitted again though its disk is full")
        version = version_of(run)
        disk.free()
        freed = time.monotonic()
        run.until(lambda: version_of(run) > version + 1, "the run goes on")
        after = time.monotonic() - freed
        if problems := of_log(run.events(), published):
            raise Disappointed(problems[0])
        yield (
            "server-disk-full",
            f"waits for room after {waits:.0f} s, submitted {run.submitted() - submitted} times; "
            f"goes on {after:.0f} s after there is room, from version {version}",
        )

    return Injection(["server-disk-full"], inject, nodes)


def restored(node: int) -> Injection:
    """A device is restored from a copy of its state that is two orders old."""

    def inject(run: Run) -> Seen:
        (state,) = run.field.kit(f"node-{node}").glob(f"state/fl_app/run-*/client-{node}.npz")
        copy = Path(shutil.copy(state, run.field.folder / "old-copy.npz"))
        told = len(counts(run, node))
        run.until(lambda: len(counts(run, node)) > told + 1, "the client saves its state twice")
        for process in run.field.processes(f"node-{node}", ""):
            process.kill()
        shutil.copy(copy, state)
        told = len(counts(run, node))
        run.until(lambda: len(counts(run, node)) > told, f"node {node} answers again")
        first, kept = counts(run, node)[told], state.with_suffix(".older")
        if first != 1.0 or not kept.is_file():
            raise Disappointed(f"the client goes on with an old state: its count is {first:g}")
        yield "restored", f"the client begins anew, and keeps the old state as {kept.name}"

    return Injection(["restored"], inject, [node])


def counts(run: Run, node: int) -> list[float]:
    """The counts that a client's updates have reported."""
    arrived = [e for e in run.events() if isinstance(e, Arrived) and e.client == node]
    return [event.loss or 0.0 for event in arrived]
