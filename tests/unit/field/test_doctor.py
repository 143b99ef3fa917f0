import os
import socket
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from fake_superlink import superlink

from fl_app.field import checks, doctor
from fl_app.field.certificates import new_server
from fl_app.field.checks import Finding, Verdict
from fl_app.field.control import public_bytes
from fl_app.field.doctor import (
    of_files,
    of_network,
    of_settings,
    order_time,
    seconds_ahead,
    show,
)
from fl_app.field.health import healthy
from fl_app.field.kit import Kit, new_kit
from fl_app.flower import private


@pytest.fixture
def out(tmp_path) -> Path:
    new_kit(tmp_path / "out", nodes=2, hosts=["127.0.0.1"])
    return tmp_path / "out"


def read(folder: Path, **environment: object) -> Kit:
    return Kit.read(folder, {key: str(value) for key, value in environment.items()})


def wrong(findings) -> set[str]:
    return {finding.subject for finding in findings if finding.verdict is Verdict.WRONG}


def keys(out: Path) -> tuple[bytes, ...]:
    return tuple(public_bytes(path) for path in (out / "server" / "keys").iterdir())


# -- the network ----------------------------------------------------------------------------------


def seen_from(folder: Path, port: int, host: str = "127.0.0.1") -> set[str]:
    address = f"{host}:{port}"
    return wrong(of_network(address, read(folder, SUPERLINK=address)))


@pytest.mark.parametrize("name", ["server", "node-1"])
def test_nothing_is_wrong_with_a_sound_superlink(out, name):
    with superlink(out / "server", registered=keys(out)) as port:
        address = f"127.0.0.1:{port}"
        findings = list(of_network(address, read(out / name, SUPERLINK=address)))
    left = {finding.subject for finding in findings if finding.verdict is not Verdict.GOOD}
    assert left <= {"strangers"}  # nobody on this machine is one
    assert not wrong(findings)
    registered = [finding for finding in findings if "registered" in finding.subject]
    assert len(registered) == (2 if name == "server" else 1)
    assert registered[0].text == "yes, and offline"


def test_a_port_where_nobody_listens(out):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        assert seen_from(out / "node-0", probe.getsockname()[1]) == {"SuperLink"}


def test_a_certificate_for_another_name(out):
    """Flower's own client refuses it, too, so that nobody knows whether the key is registered."""
    (out / "server" / "server.crt").unlink()
    (out / "server" / "server.key").unlink()
    new_server(out / "ca", out / "server", ["server.lan"], days=100)
    with superlink(out / "server", registered=keys(out)) as port:
        assert seen_from(out / "node-0", port) == {"certificate's names"}


