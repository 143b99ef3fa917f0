"""Every check with what is sound, and with what trips people up."""

import signal
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from packaging.specifiers import SpecifierSet

from fl_app.field import checks
from fl_app.field.certificates import load_certificate, new_authority, new_node, new_server
from fl_app.field.checks import Finding, Verdict

ADDRESS = "server.lan:8100"
NOW = datetime.now(UTC)


def is_good(finding: Finding) -> bool:
    assert finding.text
    return finding.verdict is Verdict.GOOD and not finding.mend


def is_wrong(finding: Finding, text: str, mend: str) -> bool:
    """Whether it says what is wrong, and how to mend it."""
    assert text in finding.text
    assert mend in finding.mend
    return finding.verdict is Verdict.WRONG


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Certificates and keys of server.lan."""
    folder = tmp_path_factory.mktemp("kit")
    new_authority(folder, days=100)
    new_server(folder, folder, ["server.lan", "10.0.0.7", "fd00::7"], days=50)
    new_node(folder, "node-0")
    return folder


def test_python():
    assert is_good(checks.check_python((3, 11, 0), 64))
    assert is_wrong(checks.check_python((3, 10, 9), 64), "3.10.9, 64 bit", "Python 3.11 or newer")
    assert is_wrong(checks.check_python((3, 11, 0), 32), "32 bit", "64-bit system")


def test_flower():
    wanted = SpecifierSet("==1.41.*")
    assert is_good(checks.check_flower("1.41.2", wanted))
    assert is_wrong(checks.check_flower("1.42.0", wanted), "needs ==1.41.*", "'flwr==1.41.*'")
    assert is_wrong(checks.check_flower(None, wanted), "not installed", "install")
    assert checks.check_flower("1.41.2", None).verdict is Verdict.UNKNOWN


def test_a_warm_node():
    assert is_good(checks.check_warm("", ""))
    assert "WARM=0" in checks.check_warm("0", "another Flower").text
    assert checks.check_warm("1", "another Flower").verdict is Verdict.UNKNOWN
    refused = checks.check_warm("auto", "")
    assert is_wrong(refused, "WARM=auto must be 1 or 0", 'WARM="1" in node.env')


def test_flower_of_the_server():
    assert is_good(checks.check_server_version("1.41.0", "1.41.0"))
    differ = checks.check_server_version("1.41.0", "1.42.0")
    assert is_wrong(differ, "1.42.0, but 1.41.0 here", "the same version on both")


def test_flower_of_a_server_that_does_not_tell():
    assert checks.check_server_version("1.41.0", None).verdict is Verdict.UNKNOWN


def test_torch():
    assert is_good(checks.check_torch(0, "2.15.0\n"))
    foreign = checks.check_torch(-signal.SIGILL, "")
    assert is_wrong(foreign, "Illegal instruction: it has", "another version of torch")
    assert is_wrong(checks.check_torch(-11, ""), "signal 11 (Segmentation fault)", "reinstall")
    missing = checks.check_torch(1, "Traceback ...\nModuleNotFoundError: No module named 'torch'\n")
    assert is_wrong(missing, "ModuleNotFoundError: No module named 'torch'", "reinstall torch")


def test_memory_and_disk():
    assert is_good(checks.check_memory(450 * 2**20))
    short = checks.check_memory(200 * 2**20)
    assert is_wrong(short, "200 MiB available", "free 450 MiB: end other programs")
    assert is_good(checks.check_disk(1.0, Path("/x")))
    assert is_wrong(checks.check_disk(0.5, Path("/x")), "0.5 GiB free at /x", "free 1 GiB")


@pytest.mark.parametrize(
    ("problem", "text", "mend"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "no program listens", "BIND=0.0.0.0"),
        (TimeoutError("timed out"), "does not answer in time", "firewall"),
        (socket.gaierror(-2, "Name or service not known"), "the name server.lan", "/etc/hosts"),
        (
            socket.gaierror(-5, "No address associated with hostname"),
            *("the name server.lan", "IP address"),
        ),
        (OSError(113, "No route to host"), "No route to host", "network"),
    ],
)
def test_an_address_that_cannot_be_reached(problem, text, mend):
    assert is_wrong(checks.check_reachable(ADDRESS, problem), text, mend)


def test_an_address_that_can_be_reached():
    assert is_good(checks.check_reachable(ADDRESS, None))


def test_port():
    assert is_good(checks.check_port(8100, free=True, answers=False))
    assert is_good(checks.check_port(8100, free=False, answers=True))
    taken = checks.check_port(8100, free=False, answers=False)
    assert is_wrong(taken, "another program", "ss -ltnp 'sport = :8100'")


@pytest.mark.parametrize(("ahead", "sound"), [(0, 1), (4.9, 1), (5.1, 0), (-304, 1), (-306, 0)])
def test_clock(ahead, sound):
    finding = checks.check_clock(ahead, 5.0, 305.0)
    if sound:
        assert is_good(finding)
    else:
        side = "ahead of" if ahead > 0 else "behind"
        assert is_wrong(finding, f"{abs(ahead):.0f} s {side} the server's", "set-ntp true")


def test_a_server_that_does_not_tell_the_time():
    assert checks.check_clock(None, 5.0, 305.0).verdict is Verdict.UNKNOWN


def test_dates(folder):
    certificate = load_certificate(folder / "server.crt")
    assert is_good(checks.check_dates("certificate", certificate, NOW))
    booted = checks.check_dates("certificate", certificate, datetime(1970, 1, 2, tzinfo=UTC))
    assert is_wrong(booted, "today is 1970-01-02", "clock")
    for days in (21, 60):  # about to expire, and expired
        later = checks.check_dates("certificate", certificate, NOW + timedelta(days=days))
        assert is_wrong(later, "expires on", "python -m fl_app.field certificate")


@pytest.mark.parametrize("host", ["server.lan", "SERVER.LAN", "10.0.0.7", "fd00:0::7"])
def test_names_of_the_certificate(folder, host):
    assert is_good(checks.check_names(load_certificate(folder / "server.crt"), host))


@pytest.mark.parametrize("host", ["server", "10.0.0.8"])
def test_a_name_that_the_certificate_does_not_have(folder, host):
    finding = checks.check_names(load_certificate(folder / "server.crt"), host)
    assert is_wrong(finding, f"server.lan, 10.0.0.7, fd00::7, not for {host}", f"--host {host}")


def test_issuer(folder, tmp_path):
    certificate = load_certificate(folder / "server.crt")
    assert is_good(checks.check_issuer(certificate, load_certificate(folder / "ca.crt")))
    new_authority(tmp_path, days=10)
    other = checks.check_issuer(certificate, load_certificate(tmp_path / "ca.crt"))
    assert is_wrong(other, "not the authority", "copy ca.crt")


def test_tls():
    plain = "wrong version number"
    assert is_good(checks.check_tls(None, insecure=False))
    assert is_good(checks.check_tls(plain, insecure=True))
    assert is_wrong(checks.check_tls(plain, insecure=False), "does not use it", "start.sh")
    assert is_wrong(checks.check_tls(None, insecure=True), "uses it", "take INSECURE out")


def test_private_key(folder, tmp_path):
    assert is_good(checks.check_private(folder / "node.key"))
    readable = tmp_path / "node.key"
    readable.touch(0o640)
    assert is_wrong(checks.check_private(readable), "mode 640", f"chmod 600 {readable}")
    missing = checks.check_private(tmp_path / "other.key")
    assert is_wrong(missing, "No such file", "copy it from the kit")


def test_key_of_a_node(folder, tmp_path):
    assert is_good(checks.check_node_key(folder / "node.key"))
    pem = tmp_path / "pem"  # what openssl writes by default
    pem.write_bytes(
        ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    assert is_wrong(checks.check_node_key(pem), "no key in OpenSSH's format", "ssh-keygen")
    other = tmp_path / "ed25519"  # what ssh-keygen writes by default
    other.write_bytes(
        ed25519.Ed25519PrivateKey.generate().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    assert is_wrong(checks.check_node_key(other), "not on a NIST curve", "-t ecdsa -b 384")
    assert is_wrong(checks.check_node_key(tmp_path / "none"), "No such file", "ssh-keygen")


def test_registered():
    known = {b"mine": "online"}
    assert is_good(checks.check_registered("node", b"mine", known))
    stranger = checks.check_registered("node", b"yours", known)
    assert is_wrong(stranger, "code 2004", "fl_app.field register")
    assert checks.check_registered("node", b"mine", None).verdict is Verdict.UNKNOWN


def test_installation():
    name = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"
    assert is_good(checks.check_installation({name: "1"}))
    for settings in ({}, {name: "0"}, {name: "true"}):  # Flower heeds "1" alone
        assert is_wrong(checks.check_installation(settings), "on:", f"{name}=1")


@pytest.mark.parametrize(
    ("node_config", "text"),
    [
        ("", "does not name it"),
        ("num-partitions=3", "does not name it"),
        ("partition-id=a num-partitions=3", "does not name it"),
        ("partition-id=3 num-partitions=3", "partition 3 of 3 does not exist"),
        ("partition-id=-1 num-partitions=3", "partition -1 of 3"),
    ],
)
def test_a_partition_that_does_not_exist(node_config, text):
    found = checks.check_partition(node_config, owns_data=False)
    assert is_wrong(found, text, "partition-id=0 num-partitions=3")


def test_partition():
    for owns_data in (False, True):
        words = "partition-id=2 num-partitions=3 other=1"
        assert is_good(checks.check_partition(words, owns_data))
    assert is_good(checks.check_partition("data='/srv/a.csv'", owns_data=True))
    half = checks.check_partition("partition-id=3", owns_data=True)
    assert is_wrong(half, "does not name it", "num-partitions=3")


def test_checkpoints():
    assert is_good(checks.check_checkpoints(10))
    assert is_wrong(checks.check_checkpoints(None), "starts anew", "checkpoint_every=10")


def test_deadline():
    assert is_good(checks.check_deadline(600.0, 20.0))
    assert is_wrong(checks.check_deadline(None, 20.0), "12 hours", "deadline=600")
    short = checks.check_deadline(15.0, 20.0)
    assert is_wrong(short, "an order takes 20 s", "deadline=40")
    assert checks.check_deadline(600.0, None).verdict is Verdict.UNKNOWN


def test_heartbeat():
    assert is_good(checks.check_heartbeat(60.0, 60.0))
    assert is_good(checks.check_heartbeat(None, 60.0))  # the deadline's own check tells
    short = checks.check_heartbeat(30.0, 60.0)
    assert is_wrong(short, "longer than deadline=30", "deadline=60 or more")
