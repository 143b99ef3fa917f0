"""The helper of secure aggregation as a folder of the edge kit."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_app.core.errors import require
from fl_app.field.certificates import (
    PRIVATE,
    PUBLIC,
    _builder,
    _pem,
    _usage,
    general_name,
    load_certificate,
    write,
)
from fl_app.field.kit import FILES, VENV
from fl_app.secure.folder import CLIENT, PUBLIC_KEY, RECORD, helper_key_pem
from fl_app.secure.ledger import Ledger

PORT = 8101
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def add_helper(
    kit: Path, hosts: Sequence[str], *, port: int = PORT, least: int | None = None, days: int = 3650
) -> Path:
    """Add the folder ``helper`` to a kit, and what server and devices need to use it.

    Args:
        kit: a kit with certificates, before its folders are copied to their machines.
        hosts: names and addresses of the helper's machine.
        port: that it listens on.
        least: T, fewest different devices of a sum; None = half of the kit's devices, at least 2.
        days: days until the certificates expire.

    Returns:
        The folder.

    Raises:
        ValueError: an argument is out of its bounds, or the kit has no authority.
    """
    folder, authority = kit / "helper", kit / "ca"
    require(
        (authority / "ca.key").is_file(),
        "kit",
        kit,
        "a kit with certificates, and with its folder ca",
        "server and helper could not know each other",
    )
    require(
        not folder.exists(), "kit", kit, "one without helper", "the key of its helper would be lost"
    )
    require(0 < port < 65536, "--port", port, "between 1 and 65535", "no helper can listen there")
    nodes = sorted(kit.glob("node-*"))
    least = max(2, len(nodes) // 2) if least is None else least
    require(
        2 <= least <= len(nodes),
        "--min-clients",
        least,
        f"between 2 and the {len(nodes)} devices of the kit",
        "a sum over one device is its upload, and one of more devices never comes",
    )
    folder.mkdir(mode=0o700)
    for file in (FILES / "helper").iterdir():
        shutil.copy(file, folder)
    settings = {"BIND": "0.0.0.0", "PORT": port, "MIN_CLIENTS": least, "VENV": VENV}
    (folder / "helper.env").write_text("".join(f'{k}="{v}"\n' for k, v in settings.items()))
    shutil.copy(authority / "ca.crt", folder)
    shutil.copytree(kit / "server" / "keys", folder / "keys")
    names = [*hosts, *LOOPBACK]
    _certificate(authority, folder, "helper", names, ExtendedKeyUsageOID.SERVER_AUTH, days)
    _certificate(authority, kit / "server", CLIENT, [], ExtendedKeyUsageOID.CLIENT_AUTH, days)
    ledger = Ledger.create(folder / RECORD)
    public = helper_key_pem(ledger.private_key.public_key())
    ledger.close()
    for where in (folder, *nodes):
        write(where / PUBLIC_KEY, public, PUBLIC)
    return folder


def _certificate(
    authority: Path,
    folder: Path,
    name: str,
    hosts: Sequence[str],
    usage: x509.ObjectIdentifier,
    days: int,
) -> None:
    """Write ``<name>.crt`` and ``<name>.key``, signed by the kit's authority."""
    issuer = load_certificate(authority / "ca.crt")
    issuer_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fl-app {name}")])
    builder = (
        _builder(issuer.subject, subject, key.public_key(), issuer_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if hosts:
        names = [general_name(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA384())
    write(folder / f"{name}.key", _pem(key), PRIVATE)
    write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
