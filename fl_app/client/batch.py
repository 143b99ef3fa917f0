"""Training of several clients in one operation.

`LocalTrainer` trains one client after the other. On a small model nearly all of a step's time goes
into calls of torch, whatever the number of examples. Here one call makes a step of B clients:

- their parameters are the rows of a matrix ``(B, d)``, and the forward pass takes each client's
  own (`fl_app.client.stacked`);
- the losses of all examples are weighted so that one backward pass gives every client's gradient;
- clients with more steps come first. A client that has done its steps is no longer among the rows
  that are trained; mini-batches of unequal length are padded with examples of weight 0.

Random draws are those of each client alone. Results differ from those of the loop in the last bits,
because sums are taken in another order.
"""

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fl_app.client.flat import FlatModel, trainable_entries
from fl_app.client.stacked import stacked_forward
from fl_app.client.trainer import LocalTrainer
from fl_app.client.transform import Transformed
from fl_app.core.layout import Layout
from fl_app.core.types import Indices, Order, Rng, Trainer, Upload, Vector

FETCH_SIZE = 2048  # about how many examples are fetched together
# Hooks without a counterpart in a batch: a subclass with one of these trains clients one by one.
SINGLE_HOOKS = ("penalty", "loss", "should_pause", "should_stop", "merge", "train")


class BatchTrainer:
    """A trainer that also carries out several training orders at once.

    Args:
        trainer: of one client; `obstacle` returns "" for it.
        batch: largest number of orders that are to be trained together.

    Attributes:
        trainer: as given.
        batch: as given.
        forward: pass of stacked models.
        train: of the trainer, for a single order.
        score: of the trainer.
    """

    def __init__(self, trainer: LocalTrainer, batch: int) -> None:
        self.batch, self.train, self.score = batch, trainer.train, trainer.score
        self.trainer = trainer
        forward = stacked_forward(trainer.model.module, trainer.model.trained)
        assert forward is not None
        self.forward = forward
        self._rows = torch.empty(batch, trainer.model.layout.size, device=trainer.torch_device)
        self._models = [_RowModel(trainer.model, row) for row in self._rows]
        # One for each order, since orders and hooks set attributes of their trainer.
        self._trainers = [copy(trainer) for _ in range(batch)]

    def train_together(self, orders: Sequence[Order]) -> list[Upload | None]:
        """The uploads of training orders of different clients.

        Args:
            orders: as of `LocalTrainer.train`, none of which continues after a pause.

        Returns:
            The uploads; None for an order that its client cannot carry out. Train it alone to see
            the error.
        """
        clients: list[_Client] = []
        for place, order in enumerate(orders):
            with suppress(ValueError):  # trained alone, it says what is wrong
                clients.append(self._client(place, order))
        uploads: list[Upload | None] = [None] * len(orders)
        if len(clients) > 1:
            clients.sort(key=lambda client: -client.steps)  # stable
            results = self._train(clients)
            for client, upload in zip(clients, results, strict=True):
                uploads[client.place] = upload
        return uploads

    def _client(self, place: int, order: Order) -> "_Client":
        trainer = self._trainers[place]
        basis = trainer.basis(order)
        indices, rng, _ = trainer._take(basis)  # nothing is drawn from torch's generators
        steps = 1
        if trainer.upload != "gradient":
            _, steps = trainer.lengths(indices.size, basis.config)
        return _Client(place, order, basis, trainer, indices, rng, steps)

    def _train(self, clients: Sequence["_Client"]) -> list[Upload]:
        """The uploads of clients, those with more steps first."""
        received = np.stack([client.order.vector for client in clients])
        rows = self._rows[: len(clients)].copy_(torch.from_numpy(received))
        for client, model in zip(clients, self._models, strict=False):
            client.trainer.model = model  # type: ignore[assignment]
            client.trainer.begin(client.order.config, client.rng)
        steps = _Steps(self, clients, rows)
        take = steps.gradient if self.trainer.upload == "gradient" else steps.descend
        losses, ends = take()
        means = (losses.sum(0).cpu().numpy() / [client.steps for client in clients]).tolist()
        return [
            self._upload(client, end, loss)
            for client, end, loss in zip(clients, ends.cpu().numpy(), means, strict=True)
        ]

    def _upload(self, client: "_Client", end: Vector, loss: float) -> Upload:
        """One client's upload, as `LocalTrainer` makes it."""
        trainer, count = client.trainer, int(client.indices.size)
        vector, rate_sum = end.copy(), 1.0
        if trainer.upload != "gradient":
            rate_sum = trainer.rate(client.order.config) * client.steps
            vector = trainer._result(vector, client.order.vector, rate_sum)
        upload = Upload(vector, trainer.upload, count, loss, rate_sum, state=trainer.state)
        return trainer.finished(client.original, upload)


