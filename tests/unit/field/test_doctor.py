"""What doctor finds: with what is sound, and with what trips people up."""

import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fake_superlink import superlink

from fl_app.field.certificates import new_certificate
from fl_app.field.control import AHEAD, BEHIND, OFFLINE_AFTER, public_bytes
from fl_app.field.doctor import (
    check_clock,
    check_deadline,
    check_torch,
    examine,
    of_files,
    of_network,
    of_settings,
    order_time,
    seconds_ahead,
)
from fl_app.field.findings import Finding, Verdict, good, show, unknown, wrong
from fl_app.field.kit import Kit, new_kit
from fl_app.field.loopback import free_ports


@pytest.fixture
def out(tmp_path) -> Path:
    new_kit(tmp_path / "out", nodes=2, hosts=["127.0.0.1"])
    return tmp_path / "out"


def read(folder: Path, **environment: object) -> Kit:
    return Kit.read(folder, {key: str(value) for key, value in environment.items()})


def faults(findings) -> dict[str, Finding]:
    found = {finding.subject: finding for finding in findings if finding.verdict is Verdict.WRONG}
    assert all(finding.mend for finding in found.values())
    return found


def keys(out: Path) -> tuple[bytes, ...]:
    return tuple(public_bytes(path) for path in (out / "server" / "keys").iterdir())


# -- the network ----------------------------------------------------------------------------------


def seen_from(folder: Path, port: int, **more: object) -> dict[str, Finding]:
    return faults(of_network(read(folder, SUPERLINK=f"127.0.0.1:{port}", **more)))


def test_nothing_is_wrong_with_a_sound_server(out):
    with (
        superlink(out / "server", registered=keys(out)) as port,
        superlink(out / "server", proxied=True) as outer,
    ):
        for name, reached in (("server", port), ("node-1", outer)):
            kit = read(out / name, SUPERLINK=f"127.0.0.1:{reached}")
            if name == "server":
                kit.settings["PORT"] = str(outer)
            assert {finding.verdict for finding in of_network(kit)} == {Verdict.GOOD}, name


@pytest.mark.parametrize("name", ["server", "node-0"])
def test_a_port_where_nobody_listens(out, name):
    found = seen_from(out / name, free_ports(1)[0])
    assert found.keys() == {"server"}
    assert "fl-superlink" in found["server"].mend


def test_certificates_that_are_not_believed(out, tmp_path):
    new_kit(tmp_path / "other", nodes=1, hosts=["127.0.0.1"])
    with superlink(out / "server", proxied=True) as port:
        found = seen_from(tmp_path / "other" / "node-0", port)
    assert "copy ca.crt of the kit" in found["server"].mend
    (out / "server" / "server.crt").unlink()
    (out / "server" / "server.key").unlink()
    new_certificate(out / "ca", out / "server", "server", ["server.lan"], days=100)
    with superlink(out / "server", proxied=True) as port:
        found = seen_from(out / "node-0", port)
    assert "not valid for '127.0.0.1'" in found["server"].text


def test_tls_on_one_side_only(out, tmp_path):
    with superlink(None, proxied=True) as port:
        assert seen_from(out / "node-0", port).keys() == {"server"}
    new_kit(tmp_path / "plain", nodes=1, hosts=["127.0.0.1"], insecure=True)
    with superlink(out / "server", proxied=True) as port:
        assert seen_from(tmp_path / "plain" / "node-0", port).keys() == {"server"}
    with superlink(None, proxied=True) as port:
        assert not seen_from(tmp_path / "plain" / "node-0", port)


def test_a_name_that_is_unknown(out):
    found = faults(of_network(read(out / "node-0", SUPERLINK="nowhere.invalid:1")))
    assert "/etc/hosts" in found["server"].mend


def test_a_superlink_that_is_down_behind_caddy(out):
    with superlink(out / "server", status=502) as port:
        found = seen_from(out / "node-0", port)
    assert "the SuperLink behind it does not" in found["server"].text


def test_a_port_that_is_open_to_strangers(out, monkeypatch):
    """Where the SuperLink itself is reached under an address that is not this machine's own."""
    monkeypatch.setattr(socket, "getaddrinfo", _to_this_machine(socket.getaddrinfo))
    (out / "server" / "server.crt").unlink()
    (out / "server" / "server.key").unlink()
    new_certificate(out / "ca", out / "server", "server", ["server.lan"], days=100)
    with superlink(out / "server") as port:
        (found,) = faults(of_network(read(out / "node-0", SUPERLINK=f"server.lan:{port}"))).values()
        assert "can run code everywhere" in found.text
        here = list(of_network(read(out / "server", SUPERLINK=f"127.0.0.1:{port}", PORT=port)))
    assert not [finding for finding in here if "run code" in finding.text]


def _to_this_machine(resolve):
    return lambda host, *more, **options: resolve(
        "127.0.0.1" if host in ("server.lan", b"server.lan") else host, *more, **options
    )


