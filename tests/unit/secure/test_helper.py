"""Every check of the helper, seen to refuse."""

import json
import math
import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure_world import CLIENTS, SIZE, TERMS, helper, masked, request, vectors

from fl_app.core.types import Update
from fl_app.core.weighting import Weighting
from fl_app.secure.helper import Helper
from fl_app.secure.integers import Mask
from fl_app.secure.ledger import Ledger
from fl_app.secure.request import Refused, Request
from fl_app.secure.seals import Seal
from fl_app.secure.simulated import SimulatedDevices, device_key, helper_key


def updates(count: int = 4, **more: int) -> list[Update]:
    return [masked(vector, i, **more) for i, vector in enumerate(vectors(count))]


def refused(asked: Request, tells: Helper | None = None) -> Refused:
    with pytest.raises(Refused) as caught:
        (tells or helper()).sum(asked)
    return caught.value


def keys_of(device: int, key: X25519PrivateKey | None = None) -> Any:
    """Keys of a device, whoever it says it is, and of a helper."""
    helper_of = (key or helper_key(0)).public_key()
    return lambda client: (helper_of, device_key(0, device))


def one_more(client: int = 4, **more: Any) -> Request:
    return request([*updates(3), masked(vectors()[0], client, **more)])


OTHER = X25519PrivateKey.generate()
FEW = [masked(v, i % 2, sequence=i // 2) for i, v in enumerate(vectors(4))]
UNREGISTERED = {3: "its device is not registered"}


@pytest.mark.parametrize(
    ("asked", "text", "members"),
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
    ],
)
def test_what_is_asked_wrongly_is_refused(
    asked: Request, text: str, members: dict[int, str] | None
) -> None:
    error = refused(asked)
    assert text in str(error)
    assert error.members == members if members is not None else error.members.keys() == {3}


UNSIGNED = {0: "its device has not signed run, order, version, examples and terms"}


@pytest.mark.parametrize(
    "lie",
    [
        {"base_version": 2},
        {"num_examples": 11},
        {"client_id": 0, "seal": "sequence"},
        {"seal": "signature"},
        {"seal": "sealed"},
    ],
    ids=str,
)
def test_what_a_device_has_not_signed(lie: dict[str, object]) -> None:
    first, *others = updates()
    seal = Seal.of(first.seal)
    changed = {
        "sequence": replace(seal, sequence=1),
        "signature": replace(seal, signature=seal.signature[:-1] + b"\x00"),
        "sealed": replace(seal, sealed=Seal.of(others[0].seal).sealed),
    }
    if "seal" in lie:
        lie = {**lie, "seal": changed[str(lie["seal"])].to_bytes()}
    assert refused(request([replace(first, **lie), *others])).members == UNSIGNED  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        {"run": "another"},
        {"scale": 2.0**17},
        {"size": SIZE - 1},
        {"noise_multiplier": 0.5},
    ],
    ids=str,
)
def test_other_terms_than_the_devices_signed(other: dict[str, object]) -> None:
    """Such as uploads of another run, or a replay of a run's uploads in another one."""
    error = refused(request(updates(), terms=replace(TERMS, **other)))  # type: ignore[arg-type]
    assert error.members == dict.fromkeys(range(4), UNSIGNED[0])


def test_weights_of_which_one_device_has_all_that_are_odd() -> None:
    """2 x, 2 y, and 1 and 1 of one device: modulo 2 the sum shows that device's lowest bits."""
    mine = [
        masked(v, i, examples=n) for i, (v, n) in enumerate(zip(vectors(3), (2, 2, 1), strict=True))
    ]
    mine.append(masked(vectors()[0], 2, examples=1, sequence=1))
    asked = request(mine, weighting=Weighting(by_examples=True))
    assert str(refused(asked)).startswith("weights [2, 2, 1, 1] have a common divisor without")


