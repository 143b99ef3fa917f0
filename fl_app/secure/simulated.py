"""The keys of a simulated federation, which follow from the run's seed.

Every process of a simulation derives the same keys, so they are no secret: a simulation protects
nobody, but shows the costs and the results of a run.
"""

from functools import lru_cache

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fl_app.secure.seals import DeviceKey, DevicePublicKey, device_id


@lru_cache(4096)
def device_key(seed: int, client: int) -> DeviceKey:
    """The private key of a simulated client's device."""
    # One byte shorter than the order of the group, which bounds private keys.
    number = int.from_bytes(_derived(f"device {client}", seed, 47), "big")
    return ec.derive_private_key(1 + number, ec.SECP384R1())


def helper_key(seed: int) -> X25519PrivateKey:
    """The private key of the simulated helper."""
    return X25519PrivateKey.from_private_bytes(_derived("helper", seed, 32))


def keys(seed: int, client: int) -> tuple[X25519PublicKey, DeviceKey]:
    """The helper's public key, and the private key of a client's device."""
    return helper_key(seed).public_key(), device_key(seed, client)


def find_device(seed: int, num_clients: int, device: bytes, client: int) -> DevicePublicKey | None:
    """The public key of a simulated client's device; None if the client has another one.

    Args:
        seed: of the run.
        num_clients: clients are 0..num_clients-1.
        device: its id.
        client: the client id that it claims.
    """
    if not 0 <= client < num_clients:
        return None
    key = device_key(seed, client).public_key()
    return key if device_id(key) == device else None


def _derived(what: str, seed: int, length: int) -> bytes:
    info = f"fl-app simulated {what}".encode()
    return HKDF(hashes.SHA256(), length, None, info).derive(str(seed).encode())
