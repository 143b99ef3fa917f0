"""The helper: opens sealed seeds, and gives the server the weighted sum of their masks.

It never sees an upload. It gives a sum only if the sum hides every device's upload: see `Helper`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fl_app.core.hyper import at_least
from fl_app.secure.integers import Integers, hides_all, integer_weights, sum_of_masks
from fl_app.secure.ledger import Ledger
from fl_app.secure.request import Member, Refused, Request
from fl_app.secure.seals import DevicePublicKey, is_signed, open_seal

MIN_DEVICES = 2  # devices: a sum over one shows its upload
MAX_MEMBERS = 10_000  # uploads of one sum


# The public key of a registered device, by its id (`fl_app.secure.seals.device_id`) and the client
# id that it claims; None if it is not registered.
Find: TypeAlias = Callable[[bytes, int], DevicePublicKey | None]


@dataclass
class Helper:
    """Gives sums of masks, each after these checks.

    - At least `min_devices` different registered devices take part.
    - Every device has signed its client id, sequence, base version, number of examples, and the
      terms of the run; the seal opens with the same statement.
    - Weights are integers from 1 to 16, computed here from what devices have signed and from the
      version that the server states, and they decode no upload (`fl_app.secure.integers`).
    - A seed and an order are used for one request only. This is on disk before the sum is
      returned.

    Args:
        private_key: opens the seals.
        find: finds the devices that may take part.
        ledger: record of the used seeds.
        min_devices: T >= 2, fewest different devices of a sum.

    Raises:
        ValueError: `min_devices` is out of its bounds.
    """

    private_key: X25519PrivateKey
    find: Find
    ledger: Ledger
    min_devices: int

    def __post_init__(self) -> None:
        key, consequence = "--min-clients", "the sum over one client would be its upload"
        at_least(MIN_DEVICES).check(key, self.min_devices, consequence)

    def sum(self, request: Request) -> Integers:
        """sum_i a_i PRG(seed_i) modulo 2^32, shape ``(d,)``.

        Raises:
            Refused: a check failed.
        """
        members, terms = request.members, request.terms
        if not self.min_devices <= len(members) <= MAX_MEMBERS:
            raise Refused(
                f"{len(members)} uploads must be between {self.min_devices} and {MAX_MEMBERS}: "
                "fewer would show too much of a single one"
            )
        if terms.size < 1:
            raise Refused(f"size={terms.size} must be at least 1: there is nothing to sum")
        self._refuse(members, self._unsigned(request))
        devices = [member.seal.device for member in members]
        if len(set(devices)) < self.min_devices:
            raise Refused(
                f"{len(set(devices))} different devices must be at least {self.min_devices}: "
                "fewer would show too much of a single one"
            )
        weights = integer_weights(request.exact_weights())
        if not hides_all(weights, devices):
            raise Refused(
                f"weights {weights} have a common divisor without those of one device: the sum "
                "modulo that divisor would show this device's upload"
            )
        seeds = self._open(request)
        # An order that is answered twice has one upload under two masks.
        orders = [f"{terms.run} {m.seal.device.hex()} {m.seal.sequence}".encode() for m in members]
        if spent := self.ledger.use([*seeds, *orders], request.digest()):
            places = {place % len(seeds) for place in spent}
            raise Refused(
                f"{len(places)} seeds or orders were used before: the difference of two sums would "
                "show single uploads",
                dict.fromkeys(places, "its seed or its order was used before"),
            )
        return sum_of_masks(seeds, weights, terms.size)

    def _unsigned(self, request: Request) -> dict[int, str]:
        """Place -> the reason why no registered device has signed this member."""
        faults = {}
        for place, member in enumerate(request.members):
            key = self.find(member.seal.device, member.client)
            if key is None:
                faults[place] = "its device is not registered"
            elif not is_signed(member.seal, key, member.statement(request.terms)):
                faults[place] = "its device has not signed run, order, version, examples and terms"
            elif not 0 <= member.base_version <= request.version or member.examples < 1:
                faults[place] = (
                    f"base_version={member.base_version} must be between 0 and "
                    f"{request.version}, and examples={member.examples} at least 1"
                )
        return faults

    def _open(self, request: Request) -> list[bytes]:
        key, terms = self.private_key, request.terms
        seeds = [open_seal(m.seal, key, m.statement(terms)) for m in request.members]
        why = "its seal is for another helper, or of another statement"
        self._refuse(request.members, {i: why for i, seed in enumerate(seeds) if seed is None})
        return [seed for seed in seeds if seed is not None]

    @staticmethod
    def _refuse(members: Sequence[Member], faults: dict[int, str]) -> None:
        if faults:
            reasons = (f"client {members[place].client}: {why}" for place, why in faults.items())
            raise Refused("; ".join(reasons), faults)
