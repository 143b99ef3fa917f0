"""A device that is switched off again and again: ``python -m faults.switched_off``.

A SuperLink and one node run on loopback, as the kit is made. All processes of the node are killed
at once, at random moments, and started again. Half of the time the moment is that at which the
client's state is being written.

Every training adds one to a count in the client's state, and its update reports the count as its
loss. So the event log shows what was lost. An update that the server has and a state that does not
would let the next update report the same count once more, or a smaller one.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from faults.field import PATIENCE, Disappointed, wait_for
from fl_app.client import LocalTrainer
from fl_app.core.events import Arrived, Failed
from fl_app.core.types import Order, Upload, Vector
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.kit import Kit, new_kit
from fl_app.field.loopback import HOST, free_ports
from fl_app.field.supervise import end_keeper
from fl_app.node.memory import Memory
from fl_app.record.log import read_events

APP = Path(__file__).resolve().parents[1]  # where pyproject.toml lies
RUN = [
    *("algorithm=fedbuff", "runtime=deployment", "num_clients=1", "partition=iid"),
    *("task=synthetic", "task.num_examples=200", "task.num_test=50", "tensorboard=false"),
    *("algorithm.schedule.concurrency=1", "algorithm.schedule.buffer_size=1"),
    *("algorithm.client.local_epochs=1", "eval_every=100000", "num_versions=100000"),
]
BALLAST = 10_000_000  # numbers in the state, so that it takes time to write


class Counting(LocalTrainer):
    """SGD that counts its orders in the client's state."""

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        """Train; the loss of the upload is the count.

        Raises:
            RuntimeError: the state is not whole.
        """
        count = int(order.state.get("count", 0))
        if count and not np.array_equal(order.state["ballast"], ballast(count)):
            raise RuntimeError(f"the state of order {count} is torn")
        upload = super().train(order, out)
        state = {"count": np.array(count + 1), "ballast": ballast(count + 1)}
        return replace(upload, loss=float(count + 1), state=state)


def ballast(count: int) -> NDArray[np.int32]:
    """What makes a state large, shape ``(BALLAST,)``."""
    return np.full(BALLAST, count, np.int32)


