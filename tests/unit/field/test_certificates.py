import ssl
import stat

import pytest
from cryptography.hazmat.primitives import serialization

from fl_app.field.certificates import (
    new_authority,
    new_certificate,
    new_node,
)
from fl_app.field.control import public_bytes


def handshake(server_folder, authority, host: str) -> None:
    """Both ends of a TLS connection in memory, as devices and SuperLink would make it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_folder / "server.crt", server_folder / "server.key")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


@pytest.fixture
def authority(tmp_path):
    new_authority(tmp_path, days=10)
    return tmp_path


@pytest.mark.parametrize("host", ["server.lan", "192.168.1.7", "::1"])
def test_a_device_trusts_the_server_under_each_of_its_names(authority, host):
    new_certificate(authority, authority, "server", ["server.lan", "192.168.1.7", "::1"], days=5)
    handshake(authority, authority / "ca.crt", host)


def test_a_device_refuses_another_name_and_another_authority(authority, tmp_path):
    new_certificate(authority, authority, "server", ["server.lan"], days=5)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(authority, authority / "ca.crt", "other.lan")
    (tmp_path / "other").mkdir()
    new_authority(tmp_path / "other", days=10)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(authority, tmp_path / "other" / "ca.crt", "server.lan")


def test_private_keys_are_their_owners_alone_and_never_overwritten(authority):
    new_certificate(authority, authority, "server", ["server.lan"], days=5)
    new_node(authority, "node-0")
    for name in ("ca.key", "server.key", "node.key"):
        assert stat.S_IMODE((authority / name).stat().st_mode) == 0o600
    for again in (
        lambda: new_authority(authority, days=5),
        lambda: new_certificate(authority, authority, "server", ["server.lan"], days=5),
        lambda: new_node(authority, "node-0"),
    ):
        with pytest.raises(FileExistsError):
            again()


def test_node_keys_are_as_flower_wants_them(tmp_path):
    new_node(tmp_path, "node-0")
    private = (tmp_path / "node.key").read_bytes()
    assert private.startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    key = serialization.load_ssh_private_key(private, None)
    assert key.curve.name == "secp384r1"
    assert (tmp_path / "node.key.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    assert public_bytes(tmp_path / "node.key.pub") == key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize("host", ["server.lan:8100", "https://server", "", "two words", "-x"])
def test_a_host_that_is_none_is_refused(authority, host):
    with pytest.raises(ValueError, match=r"--host=.* must be an IP address or a host name"):
        new_certificate(authority, authority, "server", [host], days=5)
    assert not (authority / "server.key").exists()
