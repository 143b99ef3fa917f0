"""Phones and links as measured in the field. ``tables/README.md`` names the sources."""

import json
from importlib import resources
from typing import Any

import numpy as np

from fl_app.core.errors import require_at_least, require_positive
from fl_app.devices.compute import MeanSeconds
from fl_app.devices.draws import STREAM, NormalAbove, uniform

LEAST_SPEED = 0.1  # share of a link's mean: some deviations are as large as the mean


class MeasuredPhones(MeanSeconds):
    """Every client is one of 114 phone types, drawn by how often the type was seen in the field.

    Args:
        num_clients: N >= 1.
        seed: seed of the run.
        jitter: see `MeanSeconds`.
        base_seconds: mean duration on the median phone, > 0; other phones take 0.38 to 5.1 times as
            long.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self, *, num_clients: int, seed: int = 0, jitter: float = 0.2, base_seconds: float = 1.0
    ) -> None:
        require_at_least("num_clients", num_clients, 1, "there would be no client to train")
        require_positive("devices.base_seconds", base_seconds, "time would stand still")
        phones = _table("phones.json")
        counts = np.array([phone["count"] for phone in phones])
        relative = np.array([phone["relative_seconds"] for phone in phones])
        rng = np.random.default_rng((seed, STREAM))
        drawn = rng.choice(len(phones), num_clients, p=counts / counts.sum())
        super().__init__(base_seconds * relative[drawn], seed=seed, jitter=jitter)


class MeasuredLinks:
    """Every client has one of 19 measured links, drawn at random.

    A transfer takes ``num_bytes / speed``. The speed is normal, with the link's mean and deviation,
    truncated below a tenth of the mean.

    Args:
        num_bytes: size of a model.
        num_clients: N >= 1.
        seed: seed of the run.
        slowdown: divisor of all speeds, > 0.
        download_share: size of an order over that of a model.
        upload_share: size of an upload over that of a model.

    Raises:
        ValueError: a value is out of its bounds.
    """

    def __init__(
        self,
        *,
        num_bytes: int,
        num_clients: int,
        seed: int = 0,
        slowdown: float = 1.0,
        download_share: float = 1.0,
        upload_share: float = 1.0,
    ) -> None:
        require_positive("devices.network.slowdown", slowdown, "there would be no bandwidth")
        links = _table("links.json")
        drawn = np.random.default_rng((seed, STREAM, 1)).integers(len(links), size=num_clients)
        self._down = [_speed(links[place], "down") for place in drawn]
        self._up = [_speed(links[place], "up") for place in drawn]
        self._num_bytes = num_bytes * slowdown
        self._download_share = download_share
        self._upload_share = upload_share
        self._seed = seed

    def download(self, client_id: int, sequence: int) -> float:
        """Seconds until the client has the model of its order number `sequence`."""
        draw = uniform(self._seed, client_id, sequence, b"download")
        return self._num_bytes * self._download_share / self._down[client_id](draw)

    def upload(self, client_id: int, sequence: int) -> float:
        """Seconds from the end of training until the server has the update."""
        draw = uniform(self._seed, client_id, sequence, b"upload")
        return self._num_bytes * self._upload_share / self._up[client_id](draw)


def _speed(link: dict[str, Any], way: str) -> NormalAbove:
    mean = float(link[f"{way}_mean"])
    return NormalAbove(mean, float(link[f"{way}_sigma"]), LEAST_SPEED * mean)


def _table(name: str) -> list[dict[str, Any]]:
    # JSON, because Flower leaves other tables out when it bundles the app for the nodes.
    text = (resources.files("fl_app.devices") / "tables" / name).read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = json.loads(text)
    return rows
