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
BACKDATED = timedelta(days=1)  # so that a device whose clock is slow accepts a new certificate
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


def new_authority(folder: Path, days: int) -> None:
    """Write ``ca.key`` and ``ca.crt``; anybody who has ``ca.key`` can pose as the server.

    Raises:
        ValueError: `days` is out of its bounds.
        FileExistsError: one of the files exists already.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fl-app authority")])
    usage = _usage(digital_signature=False, key_cert_sign=True, crl_sign=True)
    certificate = (
        _builder(name, name, key.public_key(), key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    write(folder / "ca.key", _pem(key), PRIVATE)
    write(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


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
    issuer = load_certificate(authority / "ca.crt")
    issuer_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fl-app {name}")])
    builder = (
        _builder(issuer.subject, subject, key.public_key(), issuer_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names := [general_name(host) for host in dict.fromkeys(hosts)]:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA384())
    write(folder / f"{name}.key", _pem(key), PRIVATE)
    write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)


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


def _builder(
    issuer: x509.Name,
    subject: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    days: int,
) -> x509.CertificateBuilder:
    require_count("--days", days, "the certificate would have expired before its first use")
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )


def _usage(
    *, digital_signature: bool, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
