"""Supervised runs, requests to a SuperLink, and the table of clients."""

import json
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.proto.node_pb2 import NodeInfo
from flwr.proto.run_pb2 import Run, RunStatus
from flwr.proto.transport_pb2 import Scalar
from kit_processes import superlink

from fl_app.core.errors import RunError
from fl_app.core.events import Aggregated, Arrived, Dispatched, Evaluated, Failed, Rejected, to_json
from fl_app.field.__main__ import _register
from fl_app.field.control import SuperLink, Unreachable, clients, public_bytes, show_status
from fl_app.field.kit import Kit
from fl_app.field.make import new_kit
from fl_app.field.runs import Supervisor

AWAY = "away"
ACCEPTED = "accepted"


class Scripted:
    """A fake SuperLink with a script: the statuses of each run in turn, and ``away`` in between.

    ``accepted`` means that it has accepted the run, but becomes unreachable before it answers.

    The action of a run on its folder happens as soon as the run is submitted.
    """

    def __init__(self, output, *runs):
        self.output, self._runs = output, list(runs)
        self.submitted = []
        self.paused = []
        self.lines = []
        self._statuses = []
        self.nodes = ["online"]  # the node's status now, later, and so on

    def registered(self):
        return {b"node": self.nodes.pop(0) if len(self.nodes) > 1 else self.nodes[0]}

    def under_way(self, output):
        assert output == self.output
        return (len(self.submitted), self.submitted[-1]) if self._statuses else None

    def submit(self, overrides, output):
        assert output == self.output
        assert not self._statuses, "two runs in one folder"
        if self._runs[0] == AWAY:
            self._runs.pop(0)
            raise Unreachable("nobody answers")
        run = self._runs.pop(0)
        if self._runs[:1] == [ACCEPTED]:
            self._runs.pop(0)
            self._begin(run, overrides)
            raise Unreachable("connection reset")
        return self._begin(run, overrides)

    def _begin(self, run, overrides):
        action, *self._statuses = run
        action(self.output)
        self.submitted.append(list(overrides))
        return len(self.submitted)

    def status(self, run_id):
        assert run_id == len(self.submitted)
        status = self._statuses.pop(0)
        if status == AWAY:
            raise Unreachable("nobody answers")
        return status, "the details" if status == "finished:failed" else ""

    def complete(self, *overrides, **options):
        supervisor = Supervisor(self, pause=self.paused.append, tell=self.lines.append, **options)
        supervisor.complete(overrides, self.output)
        assert supervisor.run_id is None  # nothing is under way
        assert self._runs == []


def nothing(output): ...


def log(output):
    output.mkdir(exist_ok=True)
    with (output / "events.jsonl").open("a") as file:
        file.write(json.dumps(to_json(Evaluated(0.0, 0, {}))) + "\n")


def ends(stopped):
    def end(output):
        log(output)
        (output / "summary.json").write_text(json.dumps({"stopped": stopped}))

    return end


def refuses(output):
    ends("num_versions")(output)  # of an earlier run
    (output / "refused.txt").write_text("task.loss=my:los is unknown")


DONE = (nothing, "starting", "running", "finished:completed")
DIED = (log, "running", "finished:failed")


