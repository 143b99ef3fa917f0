"""The model that a run begins with."""

from collections.abc import Sequence

import torch

from fl_app.client.flat import FlatModel
from fl_app.client.task import TrainingTask
from fl_app.client.weights import load_weights
from fl_app.core.layout import Layout
from fl_app.core.types import Vector


def build_model(
    task: TrainingTask,
    seed: int,
    device: torch.device | str = "cpu",
    private: Sequence[str] | None = None,
    weights: str | None = None,
) -> FlatModel:
    """A task's model as it is before training; it depends on the arguments alone.

    Args:
        task: makes the model.
        seed: of the random weights.
        device: torch device.
        private: see `FlatModel`.
        weights: file with weights in their place (`fl_app.client.weights.load_weights`).

    Raises:
        ValueError: the file cannot be read, its weights do not fit the model, or the model has no
            part that is trained and shared.
    """
    with torch.random.fork_rng(devices=[]):  # the caller's own draws stay as they were
        torch.manual_seed(seed)
        module = task.model()
    if weights is not None:
        load_weights(module, weights)
    return FlatModel(module, device, private or ())


def initial_vector(
    task: TrainingTask,
    seed: int,
    weights: str | None = None,
    *,
    private: Sequence[str] | None = None,
) -> tuple[Vector, Layout]:
    """w_0 and its layout; see `build_model`."""
    model = build_model(task, seed, private=private, weights=weights)
    return model.read(), model.layout
