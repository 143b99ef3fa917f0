"""A device before its server: it signs with its key, and asks what the server knows of it."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from ssl import SSLContext

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from fl_app.field.gate import ABOUT, NODE
from fl_app.field.health import request


def known_to_server(
    address: str, key: Path, context: SSLContext | None, about: Mapping[str, str] | None = None
) -> Mapping[str, str] | None:
    """What a server with a gate knows of a device, and tells the device alone.

    Args:
        address: host:port of the SuperLink.
        key: file with the device's private key, in OpenSSH's format.
        context: the certificates to trust; None asks without TLS.
        about: what the device tells of itself, of `fl_app.field.gate.TOLD`.

    Returns:
        ``status`` of the node ("" = its key is not registered), ``flower`` and ``project``, the
        server's versions; None if the server has no gate, or does not accept the signature.

    Raises:
        OSError: the key cannot be read.
        ValueError: the file holds no key on a NIST curve.
        httpx.HTTPError: the server does not answer.
    """
    told_by_us = {ABOUT: json.dumps(dict(about))} if about else {}
    response = request(address, NODE, context, headers={**signed(key), **told_by_us})
    try:
        told = response.json()
    except ValueError:
        return None
    if response.status_code == httpx.codes.OK and isinstance(told, dict) and "status" in told:
        return told
    missed = response.status_code == httpx.codes.NOT_FOUND and "fl-app" in response.text
    return {"status": ""} if missed else None


def fingerprint(key: Path) -> str:
    """The fingerprint of a device's key, as ``ssh-keygen -l`` prints it.

    Args:
        key: file with the private key, in OpenSSH's format.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no key.
    """
    public = serialization.load_ssh_private_key(key.read_bytes(), None).public_key()
    line = public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return f"SHA256:{b64encode(sha256(b64decode(line.split()[1])).digest()).decode().rstrip('=')}"


def signed(key: Path) -> dict[str, str]:
    """Headers by which a server knows a node, as Flower's SuperNodes send them.

    Args:
        key: file with the node's private key, in OpenSSH's format.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no key on a NIST curve.
    """
    private = serialization.load_ssh_private_key(key.read_bytes(), None)
    if not isinstance(private, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{key} must hold a key on a NIST curve: Flower takes no other")
    told = datetime.now(UTC).isoformat()
    signature = sign_message(private, told.encode("ascii"))
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(private.public_key())).decode(),
        TIMESTAMP_HEADER: told,
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
    }