@pytest.mark.parametrize(
    ("runs", "resumed", "message"),
    [
        ([DIED, (log, "running", "finished:unknown"), DONE], 2, "run 1 is finished:failed: the de"),
        (
            [AWAY, (log, AWAY, AWAY, "finished:failed"), AWAY, DONE],
            1,
            "waiting for the SuperLink: n",
        ),
        # A ServerApp that is asked to end writes a summary, but its run is not complete.
        (
            [(ends("interrupted"), "running", "finished:failed"), DONE],
            1,
            "run 1 is finished:failed",
        ),
        ([DONE, ACCEPTED], 0, "run 1 is under way in "),
    ],
    ids=["server app", "superlink", "interrupted", "accepted"],
)
def test_a_run_is_resumed_whatever_died(tmp_path, runs, resumed, message):
    link = Scripted(tmp_path / "run", *runs)
    link.complete("seed=1")
    assert link.submitted == [["seed=1"], *[["seed=1", "resume=auto"]] * resumed]
    assert any(line.startswith(message) for line in link.lines)
    waits = link.lines.count("waiting for the SuperLink: nobody answers")
    assert waits == 3 * (AWAY in runs)  # one message per outage


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        ((ends("Diverged: not finite"), "finished:failed"), "it ended with Diverged: not finite"),
        ((log, "running", "finished:stopped"), "finished:stopped; the same command goes on"),
        ((refuses, "running", "finished:failed"), "run 1 was refused: task.loss=my:los is unknown"),
    ],
)
def test_a_run_that_ended_or_was_stopped_is_not_submitted_again(tmp_path, run, reason):
    with pytest.raises(RunError, match=reason):
        Scripted(tmp_path / "run", run).complete("resume=auto")


def test_a_run_that_another_process_submitted_is_supervised_and_resumed(tmp_path):
    """For example the same command after Ctrl-C, which ends the command and not the run."""
    link = Scripted(tmp_path / "run", DONE)
    link._begin(DIED, ["seed=1"])
    link.complete("seed=1")
    assert link.submitted == [["seed=1"], ["seed=1", "resume=auto"]]
    assert link.lines[0] == f"run 1 is under way in {tmp_path / 'run'}: no other run is submitted"


def test_a_run_under_way_with_other_overrides_is_left_alone(tmp_path):
    link = Scripted(tmp_path / "run")
    link._begin(DIED, ["seed=1", "resume=auto"])
    text = r"--output=.*/run must be .* run 1 is \(seed=1 instead of seed=2\): two runs would write"
    with pytest.raises(ValueError, match=text):
        link.complete("seed=2")
    assert link.submitted == [["seed=1", "resume=auto"]]


def test_a_log_that_is_cut_and_grows_again_is_no_progress(tmp_path):
    """For example on a full disk: the run resumes from a checkpoint, and ends at the same point."""

    def grows_to(size):
        def grow(output):
            output.mkdir(exist_ok=True)
            (output / "events.jsonl").write_text("x" * size)

        return (grow, "running", "finished:failed")

    link = Scripted(tmp_path / "run", grows_to(100), *map(grows_to, (99, 100, 98)))
    with pytest.raises(RunError, match="3 attempts in a row have made no progress"):
        link.complete()


def test_attempts_that_get_further_are_never_too_many(tmp_path):
    failure = (nothing, "finished:failed")
    link = Scripted(tmp_path / "run", *[failure, failure, DIED] * 3, DONE)
    link.complete()
    waits = [line.split()[-2] for line in link.lines if "again in" in line]
    assert waits == ["10", "20", "5"] * 3  # they start again


def test_a_finished_run_is_not_started_again(tmp_path):
    ends("num_versions")(tmp_path)
    link = Scripted(tmp_path)
    with pytest.raises(ValueError, match=r"--output=.* must be a folder without a finished run"):
        link.complete()


def test_a_run_that_ended_early_resumes_on_request(tmp_path):
    """For example after a full disk was cleared. A resumed run removes the summary at once."""
    ends("RunError: No space left on device")(tmp_path)

    def resume(output):
        (output / "summary.json").unlink()
        log(output)

    link = Scripted(tmp_path, (resume, "running", "finished:failed"), DONE)
    link.complete("resume=auto")
    assert link.submitted == [["resume=auto"]] * 2


def test_a_run_is_not_submitted_before_a_node_is_online(tmp_path):
    """After a power cut the server starts before the boards, and a run waits only a minute."""
    link = Scripted(tmp_path / "run", DIED, DONE)
    # The node is offline between the two submissions.
    link.nodes = ["online", "offline", "offline", "online"]
    link.complete()
    assert link.lines.count("waiting for a node to come online") == 1
    first, resumed = (i for i, line in enumerate(link.lines) if "submitted: " in line)
    assert first < link.lines.index("waiting for a node to come online") < resumed


