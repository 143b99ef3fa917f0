"""``python -m lab.bench.versions``: milliseconds of a version on the server.

A version of LeNet is made of ten gradients that are up to nine versions old, the same ones for all
strategies. The median over versions is printed, once every client was heard.
"""

from statistics import median
from time import perf_counter

import numpy as np

from fl_app.algorithms.ca2fl import CA2FL
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fedhist import FedHist
from fl_app.client.build import prepare_process
from fl_app.core.types import GlobalModel, Update
from fl_app.strategy import AsyncStrategy

SIZE, BUFFER, VERSIONS = 61_706, 10, 300


def main() -> None:
    """Measure versions with 1,000 and with 10,000 clients."""
    prepare_process()
    rng, params = np.random.default_rng(0), np.zeros(SIZE, np.float32)
    gradients = rng.standard_normal((64, SIZE), np.float32)
    for size in (1_000, 10_000):
        sides: list[AsyncStrategy] = [FedHist(), CA2FL(num_clients=size), CANA(num_clients=size)]
        seconds: list[list[float]] = [[] for _ in sides]
        clients = np.append(np.arange(size), rng.integers(size, size=VERSIONS * BUFFER))
        for version, heard in enumerate(clients.reshape(-1, BUFFER).tolist()):
            bases = [max(version - age, 0) for age in rng.integers(10, size=BUFFER).tolist()]
            vectors = gradients[rng.integers(len(gradients), size=BUFFER)]
            updates = [
                Update(client, base, vector, "gradient", 32, 0.01)
                for client, base, vector in zip(heard, bases, vectors, strict=True)
            ]
            for side, each in zip(sides, seconds, strict=True):
                start = perf_counter()
                side.aggregate(GlobalModel(params, version), updates)
                each.append(perf_counter() - start)
        for side, each in zip(sides, seconds, strict=True):
            print(
                f"{size:6,} clients, {type(side).__name__:7} {1e3 * median(each[-VERSIONS:]):.2f}"
            )


if __name__ == "__main__":
    main()
