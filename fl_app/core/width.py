"""Sub-models by width: slow clients train a share of the units of every hidden layer.

Diao, Ding, Tarokh: "HeteroFL: Computation and Communication Efficient Federated Learning for
Heterogeneous Clients", ICLR 2021, arXiv:2010.01264. Alam, Liu, Yan, Zhang: "FedRolex:
Model-Heterogeneous Federated Learning with Rolling Sub-Model Extraction", NeurIPS 2022,
arXiv:2212.01548.

A client with share s that starts from version o has k = ceil(s n) of the n units of a hidden layer,

    HeteroFL: 0, ..., k - 1        FedRolex: (o + j) mod n, j = 0, ..., k - 1,

the weights between these, and all inputs and outputs. In an aggregation, an entry e of the vector
moves by the updates C_e of those clients alone that had it, and not at all if none had it:

    v_e = (sum_i p_i / sum_{i in C_e} p_i) sum_{i in C_e} a_i g_{i,e}

with p_i = 1 where K alone divides the sum (FedBuff), and p_i = a_i where sum_i a_i = 1.

Deviations: versions take the place of rounds. Outputs are not masked by a client's labels. The
window of FedRolex has ceil(s n) units, as in its code. HeteroFL's scaler, outputs of hidden layers
divided by s in training, is kept for both. Groups of GroupNorm become fewer where the units left
are no multiple of them. Seconds are scaled by the share of entries. Flower's messages hold the part
alone; in one process vectors keep their full length, of which that share is counted.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fl_app.core.layout import Layout
from fl_app.core.types import Config, Updates, Vector

Places = NDArray[np.intp]


def units(number: int, share: float, offset: int = 0) -> Places:
    """The units of a hidden layer of `number` units that are kept, ascending, shape ``(k,)``."""
    count = math.ceil(share * number - 1e-9)  # 0.07 x 100 is a little more than 7
    return np.sort((offset + np.arange(count)) % number)


def cut(layout: Layout, share: float, offset: int = 0) -> dict[str, Places]:
    """The part of each entry that a sub-model has: places in the vector, in the sub-model's shape.

    The first array of two or more dimensions takes the inputs, the last one gives the outputs, and
    a matrix reads what the weights before it give, flattened channel by channel.

    Args:
        layout: of the whole model, without buffers.
        share: s in (0, 1].
        offset: first unit of the window.

    Raises:
        ValueError: a matrix reads something else, or no layer before has a convolution's channels.
    """
    weights = [entry.name for entry in layout.entries if len(entry.shape) > 1]
    parts, before, last = {}, list[int](), False
    for entry in layout.entries:
        shape, ends = entry.shape, [np.arange(size) for size in entry.shape]
        last |= entry.name == weights[-1]
        if not last:
            ends[0] = units(shape[0], share, offset)
        if before and len(shape) > 1:
            channels = before[-1] if len(shape) == 2 else shape[1]
            if shape[1] % channels or channels not in (1, *before):
                problem = f"{entry.name} has {shape[1]} inputs, after layers of {before} units"
                raise ValueError(f"{problem}: algorithm.client.widths knows no sub-model of it")
            block = shape[1] // channels  # numbers that are one channel's
            ends[1] = (units(channels, share, offset)[:, None] * block + np.arange(block)).ravel()
        if len(shape) > 1:
            before.append(shape[0])
        place = layout.slices[entry.name]
        parts[entry.name] = np.arange(place.start, place.stop).reshape(shape)[np.ix_(*ends)]
    return parts


@lru_cache(maxsize=8)
def places(layout: Layout, share: float, offset: int = 0) -> Places:
    """The sub-model's places in the vector, in the order of its own vector; see `cut`."""
    parts = cut(layout, share, offset)
    return np.concatenate([parts[name].ravel() for name in layout.slices])


def part_of(config: Config, layout: Layout) -> Places | None:
    """The places of what the client of an order with this `config` trains; None = all of them."""
    share = float(config.get("width", 1))
    return places(layout, share, int(config["window"])) if share < 1 else None


def assign_widths(widths: Sequence[float], seconds: Sequence[float]) -> list[float]:
    """The share of every client: each of `widths` to equally many, the smallest to the slowest.

    Args:
        widths: shares, in (0, 1].
        seconds: mean training time of every client, shape ``(N,)``.
    """
    rank, ordered = np.argsort(np.argsort(seconds, kind="stable")), sorted(widths, reverse=True)
    return [ordered[place * len(ordered) // len(seconds)] for place in rank.tolist()]


@dataclass(frozen=True)
class Widths:
    """The share of the model that every client trains.

    Attributes:
        layout: of the whole model.
        shares: of every client, in (0, 1]. Further clients, which join with ids of their own, have
            the whole model.
        rolling: whether windows roll with the version (FedRolex).
    """

    layout: Layout
    shares: Sequence[float]
    rolling: bool

    @cached_property
    def parts(self) -> list[float]:
        """The share of the model's entries that each client trains."""
        size = {share: places(self.layout, share).size for share in set(self.shares)}
        return [size[share] / self.layout.size for share in self.shares]

    def config(self, client_id: int, version: int) -> dict[str, float]:
        """Config values of a client's order from a version; `part_of` reads them."""
        share = self.shares[client_id] if client_id < len(self.shares) else 1.0
        return {"width": share, "window": version if self.rolling else 0}

    def part(self, client_id: int) -> float:
        """The share of the model's entries that a client trains."""
        return self.parts[client_id] if client_id < len(self.parts) else 1.0

    def factor(self, weights: ArrayLike, updates: Updates) -> Vector:
        """What ``sum_i a_i g_i`` is multiplied by, where g_i is 0 in entries that its client lacks.

        Args:
            weights: p_i > 0, shape ``(K,)``.
            updates: K of them.

        Returns:
            sum_i p_i / sum_{i in C_e} p_i, shape ``(d,)``; 0 in entries that no client had.
        """
        p, mass = np.asarray(weights, float), np.zeros(self.layout.size)
        for weight, update in zip(p, updates, strict=True):
            part = part_of(self.config(update.client_id, update.base_version), self.layout)
            mass[slice(None) if part is None else part] += weight
        factor: Vector = (mass > 0).astype(np.float32)
        np.divide(p.sum(), mass, out=factor, where=mass > 0, casting="same_kind")
        return factor
