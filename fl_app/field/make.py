"""Writes the edge kit: one folder for the server, one for every device, and one for a helper.

The kit has its own certificate authority. It signs the server's certificate, and devices trust it
alone. Each device has a private key in OpenSSH's format, as Flower requires; the SuperLink stores
the public keys. Private keys have no passphrase, because boards start unattended.
"""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from string import Template

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fl_app.core.errors import require
from fl_app.core.hyper import COUNT
from fl_app.field.kit import PORT, PORTS, Kit
from fl_app.secure.folder import CLIENT as SERVERS_OWN
from fl_app.secure.folder import PUBLIC_KEY, RECORD, helper_key_pem
from fl_app.secure.ledger import Ledger

HERE = Path(__file__).parent
FILES = HERE / "files"
WHEEL = "fl_app-*.whl"
# Files of every folder, besides those of its role.
SHARED = (
    FILES / "both" / "install.sh",
    HERE / "packages.py",
    FILES / "project" / "constraints.txt",
)
HELPER_PORT = 8101
LINK_PORT = 8099  # of the SuperLink behind Caddy, on loopback; as in the compose files
NODE_PORT = 9094  # Flower's default for the first node; nodes of one kit can share a machine
VENV = "/opt/fl-app/.venv"  # as in the systemd units and the images
LIFE = timedelta(days=3650)  # of certificates
LOOPBACK = ("localhost", "127.0.0.1", "::1")
ALWAYS = (*LOOPBACK, "superlink")  # the last is its service in compose files
PRIVATE, PUBLIC = 0o600, 0o644  # file modes
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
# The nine usages of a key in the order of RFC 5280: an authority signs certificates and lists.
SIGNS = x509.KeyUsage(True, *[False] * 8)
SIGNS_CERTIFICATES = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
BACKDATED = timedelta(days=1)  # so that a device whose clock is slow accepts a new certificate
HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9-]+)*")


