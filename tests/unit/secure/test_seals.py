"""Sealed seeds against RFC 9180, written out with HKDF and AES-GCM; signatures; statements."""

import hmac
import struct

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from fl_app.secure.request import Terms
from fl_app.secure.seals import (
    SEAL_BYTES,
    Seal,
    check_curve,
    device_id,
    is_signed,
    new_seal,
    open_seal,
)
from fl_app.secure.simulated import SimulatedDevices, device_key, helper_key

HELPER = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SEED = bytes(range(100, 132))
TERMS = Terms("task", "fedbuff", "run", "delta", 4, 1.0, 1024.0, 0.5)
STATEMENT = TERMS.statement(3, 2, 7, 50)
# SEED, sealed once for HELPER with STATEMENT.
SEALED = bytes.fromhex(
    "e0fcd9c29b370742ef8a1cfd3096e31162b09a108ed28afb915feaf349aab21d80a5aeafc513cd89"
    "ccbcc4df5df73a780b1bbdfbeb65482e31e89e764568f7cf62df2f59b3921077fa939b2033dca179"
)


def extract(salt: bytes, label: bytes, secret: bytes, suite: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), b"HPKE-v1" + suite + label + secret, "sha256")


def expand(key: bytes, label: bytes, info: bytes, length: int, suite: bytes) -> bytes:
    labelled = struct.pack(">H", length) + b"HPKE-v1" + suite + label + info
    return HKDFExpand(hashes.SHA256(), length, labelled).derive(key)


def opened_as_the_rfc_says(sealed: bytes, key: X25519PrivateKey, info: bytes) -> bytes:
    """RFC 9180, sections 4.1, 5.1 and 5.2: base mode, DHKEM(X25519), HKDF-SHA256, AES-256-GCM."""
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x02"
    encapsulated, ciphertext = sealed[:32], sealed[32:]
    agreed = key.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    context = encapsulated + key.public_key().public_bytes_raw()
    shared = expand(extract(b"", b"eae_prk", agreed, kem), b"shared_secret", context, 32, kem)
    hashed = extract(b"", b"psk_id_hash", b"", suite) + extract(b"", b"info_hash", info, suite)
    secret = extract(shared, b"secret", b"", suite)
    aead = AESGCM(expand(secret, b"key", b"\x00" + hashed, 32, suite))
    nonce = expand(secret, b"base_nonce", b"\x00" + hashed, 12, suite)
    return aead.decrypt(nonce, ciphertext, b"")


def sealed(sequence: int = 2) -> Seal:
    return new_seal(SEED, HELPER.public_key(), device_key(0, 3), STATEMENT, sequence)


def test_a_vector_of_the_sealed_seed() -> None:
    assert open_seal(Seal(2, b"", SEALED, b""), HELPER, STATEMENT) == SEED
    assert opened_as_the_rfc_says(SEALED, HELPER, STATEMENT) == SEED


def test_a_new_seal_opens_as_the_rfc_says() -> None:
    assert opened_as_the_rfc_says(sealed().sealed, HELPER, STATEMENT) == SEED


def test_the_statement_is_written_out() -> None:
    assert STATEMENT == (
        b'{"algorithm": "fedbuff", "base_version": 7, "client": 3, "clip_norm": 1.0, "examples": '
        b'50, "kind": "delta", "noise_multiplier": 0.5, "protocol": "fl-app secure aggregation 1", '
        b'"run": "run", "scale": 1024.0, "sequence": 2, "size": 4, "task": "task"}'
    )


def test_a_seal_opens_for_its_helper_and_statement_alone() -> None:
    seal = sealed()
    assert open_seal(seal, HELPER, STATEMENT) == SEED
    assert open_seal(seal, X25519PrivateKey.generate(), STATEMENT) is None
    assert open_seal(seal, HELPER, STATEMENT + b" ") is None


def test_a_signature_is_of_device_seal_and_statement() -> None:
    seal, key = sealed(), device_key(0, 3).public_key()
    assert is_signed(seal, key, STATEMENT)
    assert not is_signed(seal, device_key(0, 4).public_key(), STATEMENT)
    assert not is_signed(seal, key, TERMS.statement(3, 2, 8, 50))
    other = Seal(seal.sequence, seal.device, sealed().sealed, seal.signature)
    assert not is_signed(other, key, STATEMENT)
    assert not is_signed(Seal(2, seal.device, seal.sealed, bytes(96)), key, STATEMENT)


def test_a_seal_has_always_the_same_length() -> None:
    seals = [sealed(sequence).to_bytes() for sequence in range(40)]
    assert {len(seal) for seal in seals} == {SEAL_BYTES} == {216}
    assert Seal.of(seals[7]).sequence == 7
    assert Seal.of(seals[7]).to_bytes() == seals[7]
    with pytest.raises(ValueError, match="a seal has 216 bytes, got 215"):
        Seal.of(seals[7][1:])


def test_simulated_keys_follow_from_the_seed() -> None:
    def private(seed: int, client: int) -> int:
        return device_key(seed, client).private_numbers().private_value

    assert private(0, 3) == private(0, 3)
    assert len({private(0, 3), private(1, 3), private(0, 4)}) == 3
    assert helper_key(0).private_bytes_raw() != helper_key(1).private_bytes_raw()
    devices, key = SimulatedDevices(0, 5), device_key(0, 3).public_key()
    found = devices.find(device_id(key), 3)
    assert found is not None
    assert device_id(found) == device_id(key)
    assert devices.find(device_id(key), 4) is None
    assert devices.find(device_id(device_key(0, 5).public_key()), 5) is None


def test_another_curve_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^node.key must be a key on P-384"):
        check_curve(ec.generate_private_key(ec.SECP256R1()), "node.key")
