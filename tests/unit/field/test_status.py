"""The table of a server's nodes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_superlink import superlink
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.proto.transport_pb2 import Scalar

from fl_app.core.events import Arrived, Benched, Dispatched, Failed, Rejected, to_json
from fl_app.field.control import SuperLink, public_bytes
from fl_app.field.gate import key_name
from fl_app.field.kit import Kit, new_kit
from fl_app.field.status import Clients, memory, rows, show, statuses


def clients(*events) -> Clients:
    found = Clients()
    for event in events:
        found.add(event)
    return found


EVENTS = (
    Dispatched(0.0, 0, 0, 0),
    Dispatched(0.0, 1, 1, 0),
    Arrived(5.0, 0, 0, 0, age=0),
    Dispatched(6.0, 0, 2, 3),
    Failed(9.0, 1, 1, 0, "node vanished"),
    Rejected(10.0, reason="duplicate"),
)
ABOUT = {"client": "0", "flower": "1.41.0", "torch": "2.9.1", "project": "0.1.0"}


def test_a_row_for_every_node_and_for_clients_of_unknown_nodes():
    found = rows({"K": ("node-0", "online")}, {"K": ABOUT}, clients(*EVENTS), ahead=2.0)
    assert found[0] == [
        *("node-0", "online", "0", "version 3, under way", "6 s", "1", "0"),
        *("1.41.0", "2.9.1", "0.1.0", ""),
    ]
    assert [
        "?",
        "?",
        "1",
        "version 0, failed",
        "3 s",
        "0",
        "1",
        *"???",
        "node vanished",
    ] in found


def test_a_node_that_has_told_nothing_has_a_row():
    assert rows({"K": ("node-0", "offline")}, {}, Clients(), 0.0) == [
        ["node-0", "offline", "", "", "", "0", "0", "?", "?", "?", ""]
    ]


def test_a_benched_client_is_seen():
    found = clients(*EVENTS, Benched(11.0, 1, 5, "norm"))
    assert found.by_id["1"].last == "benched"


@pytest.fixture
def server(tmp_path) -> Path:
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"])
    return tmp_path / "out" / "server"


def test_the_table_of_a_server(server, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    run = tmp_path / "run"
    run.mkdir()
    (run / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in EVENTS))
    key = public_bytes(server / "keys" / "node-0.pub")
    (server / "nodes.json").write_text(json.dumps({key_name(key): ABOUT}))
    with superlink(server, registered=(key,)) as port:
        kit = Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"})
        show(kit, run, None)
        assert statuses(SuperLink(kit)) == {"offline": 1}
    said = capsys.readouterr().out
    for word in ("node-0", "offline", "version 3, under way", "2.9.1", "node vanished"):
        assert word in said


def test_the_run_that_goes_on_is_shown_and_not_one_that_has_ended(
    server, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    for folder, events in ((server / "run", EVENTS[:3]), (tmp_path / "other", EVENTS)):
        folder.mkdir()
        (folder / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in events))
    config = {"output": Scalar(string=str(tmp_path / "other"))}
    runs = (Run(run_id=1, override_config=config, status=RunStatus(status="running")),)
    with superlink(server, runs=runs) as port:
        kit = Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"})
        show(kit, None, None)
        assert "version 3, under way" in capsys.readouterr().out
        show(kit, server / "run", None)
        assert "version 3, under way" not in capsys.readouterr().out


def test_a_table_without_end_is_refused(server):
    with pytest.raises(ValueError, match="--watch=0 must be a finite number above 0"):
        show(Kit.read(server), server / "run", 0)


def test_the_memory_of_a_servers_processes(server):
    script = "import sys; x = bytearray(30_000_000); print(flush=True); input()"
    with subprocess.Popen(
        ["flwr-serverapp", "-c", script],
        executable=sys.executable,
        env={**os.environ, "FLWR_HOME": str(server / "flower")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        process.stdout.readline()
        found = memory(Kit.read(server))
        process.communicate(b"\n")
    assert found.keys() == {"serverapp"}
    assert found["serverapp"] > 30_000_000
