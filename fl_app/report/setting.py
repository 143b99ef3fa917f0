"""The setting of a run, for the head of its page."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import OmegaConf

from fl_app.report.cells import Cell

MAX_VALUES = 4  # values listed of one setting; more are counted

# The most important keys of partitions and devices, in words.
_PARTITION = {
    "partitioner": "{}",
    "alpha": "alpha {}",
    "num_labels": "labels a client: {}",
    "shard_size": "shards of {}",
    "fraction": "IID share {}",
}
_DEVICES = {"ratio": "up to {}x slower", "slowdown": "{}x slower", "sigma": "sigma {}"}


def setting(cells: Sequence[Cell]) -> list[tuple[str, str]]:
    """Pairs of a label and the cells' values; unknown settings are left out.

    Args:
        cells: of the run, at least one.
    """
    configs: list[Any] = [OmegaConf.to_container(OmegaConf.create(cell.config)) for cell in cells]
    at_work = _values([_get(config, "algorithm.schedule.concurrency") for config in configs])
    clients = _values([_get(config, "num_clients") for config in configs])
    real = any(cell.on_wall_clock for cell in cells)
    pairs = [
        ("data", _values([cell.task for cell in cells])),
        ("model", _values([_get(config, "task.model") for config in configs])),
        ("clients", f"{clients}, {at_work} at work" if clients and at_work else clients),
        ("partition", _values([_kind(_get(c, "partition"), _PARTITION) for c in configs])),
        (
            "devices",
            "real" if real else _values([_kind(_get(c, "devices"), _DEVICES) for c in configs]),
        ),
        ("network", _values([_kind(_get(c, "devices.network"), {}) for c in configs])),
        (
            "seed" if len({c.seed for c in cells}) == 1 else "seeds",
            _values([c.seed for c in cells]),
        ),
    ]
    pairs.append(("length", _values([_length(_get(c, "experiment")) for c in configs])))
    return [(label, text) for label, text in pairs if text]


def _length(experiment: Any) -> str:
    """How a run is shorter than in full; empty if it is not."""
    if not isinstance(experiment, dict) or experiment.get("scale") != "reduced":
        return ""
    return f"1/{experiment['reduced']:g} of the full one (experiment.scale=reduced)"


def _values(found: Sequence[Any]) -> str:
    """The distinct values in words."""
    known = dict.fromkeys(str(value) for value in found if value not in (None, ""))
    if len(known) <= MAX_VALUES:
        return ", ".join(known)
    first, *_, last = known
    return f"{len(known)} values, {first} to {last}"


def _kind(node: Any, telling: Mapping[str, str]) -> str:
    """The class that a configuration names, with its most important values."""
    if not isinstance(node, dict) or not node.get("_target_"):
        return ""
    name = node["_target_"].rpartition(".")[2]
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Ratio")).replace("Iid", "IID")
    told = [text.format(node[key]) for key, text in telling.items() if node.get(key) is not None]
    return f"{words} ({', '.join(told)})" if told else words


def _get(node: Any, key: str) -> Any:
    for part in key.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return node