def test_a_seed_is_used_once() -> None:
    tells, mine = helper(), updates(5)
    tells.sum(request(mine[:4]))
    error = refused(request(mine[1:]), tells)
    assert error.members == dict.fromkeys(range(3), "its seed was used before")
    assert "the difference of two sums would show single uploads" in str(error)
    assert refused(request(mine[:4], version=4), tells).members.keys() == {0, 1, 2, 3}
    # What was refused has used nothing.
    tells.sum(request([mine[4], *updates(3, sequence=1)]))


def test_the_same_request_gets_the_same_answer_again() -> None:
    tells, asked = helper(), request(updates())
    assert (tells.sum(asked) == tells.sum(asked)).all()
    assert (tells.sum(Request.of(asked.to_bytes())) == tells.sum(asked)).all()


def test_a_seed_twice_in_one_request() -> None:
    """A device that seals one seed twice, for two orders."""

    class SameSeed:
        def token_bytes(self, count: int) -> bytes:
            return bytes(count)

    import fl_app.secure.masked as device

    real, device.secrets = device.secrets, SameSeed()  # type: ignore[attr-defined]
    try:
        twice = [masked(vectors()[0], 4), masked(vectors()[1], 5)]
    finally:
        device.secrets = real  # type: ignore[attr-defined]
    error = refused(request([*updates(3), *twice]))
    assert error.members == {4: "its seed was used before"}


def test_the_record_outlives_a_restart(tmp_path: Path) -> None:
    path, mine = tmp_path / "helper.db", updates(5)
    ledger = Ledger.create(path)
    assert path.stat().st_mode & 0o777 == 0o600
    key = ledger.private_key.private_bytes_raw()
    first = helper(ledger=ledger).sum(request(mine[:4]))
    ledger.close()
    again = Ledger(path)
    assert again.private_key.private_bytes_raw() == key
    assert (helper(ledger=again).sum(request(mine[:4])) == first).all()
    assert refused(request(mine[1:]), helper(ledger=again)).members.keys() == {0, 1, 2}
    assert again.count() == 4
    with pytest.raises(FileExistsError):
        Ledger.create(path)


def test_two_helpers_share_a_record(tmp_path: Path) -> None:
    path, mine = tmp_path / "helper.db", updates(5)
    one, two = helper(ledger=Ledger.create(path)), helper(ledger=Ledger(path))
    one.sum(request(mine[:4]))
    assert refused(request(mine[1:]), two).members.keys() == {0, 1, 2}


def test_without_a_record_there_is_no_helper(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"helper.db must be the helper's record"):
        Ledger(tmp_path / "helper.db")
    (tmp_path / "helper.db").write_bytes(b"no record, and longer than SQLite's header" * 9)
    with pytest.raises(ValueError, match="file is not a database"):
        Ledger(tmp_path / "helper.db")
    (tmp_path / "other.db").touch()
    with pytest.raises(ValueError, match="holds 0 keys, expected 1"):
        _ = Ledger(tmp_path / "other.db").private_key


@pytest.mark.slow
def test_a_helper_killed_at_any_moment_uses_nothing_twice(tmp_path: Path) -> None:
    """A process is killed after 0 to 60 ms of answers; the record then fits what it answered."""
    path = tmp_path / "helper.db"
    Ledger.create(path).close()
    fork = multiprocessing.get_context("fork")
    rounds = [updates(4, sequence=n) for n in range(300)]
    answered = 0
    for delay in np.linspace(0.0, 0.06, 20):
        ours, theirs = fork.Pipe(duplex=False)
        process = fork.Process(target=_answers, args=(path, rounds[answered:], theirs))
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
                answered += 1
            except EOFError:
                break
        ledger = Ledger(path)
        # At most one answer was noted and not given.
        assert ledger.count() in (4 * answered, 4 * answered + 4)
        tells = helper(ledger=ledger)
        for mine in rounds[:answered]:
            assert refused(request([*mine[:3], rounds[-1][3]]), tells).members.keys() == {0, 1, 2}
        tells.sum(request(rounds[answered]))  # what was asked last is answered, noted or not
        answered += 1
        ledger.close()
    assert answered > 20


