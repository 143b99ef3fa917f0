"""Properties of trainers: in batches, on another device, with other models."""

from functools import cache

import numpy as np
import pytest
import torch
from helpers import (
    QUIET,
    REPRESENTATIVES,
    HeadedQuadratic,
    initial_vector,
    make_config,
    order_for,
    run_configured,
)
from torch import Tensor, nn

from fl_app.client.batch import BatchTrainer
from fl_app.client.build import build_task, build_trainer, chain
from fl_app.core.types import GlobalModel
from fl_app.runner.validate import build_schedule, build_strategy
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification
from fl_app.tasks.task import Task

representatives = pytest.mark.parametrize("name", REPRESENTATIVES, scope="module")

# -- clients whose orders are computed in one batch -----------------------------------------------

CLIENTS = 20
# Not in batches: clients that pause, or that compare features of models.
ALONE = ("fedasmu", "moon")


class Unequal(HeadedQuadratic):
    """The model is one linear layer, whose weights are the point; clients have unequal data."""

    def model(self):
        chain = nn.Sequential(nn.Linear(1, self.dim, bias=False))
        nn.init.zeros_(chain[0].weight)
        return chain

    def batch(self, indices):
        points, _ = super().batch(indices)
        return torch.ones(len(points), 1), points

    def losses(self, output, target):
        return 0.5 * (output - target).square().sum(-1)

    def train_indices(self, client_id):
        return super().train_indices(client_id)[: 1 + client_id * 3 % self._each]


def train(name, batch, workers=0):
    overrides = ["algorithm.client.batch_size=3", "algorithm.client.local_epochs=3"]
    overrides += QUIET.get(name, [])
    config = make_config(f"algorithm={name}", f"num_clients={CLIENTS}", *overrides)
    config.num_versions = 8 if getattr(build_schedule(config), "buffer_size", 10) > 1 else 30
    trainer = build_trainer(config, Unequal.scattered(CLIENTS))
    return run_configured(config, trainer, workers=workers, batch=batch)


def without_floats(events):
    """Events without losses and weights, whose last bits differ; times stay."""
    return [
        {key: value for key, value in event.items() if key == "t" or not isinstance(value, float)}
        if "report" not in event
        else {key: event[key] for key in ("kind", "t", "version", "client", "age")}
        for event in events
    ]


