"""FedHist's server step against the one matrix product of cosines that it cannot do without."""

import time
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from fl_app.algorithms.fedhist import FedHist
from fl_app.core.types import GlobalModel, Update

WORK = "S"
SIZES = (61_706, 11_169_162)  # LeNet's, and ResNet_R's
NUM_CLIENTS = 100
K = 10
LENGTH = 10  # h, rounds that the buffers remember


def measure(repeats: int) -> dict[str, Any]:
    """Milliseconds of processor time on one thread, and times the product, medians.

    Args:
        repeats: steps, after the buffers are full; ten times as many of the small model.
    """
    with threadpool_limits(1):
        small, large = SIZES
        steps = {small: _steps(small, 10 * repeats), large: _steps(large, repeats)}
    return {
        "work": WORK,
        "algorithm": "fedhist",
        "K": K,
        "h": LENGTH,
        "params": list(steps),
        "step_ms": [round(1e3 * median(step for step, _ in pairs), 3) for pairs in steps.values()],
        "ratio": [round(median(step / one for step, one in pairs), 2) for pairs in steps.values()],
        "repeats": repeats,
    }


def _steps(size: int, repeats: int) -> list[tuple[float, float]]:
    """Seconds of every step, and of K x h cosines among vectors as long."""
    random = np.random.default_rng(0)
    common = random.standard_normal(size, np.float32)
    uploads = [
        np.float32(0.3) * common + random.standard_normal(size, np.float32) for _ in range(2 * K)
    ]
    here, before = np.stack(uploads[:K]), np.stack(uploads[K:])
    for upload in uploads:
        upload.flags.writeable = False
    strategy, params = FedHist(buffer_length=LENGTH), np.zeros(size, np.float32)
    given = dict.fromkeys(range(NUM_CLIENTS), 0)
    pairs = []
    for version in range(LENGTH + 2 + repeats):
        clients = random.choice(NUM_CLIENTS, K, replace=False).tolist()
        updates = [
            Update(client, given[client], uploads[(3 * version + i) % (2 * K)], "pseudo", 10, 0.1)
            for i, client in enumerate(clients)
        ]
        began = time.thread_time()
        strategy.aggregate(GlobalModel(params, version), updates)
        ended = time.thread_time()
        here @ before.T
        pairs.append((ended - began, time.thread_time() - ended))
        given.update(dict.fromkeys(clients, version + 1))
    return pairs[LENGTH + 2 :]
