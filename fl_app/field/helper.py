"""The helper of secure aggregation as a folder of the edge kit."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_app.core.errors import require, require_at_least, require_count
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
from fl_app.field.kit import VENV, WHEEL, Kit, write_program, write_settings
from fl_app.secure.folder import CLIENT, PUBLIC_KEY, RECORD, helper_key_pem
from fl_app.secure.ledger import Ledger

PORT = 8101
SERVER, CLIENT_USE = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def add_helper(
    kit: Path,
    hosts: Sequence[str],
    *,
    port: int = PORT,
    least: int | None = None,
    noise_multiplier: float = 0.0,
    days: int = 3650,
) -> Path:
    """Add the folder ``helper`` to a kit, and what server and devices need to use it.

    Args:
        kit: a kit with certificates, before its folders are copied to their machines.
        hosts: names and addresses of the helper's machine.
        port: that it listens on.
        least: T, fewest different devices of a sum; None = half of the kit's devices, at least 2.
        noise_multiplier: smallest noise multiplier of a sum, >= 0.
        days: days until the certificates expire.

    Returns:
        The folder.

    Raises:
        ValueError: an argument is out of its bounds, or the kit has no authority; nothing was
            written.
    """
    folder, authority, server = kit / "helper", kit / "ca", kit / "server"
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
    require_at_least("--noise-multiplier", noise_multiplier, 0.0, "noise has no negative deviation")
    require_count("--days", days, "the certificate would have expired")
    names = [general_name(host) for host in dict.fromkeys([*hosts, *LOOPBACK])]
    settings = Kit.read(server, {}).settings
    draft = Path(tempfile.mkdtemp(prefix=".helper-", dir=kit))
    try:
        write_program(draft, "helper", port, next(server.glob(WHEEL), None))
        mine = {
            "BIND": "0.0.0.0",
            "PORT": str(port),
            "MIN_CLIENTS": str(least),
            "NOISE_MULTIPLIER": f"{noise_multiplier:g}",
            "VENV": VENV,
        }
        made = {"MADE": settings["MADE"]} if "MADE" in settings else {}
        write_settings(draft / "helper.env", {**mine, **made})
        shutil.copy(authority / "ca.crt", draft)
        shutil.copytree(server / "keys", draft / "keys")
        # It may ask itself, too: `healthy` does.
        _certificate(authority, draft, "helper", names, [SERVER, CLIENT_USE], days)
        for path in server.glob(f"{CLIENT}.*"):  # of an attempt that was interrupted
            path.unlink()
        _certificate(authority, server, CLIENT, [], [CLIENT_USE], days)
        ledger = Ledger.create(draft / RECORD)
        public = helper_key_pem(ledger.private_key.public_key())
        ledger.close()
        for where in (draft, server, *nodes):
            (where / PUBLIC_KEY).unlink(missing_ok=True)
            write(where / PUBLIC_KEY, public, PUBLIC)
        draft.rename(folder)
    except BaseException:
        shutil.rmtree(draft)
        raise
    return folder


def _certificate(
    authority: Path,
    folder: Path,
    name: str,
    names: Sequence[x509.GeneralName],
    uses: Sequence[x509.ObjectIdentifier],
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
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = builder.sign(issuer_key, hashes.SHA384())
    write(folder / f"{name}.key", _pem(key), PRIVATE)
    write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
