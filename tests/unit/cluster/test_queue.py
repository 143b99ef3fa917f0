"""Calls of workers: their orders, repetition after a loss; addresses; the SLURM script."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import executable, vec

from fl_app.cluster.connection import connect
from fl_app.cluster.mailbox import CALL_SECONDS, MAX_DEATHS, MAX_ORDERS, ClusterMailbox, OrderQueue
from fl_app.core.errors import RunError
from fl_app.core.types import Order


def make_queue(count, call_size=1):
    queue = OrderQueue()
    queue.call_size = call_size
    for number in range(count):
        queue.append(Order(number, number, 0, 0, vec(1, 2), {}, 0.0))
    return queue


def numbers(orders):
    return [order.number for order in orders]


def test_a_call_carries_as_many_orders_as_are_worth_a_tenth_of_a_second():
    queue = make_queue(3)
    first = queue.next_call(places=1)
    assert numbers(first) == [0]
    queue.done(first, CALL_SECONDS / 4)
    assert queue.call_size == 4
    queue.done(first, 1e-9)
    assert queue.call_size == MAX_ORDERS
    queue.done(first, 10.0)
    assert queue.call_size == 1


def test_orders_are_spread_over_the_workers_in_their_sequence():
    queue = make_queue(8, call_size=32)
    assert [numbers(queue.next_call(places)) for places in (4, 3, 2, 1)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert not queue


def test_orders_of_a_lost_worker_go_again_first_and_those_it_was_at_travel_alone():
    queue = make_queue(6, call_size=2)
    calls = [queue.next_call(1), queue.next_call(1)]
    assert queue.lost(calls, "killed") == []
    assert [numbers(queue.next_call(1)) for _ in range(4)] == [[0], [1], [2, 3], [4, 5]]


def test_an_order_that_loses_three_workers_fails_and_the_one_behind_it_does_not():
    queue = make_queue(2)
    for _ in range(MAX_DEATHS):
        calls = [queue.next_call(1), queue.next_call(1)]
        replies = queue.lost(calls, "exit code 139")
    (reply,) = replies
    assert reply.number == 0
    assert reply.error == "3 workers died with this order, the last one: exit code 139"
    assert numbers(queue.next_call(1)) == [1]


class Failed(Exception):
    """Like Ray's: an error in the code of a worker."""

    cause = ModuleNotFoundError("No module named 'torch'")


def stand_in(starts):
    """A fake of Ray. Workers start one after the other; `starts` tells which succeed."""
    left = iter(starts)

    def get(reference):
        if not reference["starts"]:
            raise Failed

    def remote(*_):
        ready = SimpleNamespace(remote=lambda _: Reference(starts=next(left)))
        return SimpleNamespace(ready=SimpleNamespace(options=lambda **_: ready))

    class Reference(dict):
        __hash__ = object.__hash__

    return SimpleNamespace(
        exceptions=SimpleNamespace(RayError=Failed, RayTaskError=Failed),
        remote=lambda _: SimpleNamespace(options=lambda **_: SimpleNamespace(remote=remote)),
        put=lambda recipe: recipe,
        wait=lambda references, timeout: (references[:1], references[1:]),
        get=get,
        kill=lambda _: None,
    )


def test_a_machine_with_a_missing_package_does_not_end_the_run(monkeypatch):
    monkeypatch.setattr("fl_app.cluster.mailbox.REFRESH", 0.0)
    monkeypatch.setattr("fl_app.cluster.mailbox.resources", list)
    monkeypatch.setattr("fl_app.cluster.mailbox.room", lambda _: 1)
    monkeypatch.setitem(sys.modules, "ray", stand_in([True, False]))
    mailbox = ClusterMailbox(None)
    monkeypatch.setattr("fl_app.cluster.mailbox.room", lambda _: 2)
    assert list(mailbox.pull(0.0)) == []
    assert [worker.ready for worker in mailbox._workers] == [True, False]
    assert mailbox._last_reason == "ModuleNotFoundError: No module named 'torch'"
    monkeypatch.setitem(sys.modules, "ray", stand_in([False, False]))
    with pytest.raises(RunError, match=f"a worker of the cluster failed: {mailbox._last_reason}"):
        ClusterMailbox(None)


# -- an address -----------------------------------------------------------------------------------


def test_an_address_where_nobody_listens_is_refused():
    pytest.importorskip("ray")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"no Ray cluster answers at {address} .*--head"):
            connect(address, 1)


# -- the script for SLURM of docs/cluster.md, with stand-ins for SLURM's commands ------------------

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"
# Like SLURM's: `srun` runs the command after its options, on the machine that they name.
STAND_INS = {
    "scontrol": "printf 'node-1\\nnode-2\\n'",
    "hostname": "echo '10.0.0.7 172.17.0.1'",
    "sleep": 'echo "sleep $*" >> "$LOG"',
    "ray": 'echo "$WHERE, $CPUS CPUs: ray $*" >> "$LOG"; exec /bin/sleep 0.2',
    "python": 'echo "python $*" >> "$LOG"',
    "srun": """
        export WHERE CPUS
        while [ "${1#-}" != "$1" ]; do
            case $1 in
                -w) WHERE=$2; shift ;;
                --exclude=node-1) WHERE=node-2 ;;
                --cpus-per-task=*) CPUS=${1#*=} ;;
            esac
            shift
        done
        exec "$@"
    """,
}


def script():
    (code,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(code)


def test_the_script_starts_a_cluster_and_then_the_run(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f"PATH={tmp_path}/bin:$PATH\n")
    for name, text in STAND_INS.items():
        executable(tmp_path / "bin" / name, text)
    (tmp_path / "run.sh").write_text(script() + "wait\n")
    assert subprocess.run(["bash", "-n", "run.sh"], cwd=tmp_path).returncode == 0
    slurm = {"SLURM_CPUS_PER_TASK": "16", "SLURM_JOB_NODELIST": "node-[1-2]"}
    env = {**os.environ, **slurm, "LOG": str(tmp_path / "log")}
    process = subprocess.run(
        ["bash", "-eu", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (process.returncode, process.stderr) == (0, "")
    log = (tmp_path / "log").read_text().splitlines()
    assert log.index("sleep 20") < [line.startswith("python ") for line in log].index(True)
    options = "--num-cpus=16 --block"
    head, other, run, _ = sorted(log)
    assert head == (
        "node-1, 16 CPUs: ray start --head --node-ip-address=10.0.0.7 --port=6379 " + options
    )
    assert other == f"node-2, 16 CPUs: ray start --address=10.0.0.7:6379 {options}"
    assert run.startswith("python -m fl_app runtime=ray runtime.address=10.0.0.7:6379 hydra.run")
    assert run.endswith("resume=auto")
