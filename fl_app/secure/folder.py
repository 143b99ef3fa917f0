"""Keys in the folders of the edge kit: of a device, of the helper, and of the server.

The environment variable FL_APP_KIT names a process's folder; ``start.sh`` sets it.
"""

import logging
import os
import ssl
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fl_app.core.errors import explaining
from fl_app.secure.seals import DeviceKey, DevicePublicKey, check_curve, device_id

KIT = "FL_APP_KIT"
PUBLIC_KEY = "helper.pub"  # of the helper, PEM, in every device's folder
CLIENT = "helper-client"  # certificate and key with which the server asks the helper
RECORD = "helper.db"  # of the helper: its private key and the used seeds

log = logging.getLogger("flwr")


def kit_folder() -> Path:
    """The folder of this process.

    Raises:
        ValueError: the environment names none.
    """
    folder = os.environ.get(KIT, "")
    if not folder:
        raise ValueError(
            f"{KIT} must name this machine's folder of the kit with secure_aggregation=helper: its "
            "keys are there (start.sh sets it; run the kit's install.sh again, if yours does "
            "not)"
        )
    return Path(folder)


def keys_of_device(client: int) -> tuple[X25519PublicKey, DeviceKey]:
    """The helper's public key and this device's private key.

    Raises:
        ValueError: one of them is missing or of another kind.
    """
    path = kit_folder() / "node.key"
    with explaining(f"{path} cannot be read"):
        private = serialization.load_ssh_private_key(path.read_bytes(), None)
    check_curve(private, str(path))
    assert isinstance(private, DeviceKey)
    return load_helper_key(path.with_name(PUBLIC_KEY)), private


def load_helper_key(path: Path) -> X25519PublicKey:
    """The helper's public key.

    Raises:
        ValueError: the file is missing or holds none.
    """
    remedy = "; copy it from the helper's folder"
    with explaining(f"{path} must be the helper's public key", remedy):
        key = serialization.load_pem_public_key(path.read_bytes())
    if not isinstance(key, X25519PublicKey):
        raise ValueError(f"{path} must be a key on X25519: nobody could open the seals")
    return key


def helper_key_pem(key: X25519PublicKey) -> bytes:
    """The content of ``helper.pub``."""
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


class RegisteredDevices:
    """The devices whose public keys lie in a folder as ``*.pub``, in OpenSSH's format.

    The folder is read again after a file was added or removed, so that a removed key is refused,
    and when an unknown device appears, since a copy of its key may have been incomplete.

    Args:
        folder: of the keys; a file that holds none is skipped.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._keys: dict[bytes, DevicePublicKey] = {}
        self._changed = 0

    def find(self, device: bytes, client: int) -> DevicePublicKey | None:
        changed = self._folder.stat().st_mtime_ns
        if changed != self._changed or device not in self._keys:
            self._keys, self._changed = self._read(), changed
        return self._keys.get(device)

    def _read(self) -> dict[bytes, DevicePublicKey]:
        keys = {}
        for path in sorted(self._folder.glob("*.pub")):
            try:
                key = serialization.load_ssh_public_key(path.read_bytes())
                check_curve(key, str(path))
            except (OSError, ValueError, UnsupportedAlgorithm) as error:
                log.warning(
                    "%s holds no key (%s): copy node.key.pub of the device again", path, error
                )
                continue
            assert isinstance(key, DevicePublicKey)
            keys[device_id(key)] = key
        return keys


def server_context(folder: Path) -> ssl.SSLContext:
    """TLS of the server towards the helper: each shows a certificate of the kit's authority.

    Raises:
        OSError: a file cannot be read.
    """
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.load_cert_chain(folder / f"{CLIENT}.crt", folder / f"{CLIENT}.key")
    return context
