"""Records the orders of short runs on this machine, and compares uploads for the same orders."""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from omegaconf import OmegaConf

from fl_app.cli import compose
from fl_app.client.build import prepare_process
from fl_app.client.compression import Trainer
from fl_app.core.types import Order, Scores, Upload, Vector
from fl_app.runner.factory import build_components, build_engine
from fl_app.runner.validate import validate_config

# What must be equal whatever the processor; the other fields hold or are results of sums of floats.
EXACT = ("kind", "num_examples", "done", "progress", "base_version")


@dataclass
class Recorder:
    """A trainer that keeps its orders and what it uploaded for them.

    Args:
        trainer: does the training.
    """

    trainer: Trainer
    orders: list[Order] = field(default_factory=list)
    uploads: list[Upload] = field(default_factory=list)

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        """Carry out an order."""
        upload = self.trainer.train(order, out)
        self.orders.append(order)
        self.uploads.append(upload)
        return upload

    def score(self, order: Order) -> Scores:
        """Carry out an evaluate order, which is not recorded."""
        return self.trainer.score(order)


@dataclass(frozen=True)
class Recording:
    """A run's orders and uploads.

    Attributes:
        config: of the run, as its server sends it to nodes (YAML).
        orders: with the client states that they began with.
        uploads: one for each order.
    """

    config: str
    orders: Sequence[Order]
    uploads: Sequence[Upload]


def record(overrides: Sequence[str]) -> Recording:
    """Carry out a run in this process without files, and keep every order and upload.

    Args:
        overrides: as after ``python -m fl_app``.

    Raises:
        ValueError: an override is refused.
    """
    config = compose([*overrides, "runtime.workers=0"])
    validate_config(config)
    prepare_process()
    components = build_components(config)
    recorder = Recorder(components.trainer.sender)
    components.trainer.sender = recorder
    with closing(build_engine(components, sinks=[])) as engine:
        engine.run()
    yaml = OmegaConf.to_yaml(components.config, resolve=True)
    return Recording(yaml, recorder.orders, recorder.uploads)


def difference(ours: Sequence[Upload], theirs: Sequence[Upload], orders: Sequence[Order]) -> float:
    """Return the largest relative difference between uploads for the same orders.

    It is the norm of the difference over the norm of `ours`. A model counts as its displacement
    from the order's, because most of a model is what its client received. Arrays of the client
    state and extra vectors count as well.

    Raises:
        ValueError: something that may not depend on the processor differs.
    """
    if not len(ours) == len(theirs) == len(orders):
        raise ValueError(f"{len(ours)} and {len(theirs)} uploads for {len(orders)} orders")
    worst = 0.0
    for mine, other, order in zip(ours, theirs, orders, strict=True):
        for name in EXACT:
            a, b = getattr(mine, name), getattr(other, name)
            if a != b:
                raise ValueError(f"{name} of order {order.number} is {a} here and {b} there")
        # After a pause an order has no vector if there was no fresh model.
        same = mine.kind == "model" and order.vector.size == mine.vector.size
        received = order.vector if same else None
        pairs: dict[str, tuple[ArrayLike, ArrayLike, Vector | None]] = {
            "vector": (mine.vector, other.vector, received),
            "loss": (mine.loss, other.loss, None),
            "rate_sum": (mine.rate_sum, other.rate_sum, None),
        }
        for what in ("state", "extra"):
            a, b = getattr(mine, what), getattr(other, what)
            if a.keys() != b.keys():
                raise ValueError(f"{what} of order {order.number}: {sorted(a)}, {sorted(b)}")
            pairs |= {f"{what}.{key}": (a[key], b[key], None) for key in a}
        for name, (a, b, origin) in pairs.items():
            try:
                worst = max(worst, relative(a, b, origin))
            except ValueError as error:
                raise ValueError(f"{name} of order {order.number}: {error}") from None
    return worst


def relative(ours: ArrayLike, theirs: ArrayLike, origin: Vector | None = None) -> float:
    """Return the norm of ``theirs - ours`` over the norm of ``ours - origin``.

    Raises:
        ValueError: the shapes differ, or a value is not finite.
    """
    a, b = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    if a.shape != b.shape:
        raise ValueError(f"shape {a.shape} here and {b.shape} there")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("a value is not finite")
    apart = float(np.linalg.norm(b - a))
    size = float(np.linalg.norm(a if origin is None else a - origin))
    return apart / size if size else float(apart > 0)


def as_runs(recordings: Mapping[str, Recording]) -> dict[str, dict[str, object]]:
    """What `boards.replay` reads, by the runs' names."""
    return {
        name: {"config": each.config, "orders": [*each.orders]} for name, each in recordings.items()
    }