def _answers(path: Path, rounds: Sequence[Sequence[Update]], pipe: object) -> None:
    tells = helper(ledger=Ledger(path))
    for mine in rounds:
        tells.sum(request(mine))
        pipe.send(True)  # type: ignore[attr-defined]


def test_masks_are_those_of_the_devices() -> None:
    """With one step of weights, the sum is what has to be subtracted."""
    plain = vectors(4)
    mine = [masked(vector, i) for i, vector in enumerate(plain)]
    total = sum(update.vector.view(np.uint32) for update in mine)
    exact = (total - helper().sum(request(mine))).view(np.int32) / TERMS.scale
    assert np.abs(exact - sum(plain)).max() < 4 / TERMS.scale
    assert not (Mask(bytes(32)).next(SIZE) == total).any()


@pytest.mark.parametrize(
    "data",
    [b"[]", b"{}", b"nothing", b'{"terms": 1, "version": 1, "weighting": 1, "members": 1}'],
)
def test_what_is_no_request(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, KeyError)):
        Request.of(data)


# -- noise ----------------------------------------------------------------------------------------

NOISY = replace(TERMS, noise_multiplier=0.5)


def noisy(count: int = 4, **more: object) -> list[Update]:
    return [masked(v, i, terms=NOISY, **more) for i, v in enumerate(vectors(count))]  # type: ignore[arg-type]


def noise_of(asked: Request, mine: Sequence[Update], tells: Helper) -> np.ndarray:
    """What is left of a sum with equal weights, in units of the noise's deviation 0.5 C s."""
    bare = [masked(v, i, bare=True).vector.view(np.uint32) for i, v in enumerate(vectors(4))]
    total = sum(update.vector.view(np.uint32) for update in mine) - tells.sum(asked)
    return (total - sum(bare)).view(np.int32) / (0.5 * TERMS.clip_norm * TERMS.scale)


def test_noise_is_added_and_is_the_same_when_it_is_asked_again() -> None:
    """Otherwise the mean of many answers would show the sum, also after a restart."""
    mine = noisy()
    asked = request(mine, terms=NOISY)
    first = noise_of(asked, mine, helper())
    assert 0.7 < first.std() < 1.3
    assert len(np.unique(first)) == SIZE
    assert (noise_of(Request.of(asked.to_bytes()), mine, helper()) == first).all()
    others = noisy(sequence=1)
    other = noise_of(request(others, terms=NOISY), others, helper())
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.5


def test_less_noise_than_the_helper_requires() -> None:
    strict = Helper(helper_key(0), SimulatedDevices(0, CLIENTS), Ledger(), 3, least_noise=0.6)
    asked = request(noisy(), terms=NOISY)
    assert str(refused(asked, strict)).startswith("noise_multiplier=0.5 must be at least 0.6")
    helper().sum(asked)  # and nothing was used


def test_negative_noise_and_noise_that_overflows() -> None:
    for z, text in ((-1.0, "noise_multiplier=-1 must be"), (1e4, "must have at most 268435456")):
        terms = replace(TERMS, noise_multiplier=z)
        mine = [masked(v, i, terms=terms) for i, v in enumerate(vectors(4))]
        assert text in str(refused(request(mine, terms=terms)))
    with pytest.raises(ValueError, match=r"noise_multiplier=-1 must be a finite number >= 0"):
        Helper(helper_key(0), SimulatedDevices(0, 2), Ledger(), 2, least_noise=-1)


@pytest.mark.parametrize("key", ["noise_multiplier", "clip_norm", "size", "run"])
def test_terms_that_are_no_numbers_or_texts(key: str) -> None:
    asked = request(updates())
    for bad in (math.nan, None, [1]):
        plain = json.loads(asked.to_bytes())
        plain["terms"][key] = bad
        with pytest.raises(ValueError, match=f"terms.{key}=.* is of another type, or not finite"):
            Request.of(json.dumps(plain).encode())