def test_a_server_without_caddy_and_with_a_key_that_is_not_registered(out):
    with superlink(out / "server", registered=keys(out)[:1]) as port:
        found = seen_from(out / "server", port, PORT=free_ports(1)[0])
    assert len(found) == 2
    assert "fl-caddy" in found.pop("strangers").mend
    assert "code 2004" in found.popitem()[1].text


def test_a_clock_that_is_ahead(out):
    with superlink(out / "server", late=60.0, proxied=True) as port:
        assert seen_from(out / "node-0", port).keys() == {"clock"}


def test_seconds_ahead():
    """The server's fraction of a second is cut off, so that half a second is the best guess."""
    date = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
    before = date + timedelta(seconds=10.0)
    assert seconds_ahead(before, before + timedelta(seconds=1.0), date) == 10.0
    verdicts = [check_clock(s).verdict for s in (AHEAD - 1, AHEAD + 1, 1 - BEHIND, -1 - BEHIND)]
    assert verdicts == [Verdict.GOOD, Verdict.WRONG] * 2


# -- folders --------------------------------------------------------------------------------------


def test_nothing_is_wrong_with_a_new_folder(out):
    for name in ("server", "node-0"):
        assert not faults(of_files(read(out / name)))
        assert not faults(of_settings(read(out / name)))


def test_files_that_got_lost_or_public_or_old(out, tmp_path):
    (out / "node-0" / "ca.crt").write_text("nothing")
    (out / "node-0" / "node.key").chmod(0o644)
    assert faults(of_files(read(out / "node-0"))).keys() == {"ca.crt", "node.key"}
    (out / "server" / "server.key").unlink()
    assert faults(of_files(read(out / "server"))).keys() == {"server.key"}
    new_kit(tmp_path / "old", nodes=1, hosts=["127.0.0.1"], days=20)
    assert faults(of_files(read(tmp_path / "old" / "server"))).keys() == {"ca.crt", "server.crt"}


@pytest.mark.parametrize("words", ["partition-id=9 num-partitions=2", "partition-id=0", "", "x"])
def test_a_partition_that_does_not_exist(out, words):
    assert faults(of_settings(read(out / "node-0", NODE_CONFIG=words))).keys() == {"partition"}


def test_overrides_that_trip_a_run_up(out):
    def found(overrides: str) -> set[str]:
        settings = {"OVERRIDES": f"checkpoint_every=1 {overrides}"}
        return set(faults(of_settings(read(out / "server", **settings))))

    assert found("algorithm=fedbuff deadline=600") == set()
    assert found("deadline=600 checkpoint_every=null") == {"checkpoints"}
    assert found("algorithm=fedbuff") == {"deadline"}  # none
    assert found("deadlin=600") == {"run"}


@pytest.mark.parametrize(("deadline", "order", "verdict"), [
    (600.0, None, Verdict.GOOD), (600.0, 599.0, Verdict.GOOD), (600.0, 601.0, Verdict.WRONG),
    (None, None, Verdict.WRONG), (OFFLINE_AFTER - 1, None, Verdict.WRONG),
])  # fmt: skip
def test_deadlines(deadline, order, verdict):
    assert check_deadline(deadline, order).verdict is verdict


def test_time_of_an_order_is_known_from_an_earlier_run(tmp_path):
    assert order_time(tmp_path) is None
    (tmp_path / "devices.csv").write_text("client,order,start,seconds\n0,0,0,12.5\n1,0,0,31.0\n")
    assert order_time(tmp_path) == 31.0


@pytest.mark.parametrize(("status", "output", "text"), [
    (-signal.SIGILL, "", "Illegal instruction: every order would fail"),
    (1, "Traceback\nImportError: no libcudart", "ImportError: no libcudart"),
])  # fmt: skip
def test_a_torch_that_cannot_compute(status, output, text):
    assert faults([check_torch(status, output)])["torch"].text == text
    assert check_torch(0, "2.13.0+cpu\n") == good("torch", "2.13.0+cpu")


@pytest.mark.slow  # it imports torch
def test_a_device_before_its_server(out):
    kit = read(out / "node-0", SUPERLINK=f"127.0.0.1:{free_ports(1)[0]}")
    assert faults(examine(kit)).keys() == {"server"}


# -- the table ------------------------------------------------------------------------------------


def test_table_says_what_is_wrong_and_fails(capsys):
    broken = wrong("disk", "full", "empty it")
    assert show([good("torch", "2.13"), broken, broken]) == 1
    told = capsys.readouterr().out
    assert "WRONG" in told
    assert "empty it" in told
    assert told.endswith("2 wrong\n")
    assert show([good("torch", "2.13"), unknown("nodes", "not told")]) == 0
    assert capsys.readouterr().out.endswith("nothing wrong\n")
