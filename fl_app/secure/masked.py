"""The client's half: clips, rounds and masks uploads, and seals the masks' seeds."""

import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

from fl_app.client.transform import Transformation
from fl_app.core.types import Order, Upload
from fl_app.secure import simulated
from fl_app.secure.fixed_point import FixedPoint
from fl_app.secure.masks import SEED_BYTES, Mask
from fl_app.secure.seals import DEVICE_BYTES, NUMBER_BYTES, SEALED_BYTES, DeviceKey, Seal, new_seal
from fl_app.secure.terms import Terms, terms_of

ROUNDING = 0x5EC0  # of the generator that rounds, which no other draw uses


class Masked(Transformation):
    """Clips, rounds and masks a trainer's uploads.

    The upload's vector then holds the bits of integers modulo 2^32 (``vector.view(np.uint32)``).

    Args:
        terms: of the run, but for its ``run``, which orders tell.
        seed: of the run, which decides the rounding in a simulation, so that results can be
            repeated; None = rounding is nobody's to predict, as on real devices.
        losses: whether clients tell their mean training loss.
        keys: gives the helper's public key and the device's key of a client; None = nothing is
            masked, as where the costs of a run are modelled.
    """

    def __init__(
        self,
        terms: Terms,
        *,
        seed: int | None,
        losses: bool = True,
        keys: Callable[[int], tuple[X25519PublicKey, DeviceKey]] | None,
    ) -> None:
        self._terms = terms
        self._point = FixedPoint(terms.clip_norm, terms.scale, terms.size)
        self._seed = seed
        self._losses = losses
        self._keys = keys

    def send(self, order: Order, upload: Upload) -> Upload:
        """The masked upload.

        Raises:
            ValueError: the upload is not finite, or of another kind than the run's.
        """
        if not upload.done:
            raise ValueError("a client paused, but a masked upload answers an order at once")
        if upload.kind != self._terms.kind:
            raise ValueError(f"the upload is a {upload.kind}, expected a {self._terms.kind}")
        vector = np.empty_like(upload.vector)
        integers = vector.view(np.uint32)
        rng = np.random.default_rng()
        if self._seed is not None:
            rng = np.random.default_rng((self._seed, order.client_id, order.sequence, ROUNDING))
        if self._keys is None:
            mask, seal = None, unsealed(order.sequence)
        else:
            seed = secrets.token_bytes(SEED_BYTES)
            terms = replace(self._terms, run=str(order.config.get("run", "")))
            statement = terms.statement(
                order.client_id, order.sequence, order.base_version, upload.num_examples
            )
            helper, device = self._keys(order.client_id)
            mask = Mask(seed)
            seal = new_seal(seed, helper, device, statement, order.sequence)
        self._point.quantise(upload.vector, rng, integers, mask)
        return replace(
            upload,
            vector=vector,
            loss=upload.loss if self._losses else math.nan,
            seal=seal.to_bytes(),
        )


def masked(config: Mapping[str, Any], size: int) -> Masked:
    """The transformation that masks uploads as the configuration says.

    Args:
        config: of the run, with clip norm and scale filled in.
        size: d.
    """
    secure, seed = config["secure_aggregation"], int(config["seed"])
    keys: Callable[[int], tuple[X25519PublicKey, DeviceKey]] | None = None
    real = config["runtime"]["name"] == "deployment"
    if real:
        from fl_app.secure.folder import keys_of_device

        keys = keys_of_device
    elif secure["simulate"] == "helper":
        helper = simulated.helper_key(seed).public_key()

        def keys(client: int) -> tuple[X25519PublicKey, DeviceKey]:
            return helper, simulated.device_key(seed, client)

    return Masked(
        terms_of(config, size, ""),
        seed=None if real else seed,
        losses=bool(secure["losses"]),
        keys=keys,
    )


def unsealed(sequence: int) -> Seal:
    """A seal of the usual length that seals nothing."""
    return Seal(sequence, bytes(DEVICE_BYTES), bytes(SEALED_BYTES), bytes(2 * NUMBER_BYTES))