class Board:
    """A node of a kit that is switched off and on.

    Args:
        kit: the node's folder.
        port: on which it listens.
    """

    def __init__(self, kit: Path, port: int) -> None:
        self._kit, self._port = Kit.read(kit), port
        self._known: list[psutil.Process] = []
        self._log = kit.with_suffix(".log").open("ab")

    def switch_on(self) -> None:
        """Start the node."""
        subprocess.Popen(
            ["sh", str(self._kit.folder / "start.sh")],
            env={**self._kit.environment, "PORT": str(self._port), "PYTHONPATH": str(APP)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def look(self) -> None:
        """Find the node's processes, which takes longer than it takes to write a state."""
        self._known = self._processes()

    def switch_off(self) -> None:
        """Kill all processes of the node, first and at once those that were known."""
        while self._known:
            for process in self._known:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.look()
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _processes(self) -> list[psutil.Process]:
        home = str(self._kit.folder / "flower")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get("FLWR_HOME") == home:
                    found.append(process)
        return found

    @property
    def state(self) -> Path:
        """Where the client's state lies."""
        return self._kit.folder / "state" / "fl_app"

    def drafts(self) -> set[Path]:
        """Files that are being written, or were when the node was switched off."""
        return {*self.state.glob("run-*/*.draft-*")}

    def writes(self, earlier: set[Path]) -> bool:
        """Whether there are other drafts than earlier ones."""
        return bool(self.drafts() - earlier)

    def count(self) -> int:
        """Of the client's state; 0 if there is none."""
        states = [Memory(path).load() for path in self.state.glob("run-*/client-0.npz")]
        return max((int(state.get("count", 0)) for state in states), default=0)


def switch_off_often(folder: Path, times: int, rng: random.Random, longest: float) -> list[str]:
    """Switch a device off `times` times in one run; returns what is wrong afterwards.

    Args:
        folder: new; for the kit, the logs and the run.
        times: how often.
        rng: draws the moments.
        longest: seconds from switching on to switching off, at most.
    """
    port, node_port = free_ports(2)
    kit = folder / "kit"
    new_kit(
        kit, nodes=1, hosts=[HOST], port=port, insecure=True
    )  # with a key it is refused for 60 s
    words = [*RUN, "algorithm.client._target_=faults.switched_off.Counting"]
    events = folder / "run" / "events.jsonl"
    board = Board(kit / "node-0", node_port)
    torn, earlier = 0, board.drafts()
    command = [sys.executable, "-m", "fl_app.field", "keep", str(kit / "server")]
    environment = {**os.environ, "PYTHONPATH": str(APP)}
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        link = SuperLink(Kit.read(kit / "server"), app=APP)
        board.switch_on()
        wait_for(lambda: online(link) == 1, "the node is online")
        run = link.submit(words, folder / "run")

        def until(true: Callable[[], bool], what: str) -> None:
            for _ in range(round(PATIENCE)):
                board.look()
                if watched(true, 1.0):
                    return
                status, details = link.status(run)
                if status.startswith("finished"):
                    raise Disappointed(f"the run is {status}: {details}")
            raise Disappointed(f"not within {PATIENCE:g} s: {what}")

        until(lambda: bool(arrivals(events)), "an update arrives")
        for i in range(times):
            before = arrivals(events)
            began = time.monotonic()
            if i % 2:
                until(partial(board.writes, earlier), "the client's state is written")
                time.sleep(rng.uniform(0.0, 0.02))
            else:
                time.sleep(rng.uniform(0.0, longest))
                board.look()
            board.switch_off()
            torn += board.writes(earlier)
            earlier = board.drafts()
            told = f"{i + 1}: off after {time.monotonic() - began:.1f} s"
            print(f"{told}, {len(arrivals(events)) - len(before)} updates arrived", flush=True)
            board.switch_on()
        last = len(arrivals(events))
        until(lambda: len(arrivals(events)) > last + 1, "the node answers again")
    finally:
        board.look()
        board.switch_off()
        end_keeper(server)
    seen = arrivals(events)
    failures = Counter(e.reason for e in read_events(events) if isinstance(e, Failed))
    print(f"{times} times off, {torn} of them while the state was written")
    print(f"{len(seen)} updates arrived, the last with count {seen[-1]:g}")
    for reason, number in failures.most_common():
        print(f"{number} orders without update: {reason}")
    problems = [f"count {b:g} follows {a:g}" for a, b in pairwise(seen) if b <= a]
    problems += [reason for reason in failures if "torn" in reason]
    problems += [f"{path} is unreadable" for path in board.state.rglob("*.unreadable")]
    if board.count() < seen[-1]:
        problems.append(f"the state has count {board.count()}, the server {seen[-1]:g}")
    return problems


def watched(true: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition comes true in time, of which a moment later may be too late."""
    until = time.monotonic() + seconds
    while not true():
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def arrivals(events: Path) -> list[float]:
    """The counts of the updates that arrived."""
    return [event.loss or 0.0 for event in read_events(events) if isinstance(event, Arrived)]


def online(link: SuperLink) -> int:
    """How many nodes are online."""
    try:
        return link.online()
    except Unreachable:
        return 0


def main() -> int:
    """Run the command line; return 0 if nothing was lost, else 1."""
    parser = argparse.ArgumentParser(prog="python -m faults.switched_off", description=__doc__)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--longest", type=float, default=12.0, help="seconds until it is off")
    parser.add_argument("--folder", type=Path, help="new; for logs and the run (a temporary one)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the node ends, too
    with tempfile.TemporaryDirectory() as scratch:
        folder = (options.folder or Path(scratch) / "board").resolve()
        folder.mkdir(parents=True)
        rng = random.Random(options.seed)
        problems = switch_off_often(folder, options.times, rng, options.longest)
    print(*problems or ["nothing was lost"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
