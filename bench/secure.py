"""Costs of secure aggregation: bytes, seconds and memory of client, helper, server and noise.

    python -m bench.secure [--sizes 62000 11000000] [--members 10 100]

It prints a JSON object a line. Seconds are those of one thread. ``memory`` is what a step allocates
beside the uploads themselves, in bytes (tracemalloc).
"""

import argparse
import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from fl_app.core.types import GlobalModel, Order, Scores, Update, Upload, Vector
from fl_app.core.weighting import Weighting
from fl_app.secure.device import Masked
from fl_app.secure.fixed_point import largest_scale
from fl_app.secure.helper import Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.masks import Integers
from fl_app.secure.noise import add_noise
from fl_app.secure.request import Member, Request
from fl_app.secure.seals import SEAL_BYTES
from fl_app.secure.server import SecureAggregation
from fl_app.secure.simulated import SimulatedDevices, device_key, helper_key
from fl_app.secure.terms import Terms

CLIP = 5.0
SIGMA = 2**24  # of the noise; it hardly changes how long the draws take


class Same:
    """A trainer that always uploads the same vector."""

    def __init__(self, vector: Vector) -> None:
        self._vector = vector

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        return Upload(self._vector, "delta", 10, 0.5)

    def score(self, order: Order) -> Scores:
        raise NotImplementedError


class Told:
    """Tells a sum that was computed before."""

    def __init__(self, total: Integers) -> None:
        self._total = total

    def sum(self, request: Request) -> Integers:
        return self._total


def measured(work: Callable[[], Any]) -> tuple[Any, float, int]:
    """What `work` returns, its seconds, and the most memory that it allocated."""
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    del result
    tracemalloc.start()
    result = work()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return result, seconds, most


def measure(size: int, members: int) -> dict[str, Any]:
    """The costs of one aggregation of `members` uploads with `size` entries."""
    scale = largest_scale(CLIP, members)
    terms = Terms("bench", "fedbuff", "", "delta", size, CLIP, scale)
    vector = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    vector *= np.float32(CLIP / 2 / np.linalg.norm(vector))
    key: X25519PrivateKey = helper_key(0)
    trainer = Masked(
        Same(vector), terms, seed=0, keys=lambda client: (key.public_key(), device_key(0, client))
    )

    def mask(client: int) -> Update:
        order = Order(0, client, 0, client % 5, vector, {}, 0.0)
        return Update.of(trainer.train(order), client, client % 5)

    mask(0)  # derives the key
    _, client_seconds, client_memory = measured(lambda: mask(0))
    # They share one array: 100 uploads of 44 MB are the server's, and not the bench's.
    first = mask(0)
    updates = [first, *(replace(mask(i), vector=first.vector) for i in range(1, members))]
    weighting = Weighting("polynomial", exponent=0.5)
    request = Request(terms, 5, weighting, [Member.of(update) for update in updates])
    helper = Helper(key, SimulatedDevices(0, members), Ledger(), members)
    total, helper_seconds, helper_memory = measured(lambda: helper.sum(request))
    server = SecureAggregation(Told(total), terms, weighting, members=members, least=members)
    _, noise_seconds, noise_memory = measured(lambda: add_noise(total, bytes(32), SIGMA))
    model = GlobalModel(np.zeros(1, np.float32), 5)
    _, server_seconds, server_memory = measured(lambda: server.open(model, updates))
    return {
        "parameters": size,
        "members": members,
        "upload_bytes": 4 * size + SEAL_BYTES,
        "request_bytes": len(request.to_bytes()),
        "answer_bytes": 4 * size,
        "client": {"seconds": client_seconds, "memory": client_memory},
        "helper": {"seconds": helper_seconds, "memory": helper_memory},
        "server": {"seconds": server_seconds, "memory": server_memory},
        "noise": {"seconds": noise_seconds, "memory": noise_memory},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[62_000, 11_000_000])
    parser.add_argument("--members", type=int, nargs="+", default=[10, 100])
    options = parser.parse_args(arguments)
    for size in options.sizes:
        for members in options.members:
            print(json.dumps(measure(size, members)), flush=True)


if __name__ == "__main__":
    main()