def test_a_certificate_about_to_expire(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"], days=20)
    with superlink(tmp_path / "out" / "server", registered=keys(tmp_path / "out")) as port:
        assert seen_from(tmp_path / "out" / "node-0", port) == {"certificate"}


def test_a_folder_of_another_kit(out, tmp_path):
    new_kit(tmp_path / "other", nodes=1, hosts=["127.0.0.1"])
    with superlink(out / "server", registered=keys(out)) as port:
        assert seen_from(tmp_path / "other" / "node-0", port) == {"certificate's issuer"}


def test_a_node_that_is_not_registered(out):
    with superlink(out / "server", registered=keys(out)[:1]) as port:
        assert len(seen_from(out / "server", port)) == 1


def test_a_clock_that_is_ahead(out):
    with superlink(out / "server", registered=keys(out), late=60.0) as port:
        assert seen_from(out / "node-0", port) == {"clock"}


def test_another_flower_on_the_server(out):
    with superlink(out / "server", registered=keys(out), version="1.40.0") as port:
        assert seen_from(out / "node-0", port) == {"Flower, server"}


def test_another_program_on_the_server(out):
    with superlink(out / "server", status=404) as port:
        assert seen_from(out / "node-0", port) == {"SuperLink"}


def test_a_proxy_that_lets_only_supernodes_through(out):
    with superlink(out / "server", registered=keys(out), proxied=True) as port:
        address = f"127.0.0.1:{port}"
        findings = list(of_network(address, read(out / "node-0", SUPERLINK=address)))
    told = {finding.subject: finding.verdict for finding in findings}
    assert Verdict.WRONG not in told.values()
    assert told["Flower, server"] is told["node registered"] is Verdict.UNKNOWN


@pytest.fixture
def elsewhere(monkeypatch) -> None:
    """This machine's loopback addresses count as those of another one."""
    monkeypatch.setattr(doctor, "is_loopback", lambda host: False)


@pytest.mark.usefixtures("elsewhere")
def test_an_open_port_is_wrong(out):
    with superlink(out / "server", registered=keys(out)) as port:
        assert seen_from(out / "node-0", port) == {"strangers"}
        address = f"127.0.0.1:{port}"
        opened = read(out / "node-0", SUPERLINK=address)
        opened = replace(opened, settings={**opened.settings, "CONTROL": "open"})
        assert wrong(of_network(address, opened)) == set()


@pytest.mark.usefixtures("elsewhere")
def test_a_gate_tells_a_device_what_it_knows_and_strangers_nothing(out):
    with superlink(out / "server", registered=keys(out), gate="online") as port:
        address = f"127.0.0.1:{port}"
        findings = list(of_network(address, read(out / "node-0", SUPERLINK=address)))
    assert {finding.verdict for finding in findings} == {Verdict.GOOD}
    told = {finding.subject: finding.text for finding in findings}
    assert told["strangers"] == f"{address} is closed to them: it refuses control calls"
    assert told["node registered"] == "yes, and online"
    with superlink(out / "server", gate="") as port:
        assert seen_from(out / "node-0", port) == {"node registered"}


def test_the_server_tries_from_an_address_of_its_own(out, monkeypatch):
    """Where it has one, and where it does not listen at it alone."""
    entry = SimpleNamespace(family=socket.AF_INET, address="127.0.0.9")
    ours = SimpleNamespace(family=socket.AF_INET, address="127.0.0.1")
    monkeypatch.setattr(doctor.psutil, "net_if_addrs", lambda: {"lo": [ours], "eth0": [entry]})
    monkeypatch.setattr(doctor, "is_loopback", lambda host: host == "127.0.0.1")
    with superlink(out / "server", registered=keys(out)) as port:
        kit = read(out / "server", SUPERLINK=f"127.0.0.1:{port}")
        (found,) = [f for f in of_network(kit.address, kit) if f.subject == "strangers"]
        assert found.text == f"nobody listens at 127.0.0.9:{port}"
        kit = read(out / "server", SUPERLINK=f"127.0.0.1:{port}", BIND="127.0.0.9")
        (found,) = [f for f in of_network(kit.address, kit) if f.subject == "strangers"]
        assert found.verdict is Verdict.UNKNOWN


def test_tls_on_one_side_only(out, tmp_path):
    with superlink(None) as port:
        assert seen_from(out / "node-0", port) == {"TLS"}
    new_kit(tmp_path / "plain", nodes=1, hosts=["127.0.0.1"], insecure=True)
    with superlink(out / "server") as port:
        assert seen_from(tmp_path / "plain" / "node-0", port) == {"TLS"}
    with superlink(None) as port:
        assert seen_from(tmp_path / "plain" / "node-0", port) == set()


def test_an_address_without_a_folder(out):
    with superlink(out / "server") as port:
        subjects = {finding.subject for finding in of_network(f"127.0.0.1:{port}", None)}
    assert subjects == {"SuperLink", "clock", "Flower, server"}


def test_seconds_ahead():
    """The server's fraction of a second is cut off, so that half a second is the best guess."""
    date = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
    before = date + timedelta(seconds=10.0)
    assert seconds_ahead(before, before + timedelta(seconds=1.0), date) == 10.0
    assert seconds_ahead(before, before, None) is None


# -- folders --------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_a_new_folder(out):
    for name in ("server", "node-0"):
        assert wrong(of_files(read(out / name))) == set()
        assert wrong(of_settings(read(out / name), training_time=20.0)) == set()


def fast_way(kit: Kit) -> Finding | None:
    found = [f for f in of_settings(kit, None) if f.subject == "fast way"]
    return found[0] if found else None


def test_the_fast_way_of_a_server(out, monkeypatch):
    assert fast_way(read(out / "server")) is None
    monkeypatch.setattr(private, "PULLS", ("pull_trees",))
    finding = fast_way(read(out / "server"))
    assert finding.verdict is Verdict.UNKNOWN
    assert "off: " in finding.text
    assert "pull_trees" in finding.text


def test_files_that_got_lost_or_public(out):
    (out / "node-0" / "ca.crt").write_text("nothing")
    (out / "node-0" / "node.key").chmod(0o644)
    assert wrong(of_files(read(out / "node-0"))) == {"authority", "node.key"}
    (out / "node-1" / "node.key").unlink()
    assert wrong(of_files(read(out / "node-1"))) == {"node.key", "node's key"}
    (out / "server" / "server.key").unlink()
    assert wrong(of_files(read(out / "server"))) == {"server.key"}


def test_settings_of_a_node_that_trip_it_up(out):
    kit = read(
        out / "node-0",
        NODE_CONFIG="partition-id=9 num-partitions=2",
        FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=0,
    )
    assert wrong(of_settings(kit, None)) == {"partition", "Flower's installations"}


def test_a_port_that_another_program_has(out, monkeypatch):
    monkeypatch.chdir(out / "node-0")  # whose node this process stands for
    with superlink(None, status=404) as port:  # answers, but not as Flower does
        assert wrong(of_settings(read(out / "node-0", PORT=port), None)) == {f"port {port}"}
    with superlink(None) as port:
        assert wrong(of_settings(read(out / "node-0", PORT=port), None)) == set()
        (found,) = of_port(read(out / "node-1", PORT=port))
        assert found.verdict is Verdict.WRONG
        assert f"process {os.getpid()}, of {out / 'node-0'}" in found.text
        listed = [each._replace(pid=None) for each in psutil.net_connections("tcp")]
        monkeypatch.setattr(psutil, "net_connections", lambda kind: listed)
        (found,) = of_port(read(out / "node-0", PORT=port))
        assert found.verdict is Verdict.UNKNOWN  # another user's


def of_port(kit: Kit) -> list[Finding]:
    return [each for each in of_settings(kit, None) if each.subject.startswith("port ")]


@pytest.mark.parametrize("place", ["nowhere", "/proc", "node.env"])
def test_a_folder_for_state_that_cannot_be_written_to(out, tmp_path, place):
    config = "partition-id=0 num-partitions=2"
    good = read(out / "node-0", NODE_CONFIG=f"{config} state-dir='{tmp_path}'")
    assert wrong(of_settings(good, None)) == set()
    bad = read(out / "node-0", NODE_CONFIG=f"{config} state-dir='{place}'")
    assert wrong(of_settings(bad, None)) == {"state-dir"}


def test_overrides_that_trip_a_run_up(out):
    def found(overrides: str, training_time: float | None = None) -> set[str]:
        settings = {"OVERRIDES": f"checkpoint_every=1 {overrides}"}
        return wrong(of_settings(read(out / "server", **settings), training_time))

    assert found("algorithm=fedbuff deadline=600") == set()
    assert found("deadline=600 checkpoint_every=null") == {"checkpoints"}
    assert found("algorithm=fedbuff") == {"deadline"}  # none
    assert found("deadline=30") == {"heartbeat"}
    assert found("deadline=100", training_time=71.0) == {"deadline"}
    assert found("deadlin=600") == {"run"}


def test_time_of_an_order_is_known_from_an_earlier_run(tmp_path):
    assert order_time(tmp_path, None) is None
    (tmp_path / "devices.csv").write_text("client,order,start,seconds\n0,0,0,12.5\n1,0,0,31.0\n")
    assert order_time(tmp_path, None) == 31.0
    assert order_time(tmp_path, 50.0) == 50.0 + checks.EXCHANGE


def test_healthy(out):
    with superlink(out / "server") as port:
        assert healthy(read(out / "server", SUPERLINK=f"127.0.0.1:{port}"))
        assert not healthy(read(out / "node-0", PORT=port))  # speaks TLS, which nodes do not here
    with superlink(None) as port:
        assert healthy(read(out / "node-0", PORT=port))
    assert not healthy(read(out / "node-0", PORT=port))  # nobody is there any more
    with superlink(None, status=503) as port:
        assert not healthy(read(out / "node-0", PORT=port))


# -- the table ------------------------------------------------------------------------------------


def test_table_says_what_is_wrong_and_fails(capsys):
    sound = checks.good("Python", "3.11")
    broken = checks.wrong("disk", "full", "empty it")
    assert show([sound, broken, broken]) == 1
    told = capsys.readouterr().out
    assert "WRONG" in told
    assert "empty it" in told
    assert told.endswith("2 wrong\n")


def test_table_of_a_sound_machine_succeeds(capsys):
    assert show([checks.good("Python", "3.11"), checks.unknown("clock", "not told")]) == 0
    assert capsys.readouterr().out.endswith("nothing wrong\n")