@representatives
def test_batched_and_single_training_agree(name, monkeypatch):
    one = train(name, 1)
    count, train_together = 0, BatchTrainer.train_together

    def count_uploads(self, orders):
        nonlocal count
        uploads = train_together(self, orders)
        count += sum(upload is not None for upload in uploads)
        return uploads

    monkeypatch.setattr(BatchTrainer, "train_together", count_uploads)
    together = train(name, 5)
    assert (count > len(together.kind("arrival")) / 2) == (name not in ALONE)
    assert without_floats(together.events) == without_floats(one.events)
    np.testing.assert_allclose(together.outcome.params, one.outcome.params, rtol=1e-4, atol=1e-5)
    losses = [[e["loss"] for e in each.kind("arrival")] for each in (one, together)]
    np.testing.assert_allclose(*losses, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedbuff", "scaffold"])
def test_same_batch_same_bytes_whatever_the_number_of_workers(name):
    one, two = train(name, 5), train(name, 5, workers=2)
    assert two.events == one.events
    assert two.final == one.final


# -- models with batch normalisation and for text -------------------------------------------------

FEW, EACH, CLASSES = 10, 6, 3


@cache
def task(model):
    """Ten clients with six examples each: images of 8x8, or seven words of a vocabulary of 20."""
    generator = torch.Generator().manual_seed(0)
    count = FEW * EACH
    shape = (7, 20) if model == "textcnn" else (3, 8, 8)
    words = torch.randint(20, (count, 7), generator=generator)
    images = torch.randn(count, 3, 8, 8, generator=generator)
    inputs = words if model == "textcnn" else images
    return Task(
        name=model,
        objective=Classification(CLASSES),
        architecture=architecture(model, shape, CLASSES),
        inputs=inputs,
        targets=torch.arange(count) % CLASSES,
        test_inputs=inputs[:12],
        test_targets=torch.arange(12) % CLASSES,
        partition=np.split(np.arange(count), FEW),
    )


@pytest.mark.parametrize("model", ["resnet20", "textcnn"])
@pytest.mark.parametrize("name", ["fedavg", "fedasync", "scaffold", "fedasmu", "overlap_fedavg"])
def test_two_versions_of_other_models(name, model):
    epochs = 2 if name == "fedasmu" else 1
    overrides = [f"num_clients={FEW}", "num_versions=2", f"algorithm.client.local_epochs={epochs}"]
    config, data = make_config(f"algorithm={name}", *overrides), task(model)
    trainer = build_trainer(config, data)
    initial, layout = initial_vector(data, 0)
    evaluations = []

    def evaluate(version, vector):
        trainer.model.load(vector)
        evaluations.append(data.test(trainer.model.module))
        return evaluations[-1]

    more = {"initial": initial, "num_trainable": layout.num_trainable}
    result = run_configured(config, trainer, evaluate=evaluate, **more)
    outcome, history = result.outcome, result.history
    assert outcome.stopped == "num_versions"
    assert history.failures == history.rejected == 0
    assert (len(result.kind("pause")) > 0) == (name == "fedasmu")
    assert all(np.isfinite(metrics["loss"]) for metrics in evaluations)
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


# -- a device that is not the processor -----------------------------------------------------------

# PyTorch's device "meta", whose tensors have no data: like a GPU it refuses tensors of other
# devices, and every machine has it. Values that leave it are fake. All terms of the trainer are on.
TERMS = ["runtime.device=meta"] + [
    f"algorithm.client.{term}"
    for term in ("momentum=0.9", "weight_decay=0.1", "proximal=0.1", "max_grad_norm=1")
]


@cache
def digits():
    return build_task(make_config())


@pytest.fixture
def meta(monkeypatch):
    def replace(name, fake):
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda t: fake(t) if t.is_meta else real(t))

    replace("cpu", lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    replace("item", lambda tensor: 1.0)
    replace("__float__", lambda tensor: 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("meta")
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_two_orders_and_an_evaluation_on_another_device(name):
    config = make_config(f"algorithm={name}", *TERMS)
    trainer = build_trainer(config, digits())
    assert trainer.model.params[0].is_meta
    size = trainer.model.layout.size
    model = GlobalModel(np.zeros(size, np.float32), version=0)
    strategy = build_strategy(config)
    received, settings = strategy.dispatch(model, 0)
    extra = strategy.dispatch_extra(model, 0) if strategy.order_extra else {}
    settings = {**settings, "version": 0}
    upload = trainer.train(order_for(0, 0, received, settings, extra=extra))
    assert upload.done != (name == "fedasmu")
    if not upload.done:
        settings |= {"fresh_version": 1, "continues": True}
        upload = trainer.train(order_for(0, 0, received, settings, upload.state))
    settings |= {"continues": False}
    upload = trainer.train(order_for(0, 1, received, settings, upload.state, extra))
    assert upload.vector.size == (0 if name == "fedasmu" else size)
    assert trainer.score(order_for(0, 2, received, {})).num_examples == upload.num_examples


@pytest.mark.usefixtures("meta")
@pytest.mark.parametrize("name", ["fedbuff", "fedasmu", "moon", "scaffold"])
def test_frozen_and_private_parameters_are_on_the_device_too(name):
    parts = ["task.trainable=[1.bias,3.*]", "algorithm.client.private=[3.bias]"]
    config = make_config(f"algorithm={name}", *TERMS, *parts)
    trainer = build_trainer(config, build_task(config))
    model = trainer.model
    assert model.layout.names == ["1.bias", "3.weight"]
    assert model.module[1].weight.is_meta
    assert model.module[3].bias.is_meta
    vector = np.zeros(model.layout.size, np.float32)
    extra = {"control": vector} if name == "scaffold" else {}
    state = {}
    for sequence in range(2):
        order = order_for(0, sequence, vector, {"version": 0}, state, extra)
        state = chain(trainer).train(order).state
        assert state["private.3.bias"].shape == (10,)
    assert chain(trainer).score(order_for(0, 2, vector, {}, state)).num_examples > 0
    assert list(model.named(vector)) == ["1.weight", "1.bias", "3.weight", "3.bias"]
