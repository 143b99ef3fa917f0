"""What uploads of one sum have in common, and what a client states about its own."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from fl_app.core.errors import is_number

PROTOCOL = "fl-app secure aggregation 1"
TEXTS = ("task", "algorithm", "run", "kind")
NUMBERS = ("clip_norm", "scale", "noise_multiplier")


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
        noise_multiplier: z, of the noise that the helper adds; 0 = none.
    """

    task: str
    algorithm: str
    run: str
    kind: str
    size: int
    clip_norm: float
    scale: float
    noise_multiplier: float = 0.0

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Terms":
        """The inverse of `plain`.

        Raises:
            ValueError: a key is unknown or missing, or a value is of another type or not finite.
        """
        known = {field.name for field in fields(cls)}
        if plain.keys() != known:
            raise ValueError(f"terms have the keys {sorted(plain)}, expected {sorted(known)}")
        sound = {
            **{key: isinstance(plain[key], str) for key in TEXTS},
            **{key: is_number(plain[key]) for key in NUMBERS},
            "size": type(plain["size"]) is int,
        }
        for key, good in sound.items():
            if not good:
                raise ValueError(f"terms.{key}={plain[key]!r} is of another type, or not finite")
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
        noise_multiplier=float(secure["noise_multiplier"] or 0.0),
    )