EVENTS = [
    Evaluated(0.0, 0, {"accuracy": 0.1, "loss": 2.3}),
    *(Dispatched(0.0, client, client, 0, bytes=100) for client in range(4)),
    Arrived(3.0, 0, 0, 0, age=0, loss=0.5, bytes=40),
    Failed(4.0, 1, 1, 0, "deadline passed"),
    Rejected(5.0, 2, 2, 0, "norm=8.91e+06 is above guard.max_norm=10"),
    Dispatched(5.0, 0, 4, 0, bytes=100),
    Aggregated(6.0, 1, [0], [0], [0]),
    Arrived(45.0, 0, 4, 0, age=1, loss=0.4, bytes=40),
    Aggregated(45.0, 2, [0], [4], [1]),
    Dispatched(45.0, 0, 5, 2, bytes=100),
    Arrived(45.5, 0, 5, 2, age=0, loss=0.4, bytes=40),
]


def test_version_score_and_failures_are_printed_every_minute(tmp_path, capsys):
    def begin(output):
        (output / "config.yaml").write_text("num_versions: 40\n")
        (output / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in EVENTS))

    link = Scripted(tmp_path / "run", (begin, *["running"] * 30, "finished:completed"))
    link.complete(wall=lambda: sum(link.paused))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + round(sum(link.paused)) // 60 + 1  # first, each minute, at the end
    assert link.lines.count("the first failure, of client 1: deadline passed") == 1
    assert {*lines} == {"run 1: 2/40 versions 3 updates at 0/min acc 10.0% 1 failed 1 rejected"}


# -- requests to a SuperLink -----------------------------------------------------------------------

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
    """For example a proxy that lets only SuperNodes through."""
    with superlink(server, proxied=True) as port:
        for call in (
            lambda: link(server, port).register(server / "keys" / "node-0.pub"),
            lambda: link(server, port).status(1),
            lambda: link(server, port).submit(["seed=1"], tmp_path / "run"),
        ):
            with pytest.raises(RunError, match=rf"127.0.0.1:{port} refuses: .*403 Forbidden"):
                call()


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
        under_way = link(server, port).under_way
        assert under_way(Path("/data/run")) == (2, ["a", "b=2 c"])
        assert under_way(Path("/data/new")) == (5, ["a", "b=5 c"])
        assert under_way(Path("/data/old")) is under_way(Path("/data")) is None


@pytest.mark.parametrize(("runs", "latest"), [
    ((run(1, "/a", "running"), run(3, "/c", "finished"), run(2, "/b", "finished")), "/a"),
    ((run(1, "/a", "finished"), run(3, "/c", "finished"), run(2, "/b", "finished")), "/c"),
    ((run(7, "", "running"),), "outputs/flower-7"),
])  # fmt: skip
def test_the_folder_of_the_latest_run(server, runs, latest):
    with superlink(server, runs=runs) as port:
        assert link(server, port).latest()[0] == server / latest


def test_a_run_is_submitted_with_the_modules_that_it_names(server, tmp_path):
    (server / "mine.py").write_text("")
    overrides, requests = ["seed=1", "task.model=mine:make"], []
    for run_id in (7, None):  # None = the SuperLink cannot store the app
        with superlink(server, new_run=run_id, start_requests=requests) as port:
            if run_id:
                assert link(server, port).submit(overrides, tmp_path / "run") == run_id
                continue
            with pytest.raises(RunError, match=f"127.0.0.1:{port} starts no run"):
                link(server, port).submit(overrides, tmp_path / "run")
    config = {key: value.string for key, value in requests[0].override_config.items()}
    assert config == {"overrides": "seed=1 task.model=mine:make", "output": str(tmp_path / "run")}
    assert "mine.py" in zipfile.ZipFile(BytesIO(requests[0].fab.content)).namelist()


