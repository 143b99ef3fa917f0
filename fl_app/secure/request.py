"""What the server asks the helper: the sum of the masks of one aggregation."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol

from fl_app.core.types import Update
from fl_app.core.weighting import Weighting
from fl_app.secure.masks import Integers
from fl_app.secure.seals import Seal
from fl_app.secure.terms import Terms


class Refused(Exception):
    """The helper does not tell the sum of masks that was asked for.

    Args:
        reason: why.
        members: place in the request -> why, of the uploads that are at fault; empty if the request
            as a whole is.
    """

    def __init__(self, reason: str, members: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.members = dict(members or {})


class Member(NamedTuple):
    """One masked upload, as the helper learns of it.

    Attributes:
        client: client id.
        base_version: that the client started from, as it signed.
        examples: number of training examples, as the client signed.
        seal: sealed seed and signature.
    """

    client: int
    base_version: int
    examples: int
    seal: Seal

    @classmethod
    def of(cls, update: Update) -> "Member":
        """The member that a masked update is.

        Raises:
            ValueError: its seal is malformed.
        """
        return cls(update.client_id, update.base_version, update.num_examples, Seal.of(update.seal))

    def statement(self, terms: Terms) -> bytes:
        """What the client must have signed."""
        return terms.statement(self.client, self.seal.sequence, self.base_version, self.examples)


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for sum_i a_i PRG(seed_i).

    Attributes:
        terms: that all uploads agree on.
        version: of the global model, t.
        weighting: how the algorithm weighs updates; the helper computes a_i from it.
        members: the uploads, oldest arrival first.
    """

    terms: Terms
    version: int
    weighting: Weighting
    members: Sequence[Member]

    def exact_weights(self) -> Any:
        """The algorithm's weights, up to a common factor, shape ``(K,)``."""
        return self.weighting.weights(
            [self.version - member.base_version for member in self.members],
            [member.examples for member in self.members],
        )

    def to_bytes(self) -> bytes:
        """The request as JSON; equal requests give equal bytes."""
        return json.dumps(
            {
                "terms": self.terms.plain,
                "version": self.version,
                "weighting": asdict(self.weighting),
                "members": [
                    [m.client, m.base_version, m.examples, m.seal.to_bytes().hex()]
                    for m in self.members
                ],
            },
            sort_keys=True,
        ).encode()

    @classmethod
    def of(cls, data: bytes) -> "Request":
        """The inverse of `to_bytes`.

        Raises:
            ValueError: it is no request.
        """
        plain = json.loads(data)
        if not isinstance(plain, Mapping) or plain.keys() != {
            *("terms", "version", "weighting", "members")
        }:
            raise ValueError("a request has terms, version, weighting and members")
        members = []
        for entry in plain["members"]:
            if not isinstance(entry, list) or len(entry) != 4:
                raise ValueError("a member has client, base version, examples and seal")
            *numbers, seal = entry
            if not all(type(number) is int for number in numbers) or not isinstance(seal, str):
                raise ValueError("client, base version and examples are integers, a seal is a text")
            client, base_version, examples = numbers
            members.append(Member(client, base_version, examples, Seal.of(bytes.fromhex(seal))))
        if type(plain["version"]) is not int:
            raise ValueError(f"version={plain['version']!r} must be an integer")
        return cls(
            Terms.of(plain["terms"]),
            plain["version"],
            Weighting.of(plain["weighting"]),
            members,
        )

    def digest(self) -> bytes:
        """SHA-256 of the request."""
        return hashlib.sha256(self.to_bytes()).digest()


class Summer(Protocol):
    """Tells sums of masks: a helper in this process, or a connection to one."""

    def sum(self, request: Request) -> Integers:
        """The sum of the masks modulo 2^32, shape ``(d,)``.

        Raises:
            Refused: a check failed.
            RunError: the helper cannot be reached.
        """
        ...