def new_kit(
    out: Path,
    *,
    nodes: int,
    hosts: Sequence[str],
    port: int = PORT,
    wheel: Path | None = None,
) -> None:
    """Write the folders ``server``, ``node-0``, ..., and ``ca``, the authority.

    Args:
        out: a new folder, because devices use the keys of an earlier kit.
        nodes: number of devices, at least 1.
        hosts: names and addresses of the server; devices use the first.
        port: of the server, to which devices connect.
        wheel: of this project, which the devices install; None leaves it out.

    Raises:
        ValueError: an argument is out of its bounds; nothing was written.
    """
    COUNT.check("--nodes", nodes, "there would be nobody to learn from")
    PORTS.check("--port", port, "no server can listen there")
    consequence = "the SuperLink listens there"
    require(port != LINK_PORT, "--port", port, f"another than {LINK_PORT}", consequence)
    require(not out.exists(), "out", out, "a new folder", "keys that devices use would be lost")
    values = {
        "host": f"[{hosts[0]}]" if ":" in hosts[0] else hosts[0],
        "port": port,
        "link": LINK_PORT,
        "nodes": nodes,
        "buffer": max(1, nodes // 2),
        "made": int(time.time()),
    }
    with _new_folder(out) as draft:
        server, ca = draft / "server", draft / "ca"
        _write_program(server, "server", wheel, values)
        compose = server / "compose.yaml"
        compose.write_text(compose.read_text().replace(str(PORT), str(port)))
        ca.mkdir(mode=0o700)
        (server / "keys").mkdir()
        new_authority(ca)
        new_certificate(ca, server, "server", [*hosts, *ALWAYS])
        shutil.copy(ca / "ca.crt", server)
        for i in range(nodes):
            node = draft / f"node-{i}"
            _write_program(node, "node", wheel, values | {"node": i, "own_port": NODE_PORT + i})
            new_node(node, node.name)
            shutil.copy(ca / "ca.crt", node)
            shutil.copy(node / "node.key.pub", server / "keys" / f"{node.name}.pub")
        draft.chmod(0o755)


def add_helper(
    kit: Path,
    hosts: Sequence[str],
    *,
    port: int = HELPER_PORT,
    min_clients: int | None = None,
) -> Path:
    """Add the folder ``helper`` to a kit, and the keys by which server and devices use it.

    Args:
        kit: a kit with certificates, before its folders are copied to their machines.
        hosts: names and addresses of the helper's machine.
        port: that it listens on.
        min_clients: T, fewest devices of a sum; None = half of the kit's devices, at least 2.

    Returns:
        The folder.

    Raises:
        ValueError: an argument is out of its bounds, or the kit has no authority; nothing was
            written.
    """
    folder, authority, server = kit / "helper", kit / "ca", kit / "server"
    has_authority = (authority / "ca.key").is_file()
    bound, effect = "a kit with certificates, and its folder ca", "no machine could trust another"
    require(has_authority, "kit", kit, bound, effect)
    effect = "the key of its helper would be lost"
    require(not folder.exists(), "kit", kit, "one without helper", effect)
    PORTS.check("--port", port, "no helper can listen there")
    nodes = sorted(kit.glob("node-*"))
    min_clients = max(2, len(nodes) // 2) if min_clients is None else min_clients
    bound = f"between 2 and the {len(nodes)} devices of the kit"
    effect = "a sum over one device is its upload, and one of more devices never comes"
    require(2 <= min_clients <= len(nodes), "--min-clients", min_clients, bound, effect)
    with _new_folder(folder) as draft:
        stamp = Kit.read(server, {}).settings.get("MADE", "")
        values = {"port": port, "least": min_clients, "made": stamp}
        _write_program(draft, "helper", next(server.glob(WHEEL), None), values)
        shutil.copy(authority / "ca.crt", draft)
        shutil.copytree(server / "keys", draft / "keys")
        # Also as a client: `healthy` asks the helper itself.
        new_certificate(authority, draft, "helper", [*hosts, *LOOPBACK], [SERVER, CLIENT])
        for path in server.glob(f"{SERVERS_OWN}.*"):  # of an attempt that was interrupted
            path.unlink()
        new_certificate(authority, server, SERVERS_OWN, [], [CLIENT])
        ledger = Ledger.create(draft / RECORD)
        public = helper_key_pem(ledger.private_key.public_key())
        ledger.close()
        for target in (draft, server, *nodes):
            (target / PUBLIC_KEY).unlink(missing_ok=True)
            write(target / PUBLIC_KEY, public, PUBLIC)
    return folder


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """A draft of a folder, which is renamed to the folder if nothing fails."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
        draft = Path(scratch, path.name)
        draft.mkdir(mode=0o700)
        yield draft
        draft.rename(path)


def _write_program(
    folder: Path, role: str, wheel: Path | None, values: Mapping[str, object]
) -> None:
    """Write the files that are the same in all folders of a role, and its settings."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for file in [*(FILES / role).iterdir(), *SHARED, *filter(None, [wheel])]:
        shutil.copy(file, folder)
    path = folder / f"{role}.env"
    text = Template(path.read_text()).substitute(values, venv=VENV)
    path.write_text(f'{text}MADE="{values["made"]}"\n')


# -- certificates and keys -------------------------------------------------------------------------


def new_authority(folder: Path) -> None:
    """Write ``ca.key`` and ``ca.crt``; anybody who has ``ca.key`` can pose as the server.

    Raises:
        FileExistsError: one of the files exists already.
    """
    basic = x509.BasicConstraints(ca=True, path_length=0)
    _issue(folder, "ca", None, [basic, SIGNS_CERTIFICATES])


def new_certificate(
    authority: Path,
    folder: Path,
    name: str,
    hosts: Sequence[str],
    uses: Sequence[x509.ObjectIdentifier] = (SERVER,),
) -> None:
    """Write ``<name>.key`` and ``<name>.crt``, signed by the authority.

    Args:
        authority: folder with ``ca.key`` and ``ca.crt``.
        folder: the folder to write to.
        name: of the two files.
        hosts: names and addresses under which others reach the certificate's owner.
        uses: allowed uses: `SERVER`, `CLIENT`.

    Raises:
        ValueError: a host is neither a name nor an address.
        FileExistsError: one of the files exists already.
    """
    basic = x509.BasicConstraints(ca=False, path_length=None)
    extensions = [basic, SIGNS, x509.ExtendedKeyUsage(uses)]
    if names := [general_name(host) for host in dict.fromkeys(hosts)]:
        extensions.append(x509.SubjectAlternativeName(names))
    _issue(folder, name, authority, extensions)


def new_node(folder: Path, comment: str) -> None:
    """Write a device's ``node.key`` and ``node.key.pub``.

    Raises:
        FileExistsError: one of the files exists already.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write_key(folder / "node.key", key, serialization.PrivateFormat.OpenSSH)
    write(folder / "node.key.pub", public + f" {comment}\n".encode(), PUBLIC)


def general_name(host: str) -> x509.GeneralName:
    """Return a host's name or address as an entry of a certificate.

    Raises:
        ValueError: `host` is neither a name nor an address.
    """
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        bound = "an IP address or a host name, without port"
        effect = "no certificate could name it, and no device would find the server"
        require(HOST.fullmatch(host) is not None, "--host", host, bound, effect)
        return x509.DNSName(host)


def write(path: Path, content: bytes, mode: int) -> None:
    """Create a file with a mode, which applies before the first byte is written.

    Raises:
        FileExistsError: the file exists already.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)


def _write_key(
    path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat
) -> None:
    pem = serialization.Encoding.PEM
    write(path, key.private_bytes(pem, form, serialization.NoEncryption()), PRIVATE)


def _issue(
    folder: Path,
    name: str,
    authority: Path | None,
    extensions: Sequence[x509.ExtensionType],
) -> None:
    """Write a key and its certificate; without an authority, it is self-signed."""
    now = datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fl-app {name}")])
    issuer, signer = subject, key
    if authority is not None:
        issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes()).subject
        ca_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
        assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
        signer = ca_key
    builder = (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .subject_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LIFE)
    )
    for extension in (
        *extensions,
        x509.SubjectKeyIdentifier.from_public_key(key.public_key()),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
    ):
        critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
        builder = builder.add_extension(extension, critical)
    certificate = builder.sign(signer, hashes.SHA384())
    _write_key(folder / f"{name}.key", key, serialization.PrivateFormat.PKCS8)
    write(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM), PUBLIC)