def test_another_program_at_the_port_is_named_as_such(server):
    with superlink() as port, pytest.raises(Unreachable, match=f"another program .* :{port}'"):
        link(server, port).registered()


ED25519 = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGyfVRYSCBmTW2Nq0hAa0gGQBTPRNGQlzmYWD1oTYSJR x"


def node(server, status):
    return NodeInfo(public_key=public_bytes(server / "keys" / "node-0.pub"), status=status)


def test_a_key_keeps_the_place_of_no_other_one(server, tmp_path, monkeypatch, capsys):
    (key := tmp_path / "node-0.pub").write_text("another's")
    with superlink(server) as port:
        monkeypatch.setenv("SUPERLINK", f"127.0.0.1:{port}")
        with pytest.raises(ValueError, match=r"must be a file of another name: .*node-0\.pub"):
            _register(server, [key])
        for name, text in (("a", "no key"), ("b", ED25519)):
            (server / "keys" / f"{name}.pub").write_text(text)
        assert _register(server, []) == 1
    told = capsys.readouterr()
    assert "a.pub must hold a public key in OpenSSH's format" in told.err
    assert "b.pub must hold a key on a NIST curve: Flower takes no other" in told.err
    assert "node-0 may join" in told.out
    for status, outcome in (("offline", 0), ("unregistered", 1)):
        monkeypatch.setattr(SuperLink, "_nodes", lambda _, s=status: [node(server, s)])
        assert _register(server, [server / "keys" / "node-0.pub"]) == outcome
    assert "never takes it again" in capsys.readouterr().err


# -- the table of a run's clients -----------------------------------------------------------------

LOGGED = (
    *(Dispatched(0.0, client, client, 0) for client in range(4)),
    Arrived(5.0, 0, 0, 0, age=0),
    Arrived(5.0, 3, 3, 0, age=0),
    Aggregated(6.0, 1, [0, 3], [0, 3], [0, 0]),
    Dispatched(6.0, 0, 4, 1),
    Failed(9.0, 1, 1, 0, "node vanished"),
    Arrived(10.0, 2, 2, 0, age=1),
    Rejected(11.0),
)


def write(folder, events=LOGGED):
    folder.mkdir(exist_ok=True)
    (folder / "events.jsonl").write_text("".join(json.dumps(to_json(e)) + "\n" for e in events))
    return folder / "events.jsonl"


@pytest.mark.parametrize(("under_way", "state"), [(True, "under way"), (False, "not aggregated")])
def test_the_table_of_clients(tmp_path, under_way, state):
    table = clients(write(tmp_path / "run"), under_way=under_way)
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("0", f"version 1, {state}", "5 s", "1", "0", ""),
        ("1", "version 0, failure", "2 s", "0", "1", "node vanished"),
        ("2", "version 0, arrival", "1 s", "1", "0", ""),
        ("3", "aggregated", "", "1", "0", ""),
    ]
    assert not clients(tmp_path / "none").row_count


def test_the_status_shows_the_running_run_and_not_an_ended_one(server, tmp_path, capsys):
    write(server / "run", LOGGED[:3])
    write(tmp_path / "other")
    key = public_bytes(server / "keys" / "node-0.pub")
    config = {"output": Scalar(string=str(tmp_path / "other"))}
    runs = (Run(run_id=1, override_config=config, status=RunStatus(status="running")),)
    with superlink(server, registered=(key, b"x"), runs=runs) as port:
        kit = Kit.read(server, {"SUPERLINK": f"127.0.0.1:{port}"})
        show_status(kit, None)
        output = capsys.readouterr().out
        assert output.startswith("nodes: ? offline (0), node-0 online (0)\nrun 1: running\n")
        assert "node vanished" in output
        show_status(kit, server / "run")
        assert "node vanished" not in capsys.readouterr().out
