"""Sealed seeds: HPKE for the helper, signed with the device's key.

HPKE (RFC 9180) in its base mode: X25519, HKDF-SHA256, AES-256-GCM. The client's statement is its
``info``, so a seal opens only with the same statement. ECDSA with SHA-384 on P-384 signs statement
and sealed seed; this is the key with which a device joins the federation. A signature is written as
its two numbers of 48 bytes, because its usual form has no constant length.
"""

import hashlib
import struct
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from fl_app.secure.integers import SEED_BYTES

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
SEALED_BYTES = 32 + SEED_BYTES + 16  # encapsulated key, seed, tag
NUMBER_BYTES = 48  # of P-384
DEVICE_BYTES = 32
_LAYOUT = struct.Struct(f">Q{DEVICE_BYTES}s{SEALED_BYTES}s{2 * NUMBER_BYTES}s")
SEAL_BYTES = _LAYOUT.size

DeviceKey = ec.EllipticCurvePrivateKey
DevicePublicKey = ec.EllipticCurvePublicKey


@dataclass(frozen=True, slots=True)
class Seal:
    """What travels with a masked upload, `SEAL_BYTES` long.

    Attributes:
        sequence: how many training orders the client had before.
        device: SHA-256 of the device's public key (`device_id`).
        sealed: the seed, for the helper.
        signature: of statement and sealed seed.
    """

    sequence: int
    device: bytes
    sealed: bytes
    signature: bytes

    def to_bytes(self) -> bytes:
        """The seal as bytes."""
        return _LAYOUT.pack(self.sequence, self.device, self.sealed, self.signature)

    @classmethod
    def of(cls, data: bytes) -> "Seal":
        """The inverse of `to_bytes`.

        Raises:
            ValueError: the length is not `SEAL_BYTES`.
        """
        if len(data) != SEAL_BYTES:
            raise ValueError(f"a seal has {SEAL_BYTES} bytes, got {len(data)}")
        return cls(*_LAYOUT.unpack(data))


def new_seal(
    seed: bytes, helper: X25519PublicKey, device: DeviceKey, statement: bytes, sequence: int
) -> Seal:
    """Seal a seed for the helper and sign it.

    Args:
        seed: of the mask.
        helper: the helper's public key.
        device: the device's private key, on P-384.
        statement: of the upload (`Terms.statement`).
        sequence: as in the statement.
    """
    sealed = SUITE.encrypt(seed, helper, info=statement)
    der = device.sign(_signed(statement, sealed), ec.ECDSA(hashes.SHA384()))
    numbers = decode_dss_signature(der)
    signature = b"".join(number.to_bytes(NUMBER_BYTES, "big") for number in numbers)
    return Seal(sequence, device_id(device.public_key()), sealed, signature)


def is_signed(seal: Seal, device: DevicePublicKey, statement: bytes) -> bool:
    """Whether a device signed this seal with this statement."""
    first, second = seal.signature[:NUMBER_BYTES], seal.signature[NUMBER_BYTES:]
    der = encode_dss_signature(int.from_bytes(first, "big"), int.from_bytes(second, "big"))
    try:
        device.verify(der, _signed(statement, seal.sealed), ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def open_seal(seal: Seal, helper: X25519PrivateKey, statement: bytes) -> bytes | None:
    """The seed; None if it was sealed for another helper or with another statement."""
    try:
        return SUITE.decrypt(seal.sealed, helper, info=statement)
    except InvalidTag:
        return None


def device_id(key: DevicePublicKey) -> bytes:
    """SHA-256 of a device's public key."""
    encoded = key.public_bytes(
        serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint
    )
    return hashlib.sha256(encoded).digest()


def check_curve(key: object, where: str) -> None:
    """Refuse a key that is not on P-384.

    Raises:
        ValueError: naming where it is.
    """
    if not isinstance(key, DeviceKey | DevicePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise ValueError(f"{where} must be a key on P-384: masked uploads are signed with it")


def _signed(statement: bytes, sealed: bytes) -> bytes:
    return struct.pack(">I", len(statement)) + statement + sealed
