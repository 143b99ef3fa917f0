"""The mini-batches of several clients as one table of indices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class MiniBatches:
    """Which examples each of B clients trains on in each of S steps.

    Clients with more steps come first, so that the clients of a step are the first `active` ones.
    A mini-batch that is shorter than others repeats its first example, with weight 0.

    Attributes:
        indices: shape ``(S, B, m)``, int64.
        weights: of the examples in a client's mean loss, shape ``(S, B, m)``, float32.
        widths: number of columns that a step needs, ``(S,)``.
        active: number of clients that still train in a step, ``(S,)``.
    """

    indices: NDArray[np.int64]
    weights: NDArray[np.float32]
    widths: NDArray[np.int64]
    active: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.active)


def mini_batches(
    clients: Sequence[tuple[NDArray[np.int64], np.random.Generator, int]], batch_size: int
) -> MiniBatches:
    """Draw the mini-batches, with the draws that `LocalTrainer` would make of each client alone.

    Args:
        clients: of each its training examples, its order's generator, which is used, and its number
            of steps; those with more steps first.
        batch_size: m >= 1.
    """
    num_steps = np.array([steps for _, _, steps in clients])
    most = int(num_steps[0])
    width = min(batch_size, max(own.size for own, _, _ in clients))
    indices = np.zeros((most, len(clients), width), np.int64)
    sizes = np.zeros((most, len(clients)), np.int64)
    for place, (own, rng, steps) in enumerate(clients):
        rows, lengths = _of_client(own, rng, steps, batch_size)
        own_width = rows.shape[1]
        indices[:steps, place, :own_width] = rows
        indices[:steps, place, own_width:] = rows[:, :1]
        sizes[:steps, place] = lengths
    present = np.arange(width) < sizes[..., None]
    weights = np.divide(present, np.maximum(sizes, 1)[..., None], dtype=np.float32)
    active = (num_steps > np.arange(most)[:, None]).sum(1)
    return MiniBatches(indices, weights, sizes.max(1), active)


def _of_client(
    own: NDArray[np.int64], rng: np.random.Generator, steps: int, batch_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """One client's mini-batches, a row each, and how many of a row's examples count."""
    per_epoch, width = math.ceil(own.size / batch_size), min(batch_size, own.size)
    epochs = math.ceil(steps / per_epoch)
    rows = np.empty((epochs, per_epoch * width), np.int64)
    last = (per_epoch - 1) * width  # where an epoch's last mini-batch begins
    for epoch in rows:
        epoch[: own.size] = rng.permutation(own)
        epoch[own.size :] = epoch[last]
    lengths = np.full((epochs, per_epoch), width)
    lengths[:, -1] = own.size - last
    return rows.reshape(-1, width)[:steps], lengths.reshape(-1)[:steps]
