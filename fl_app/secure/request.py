"""The common terms of the uploads of one sum, and the server's request to the helper."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, TypeAlias

from fl_app.core.errors import is_number
from fl_app.core.types import Update
from fl_app.core.weighting import Weighting
from fl_app.secure.integers import Integers
from fl_app.secure.seals import Seal

PROTOCOL = "fl-app secure aggregation 1"


class Refused(Exception):
    """The helper refuses a sum of masks.

    Args:
        reason: why.
        members: place in the request -> reason, for each upload at fault; empty if the whole
            request is.
    """

    def __init__(self, reason: str, members: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.members = dict(members or {})


@dataclass(frozen=True, slots=True)
class Terms:
    """What all uploads of one sum must agree on.

    Attributes:
        task: what is learned.
        algorithm: its name.
        run: identifies the run.
        kind: of the uploads, such as ``"delta"``.
        size: d, entries of an upload.
        clip_norm: C.
        scale: s.

    Raises:
        ValueError: a value is of another type, or not finite.
    """

    task: str
    algorithm: str
    run: str
    kind: str
    size: int
    clip_norm: float
    scale: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not (is_number(value) if field.type is float else type(value) is field.type):
                text = f"terms.{field.name}={value!r} is of another type, or not finite"
                raise ValueError(text)

    @classmethod
    def of(cls, config: Mapping[str, Any], size: int, run: str) -> "Terms":
        """The terms of a configured run.

        Args:
            config: of the run, with the clip norm and the scale filled in.
            size: d.
            run: identifies the run; "" in simulation.
        """
        task, secure = config["task"], config["secure_aggregation"]
        return cls(
            task=str(task.get("_target_", task.get("data", ""))),
            algorithm=str(config["algorithm"]["name"]),
            run=run,
            kind=str(config["algorithm"]["client"]["upload"]),
            size=size,
            clip_norm=float(secure["clip_norm"]),
            scale=float(secure["scale"]),
        )

    def statement(self, client: int, sequence: int, base_version: int, examples: int) -> bytes:
        """The associated data of one upload, which its device signs.

        Args:
            client: client id.
            sequence: how many training orders the client had before.
            base_version: that the client started from.
            examples: number of training examples.
        """
        upload = {
            "protocol": PROTOCOL,
            "client": client,
            "sequence": sequence,
            "base_version": base_version,
            "examples": examples,
        }
        return json.dumps({**asdict(self), **upload}, sort_keys=True).encode()


class Member(NamedTuple):
    """What the helper gets of one masked upload.

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
        """The member for a masked update.

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
        plain = {
            "terms": asdict(self.terms),
            "version": self.version,
            "weighting": asdict(self.weighting),
            "members": [[*member[:3], member.seal.to_bytes().hex()] for member in self.members],
        }
        return json.dumps(plain, sort_keys=True).encode()

    @classmethod
    def of(cls, data: bytes) -> "Request":
        """The inverse of `to_bytes`.

        Raises:
            ValueError, TypeError, AttributeError, KeyError: it is no request.
        """
        plain = json.loads(data)
        members = []
        for *numbers, seal in plain["members"]:
            client, base_version, examples = numbers
            members.append(Member(client, base_version, examples, Seal.of(bytes.fromhex(seal))))
        numbers = [number for member in members for number in member[:3]]
        if not all(type(number) is int for number in (plain["version"], *numbers)):
            raise ValueError("versions, clients and numbers of examples must be integers")
        terms, weighting = Terms(**plain["terms"]), Weighting(**plain["weighting"])
        return cls(terms, plain["version"], weighting, members)

    def digest(self) -> bytes:
        """SHA-256 of the request."""
        return hashlib.sha256(self.to_bytes()).digest()


# Gives the sum of the masks modulo 2^32, shape ``(d,)``: a helper in this process, or a connection
# to one. It raises `Refused` if a check failed, and RunError if the helper cannot be reached.
Summer: TypeAlias = Callable[[Request], Integers]
