"""Clients in one batch: with every option, uploads equal those of single training."""

import numpy as np
import pytest
import torch
from torch import nn

from fl_app.client import LocalTrainer
from fl_app.client.batch import BatchTrainer, obstacle
from fl_app.client.build import chain
from fl_app.core.types import Order
from fl_app.tasks.models import architecture
from fl_app.tasks.objective import Classification, Regression
from fl_app.tasks.task import Task

SIZES = (7, 1, 12, 4, 30, 5)  # examples of each client
STARTS = np.cumsum((0, *SIZES))


def task(model="mlp", objective=None, kind=Task, **more):
    """Six clients with unequal numbers of examples, images of 8x8."""
    generator = torch.Generator().manual_seed(0)
    count = int(STARTS[-1])
    shape = (1, 8, 8)
    inputs = torch.randn(count, *shape, generator=generator)
    objective = objective or Classification(3)
    targets = torch.arange(count) % 3
    if isinstance(objective, Regression):
        targets = torch.randn(count, 3, generator=generator)
    return kind(
        name="unequal",
        objective=objective,
        architecture=architecture(model, shape, 3) if isinstance(model, str) else model,
        inputs=inputs,
        targets=targets,
        partition=[np.arange(*STARTS[i : i + 2]) for i in range(len(SIZES))],
        **more,
    )


def orders(trainer, **configs):
    """One order per client, each with another model; values of a list are per client."""
    rng = np.random.default_rng(1)
    start = trainer.model.read()
    result = []
    for client_id in range(len(SIZES)):
        vector = start + 0.1 * rng.standard_normal(start.size).astype(np.float32)
        vector.flags.writeable = False
        config = {
            key: value[client_id % len(value)] if isinstance(value, list) else value
            for key, value in configs.items()
        }
        result.append(Order(client_id, client_id, 3, 2, vector, {"version": 2, **config}, 0.0))
    return result


def assert_equal(together, alone):
    assert together is not None
    assert together.vector.dtype == np.float32
    np.testing.assert_allclose(together.vector, alone.vector, rtol=2e-4, atol=2e-6)
    assert together.kind == alone.kind
    assert together.num_examples == alone.num_examples
    assert together.loss == pytest.approx(alone.loss, rel=1e-4)
    assert together.rate_sum == alone.rate_sum
    assert together.state.keys() == alone.state.keys()
    for name, array in alone.state.items():
        np.testing.assert_allclose(together.state[name], array, rtol=2e-4, atol=2e-6)


def compare(data, configs=None, **settings):
    trainer = LocalTrainer(data, **{"batch_size": 5, "local_epochs": 2, **settings})
    assert obstacle(trainer) == ""
    requests = orders(trainer, **(configs or {}))
    batch = BatchTrainer(trainer, 6)
    for _ in range(2):  # the second time with the state of the first
        alone = [trainer.train(order) for order in requests]
        for one, other in zip(batch.train_together(requests), alone, strict=True):
            assert_equal(one, other)
        requests = [
            Order(o.number, o.client_id, o.sequence + 1, 2, o.vector, o.config, 0.0, upload.state)
            for o, upload in zip(requests, alone, strict=True)
        ]


@pytest.mark.parametrize("model", ["logistic", "mlp"])
@pytest.mark.parametrize("upload", ["model", "delta", "pseudo", "gradient"])
def test_every_kind_of_upload(model, upload):
    compare(task(model), upload=upload)


@pytest.mark.parametrize(
    "settings",
    [
        *({"local_steps": 1}, {"local_steps": 9}, {"batch_size": 64}, {"momentum": 0.9}),
        {"batch_size": 1, "local_epochs": 1},
        *({"weight_decay": 0.1}, {"proximal": 0.5}, {"max_grad_norm": 0.5}),
        {"max_grad_norm": 0.5, "momentum": 0.5, "weight_decay": 0.1, "proximal": 0.5},
        {"lr_decay": 0.5, "upload": "pseudo"},
    ],
    ids=str,
)
def test_every_option(settings):
    compare(task(), **settings)


