"""What uploads of one sum have in common, and what a client states about its own."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PROTOCOL = "fl-app secure aggregation 1"
KINDS: dict[str, type | tuple[type, ...]] = {
    "task": str,
    "algorithm": str,
    "run": str,
    "kind": str,
    "size": int,
    "clip_norm": (int, float),
    "scale": (int, float),
}


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
    """

    task: str
    algorithm: str
    run: str
    kind: str
    size: int
    clip_norm: float
    scale: float

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Terms":
        """The inverse of `plain`.

        Raises:
            ValueError: a key is unknown or missing, or a value is of another type.
        """
        known = {field.name for field in fields(cls)}
        if plain.keys() != known:
            raise ValueError(f"terms have the keys {sorted(plain)}, expected {sorted(known)}")
        for key, kind in KINDS.items():
            if not isinstance(plain[key], kind) or isinstance(plain[key], bool):
                raise ValueError(f"terms.{key}={plain[key]!r} is of another type")
        return cls(**plain)

    @property
    def plain(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)

    def statement(self, client: int, sequence: int, base_version: int, examples: int) -> bytes:
        """The associated data of one upload, which its device signs.

        Args:
            client: client id.
            sequence: how many training orders the client had before.
            base_version: that the client started from.
            examples: number of training examples.
        """
        own = {
            "protocol": PROTOCOL,
            "client": client,
            "sequence": sequence,
            "base_version": base_version,
            "examples": examples,
        }
        return json.dumps({**self.plain, **own}, sort_keys=True).encode()


def terms_of(config: Mapping[str, Any], size: int, run: str) -> Terms:
    """The terms of a configured run.

    Args:
        config: of the run, with the clip norm and the scale filled in.
        size: d.
        run: identifies the run; "" in simulation.
    """
    task, secure = config["task"], config["secure_aggregation"]
    return Terms(
        task=str(task.get("_target_", task.get("data", ""))),
        algorithm=str(config["algorithm"]["name"]),
        run=run,
        kind=str(config["algorithm"]["client"]["upload"]),
        size=size,
        clip_norm=float(secure["clip_norm"]),
        scale=float(secure["scale"]),
    )
