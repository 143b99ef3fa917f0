"""The helper of secure aggregation as a folder of the edge kit."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fl_app.core.errors import require, require_at_least, require_count
from fl_app.field.certificates import (
    CLIENT,
    PUBLIC,
    SERVER,
    general_name,
    new_certificate,
    write,
)
from fl_app.field.kit import VENV, WHEEL, Kit, write_program, write_settings
from fl_app.secure.folder import CLIENT as SERVERS_OWN
from fl_app.secure.folder import PUBLIC_KEY, RECORD, helper_key_pem
from fl_app.secure.ledger import Ledger

PORT = 8101
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
    for host in hosts:
        general_name(host)
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
        new_certificate(authority, draft, "helper", [*hosts, *LOOPBACK], days, [SERVER, CLIENT])
        for path in server.glob(f"{SERVERS_OWN}.*"):  # of an attempt that was interrupted
            path.unlink()
        new_certificate(authority, server, SERVERS_OWN, [], days, [CLIENT])
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
