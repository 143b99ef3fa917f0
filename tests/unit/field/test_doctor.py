"""Findings of doctor: in sound folders, and for common mistakes."""

import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
import torch
from helpers import AGE, make_config, schema, status_of
from kit_processes import free_ports, superlink

from fl_app.field import doctor, make
from fl_app.field.__main__ import main as field
from fl_app.field.control import AHEAD, BEHIND, OFFLINE_AFTER, public_bytes
from fl_app.field.doctor import Finding, examine, show
from fl_app.field.kit import Kit
from fl_app.field.make import add_helper, new_certificate, new_kit


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE", "print('a version')")  # to import torch takes long
    new_kit(tmp_path / "out", nodes=2, hosts=["127.0.0.1"])
    return tmp_path / "out"


def read(folder, **environment):
    return Kit.read(folder, {key: str(value) for key, value in environment.items()})


def faults(findings):
    result = {finding.subject: finding for finding in findings if finding.good is False}
    assert all(finding.mend for finding in result.values())
    return result


def keys(out):
    return tuple(public_bytes(path) for path in (out / "server" / "keys").iterdir())


# -- the network ----------------------------------------------------------------------------------


def network_faults(folder, port, **more):
    return faults(doctor.of_network(read(folder, SUPERLINK=f"127.0.0.1:{port}", **more), None))


def certify(out, host):
    for name in ("server.crt", "server.key"):
        (out / "server" / name).unlink()
    new_certificate(out / "ca", out / "server", "server", [host])


def test_a_sound_server_with_an_offline_node_has_no_fault(out):
    with (
        superlink(out / "server", registered=keys(out)) as port,
        superlink(out / "server", registered=keys(out), proxied=True) as outer,
    ):
        for name, target, offline in (("server", port, 1), ("node-1", outer, 0)):
            kit = read(out / name, SUPERLINK=f"127.0.0.1:{target}", PORT=outer)
            verdicts = [each.good for each in doctor.of_network(kit, None)]
            assert (verdicts.count(None), verdicts.count(False)) == (offline, 0), name


def test_a_server_that_cannot_be_reached_or_trusted(out, tmp_path):
    for name in ("server", "node-0"):
        wrong = network_faults(out / name, free_ports(1)[0])
        assert wrong.keys() == {"server"}
        assert "fl-superlink" in wrong["server"].mend
    new_kit(tmp_path / "other", nodes=1, hosts=["127.0.0.1"])
    with superlink(out / "server", proxied=True) as port:
        other = network_faults(tmp_path / "other" / "node-0", port)
        assert "copy ca.crt of the kit" in other["server"].mend
    with superlink(None, proxied=True) as port:
        assert "another program" in network_faults(out / "node-0", port)["server"].mend
    with superlink(out / "server", status=502) as port:
        wrong = network_faults(out / "node-0", port)
        assert "the SuperLink behind it does not" in wrong["server"].text
    certify(out, "server.lan")
    with superlink(out / "server", proxied=True) as port:
        wrong = network_faults(out / "node-0", port)
        assert "not valid for '127.0.0.1'" in wrong["server"].text
    wrong = faults(doctor.of_network(read(out / "node-0", SUPERLINK="nowhere.invalid:1"), None))
    assert "/etc/hosts" in wrong["server"].mend


def test_a_port_that_is_open_to_strangers(out, monkeypatch):
    """The SuperLink itself can be reached under an address other than this machine's loopback."""
    resolve = socket.getaddrinfo
    names = ("server.lan", b"server.lan")
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *more, **options: resolve(
            "127.0.0.1" if host in names else host, *more, **options
        ),
    )
    certify(out, "server.lan")
    with superlink(out / "server", registered=keys(out)) as port:
        wrong = faults(
            doctor.of_network(read(out / "node-0", SUPERLINK=f"server.lan:{port}"), None)
        )
        assert wrong.keys() == {"strangers"}
        assert "can run code everywhere" in wrong["strangers"].text
        assert "strangers" not in network_faults(out / "server", port, PORT=port)


