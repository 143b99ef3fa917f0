"""Models with batch normalisation and for text, under every algorithm that averages models."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from configs import composed
from helpers import run
from omegaconf import DictConfig

from fl_app.client import initial_vector
from fl_app.client.build import build_trainer
from fl_app.runner.validate import build_schedule, build_strategy
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.task import Task

ALGORITHMS = ("fedavg", "fedasync", "fedbuff", "scaffold", "fedasmu", "overlap_fedavg")
CLIENTS, EACH, CLASSES = 10, 6, 3


@cache
def task(model: str) -> Task:
    """Ten clients with six examples each: images of 8x8, or sequences of seven of twenty words."""
    generator = torch.Generator().manual_seed(0)
    count = CLIENTS * EACH
    shape = (7, 20) if model == "textcnn" else (3, 8, 8)
    inputs = (
        torch.randint(20, (count, 7), generator=generator)
        if model == "textcnn"
        else torch.randn(count, *shape, generator=generator)
    )
    return Task(
        name=model,
        objective=Classification(CLASSES),
        architecture=architecture(model, shape, CLASSES),
        inputs=inputs,
        targets=torch.arange(count) % CLASSES,
        test_inputs=inputs[:12],
        test_targets=torch.arange(12) % CLASSES,
        partition=np.split(np.arange(count), CLIENTS),
    )


def configuration(name: str) -> DictConfig:
    overrides = [f"algorithm={name}", f"num_clients={CLIENTS}"]
    if name == "fedasmu":
        overrides += ["algorithm.client.local_epochs=2"]
    else:
        overrides += ["algorithm.client.local_epochs=1"]
    return composed(*overrides)


@pytest.mark.parametrize("model", ["resnet20", "textcnn"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_versions(name: str, model: str) -> None:
    config, data = configuration(name), task(model)
    trainer = build_trainer(config, data)
    initial, layout = initial_vector(data, 0)
    tested: list[dict[str, Any]] = []

    def evaluate(version: int, vector: Any) -> dict[str, float]:
        trainer.model.load(vector)
        tested.append(data.test(trainer.model.module))
        return tested[-1]

    result = run(
        build_schedule(config),
        trainer,
        num_clients=CLIENTS,
        num_versions=2,
        strategy=build_strategy(config),
        initial=initial,
        num_trainable=layout.num_trainable,
        evaluate=evaluate,
    )
    outcome, history = result.outcome, result.history
    assert outcome.stopped == "num_versions"
    assert history.failures == history.rejected == 0
    assert (len(result.kind("pause")) > 0) == (name == "fedasmu")
    assert all(np.isfinite(metrics["loss"]) for metrics in tested)
    split = layout.num_trainable
    assert (outcome.params[:split] != initial[:split]).mean() > 0.5
    statistics = layout.named(outcome.params)
    for entry in layout.entries:
        if entry.name.endswith("running_var"):
            assert (statistics[entry.name] > 0).all()
            assert (statistics[entry.name] != 1).any()
        if entry.name.endswith("running_mean"):
            assert (statistics[entry.name] != 0).any()
    assert (layout.size > split) == (model == "resnet20")