@dataclass(eq=False, slots=True)
class _Client:
    """One client's part of a batch.

    Attributes:
        place: index of its order in the batch.
        original: its order.
        order: the order that is trained in its place (`LocalTrainer.basis`).
        trainer: a copy for this client in this batch.
        indices: its training examples.
        rng: of its order.
        steps: number of mini-batches.
    """

    place: int
    original: Order
    order: Order
    trainer: LocalTrainer
    indices: Indices
    rng: Rng
    steps: int


class _RowModel:
    """What hooks see of one client's model: a row of the stack.

    Args:
        model: of the same architecture.
        row: shape ``(d,)``.
    """

    def __init__(self, model: FlatModel, row: Tensor) -> None:
        self.layout: Layout = model.layout
        self.flat = row
        self.params = _views(model, row[None], row_dimension=False)

    def read(self, start: int = 0) -> Vector:
        """See `FlatModel.read`."""
        return self.flat[start:].cpu().numpy().copy()


class _Steps:
    """The steps of a batch, on the rows of the clients that still train.

    Args:
        parent: has the settings, and the forward pass of stacked models.
        clients: those with more steps first.
        rows: of the models, shape ``(B, d)``; they are changed.
    """

    def __init__(self, parent: BatchTrainer, clients: Sequence[_Client], rows: Tensor) -> None:
        self._trainer, self._forward = parent.trainer, parent.forward
        self._clients = clients
        self._rows = rows
        self._draw()
        # Negative, as steps go against the gradient.
        self._rates = [-client.trainer.rate(client.order.config) for client in clients]
        self._proximals = [client.trainer._proximal for client in clients]
        self._prefetched: tuple[range, Tensor, Tensor] | None = None  # examples of some steps
        self._params: list[Tensor] = []
        self._anchor: list[Tensor] = []
        self._velocity: list[Tensor] = []

    def _draw(self) -> None:
        """Draw the mini-batches as `LocalTrainer` would for each client alone.

        A mini-batch that is shorter than others repeats its first example, with weight 0.
        """
        clients = self._clients
        largest = max(client.indices.size for client in clients)
        width = min(self._trainer.batch_size, largest)
        sizes = np.zeros((clients[0].steps, len(clients)), np.int64)
        self._indices = np.zeros((*sizes.shape, width), np.int64)
        for place, client in enumerate(clients):
            batches = client.trainer._batches(client.indices, client.rng, 0, client.steps)
            for step, chosen in enumerate(batches):
                self._indices[step, place] = chosen[0]
                self._indices[step, place, : chosen.size] = chosen
                sizes[step, place] = chosen.size
        present = np.arange(width) < sizes[..., None]
        weights = np.divide(present, np.maximum(sizes, 1)[..., None], dtype=np.float32)
        self._weights = torch.from_numpy(weights).to(self._rows.device)
        self._widths = sizes.max(1).tolist()  # columns that a step needs
        # Clients that still train in a step.
        self._active = (sizes > 0).sum(1).tolist()

    def gradient(self) -> tuple[Tensor, Tensor]:
        """The losses of one mini-batch each, shape ``(1, B)``, and gradients, ``(B, d)``."""
        self._keep_first(len(self._clients))
        loss, grad = self._loss_and_grad(0)
        return loss[None], torch.cat([part.reshape(len(part), -1) for part in grad], 1)

    def descend(self) -> tuple[Tensor, Tensor]:
        """Losses of all steps, ``(S, B)``, 0 where a client has ended, and models, ``(B, d)``."""
        trainer = self._trainer
        losses = self._rows.new_zeros(len(self._active), len(self._clients))
        for step, active in enumerate(self._active):
            if not self._params or active < len(self._params[0]):
                self._keep_first(active)
            loss, grad = self._loss_and_grad(step)
            losses[step, :active] = loss
            with torch.no_grad():
                if trainer.momentum:
                    if self._velocity:
                        torch._foreach_mul_(self._velocity, trainer.momentum)
                        torch._foreach_add_(self._velocity, grad)
                    else:
                        self._velocity = [g.clone() for g in grad]
                    grad = self._velocity
                _add(self._params, grad, self._rates)
        return losses, self._rows

    def _keep_first(self, active: int) -> None:
        """Continue with the first `active` clients."""
        self._params = _views(self._trainer.model, self._rows[:active])
        if any(self._proximals) and not self._anchor:
            self._anchor = [p.detach().clone() for p in self._params]
        self._anchor = [part[:active] for part in self._anchor]
        self._velocity = [part[:active] for part in self._velocity]

    def _loss_and_grad(self, step: int) -> tuple[Tensor, list[Tensor]]:
        """The clients' losses, and their gradients with all terms, as `LocalTrainer` has them."""
        trainer, params = self._trainer, self._params
        active, width = self._active[step], self._widths[step]
        inputs, target = self._examples(step, active, width)
        weights = self._weights[step, :active, :width]
        outputs = self._forward(params, inputs).flatten(0, 1)
        losses = trainer.task.losses(outputs, target).view(weights.shape)
        grad = list(torch.autograd.grad(losses, params, weights))
        with torch.no_grad():
            loss = (losses * weights).sum(1)
            if trainer._has_correction:
                grad = self._corrections(grad, step)
            if trainer.max_grad_norm is not None:
                grad = _clipped(grad, trainer.max_grad_norm)
            if trainer.weight_decay:
                grad = list(torch._foreach_add(grad, params, alpha=trainer.weight_decay))
            if any(self._proximals):
                grad = [part.clone() for part in grad]
                _add(grad, list(torch._foreach_sub(params, self._anchor)), self._proximals)
        return loss, grad

    def _examples(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(active, width, ...)`` and targets ``(active * width, ...)`` of a step.

        Those of several steps are fetched together.
        """
        trainer = self._trainer
        if self._prefetched is None or step not in self._prefetched[0]:
            steps = range(step, step + max(1, FETCH_SIZE // self._indices[0].size))
            chosen = self._indices[step : steps.stop]
            inputs, target = (
                part.view(*chosen.shape, *part.shape[1:])
                for part in trainer.examples(chosen.reshape(-1))
            )
            self._prefetched = steps, inputs, target
        steps, inputs, target = self._prefetched
        batch = inputs[step - steps.start, :active, :width].contiguous()
        return batch, target[step - steps.start, :active, :width].flatten(0, 1)

    def _corrections(self, grad: Sequence[Tensor], step: int) -> list[Tensor]:
        """The gradients as each client's `LocalTrainer.correct` changes them."""
        rows = zip(*(part.unbind() for part in grad), strict=True)
        corrected = [
            client.trainer._correct(list(row), step)
            for client, row in zip(self._clients, rows, strict=False)
        ]
        return [torch.stack(parts) for parts in zip(*corrected, strict=True)]


def _add(tensors: list[Tensor], others: list[Tensor], factors: Sequence[float]) -> None:
    """Add the others times each client's factor, in place; rows are the first clients."""
    if len(set(factors)) == 1:
        torch._foreach_add_(tensors, others, alpha=factors[0])
        return
    values = tensors[0].new_tensor(factors)
    for tensor, other in zip(tensors, others, strict=True):
        tensor.addcmul_(other, _shaped(values[: len(tensor)], tensor))


def _clipped(grad: Sequence[Tensor], longest: float) -> list[Tensor]:
    """Stacked gradients, those of a client scaled down if their norm is above `longest`."""
    norms = torch.stack([part.reshape(len(part), -1).norm(dim=1) for part in grad]).norm(dim=0)
    factors = torch.where(norms > longest, longest / norms, torch.ones_like(norms))
    return [part * _shaped(factors, part) for part in grad]


def _views(model: FlatModel, rows: Tensor, *, row_dimension: bool = True) -> list[Tensor]:
    """The shared parameters in rows of shape ``(B, d)``, as leaves that share their memory."""
    views = []
    for entry in trainable_entries(model.layout):
        part = rows[:, model.layout.slices[entry.name]].view(len(rows), *entry.shape)
        views.append((part if row_dimension else part[0]).detach().requires_grad_())
    return views


def _shaped(values: Tensor, tensor: Tensor) -> Tensor:
    """One value for each row of a tensor, of its number of dimensions."""
    return values.view(-1, *([1] * (tensor.ndim - 1)))


def obstacle(trainer: Trainer) -> str:
    """Why its orders must be trained one at a time; "" if nothing is against batches.

    A subclass of `LocalTrainer` says ``batches: ClassVar = True`` if its orders can be trained
    together with equal results. Then `basis`, `begin`, `correct` and `finish` are called on a copy
    of the trainer for each client, whose `model` has `layout`, `params`, `flat` and `read` alone,
    and `train` is not called. `penalty` and `should_pause` are not called either.
    """
    if isinstance(trainer, Transformed):
        return f"each upload passes through {type(trainer.transformation).__name__}"
    assert isinstance(trainer, LocalTrainer)
    name = type(trainer).__name__
    hooks = [h for h in SINGLE_HOOKS if getattr(type(trainer), h) is not getattr(LocalTrainer, h)]
    if trainer.overlaps:  # its `should_stop` ends only what a real node trains ahead
        hooks = [hook for hook in hooks if hook != "should_stop"]
    if hooks:
        return f"{name} has a {hooks[0]} of its own"
    if type(trainer) is not LocalTrainer and not trainer.batches:
        return f"{name} does not say that its clients can be trained together (batches)"
    if stacked_forward(trainer.model.module, trainer.model.trained) is None:
        return "the model is not a chain of linear layers that are all trained"
    return trainer.task.mixed