@pytest.mark.parametrize(
    "configs",
    [
        *({"local_epochs": [1, 4, 2]}, {"local_lr_factor": [1.0, 0.5]}),
        {"local_lr_factor": 0.5, "version": 4},
        *({"proximal-mu": [0.0, 0.7, 0.1]}, {"proximal-mu": 0.3}),
    ],
    ids=str,
)
def test_every_key_of_an_order(configs):
    compare(task(), configs, momentum=0.5, lr_decay=0.9)


@pytest.mark.parametrize(
    "objective", [Regression(3), Regression(3, mean=(1, 2, 3), deviation=(2, 2, 4))]
)
def test_every_objective(objective):
    compare(task("mlp", objective))


def test_a_model_with_tied_parameters():
    def tied():
        first, second = nn.Linear(64, 64), nn.Linear(64, 64)
        second.weight = first.weight
        return nn.Sequential(nn.Flatten(), first, nn.Tanh(), second, nn.ReLU(), nn.Linear(64, 3))

    compare(task(tied))


def test_a_client_without_data_is_left_to_be_trained_alone():
    data = task()
    data.partition[1].resize(0, refcheck=False)
    trainer = LocalTrainer(data)
    uploads = BatchTrainer(trainer, 6).train_together(orders(trainer))
    assert [upload is None for upload in uploads] == [False, True, False, False, False, False]


def test_a_client_that_diverges_does_not_touch_others():
    trainer = LocalTrainer(task(), local_epochs=3)
    requests = orders(trainer, local_lr_factor=[1.0, 1.0, 1e30])
    with np.errstate(all="ignore"):
        together = BatchTrainer(trainer, 6).train_together(requests)
        alone = [trainer.train(order) for order in requests]
    for place, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert one is not None
        if place % 3 == 2:
            assert not np.isfinite(one.vector).all()
            assert not np.isfinite(other.vector).all()
        else:
            assert_equal(one, other)


# -- obstacles to batches -------------------------------------------------------------------------


class Mixing(nn.Module):
    """Subtracts the mean of the mini-batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, images):
        out = self.head(images.flatten(1))
        return out - out.mean(0)


def frozen_head():
    chain = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    chain[1].weight.requires_grad_(False)
    return chain


def dropout():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))


def batch_norm():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def overridden(kind, name):
    """A subclass that overrides a method without changing its result."""
    method = getattr(kind, name)
    return type("Theirs", (kind,), {name: lambda self, *arguments: method(self, *arguments)})


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (task("mlp", overridden(Classification, "loss")(3)), "a loss of its own"),
        (task("mlp", kind=overridden(Task, "loss")), "a loss of its own"),
        (task("mlp", kind=overridden(Task, "batch")), "a batch or prepare of its own"),
        (task("mlp", kind=overridden(Task, "_ready")), "a batch or prepare of its own"),
        *((task(model), "chain") for model in ("cnn", dropout, batch_norm, frozen_head, Mixing)),
        (task(augment=lambda images: images + torch.rand(1)), "draw at random"),
        (task(prepare=lambda images: images - images.mean(0)), "mix examples"),
        (
            task("mlp", Classification(3, criterion=nn.functional.cross_entropy)),
            "a loss of its own",
        ),
    ],
)
def test_obstacles_to_batches(data, reason):
    assert reason in obstacle(LocalTrainer(data))


@pytest.mark.parametrize("hook", ["penalty", "loss", "should_stop", "correct"])
def test_trainers_that_do_not_declare_batches(hook):
    reason = "does not say" if hook == "correct" else f"has a {hook} of its own"
    assert obstacle(overridden(LocalTrainer, hook)(task())).startswith(f"Theirs {reason}")


@pytest.mark.parametrize(
    ("settings", "name"),
    [({"upload_dtype": "float16"}, "Compressed"), ({"private": ["3.*"]}, "Private")],
)
def test_uploads_that_pass_through_something_else_are_made_alone(settings, name):
    reason = obstacle(chain(LocalTrainer(task(), **settings)))
    assert reason == f"each upload passes through {name}"
