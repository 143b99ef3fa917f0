"""The nodes of a server and the table of its run's clients."""

import json
from pathlib import Path

import pytest
from fake_superlink import superlink
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.proto.transport_pb2 import Scalar

from fl_app.core.events import Aggregated, Arrived, Benched, Dispatched, Event, Failed, to_json
from fl_app.field.control import SuperLink, public_bytes
from fl_app.field.kit import Kit
from fl_app.field.make import new_kit
from fl_app.field.status import clients, show

EVENTS: tuple[Event, ...] = (
    *(Dispatched(0.0, client, client, 0) for client in range(4)),
    Arrived(5.0, 0, 0, 0, age=0),
    Arrived(5.0, 3, 3, 0, age=0),
    Aggregated(6.0, 1, [0, 3], [0, 3], [0, 0]),
    Dispatched(6.0, 0, 4, 1),
    Failed(9.0, 1, 1, 0, "node vanished"),
    Arrived(10.0, 2, 2, 0, age=1),
    Benched(11.0, 1, 5, "norm"),
)


def write(folder: Path, events: tuple[Event, ...] = EVENTS) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in events))
    return folder / "events.jsonl"


def test_what_each_client_does(tmp_path: Path) -> None:
    table = clients(write(tmp_path / "run"))
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("0", "version 1, under way", "5 s", "1", "0", ""),
        ("1", "benched", "2 s", "0", "1", "node vanished"),
        ("2", "version 0, arrival", "1 s", "1", "0", ""),
        ("3", "aggregated", "", "1", "0", ""),
    ]
    assert not clients(tmp_path / "none").row_count


@pytest.fixture
def server(tmp_path: Path) -> Path:
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"])
    return tmp_path / "out" / "server"


def test_the_run_that_goes_on_is_shown_and_not_one_that_has_ended(
    server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(server / "run", EVENTS[:3])
    write(tmp_path / "other")
    key = public_bytes(server / "keys" / "node-0.pub")
    config = {"output": Scalar(string=str(tmp_path / "other"))}
    runs = (Run(run_id=1, override_config=config, status=RunStatus(status="running")),)
    with superlink(server, registered=(key, b"x"), runs=runs) as port:
        kit = Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"})
        show(kit, None)
        told = capsys.readouterr().out
        assert told.startswith("nodes: ? offline, node-0 offline\n")
        assert "benched" in told
        show(kit, server / "run")
        assert "benched" not in capsys.readouterr().out
        assert SuperLink(kit).statuses() == {"offline": 2}
        assert SuperLink(kit).online() == 0
