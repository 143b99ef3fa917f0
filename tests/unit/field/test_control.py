"""Requests to a SuperLink, and what `field status` makes of the answers."""

import json
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from fake_superlink import superlink
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.proto.transport_pb2 import Scalar

from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Dispatched, Failed, Rejected, to_json
from fl_app.field.control import SuperLink, Unreachable, clients, public_bytes, show_status
from fl_app.field.kit import Kit
from fl_app.field.make import new_kit

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's


@pytest.fixture
def server(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["localhost"])
    return tmp_path / "out" / "server"


def link(server, port):
    return SuperLink(Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"}))


def test_a_superlink_that_is_down_or_fails_is_unreachable(server):
    with (
        superlink(server, status=503) as port,
        pytest.raises(Unreachable, match="answers with an error"),
    ):
        link(server, port).registered()
    with pytest.raises(Unreachable, match="does not answer"):
        link(server, port).status(1)


def test_a_superlink_that_refuses_is_an_error_of_the_run(server, tmp_path):
    """As a proxy does, which lets only SuperNodes through."""
    with superlink(server, proxied=True) as port:
        for ask in (
            lambda: link(server, port).register(server / "keys" / "node-0.pub"),
            lambda: link(server, port).status(1),
            lambda: link(server, port).submit(["seed=1"], tmp_path / "run"),
        ):
            with pytest.raises(RunError, match=rf"127.0.0.1:{port} refuses: .*403 Forbidden"):
                ask()


def run(run_id, output, status):
    config = {"output": Scalar(string=output), "overrides": Scalar(string=f"a 'b={run_id} c'")}
    pending = f"2026-01-0{run_id}T00:00:00+00:00"
    state = RunStatus(status=status)
    return Run(run_id=run_id, override_config=config, status=state, pending_at=pending)


def test_a_run_under_way_is_known_by_its_folder(server, tmp_path):
    runs = (
        run(1, "/data/run", "finished"),
        run(2, "/data/run", "running"),
        run(3, "/data/other", "running"),
        run(4, "", "pending"),
        run(5, "/data/new", "pending"),
        run(6, "/data/old", "finished"),
    )
    with superlink(server, runs=runs) as port:
        ask = link(server, port).under_way
        assert ask(Path("/data/run")) == (2, ["a", "b=2 c"])
        assert ask(Path("/data/new")) == (5, ["a", "b=5 c"])
        assert ask(Path("/data/old")) is ask(Path("/data")) is None


@pytest.mark.parametrize(("runs", "latest"), [
    ((run(1, "/a", "running"), run(3, "/c", "finished"), run(2, "/b", "finished")), "/a"),
    ((run(1, "/a", "finished"), run(3, "/c", "finished"), run(2, "/b", "finished")), "/c"),
    ((run(7, "", "running"),), "outputs/flower-7"),
])  # fmt: skip
def test_the_folder_of_the_run_to_look_at(server, runs, latest):
    with superlink(server, runs=runs) as port:
        assert link(server, port).latest_output() == server / latest


def test_a_run_is_submitted_with_the_modules_that_it_names(server, tmp_path):
    (server / "mine.py").write_text("")
    words, asked = ["seed=1", "task.model=mine:make"], []
    for run_id in (7, None):  # None = the SuperLink cannot store the app
        with superlink(server, begins=run_id, begun=asked) as port:
            if run_id:
                assert link(server, port).submit(words, tmp_path / "run") == run_id
                continue
            with pytest.raises(RunError, match=f"127.0.0.1:{port} starts no run"):
                link(server, port).submit(words, tmp_path / "run")
    config = {key: value.string for key, value in asked[0].override_config.items()}
    assert config == {"overrides": "seed=1 task.model=mine:make", "output": str(tmp_path / "run")}
    assert "mine.py" in zipfile.ZipFile(BytesIO(asked[0].fab.content)).namelist()


def test_another_program_at_the_port_is_named_as_such(server):
    with superlink() as port, pytest.raises(Unreachable, match=f"another program .* :{port}'"):
        link(server, port).registered()


def test_a_key_that_flower_does_not_take(tmp_path):
    key = tmp_path / "key.pub"
    key.write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGyfVRYSCBmTW2Nq0hAa0gGQBTPRNGQlzmYWD1oTYSJR x\n"
    )
    with pytest.raises(ValueError, match="must hold a key on a NIST curve: Flower takes no other"):
        public_bytes(key)


# -- the table of a run's clients -----------------------------------------------------------------

EVENTS = (
    *(Dispatched(0.0, client, client, 0) for client in range(4)),
    Arrived(5.0, 0, 0, 0, age=0),
    Arrived(5.0, 3, 3, 0, age=0),
    Aggregated(6.0, 1, [0, 3], [0, 3], [0, 0]),
    Dispatched(6.0, 0, 4, 1),
    Failed(9.0, 1, 1, 0, "node vanished"),
    Arrived(10.0, 2, 2, 0, age=1),
    Rejected(11.0),
)


def write(folder, events=EVENTS):
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in events))
    return folder / "events.jsonl"


def test_what_each_client_does(tmp_path):
    table = clients(write(tmp_path / "run"))
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("0", "version 1, under way", "5 s", "1", "0", ""),
        ("1", "version 0, failure", "2 s", "0", "1", "node vanished"),
        ("2", "version 0, arrival", "1 s", "1", "0", ""),
        ("3", "aggregated", "", "1", "0", ""),
    ]
    assert not clients(tmp_path / "none").row_count


def test_the_run_that_goes_on_is_shown_and_not_one_that_has_ended(server, tmp_path, capsys):
    write(server / "run", EVENTS[:3])
    write(tmp_path / "other")
    key = public_bytes(server / "keys" / "node-0.pub")
    config = {"output": Scalar(string=str(tmp_path / "other"))}
    runs = (Run(run_id=1, override_config=config, status=RunStatus(status="running")),)
    with superlink(server, registered=(key, b"x"), runs=runs) as port:
        kit = Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"})
        show_status(kit, None)
        told = capsys.readouterr().out
        assert told.startswith("nodes: ? offline, node-0 offline\n")
        assert "node vanished" in told
        show_status(kit, server / "run")
        assert "node vanished" not in capsys.readouterr().out
        assert SuperLink(kit).online() == 0
