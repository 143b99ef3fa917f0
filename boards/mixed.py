"""A federation of the kit, with TLS and node keys, whose last node is an emulated board."""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from boards.arm_root import CPUS, VENV, Root
from boards.row import Disappointed, wait_for
from fl_app.core.events import Arrived, Failed
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.enrol import enrol
from fl_app.field.kit import Kit, new_kit
from fl_app.field.loopback import HOST, free_ports
from fl_app.field.supervise import end_keeper
from fl_app.record.log import read_events

NODES = 3
NODE = "/opt/fl-app/node"  # the kit's folder on the board
PYTHON = f"{VENV}/bin/python"
JOIN = 300.0  # seconds in which all nodes must be online; 40 were measured
SECONDS = 120  # of the run, on the wall clock: a node that is emulated starts slowly
LIMIT = SECONDS + 360.0
RUN = (
    *("algorithm=fedbuff", "task=digits", "partition=iid", "runtime=deployment", "eval_every=10"),
    *(f"num_clients={NODES}", f"algorithm.schedule.concurrency={NODES}"),
    *("algorithm.schedule.buffer_size=2", "num_versions=null", f"max_seconds={SECONDS}"),
    *(f"deadline={SECONDS}", "checkpoint_every=10", "tensorboard=false"),
)


def federate(board: Root, folder: Path, overrides: Sequence[str] = ()) -> str:
    """Run FedBuff on two nodes of this machine and one on a board; return what was seen.

    Args:
        board: with a device's packages.
        folder: new; for the kit, logs and the run.
        overrides: beside those of `RUN`.

    Raises:
        Disappointed: a node does not join or gets no update through, or the run fails.
        TimeoutExpired: the run does not end in time.
    """
    kit = folder / "kit"
    port, *node_ports = free_ports(1 + NODES)
    folder.mkdir(parents=True)
    new_kit(kit, nodes=NODES, hosts=[HOST], port=port, finish=enrol)
    shutil.rmtree(board.at(NODE), ignore_errors=True)
    shutil.copytree(kit / f"node-{NODES - 1}", board.at(NODE))
    link = SuperLink(Kit.read(kit / "server"))
    with ExitStack() as stack:
        for i, name in enumerate(["server", *(f"node-{i}" for i in range(NODES))]):
            more = {"PORT": str(node_ports[i - 1])} if i else {}
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            if i < NODES:
                keeper = subprocess.Popen(
                    [sys.executable, "-m", "fl_app.field", "keep", str(kit / name)],
                    env={**os.environ, "OMP_NUM_THREADS": "1", **more},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            else:
                keep = (PYTHON, "-m", "fl_app.field", "keep", NODE)
                keeper = board.start(*keep, log=log, cpu=CPUS[0], environment=more)
            stack.callback(end_keeper, keeper)
        joined = wait_for(lambda: _online(link) == NODES, f"{NODES} nodes are online", JOIN)
        run = [sys.executable, "-m", "fl_app.field", "run", "--output", str(folder / "run")]
        with (folder / "run.log").open("wb") as log:
            status = subprocess.run(
                [*run, str(kit / "server"), *RUN, *overrides],
                stdout=log,
                stderr=subprocess.STDOUT,
                timeout=LIMIT,
            ).returncode
    return f"all online after {joined:.0f} s; {judge(folder / 'run', status)}"


def _online(link: SuperLink) -> int:
    try:
        return link.online()
    except Unreachable:
        return 0


def judge(run: Path, status: int) -> str:
    """Return what a run did, from its files.

    Args:
        run: its folder.
        status: with which its supervisor ended.

    Raises:
        Disappointed: it failed, an order failed, or a node got no update through.
    """
    if status:
        raise Disappointed(f"the run ended with status {status}: see {run.with_suffix('.log')}")
    events = list(read_events(run / "events.jsonl"))
    arrived = Counter(event.client for event in events if isinstance(event, Arrived))
    failures = [event for event in events if isinstance(event, Failed)]
    summary = json.loads((run / "summary.json").read_text())
    told = ", ".join(f"{arrived[client]} of client {client}" for client in range(NODES))
    if failures:
        raise Disappointed(f"{len(failures)} orders failed: {failures[0]}")
    if len(arrived) < NODES:
        raise Disappointed(f"a node sent no update: {told}")
    return (
        f"{summary['num_versions']} versions, updates: {told} (the board); "
        f"accuracy {summary['final_accuracy']:.1%}"
    )