def test_a_server_without_caddy_and_with_a_key_that_is_not_registered(out):
    with superlink(out / "server", registered=keys(out)[:1]) as port:
        wrong = network_faults(out / "server", port, PORT=free_ports(1)[0])
        assert len(wrong) == 2
        assert "fl-caddy" in wrong.pop("strangers").mend
        assert "code 2004" in wrong.popitem()[1].text


def test_a_clock_that_is_ahead(out):
    """The server's date has whole seconds, so half a second is the best guess of the rest."""
    with superlink(out / "server", lag=60.0, registered=keys(out), proxied=True) as port:
        assert network_faults(out / "node-0", port).keys() == {"clock"}
    date = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
    before = date + timedelta(seconds=10.0)
    finding = doctor.of_clock(before, before + timedelta(seconds=1.0), date)
    assert finding.text.startswith("10 s ahead of the server's")
    verdicts = []
    for ahead in (AHEAD - 1, AHEAD + 1, 1 - BEHIND, -1 - BEHIND):
        now = date + timedelta(seconds=ahead + 0.5)
        verdicts.append(doctor.of_clock(now, now, date).good)
    assert verdicts == [True, False] * 2


# -- folders --------------------------------------------------------------------------------------


def test_files_that_are_missing_public_or_expired(out, tmp_path, monkeypatch):
    def subjects(folder):
        return set(faults(doctor.of_files(read(folder), None)))

    assert subjects(out / "server") == subjects(out / "node-0") == set()
    (out / "node-0" / "ca.crt").write_text("nothing")
    (out / "node-0" / "node.key").chmod(0o644)
    (out / "node-0" / "node.key").write_text("nothing")
    assert subjects(out / "node-0") == {"ca.crt", "node.key", "key"}
    (out / "server" / "server.key").unlink()
    assert subjects(out / "server") == {"server.key"}
    monkeypatch.setattr(make, "LIFE", timedelta(days=20))
    new_kit(tmp_path / "old", nodes=1, hosts=["127.0.0.1"])
    assert subjects(tmp_path / "old" / "server") == {"ca.crt", "server.crt"}


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ("partition-id=1 num-partitions=2 state-dir=STATE", None),
        *(
            (settings, "partition")
            for settings in ("partition-id=9 num-partitions=2", "num-partitions=2", "")
        ),
        ("partition-id=0 num-partitions=2 statedir=/tmp", "settings"),
        ("partition-id=0 num-partitions=2 state-dir='/nowhere'", "state-dir"),
        ("partition-id=0 num-partitions=2 state-dir='/nowhere", "partition"),
    ],
)
def test_a_partition_or_a_folder_that_does_not_exist(out, settings, wrong):
    (out / "my state").mkdir(exist_ok=True)
    settings = settings.replace("STATE", f"'{out / 'my state'}'")
    result = faults(doctor.of_node(read(out / "node-0", NODE_CONFIG=settings), None))
    assert set(result) == {wrong} - {None}


