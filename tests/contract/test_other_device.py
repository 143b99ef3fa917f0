"""Every trainer keeps its tensors together on a device that is not the processor.

That device is PyTorch's "meta", on which tensors have no data: it refuses to mix with others as a
GPU does, and no machine lacks it. What leaves it is made up.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from configs import REPRESENTATIVES, composed
from helpers import order_for
from torch import Tensor

from fl_app.client import TrainingTask
from fl_app.client.build import build_task, build_trainer, chain
from fl_app.core.types import GlobalModel
from fl_app.runner.validate import build_strategy

# Of the trainer's own terms, all at once.
TERMS = [
    f"algorithm.client.{term}"
    for term in ("momentum=0.9", "weight_decay=0.1", "proximal=0.1", "max_grad_norm=1")
]


@cache
def digits() -> TrainingTask:
    return build_task(composed())


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def replace(name: str, made_up: Callable[[Tensor], Any]) -> None:
        real = getattr(Tensor, name)
        monkeypatch.setattr(Tensor, name, lambda t: made_up(t) if t.is_meta else real(t))

    replace("cpu", lambda tensor: torch.zeros(tensor.shape, dtype=tensor.dtype))
    replace("item", lambda tensor: 1.0)
    replace("__float__", lambda tensor: 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPRESENTATIVES)
def test_two_orders_and_an_evaluation(name: str) -> None:
    config = composed(f"algorithm={name}", "runtime.device=meta", *TERMS)
    trainer = build_trainer(config, digits())
    assert trainer.model.flat.is_meta
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
    upload = trainer.train(
        order_for(0, 1, received, {**settings, "continues": False}, upload.state, extra)
    )
    assert upload.vector.size == (0 if name == "fedasmu" else size)
    assert trainer.score(order_for(0, 2, received, {})).num_examples == upload.num_examples


@pytest.mark.parametrize("name", ["fedbuff", "fedasmu", "moon", "scaffold"])
def test_frozen_and_private_parameters_are_there_too(name: str) -> None:
    parts = ["task.trainable=[1.bias,3.*]", "algorithm.client.private=[3.bias]"]
    trainer = build_trainer(composed(f"algorithm={name}", "runtime.device=meta", *TERMS, *parts))
    model = trainer.model
    assert model.layout.names == ["1.bias", "3.weight"]
    assert model.module[1].weight.is_meta
    assert model.module[3].bias.is_meta
    vector = np.zeros(model.layout.size, np.float32)
    extra = {"control": vector} if name == "scaffold" else {}
    state: Any = {}
    for sequence in range(2):
        order = order_for(0, sequence, vector, {"version": 0}, state, extra)
        state = chain(trainer).train(order).state
        assert state["private.3.bias"].shape == (10,)
    assert chain(trainer).score(order_for(0, 2, vector, {}, state)).num_examples > 0
    model.load_fixed(model.fixed_bytes())
    assert list(model.named(vector)) == ["1.weight", "1.bias", "3.weight", "3.bias"]
