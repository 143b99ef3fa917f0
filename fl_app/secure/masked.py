"""The client's half: clips, rounds and masks uploads, and seals the masks' seeds."""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fl_app.client.transform import Transformation
from fl_app.core.types import Order, Upload
from fl_app.secure import simulated
from fl_app.secure.integers import SEED_BYTES, FixedPoint, Mask
from fl_app.secure.request import Terms
from fl_app.secure.seals import DeviceKey, new_seal

Keys = Callable[[int], tuple[X25519PublicKey, DeviceKey]]

ROUNDING = 0x5EC0  # keeps the random numbers of rounding apart from all others


@dataclass
class Masked(Transformation):
    """Clips, rounds and masks a trainer's uploads.

    The upload's vector then holds the bits of integers modulo 2^32 (``vector.view(np.uint32)``).

    Args:
        terms: of the run, except ``run``, which comes with each order.
        seed: of the run, which determines the rounding of a simulation, so that its results can be
            repeated; None = nobody can predict the rounding, as on real devices.
        losses: whether clients report their mean training loss.
        keys: gives the helper's public key and the device's key of a client.
    """

    terms: Terms
    _: KW_ONLY
    seed: int | None
    losses: bool = True
    keys: Keys

    def __post_init__(self) -> None:
        self._point = FixedPoint(self.terms.clip_norm, self.terms.scale, self.terms.size)

    def send(self, order: Order, upload: Upload) -> Upload:
        """The masked upload.

        Raises:
            ValueError: the upload is not finite, or of another kind than the run's.
        """
        if not upload.done:
            raise ValueError("a client paused, but a masked upload answers an order at once")
        if upload.kind != self.terms.kind:
            raise ValueError(f"the upload is a {upload.kind}, expected a {self.terms.kind}")
        vector = np.empty_like(upload.vector)
        integers = vector.view(np.uint32)
        rng = np.random.default_rng()
        if self.seed is not None:
            rng = np.random.default_rng((self.seed, order.client_id, order.sequence, ROUNDING))
        mask_seed = secrets.token_bytes(SEED_BYTES)
        self._point.quantise(upload.vector, rng, integers, Mask(mask_seed))
        terms = replace(self.terms, run=str(order.config.get("run", "")))
        statement = terms.statement(
            order.client_id, order.sequence, order.base_version, upload.num_examples
        )
        helper, device = self.keys(order.client_id)
        seal = new_seal(mask_seed, helper, device, statement, order.sequence)
        return replace(
            upload,
            vector=vector,
            loss=upload.loss if self.losses else math.nan,
            seal=seal.to_bytes(),
        )


def masked(config: Mapping[str, Any], size: int) -> Masked:
    """The transformation that masks uploads, as configured.

    Args:
        config: of the run, with clip norm and scale filled in.
        size: d.
    """
    seed: int | None = None
    if config["runtime"]["name"] == "deployment":
        from fl_app.secure.folder import keys_of_device as keys
    else:
        seed = int(config["seed"])
        keys = partial(simulated.keys, seed)
    losses = bool(config["secure_aggregation"]["losses"])
    return Masked(Terms.of(config, size, ""), seed=seed, losses=losses, keys=keys)
