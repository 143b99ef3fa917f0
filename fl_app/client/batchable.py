"""Whether orders of several clients can be trained in one operation."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.client.batch import examples, stacked_losses
from fl_app.client.compression import Compressed
from fl_app.client.private import Private
from fl_app.client.settings import FLOAT32
from fl_app.client.stacked import stacked_forward
from fl_app.client.trainer import LocalTrainer

# What has no counterpart in a batch: a subclass with one of these trains its clients one by one.
ALONE = ("penalty", "should_pause", "merge", "train")
EXAMPLES = 4  # of each client on which both ways are compared
SEARCHED = 100  # clients, for one with several examples


def obstacle(trainer: LocalTrainer) -> str:
    """Why its orders must be trained one at a time; "" if nothing is against batches.

    Beside what is known of the trainer, a gradient of two clients is computed both ways and
    compared. So layers that mix the examples of a mini-batch, random draws, and losses that are no
    means over examples are found, whatever their class.

    Args:
        trainer: its model is the same after the call, and so are torch's random numbers.
    """
    name = type(trainer).__name__
    own = [
        hook for hook in ALONE if getattr(type(trainer), hook) is not getattr(LocalTrainer, hook)
    ]
    if own:
        return f"{name} has a {own[0]} of its own"
    if not trainer.batches:
        return f"{name} does not say that its clients can be trained together (batches)"
    if type(trainer.sender) not in (type(trainer), Private, Compressed):
        return f"each upload passes through {type(trainer.sender).__name__}"
    layout, model = trainer.model.layout, trainer.model
    if layout.size > layout.num_trainable or len(model.trained) < len(model.params) + len(
        model.private
    ):
        return "the model has buffers, such as the running statistics of BatchNorm"
    before, precision = model.flat.clone(), trainer.processor.precision
    trainer.processor.precision = FLOAT32  # else both ways would differ by rounding alone
    try:
        with torch.random.fork_rng(devices=[]):
            return _difference(trainer)
    except Exception as error:  # of a model or a loss that are not ours
        told = " ".join(str(error).split())[:200]
        return f"the model or the loss cannot be vectorised ({type(error).__name__}: {told})"
    finally:
        trainer.processor.precision = precision
        model.flat.copy_(before)


def _difference(trainer: LocalTrainer) -> str:
    """What differs between gradients of single clients and those of a batch; "" if nothing does."""
    model = trainer.model
    model.module.train()
    chosen = _some_examples(trainer)
    if chosen is None:
        return "no client has training examples"
    # The second client's mini-batch is the shorter one, if there is more than one example.
    count = chosen.shape[1]
    sizes = [count, max(1, count - 1)]
    weights = torch.tensor([[(j < n) / n for j in range(count)] for n in sizes])
    noise = torch.randn(2, model.flat.numel(), generator=torch.Generator().manual_seed(0))
    rows = model.flat + 0.05 * noise.to(model.flat)
    alone: list[tuple[Tensor, ...]] = []
    stacked: list[list[Tensor]] = []
    for row, size, own in zip(rows, sizes, chosen, strict=True):
        model.flat.copy_(row)
        state = torch.get_rng_state()
        loss = trainer.loss(own[:size])
        if not torch.equal(state, torch.get_rng_state()):
            return "the model or its data draw random numbers in every step"
        alone.append((loss.detach(), *torch.autograd.grad(loss, model.trained)))
        stacked.append([parameter.detach().clone() for parameter in model.trained])
    params = [torch.stack(parts).requires_grad_() for parts in zip(*stacked, strict=True)]
    of_stacked = stacked_losses(trainer, stacked_forward(model.module, model.trained))
    weights = weights.to(model.flat)
    inputs, target = examples(trainer, chosen)
    losses = of_stacked(params, inputs.view(*chosen.shape, *inputs.shape[1:]), target)
    mean = (losses.detach() * weights).sum(1)
    together = (mean, *torch.autograd.grad(losses, params, weights))
    for one, both in zip(zip(*alone, strict=True), together, strict=True):
        expected = torch.stack(one)
        scale = float(expected.abs().max())
        if not torch.allclose(both, expected, rtol=1e-3, atol=1e-4 * scale + 1e-7):
            return "the model or the loss mixes the examples of a mini-batch"
    return ""


def _some_examples(trainer: LocalTrainer) -> NDArray[np.int64] | None:
    """Examples of two clients (or twice of one), shape ``(2, m)``; None = no client has any."""
    clients = range(min(trainer.task.num_clients, SEARCHED))
    found = [own for own in map(trainer.task.train_indices, clients) if own.size]
    if not found:
        return None
    found.sort(key=lambda own: -own.size)
    first, second = found[0], found[min(1, len(found) - 1)]
    count = min(first.size, second.size, EXAMPLES)
    if count < 2:
        count, second = min(first.size, EXAMPLES), first
    return np.stack([first[:count], second[:count]])
