"""Certificates, which identify the server, and keys, which identify the devices.

The kit has its own certificate authority. It signs the server's certificate, and devices trust it
alone. Each device has a private key in OpenSSH's format, as Flower requires; the SuperLink stores
the public keys. Private keys have no passphrase, because boards start unattended.
"""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_app.core.errors import require, require_count

PRIVATE, PUBLIC = 0o600, 0o644  # file modes
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
# The nine usages of a key in the order of RFC 5280: an authority signs certificates and lists.
SIGNS = x509.KeyUsage(True, *[False] * 8)
SIGNS_CERTIFICATES = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
BACKDATED = timedelta(days=1)  # so that a device whose clock is slow accepts a new certificate
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


def new_authority(folder: Path, days: int) -> None:
    """Write ``ca.key`` and ``ca.crt``; anybody who has ``ca.key`` can pose as the server.

    Raises:
        ValueError: `days` is out of its bounds.
        FileExistsError: one of the files exists already.
    """
    basic = x509.BasicConstraints(ca=True, path_length=0)
    _issue(folder, "ca", None, days, [basic, SIGNS_CERTIFICATES])


def new_certificate(
    authority: Path,
    folder: Path,
    name: str,
    hosts: Sequence[str],
    days: int,
    uses: Sequence[x509.ObjectIdentifier] = (SERVER,),
) -> None:
    """Write ``<name>.key`` and ``<name>.crt``, signed by the authority.

    Args:
        authority: folder with ``ca.key`` and ``ca.crt``.
        folder: the folder to write to.
        name: of the two files.
        hosts: names and addresses under which others reach who has the certificate.
        days: days until the certificate expires, at least 1.
        uses: what it may be used for: `SERVER`, `CLIENT`.

    Raises:
        ValueError: a host is neither a name nor an address, or `days` is out of its bounds.
        FileExistsError: one of the files exists already.
    """
    basic = x509.BasicConstraints(ca=False, path_length=None)
    extensions = [basic, SIGNS, x509.ExtendedKeyUsage(uses)]
    if names := [general_name(host) for host in dict.fromkeys(hosts)]:
        extensions.append(x509.SubjectAlternativeName(names))
    _issue(folder, name, authority, days, extensions)


def new_node(folder: Path, comment: str) -> None:
    """Write a device's ``node.key`` and ``node.key.pub``.

    Raises:
        FileExistsError: one of the files exists already.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    write(folder / "node.key", private, PRIVATE)
    write(folder / "node.key.pub", public + f" {comment}\n".encode(), PUBLIC)


def load_certificate(path: Path) -> x509.Certificate:
    """Read a certificate from a file.

    Raises:
        ValueError: the file holds no certificate.
        OSError: the file cannot be read.
    """
    return x509.load_pem_x509_certificate(path.read_bytes())


def general_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as an entry of a certificate.

    Raises:
        ValueError: `host` is neither a name nor an address.
    """
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        require(
            HOST.fullmatch(host) is not None,
            "--host",
            host,
            "an IP address or a host name, without port",
            "no certificate could name it, and no device would find the server",
        )
        return x509.DNSName(host)


def write(path: Path, content: bytes, mode: int) -> None:
    """Create a file with a mode, which holds before the first byte is written.

    Raises:
        FileExistsError: the file exists already.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _issue(
    folder: Path,
    name: str,
    authority: Path | None,
    days: int,
    extensions: Sequence[x509.ExtensionType],
) -> None:
    """Write a key and its certificate; without an authority it is signed by itself."""
    require_count("--days", days, "the certificate would have expired before its first use")
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fl-app {name}")])
    issuer, signer = subject, key
    if authority is not None:
        issuer = load_certificate(authority / "ca.crt").subject
        loaded = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
    )
    for extension in (
        *extensions,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(signer, hashes.SHA384())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write(folder / f"{name}.key", private, PRIVATE)
    write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
