"""Refusals by every check of the helper; its record; seals."""

import json
import math
import multiprocessing
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure_world import CLIENTS, SIZE, TERMS, helper, masked, request, vectors

from fl_app.core.weighting import Weighting
from fl_app.secure.ledger import Ledger
from fl_app.secure.request import Refused, Request, Terms
from fl_app.secure.seals import SEAL_BYTES, Seal, check_curve, device_id, new_seal, open_seal
from fl_app.secure.simulated import device_key, find_device, helper_key


def updates(count=4, **more):
    return [masked(vector, i, **more) for i, vector in enumerate(vectors(count))]


def refusal(query, peer=None):
    with pytest.raises(Refused) as caught:
        (peer or helper()).sum(query)
    return caught.value


def keys_of(device, key=None):
    """Keys of a device, whatever client it claims to be, and of a helper."""
    helper_of = (key or helper_key(0)).public_key()
    return lambda client: (helper_of, device_key(0, device))


def one_more(client=4, **more):
    return request([*updates(3), masked(vectors()[0], client, **more)])


OTHER = X25519PrivateKey.generate()
FEW = [masked(v, i % 2, sequence=i // 2) for i, v in enumerate(vectors(4))]
UNSIGNED = "its device has not signed run, order, version, examples and terms"
UNREGISTERED = {3: "its device is not registered"}


@pytest.mark.parametrize(
    ("query", "text", "members"),
    [
        (request(updates(2)), "2 uploads must be between 3 and 10000", {}),
        (request(updates() * 2501), "must be between 3 and 10000", {}),
        (request(FEW), "2 different devices must be at least 3", {}),
        (request(updates(), terms=replace(TERMS, size=0)), "size=0 must be at least 1", {}),
        (one_more(CLIENTS), "", UNREGISTERED),
        (one_more(keys=keys_of(1)), "", UNREGISTERED),  # it signs as another client
        (
            one_more(keys=keys_of(4, OTHER)),
            "",
            {3: "its seal is for another helper, or of another statement"},
        ),
        (
            request([*updates(3, base_version=2), masked(vectors()[0], 4)], version=2),
            "base_version=3 must be between 0 and 2",
            None,
        ),
        (one_more(base_version=-1), "must be between 0 and 3, and examples=", None),
        (one_more(examples=0), "must be between 0 and 3, and examples=", None),
        # Other terms than the devices signed: uploads of another run, or a replay in another one.
        *(
            (
                request(updates(), terms=replace(TERMS, **other)),
                "",
                dict.fromkeys(range(4), UNSIGNED),
            )
            for other in ({"run": "another"}, {"scale": 2.0**17}, {"size": SIZE - 1})
        ),
    ],
)
def test_invalid_requests_are_refused(query, text, members):
    error = refusal(query)
    assert text in str(error)
    assert error.members == members if members is not None else error.members.keys() == {3}


@pytest.mark.parametrize(
    "lie",
    [
        *({"base_version": 2}, {"num_examples": 11}, {"client_id": 0, "seal": "sequence"}),
        *({"seal": "signature"}, {"seal": "sealed"}),
    ],
    ids=str,
)
def test_changes_that_a_device_has_not_signed_are_refused(lie):
    first, *others = updates()
    seal = Seal.of(first.seal)
    seals = {
        "sequence": replace(seal, sequence=1),
        "signature": replace(seal, signature=seal.signature[:-1] + b"\x00"),
        "sealed": replace(seal, sealed=Seal.of(others[0].seal).sealed),
    }
    if "seal" in lie:
        lie = {**lie, "seal": seals[str(lie["seal"])].to_bytes()}
    assert refusal(request([replace(first, **lie), *others])).members == {0: UNSIGNED}


def test_weights_of_which_one_device_has_all_that_are_odd():
    """2 x, 2 y, and 1 and 1 of one device: modulo 2 the sum shows that device's lowest bits."""
    mine = [
        masked(v, i, examples=n) for i, (v, n) in enumerate(zip(vectors(3), (2, 2, 1), strict=True))
    ]
    mine.append(masked(vectors()[0], 2, examples=1, sequence=1))
    query = request(mine, weighting=Weighting(by_examples=True))
    assert str(refusal(query)).startswith("weights [2, 2, 1, 1] have a common divisor without")


def test_a_seed_is_used_once():
    peer, mine = helper(), updates(5)
    peer.sum(request(mine[:4]))
    error = refusal(request(mine[1:]), peer)
    assert error.members == dict.fromkeys(range(3), "its seed or its order was used before")
    assert "the difference of two sums would show single uploads" in str(error)
    assert refusal(request(mine[:4], version=4), peer).members.keys() == {0, 1, 2, 3}
    again = [masked(vectors()[0], 0), *updates(5, sequence=2)[1:]]  # of one order, another mask
    assert refusal(request(again), peer).members.keys() == {0}
    # A refused request uses no seed.
    peer.sum(request([mine[4], *updates(3, sequence=1)]))


def test_the_same_request_gets_the_same_answer_again():
    peer, query = helper(), request(updates())
    assert (peer.sum(query) == peer.sum(query)).all()
    assert (peer.sum(Request.of(query.to_bytes())) == peer.sum(query)).all()


def test_a_seed_twice_in_one_request():
    """A device seals one seed twice, for two orders."""

    class SameSeed:
        def token_bytes(self, count):
            return bytes(count)

    import fl_app.secure.masked as device

    real, device.secrets = device.secrets, SameSeed()
    try:
        twice = [masked(vectors()[0], 4), masked(vectors()[1], 5)]
    finally:
        device.secrets = real
    error = refusal(request([*updates(3), *twice]))
    assert error.members == {4: "its seed or its order was used before"}


def test_the_record_outlives_a_restart(tmp_path):
    path, mine = tmp_path / "helper.db", updates(5)
    ledger = Ledger.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    key = ledger.private_key.private_bytes_raw()
    first = helper(ledger=ledger).sum(request(mine[:4]))
    ledger.close()
    reopened = Ledger(path)
    assert reopened.private_key.private_bytes_raw() == key
    assert (helper(ledger=reopened).sum(request(mine[:4])) == first).all()
    assert refusal(request(mine[1:]), helper(ledger=reopened)).members.keys() == {0, 1, 2}
    with pytest.raises(FileExistsError):
        Ledger.create(path)


def test_without_a_record_there_is_no_helper(tmp_path):
    with pytest.raises(ValueError, match=r"helper.db must be the helper's record"):
        Ledger(tmp_path / "helper.db")
    (tmp_path / "helper.db").write_bytes(b"no record, and longer than SQLite's header" * 9)
    with pytest.raises(ValueError, match="file is not a database"):
        Ledger(tmp_path / "helper.db")
    (tmp_path / "other.db").touch()
    with pytest.raises(ValueError, match="holds 0 keys, expected 1"):
        _ = Ledger(tmp_path / "other.db").private_key


@pytest.mark.slow
def test_a_helper_killed_at_any_moment_uses_nothing_twice(tmp_path):
    """A process is killed after 0 to 60 ms of answers; the record then fits the answers."""
    path = tmp_path / "helper.db"
    Ledger.create(path).close()
    fork = multiprocessing.get_context("fork")
    rounds = [updates(4, sequence=n) for n in range(300)]
    count = 0
    for delay in np.linspace(0.0, 0.06, 20):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_answers, args=(path, rounds[count:], theirs))
        process.start()
        theirs.close()
        if ours.poll(5.0):
            process.join(delay)
        assert process.is_alive()
        process.kill()
        process.join()
        while True:
            try:
                ours.recv()
                count += 1
            except EOFError:
                break
        ledger = Ledger(path)
        # At most one answer was recorded and not given.
        assert count_used(path) in (8 * count, 8 * count + 8)
        peer = helper(ledger=ledger)
        for mine in rounds[:count]:
            assert refusal(request([*mine[:3], rounds[-1][3]]), peer).members.keys() == {0, 1, 2}
        peer.sum(request(rounds[count]))  # the last request gets its answer, recorded or not
        count += 1
        ledger.close()
    assert count > 20


def count_used(path):
    with closing(sqlite3.connect(path)) as database:
        return database.execute("SELECT count(*) FROM used").fetchone()[0]


def _answers(path, rounds, pipe):
    peer = helper(ledger=Ledger(path))
    for mine in rounds:
        peer.sum(request(mine))
        pipe.send(True)


@pytest.mark.parametrize("key", ["clip_norm", "size", "run"])
def test_terms_that_are_no_numbers_or_texts(key):
    query = request(updates())
    for bad in (math.nan, None, [1]):
        plain = json.loads(query.to_bytes())
        plain["terms"][key] = bad
        with pytest.raises(ValueError, match=f"terms.{key}=.* is of another type, or not finite"):
            Request.of(json.dumps(plain).encode())


# -- sealed seeds, signatures and statements -------------------------------------------------------

HELPER = X25519PrivateKey.from_private_bytes(bytes(range(32)))
SEED = bytes(range(100, 132))
SEALED_TERMS = Terms("task", "fedbuff", "run", "delta", 4, 1.0, 1024.0)
STATEMENT = SEALED_TERMS.statement(3, 2, 7, 50)
# SEED, sealed once for HELPER with STATEMENT.
SEALED = bytes.fromhex(
    "ef3e883a6ec90bf18109bc4e31f7b5a2aa043e2fe9f4a87f6142657dd82709014022e24b2f502f33"
    "e30ea05d7612f8eedda593ab3ca7e4952bf170057879c84d73c92bf8f1998c4ba9c9393abd36dba1"
)


def make_seal(sequence=2):
    return new_seal(SEED, HELPER.public_key(), device_key(0, 3), STATEMENT, sequence)


def test_a_vector_of_the_sealed_seed():
    assert open_seal(Seal(2, b"", SEALED, b""), HELPER, STATEMENT) == SEED


def test_a_seal_has_always_the_same_length():
    seals = [make_seal(sequence).to_bytes() for sequence in range(40)]
    assert {len(seal) for seal in seals} == {SEAL_BYTES} == {216}
    assert Seal.of(seals[7]).sequence == 7
    assert Seal.of(seals[7]).to_bytes() == seals[7]
    with pytest.raises(ValueError, match="a seal has 216 bytes, got 215"):
        Seal.of(seals[7][1:])


def test_simulated_keys_follow_from_the_seed():
    def private(seed, client):
        return device_key(seed, client).private_numbers().private_value

    assert private(0, 3) == private(0, 3)
    assert len({private(0, 3), private(1, 3), private(0, 4)}) == 3
    assert helper_key(0).private_bytes_raw() != helper_key(1).private_bytes_raw()
    key = device_key(0, 3).public_key()
    public_key = find_device(0, 5, device_id(key), 3)
    assert public_key is not None
    assert device_id(public_key) == device_id(key)
    assert find_device(0, 5, device_id(key), 4) is None
    assert find_device(0, 5, device_id(device_key(0, 5).public_key()), 5) is None


def test_another_curve_is_refused():
    with pytest.raises(ValueError, match=r"^node.key must be a key on P-384"):
        check_curve(ec.generate_private_key(ec.SECP256R1()), "node.key")
