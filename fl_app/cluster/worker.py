"""The life of a worker: it says what it is, builds its trainer once, and carries out orders."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fl_app.cluster.facts import Facts, digest_of_data, facts
from fl_app.cluster.parcels import Packed, Parcel, unpack, unpack_object
from fl_app.core.types import Reply, Vector
from fl_app.engine.workers import Inline

if TYPE_CHECKING:
    from collections.abc import Callable

    from fl_app.client import LocalTrainer, TrainingTask


@dataclass(frozen=True)
class Setup:
    """What a worker builds its trainer from.

    Attributes:
        config: of the run, as YAML.
        digest: of the data (`digest_of_data`).
        names: with which a worker can load the data by itself; False = they come as an object.
        fixed: the fixed part of the model, by name; empty = there is none.
        make: makes the trainer in place of the configured class.
    """

    config: str
    digest: str
    names: bool
    fixed: dict[str, NDArray[np.uint8]]
    make: "Callable[..., LocalTrainer] | None" = None


class ClusterWorker:
    """One long-lived process. Its methods are called one after the other."""

    def __init__(self) -> None:
        # Without torch, whose import takes seconds: a worker answers as soon as it has a place.
        self._inline: Inline | None = None

    def introduce(self) -> Facts:
        """What is compared before anything else is sent here."""
        return facts()

    def prepare(self, packed: Packed, task: Packed | None = None) -> str:
        """Build the trainer.

        Args:
            packed: a `Setup`.
            task: the task; None = it is loaded as the configuration says.

        Returns:
            Why the data are needed from elsewhere; "" = the worker is ready.
        """
        from omegaconf import DictConfig, OmegaConf

        from fl_app.client.build import (
            build_task,
            build_trainer,
            prepare_process,
        )

        setup: Setup = unpack_object(packed)
        config = OmegaConf.create(setup.config)
        assert isinstance(config, DictConfig)
        prepare_process()
        found: TrainingTask
        if task is not None:
            found = unpack_object(task)
        elif not setup.names:
            return "it is an object"
        else:
            try:
                found = build_task(config)
            except (ValueError, OSError) as error:
                return str(error)
            if digest_of_data(found) != setup.digest:
                return "they differ"
        trainer = build_trainer(config, found, setup.make)
        if setup.fixed:
            trainer.model.load_fixed(setup.fixed)
        self._inline = Inline(trainer.sender)
        return ""

    def work(self, parcels: Sequence[Parcel], *vectors: Vector) -> tuple[list[Reply], float]:
        """Carry out orders one after the other.

        Args:
            parcels: the orders.
            vectors: that they share, shape ``(d,)``.

        Returns:
            The replies, and the seconds that all of them took.
        """
        inline = self._inline
        assert inline is not None
        began = time.perf_counter()
        for vector in vectors:  # those of the store are read-only, and those of the call are not
            vector.flags.writeable = False
        replies: list[Reply] = []
        for order in unpack(parcels, vectors):
            inline.push(order)
            replies.extend(inline.pull(None))
        return replies, time.perf_counter() - began