def test_a_port_that_another_program_holds(out, monkeypatch):
    (free,) = free_ports(1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        subjects = [*faults(doctor.of_ports(read(out / "node-0", PORT=port), None))]
        link = read(out / "server", SUPERLINK=f"127.0.0.1:{port}", PORT=free)
        assert subjects == [*faults(doctor.of_ports(link, None))] == [f"port {port}"]
        with monkeypatch.context() as patch:  # the process has just ended
            patch.setattr(psutil.Process, "environ", Mock(side_effect=psutil.NoSuchProcess(1)))
            (finding,) = doctor.of_ports(read(out / "node-0", PORT=port), None)
        assert finding.good is None
    link, free = free_ports(2)
    kit = read(out / "server", SUPERLINK=f"127.0.0.1:{link}", PORT=free)
    assert not faults(doctor.of_ports(kit, None))


NODES_OWN = "task=csv task.schema=a.json"  # in the server's folder


@pytest.mark.parametrize(
    ("overrides", "wrong"),
    [
        ("deadline=600 checkpoint_every=1", None),
        ("deadline=600", "checkpoints"),
        ("checkpoint_every=1", "deadline"),  # none
        (f"checkpoint_every=1 deadline={OFFLINE_AFTER - 1}", "deadline"),
        *((word, "run") for word in ("deadlin=600", "task.holdout=10", "task=csv task.schema=x")),
        (f"deadline=600 checkpoint_every=1 {NODES_OWN}", "scores"),
        (f"deadline=600 checkpoint_every=1 {NODES_OWN} client_eval_every=9", None),
    ],
)
def test_overrides_that_would_fail_a_run(out, overrides, wrong):
    (out / "server" / "a.json").write_text(json.dumps(SCHEMA))
    result = faults(examine(read(out / "server"), overrides.split()))
    assert result.keys() & {"run", "checkpoints", "deadline", "scores"} == {wrong} - {None}


@pytest.mark.parametrize(
    ("probe", "verdict", "text"),
    [
        ("import os; os.kill(os.getpid(), 4)", False, "Illegal instruction: every order would"),
        ("raise ImportError('no libcudart')", False, "ImportError: no libcudart"),
        (doctor.PROBE, True, torch.__version__),
    ],
)
def test_a_torch_that_cannot_compute(out, monkeypatch, probe, verdict, text):
    monkeypatch.setattr(doctor, "PROBE", probe)
    (finding,) = doctor.of_torch(read(out / "node-0"), None)
    assert finding.good == verdict
    assert text in finding.text


def test_the_table_of_findings(capsys):
    findings = [
        Finding("disk", True, "9 GiB", "free it"),
        Finding("port", False, "taken", "end it"),
    ]
    assert show(findings) == 1
    output = capsys.readouterr().out
    assert "WRONG" in output
    assert "end it" in output
    assert "free it" not in output
    assert output.endswith("1 wrong\n")
    assert show(findings[:1]) == 0
    assert capsys.readouterr().out.endswith("nothing wrong\n")


# -- a device's own data --------------------------------------------------------------------------

SCHEMA = schema(AGE, outputs=("no", "perhaps", "yes"))


def table(folder, *rows):
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    path = folder / "a.csv"
    path.write_text("\n".join(["age,ill", *rows]) + "\n")
    return path


@pytest.mark.parametrize(
    ("rows", "verdict", "text"),
    [
        (["30,yes", "40,no"] * 5, True, "8 to train on, 2 kept for validation"),
        ([], False, "a.csv has no rows: there are no data"),
        (["30,yes"], False, "too few: there are 1, and a client needs at least 2"),
        (["30,yes", "40,maybe"], False, "maybe"),
        (["30,yes", "forty,no"], False, "forty"),
    ],
)
def test_findings_about_a_devices_data(tmp_path, monkeypatch, rows, verdict, text):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = table(tmp_path, *rows)
    run = make_config("task=csv", f"task.schema={tmp_path}/schema.json", "task.holdout=0.2")
    _, finding = doctor.of_data(str(data), run)
    assert (finding.subject, finding.good) == ("examples", verdict)
    assert text in finding.text


@pytest.mark.parametrize(
    ("ages", "message"),
    [
        ((1100, 1800), "age: 1100 to 1800 here, and 50 with the deviation 20 in the schema"),
        ((50, -999), "age: -999 to 50 here"),
        ((49, 49.1), "age: 49 to 49.1 here"),
        ((90, 90), None),  # constant, but a usual value
        ((90,) * 21, "age: 90 to 90 here"),
    ],
)
def test_a_column_in_other_units_is_asked_about(tmp_path, monkeypatch, caplog, ages, message):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = table(tmp_path, *(f"{age},yes" for age in ages))
    run = make_config("task=csv", f"task.schema={tmp_path}/schema.json")
    _, _, *findings = doctor.of_data(str(data), run)
    assert [each.good for each in findings] == [None] * bool(message)
    assert all(each.text.startswith(message) and each.text in caplog.text for each in findings)


def test_a_gap_that_the_schema_refuses_is_not_answered_with_a_key(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    run = make_config("task=csv", f"task.schema={tmp_path}/schema.json")
    _, finding = doctor.of_data(str(table(tmp_path, "30,yes", ",no")), run)
    assert "column 'age' has no value" in finding.text
    assert "task.missing" not in finding.text


def test_data_that_cannot_be_read_or_are_hidden(tmp_path):
    for path, text in (
        (str(tmp_path / "none"), "none does not exist"),
        ("relative/a.csv", "is no absolute path"),
        ("/srv/it's", "has a quote in it"),
    ):
        (finding,) = doctor.of_data(path, None)
        assert finding.good is False
        assert text in finding.text
    data, examples = doctor.of_data("/etc/hostname", None)
    assert (data.good, examples.good) == (True, None)
    assert "doctor FOLDER task=csv task.schema=FILE" in examples.mend
    data, _ = doctor.of_data("/tmp", None)  # a service has its own /tmp
    assert data.good is None
    _, examples = doctor.of_data(str(table(tmp_path, "30,yes")), make_config("task=digits"))
    assert "fl_app.tasks.images.Digits reads no data of a node's own" in examples.text


def test_the_doctor_looks_into_the_data_of_a_device(out, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    data = table(tmp_path, *["30,yes", "40,no"] * 5)
    kit = read(out / "node-0", DATA=data, NODE_CONFIG="partition-id=9", WARM="yes")
    overrides = ["task=csv", f"task.schema={tmp_path}/schema.json", "task.holdout=0.2"]
    verdicts = {each.subject: each.good for each in examine(kit, overrides)}
    expected = {"settings": False, "partition": True, "data": None, "examples": True}
    assert verdicts.items() >= expected.items()
    assert "run" not in verdicts
    empty = {each.subject: each for each in examine(read(out / "node-0"), overrides)}
    assert (empty["data"].good, "DATA is empty" in empty["data"].text) == (False, True)
    for word, message in (("task=cvs", "does not exist; did"), ("num_clients=0", "must be an int")):
        wrong, *_ = examine(kit, [word])
        assert (wrong.subject, wrong.good) == ("run", False)
        assert f"{word} {message}" in wrong.text


def test_a_helpers_folder_is_sound_and_its_settings_hold(tmp_path, monkeypatch):
    new_kit(tmp_path / "out", nodes=6, hosts=["localhost"])
    kit = read(add_helper(tmp_path / "out", ["localhost"], port=9001))
    assert {each.good for each in examine(kit)} == {True}
    monkeypatch.setattr("fl_app.secure.service.configured", service := Mock())
    monkeypatch.setattr("uvicorn.Server", Mock())
    assert status_of(field, "helper", kit.folder) == 0
    service.assert_called_once_with(kit.folder, "0.0.0.0", 9001, 3)


# -- health ---------------------------------------------------------------------------------------


def test_a_process_is_healthy_if_it_answers_with_200_and_without_a_proxy(out, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    def device(port):
        return Kit(Path("/nowhere"), "node", {"SUPERLINK": "server:8100", "PORT": str(port)})

    with superlink(out / "server") as port:
        assert read(out / "server", SUPERLINK=f"127.0.0.1:{port}").healthy()
        assert not device(port).healthy()  # it uses TLS, which the health check of nodes does not
    with superlink() as port:
        assert device(port).healthy()
    assert not device(port).healthy()
    with superlink(status=404) as port:
        assert not device(port).healthy()
    assert not device("no port").healthy()
