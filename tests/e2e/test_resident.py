"""The training process that stays, as a process, on its own and under real SuperNodes."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fl_app.field.demo import demo
from fl_app.field.loopback import Federation
from fl_app.node import resident

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.federation,
]

NODE = 17


def processes(folder: Path) -> list[psutil.Process]:
    """Residents whose clients' memory is in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if (
                "fl_app.node.resident" in process.cmdline()
                and process.environ().get("FL_APP_STATE_DIR") == str(folder)
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
        except psutil.Error:  # gone meanwhile
            continue
    return found


def ended(process: psutil.Process) -> bool:
    """Whether a process is gone within ten seconds."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], 10.0)[0])
    finally:
        os.close(descriptor)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    yield tmp_path
    for process in processes(tmp_path):
        process.terminate()
        assert ended(process)


def ask() -> str:
    """What goes wrong with an order that needs no torch to be refused."""
    message = Message(RecordDict(), dst_node_id=NODE, message_type="train")
    return resident.ask(message, Context(1, NODE, {}, RecordDict(), {})).error.reason


def test_it_stays_is_replaced_and_leaves_on_request(folder: Path) -> None:
    refusal = "ValueError: this node has no partition-id"
    assert ask().startswith(refusal)
    (first,) = processes(folder)
    assert os.getsid(first.pid) == first.pid != os.getsid(0)
    assert ask().startswith(refusal)
    assert processes(folder) == [first]
    first.kill()
    assert ended(first)
    assert ask().startswith(refusal)
    (second,) = processes(folder)
    sockets = folder / f"fl_app-{os.getuid()}" / f"{NODE}.sock"
    assert sockets.exists()
    second.terminate()
    assert ended(second)
    assert not sockets.exists()


CLIENT_APP = """
from flwr.app import Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fl_app.node import resident
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
message = Message(RecordDict(), dst_node_id=17, message_type="train")
reply = resident.ask(message, Context(1, 17, {}, RecordDict(), {}))
print(reply.error.reason.splitlines()[0], flush=True)
"""


def test_it_outlives_the_client_app_but_not_the_super_exec(folder: Path) -> None:
    """Here a shell is what starts the ClientApp, and stays until its standard input ends."""
    (folder / "client_app.py").write_text(CLIENT_APP)
    command = f"{sys.executable} {folder}/client_app.py; echo done; read line"
    with subprocess.Popen(
        ["sh", "-c", command],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as super_exec:
        assert super_exec.stdout is not None
        assert super_exec.stdin is not None
        assert "no partition-id" in super_exec.stdout.readline()
        assert super_exec.stdout.readline() == "done\n"
        (process,) = processes(folder)
        super_exec.stdin.close()
        assert super_exec.wait(10) in (0, 1)
        assert ended(process)


WAITING = """
import os
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from fl_app.node import resident
from fl_app.flower import wire
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
config = ConfigRecord({"app-config": "seed: 1"})  # torch is imported to find that it is too little
message = Message(RecordDict({"config": config}), dst_node_id=17, message_type="train")
context = Context(1, 17, {"partition-id": 0}, RecordDict(), {})
connection = resident._connect(context).connection
connection.send_bytes(os.fsencode(resident.CODE))
connection.recv_bytes()
for part in (wire.context_to_bytes(context), wire.to_bytes(message)):
    connection.send_bytes(part)
print("sent", flush=True)
connection.recv_bytes()
"""


def test_it_goes_on_when_the_client_app_that_waits_is_killed(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITING],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as client_app:
        assert client_app.stdout is not None
        assert client_app.stdout.readline() == "sent\n"
        client_app.kill()
    before = processes(folder)
    assert len(before) == 1
    assert "no partition-id" in ask()
    assert processes(folder) == before


class Disturbed(Federation):
    """Kills all residents once, after the first aggregation."""

    events: Path
    killed: Sequence[psutil.Process] = ()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        if not self.killed and self.events.exists() and "aggregate" in self.events.read_text():
            self.killed = processes(Path(os.environ["FL_APP_STATE_DIR"]))
            for process in self.killed:
                process.kill()


def test_a_federation_completes_though_its_residents_are_killed(folder: Path) -> None:
    """Overlap-FedAvg on two nodes: answers are from the version before, also after a kill."""
    overrides = ["algorithm=overlap_fedavg", "algorithm.schedule.buffer_size=2", "partition=iid"]
    overrides += ["runtime=deployment", "num_clients=2", "num_versions=4"]
    federation = Disturbed(folder / "federation")
    federation.events = folder / "run" / "events.jsonl"
    try:
        federation.start(2, "resident=true")
        summary = demo(federation, folder / "run", overrides, versions=4)
    finally:
        assert federation.stop()
    assert len(federation.killed) == 2
    assert processes(folder) == []
    assert (summary["num_versions"], summary["failures"]) == (4, 0)
    events = [json.loads(line) for line in federation.events.read_text().splitlines()]
    ages = [event["age"] for event in events if event["kind"] == "aggregate"]
    assert ages == [[0, 0], [1, 1], [1, 1], [1, 1]]
    starts = [federation.log(f"node-{i}").read_text().count("has started") for i in (0, 1)]
    assert starts == [2, 2]
