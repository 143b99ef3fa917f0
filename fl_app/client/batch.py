"""Training of several clients in one operation.

`LocalTrainer` trains one client after the other. On a small model nearly all of a step's time goes
into calling torch, whatever the number of examples. Here one call serves a step of B clients:

- their parameters are the rows of a matrix ``(B, d)``, and the forward pass takes each client's
  own (`fl_app.client.stacked`);
- the losses of all examples are weighted so that one backward pass gives every client's gradient;
- clients with more steps come first. One that has done its steps is no longer among the rows that
  are trained; mini-batches of unequal length are padded with examples of weight 0
  (`fl_app.client.mini_batches`).

Random draws are those of each client alone. Results differ from those of the loop in the last bits,
because sums are taken in another order.
"""

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fl_app.client.compression import Compressed
from fl_app.client.flat import FlatModel
from fl_app.client.mini_batches import MiniBatches, mini_batches
from fl_app.client.private import PRIVATE, private_of
from fl_app.client.processor import in_float32
from fl_app.client.settings import GROUPED
from fl_app.client.stacked import Forward, stacked_forward
from fl_app.client.trainer import LocalTrainer
from fl_app.core.layout import Layout
from fl_app.core.types import Order, State, Upload, Vector

# Maps stacked parameters, inputs ``(B, m, ...)`` and targets ``(B * m, ...)`` to the loss of every
# example, ``(B, m)``.
Losses: TypeAlias = Callable[[Sequence[Tensor], Tensor, Tensor], Tensor]

FETCHED = 2048  # examples that are fetched together, about


class BatchTrainer:
    """Carries out several training orders at once.

    A batch for which the device has not enough memory is halved, and so are all larger ones from
    then on. Each half is computed as a batch of its own, so results differ in their last bits.

    Args:
        trainer: of one client; `fl_app.client.batchable.obstacle` knows nothing against it.
        convolution: form of the clients' convolutions, see `fl_app.client.stacked`.

    Attributes:
        losses: of the mini-batches of all clients; it may be replaced by another form of the same.
    """

    def __init__(self, trainer: LocalTrainer, convolution: str = GROUPED) -> None:
        self._trainer = trainer
        self._model = trainer.model
        self.losses = stacked_losses(
            trainer, stacked_forward(trainer.model.module, trainer.model.trained, convolution)
        )
        self._most = math.inf  # orders that the device has had memory for
        self._notice = ""
        self._rows = torch.empty(0, trainer.model.layout.size, device=trainer.processor.device)
        self._models: list[_OfRow] = []

    def train(self, orders: Sequence[Order], outs: Sequence[Vector | None]) -> list[Upload | None]:
        """The uploads of training orders of different clients.

        Args:
            orders: as of `LocalTrainer.train`, none of which continues after a pause.
            outs: arrays for the uploads' vectors, shape ``(d,)``; None = a new one.

        Returns:
            The uploads; None of an order that its client cannot carry out.
        """
        if len(orders) <= self._most:
            try:
                return self._train(orders, outs)
            except torch.OutOfMemoryError:
                pass  # the error refers to tensors, which are free behind this block
            if len(orders) == 1:
                return [None]
            self._shrink(len(orders))
        half = -(-len(orders) // 2)
        return [
            *self.train(orders[:half], outs[:half]),
            *self.train(orders[half:], outs[half:]),
        ]

    def notice(self) -> str:
        """What there is to tell since the last call; "" = nothing."""
        told, self._notice = self._notice, ""
        return told

    def _shrink(self, count: int) -> None:
        """Give memory back, after it was not enough for a batch of `count`."""
        self._most = -(-count // 2)
        device = self._rows.device
        self._rows, self._models = self._rows[:0].clone(), []
        if device.type == "cuda":
            torch.cuda.empty_cache()
        self._notice = (
            f"{device} has not enough memory to train {count} clients in one operation: from now "
            f"on they are at most {self._most}. Last bits of results depend on it: to repeat this "
            f"run, give runtime.batch={self._most}"
        )

    def _train(self, orders: Sequence[Order], outs: Sequence[Vector | None]) -> list[Upload | None]:
        """See `train`; all orders in one operation."""
        clients: list[_Client] = []
        for place, order in enumerate(orders):
            try:
                clients.append(self._client(place, order))
            except ValueError:  # trained alone, it says what is wrong
                continue
        uploads: list[Upload | None] = [None] * len(orders)
        if len(clients) > 1:
            clients.sort(key=lambda client: -client.steps)  # stable
            trained = self._trained(clients, [outs[client.place] for client in clients])
            for client, upload in zip(clients, trained, strict=True):
                uploads[client.place] = upload
        return uploads

    def _client(self, place: int, order: Order) -> "_Client":
        residuals: dict[str, NDArray[Any]] = {}
        sender = self._trainer.sender
        if isinstance(sender, Compressed):
            order, residuals = sender.split(order)
        private: State = private_of(order.state) if self._trainer.private else {}
        if order.state:
            own = {k: v for k, v in order.state.items() if not k.startswith((PRIVATE, "paused"))}
            order = replace(order, state=own)
        trainer = self._trainer
        if type(trainer) is not LocalTrainer:  # it may keep something between its steps
            trainer = copy(trainer)
        given, order = order, trainer.basis(order)
        indices, rng, _ = trainer._take(order)  # nothing is drawn from torch's generators
        steps = 1
        if trainer.upload != "gradient":
            _, steps = trainer.lengths(indices.size, order.config)
        return _Client(
            place=place,
            given=given,
            order=order,
            trainer=trainer,
            indices=indices,
            rng=rng,
            steps=steps,
            rate=trainer.rate(order.config),
            proximal=trainer._proximal,
            residuals=residuals,
            private=private,
        )

    def _trained(self, clients: Sequence["_Client"], outs: Sequence[Vector | None]) -> list[Upload]:
        """The uploads of clients, those with more steps first."""
        rows, private = self._load(clients)
        if clients[0].trainer is not self._trainer:
            for client, model in zip(clients, self._models, strict=False):
                client.trainer.model = model  # type: ignore[assignment]
                client.trainer.begin(client.order.config, client.rng)
        batches = mini_batches(
            [(client.indices, client.rng, client.steps) for client in clients],
            self._trainer.batch_size,
        )
        steps = _Steps(self._trainer, self.losses, clients, rows, private, batches)
        if self._trainer.upload == "gradient":
            losses, gradient = steps.gradient()
            ends = gradient.cpu().numpy()
        else:
            losses = steps.descend()
            ends = rows.cpu().numpy()
        means = (losses.sum(0).cpu().numpy() / [client.steps for client in clients]).tolist()
        return [
            self._upload(client, end, loss, out, {n: p[row] for n, p in private.items()})
            for row, (client, end, loss, out) in enumerate(
                zip(clients, ends, means, outs, strict=True)
            )
        ]

    def _load(self, clients: Sequence["_Client"]) -> tuple[Tensor, dict[str, Tensor]]:
        """The received models, shape ``(B, d)``, and the private parameters by name."""
        count, size = len(clients), self._model.layout.size
        if len(self._rows) < count:
            self._rows = torch.empty(count, size, device=self._rows.device)
            self._models = [_OfRow(self._model, row) for row in self._rows]
        rows = self._rows[:count]
        received = [client.order.vector for client in clients]
        if rows.device.type == "cpu":
            np.stack(received, out=rows.numpy())
        else:
            rows.copy_(torch.from_numpy(np.stack(received)))
        private = {}
        for name, tensor in self._model.private.items():
            initial = self._model.initial[name]
            own = [client.private.get(name) for client in clients]
            private[name] = torch.stack(
                [initial if p is None else torch.tensor(p) for p in own]
            ).to(tensor)
        return rows, private

    def _upload(
        self,
        client: "_Client",
        end: Vector,
        loss: float,
        out: Vector | None,
        private: dict[str, Tensor],
    ) -> Upload:
        """One client's upload, as `LocalTrainer` and its sender make it."""
        order, kind = client.order, self._trainer.upload
        vector = np.empty(end.size, np.float32) if out is None else out
        rate_sum = 1.0
        if kind == "gradient":
            np.copyto(vector, end)
        else:
            rate_sum = client.rate * client.steps
            if kind == "model":
                np.copyto(vector, end)
            else:
                np.subtract(end, order.vector, out=vector)
            if kind == "pseudo":
                vector *= np.float32(-1.0 / rate_sum)
        state = client.trainer.state
        if client.trainer is self._trainer:  # which has had several orders since
            state = dict(order.state)
        upload = Upload(vector, kind, int(client.indices.size), loss, rate_sum, state=state)
        upload = client.trainer.finish(client.given, upload)
        if private:
            kept = {PRIVATE + name: tensor.cpu().numpy().copy() for name, tensor in private.items()}
            upload = replace(upload, state={**upload.state, **kept})
        sender = self._trainer.sender
        if isinstance(sender, Compressed):
            upload = sender.compressed(upload, client.residuals)
        return upload


@dataclass(eq=False, slots=True)
class _Client:
    """One client's part of a batch.

    Attributes:
        place: of its order among all.
        given: its order, without what compression and private parameters have in its state.
        order: that is trained in its place (`LocalTrainer.basis`).
        trainer: a copy for this client, if hooks of its class are called.
        indices: its training examples.
        rng: of its order.
        steps: number of mini-batches.
        rate: the learning rate.
        proximal: mu.
        residuals: of compression.
        private: its private parameters by name.
    """

    place: int
    given: Order
    order: Order
    trainer: LocalTrainer
    indices: NDArray[np.int64]
    rng: np.random.Generator
    steps: int
    rate: float
    proximal: float
    residuals: dict[str, NDArray[Any]]
    private: State


class _OfRow:
    """What hooks see of one client's model: a row of the stack.

    Args:
        model: of the same architecture.
        row: shape ``(d,)``.
    """

    def __init__(self, model: FlatModel, row: Tensor) -> None:
        self.layout: Layout = model.layout
        self.flat = row
        self.params = _views(model, row[None], row_dimension=False)

    def read(self, out: Vector | None = None, start: int = 0) -> Vector:
        """See `FlatModel.read`."""
        here = self.flat[start:].cpu().numpy()
        vector = np.empty_like(here) if out is None else out
        np.copyto(vector, here)
        return vector


class _Steps:
    """The steps of a batch, on the rows of the clients that still train.

    Args:
        trainer: its settings.
        losses: of stacked models.
        clients: those with more steps first.
        rows: of the models, shape ``(B, d)``; they are changed.
        private: stacked private parameters by name; they are changed.
        batches: the mini-batches.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        losses: Losses,
        clients: Sequence[_Client],
        rows: Tensor,
        private: dict[str, Tensor],
        batches: MiniBatches,
    ) -> None:
        self._trainer = trainer
        self._losses = losses
        self._clients = clients
        self._rows = rows
        self._private = [*private.values()]
        self._corrected = type(trainer).correct is not LocalTrainer.correct
        self._batches = batches
        # Copied to the device once, for all steps.
        self._indices: NDArray[np.int64] | Tensor = trainer.processor.places(batches.indices)
        self._weights = torch.from_numpy(batches.weights).to(rows.device)
        self._rates = _PerClient([client.rate for client in clients], rows)
        self._pulls = _PerClient([client.proximal for client in clients], rows)
        self._ahead: tuple[range, Tensor, Tensor] | None = None  # examples of some steps
        self._params: list[Tensor] = []
        self._anchor: list[Tensor] = []
        self._velocity: list[Tensor] = []

    def gradient(self) -> tuple[Tensor, Tensor]:
        """The losses of one mini-batch each, shape ``(1, B)``, and gradients, ``(B, d)``."""
        self._keep(len(self._clients))
        loss, grad = self._loss_and_grad(0)
        return loss[None], torch.cat([part.reshape(len(part), -1) for part in grad], 1)

    def descend(self) -> Tensor:
        """Take all steps; returns the losses, shape ``(S, B)``, 0 where a client has ended."""
        trainer, batches = self._trainer, self._batches
        losses = self._rows.new_zeros(len(batches), len(self._clients))
        for step in range(len(batches)):
            active = int(batches.active[step])
            if not self._params or active < len(self._params[0]):
                self._keep(active)
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
                self._rates.add_to(self._params, grad, -1.0)
        return losses

    def _keep(self, active: int) -> None:
        """Go on with the first clients."""
        model = self._trainer.model
        shared = _views(model, self._rows[:active])
        self._params = [*shared, *(p[:active].detach().requires_grad_() for p in self._private)]
        if self._pulls.any and not self._anchor:
            self._anchor = [p.detach().clone() for p in shared]
        self._anchor = [part[:active] for part in self._anchor]
        self._velocity = [part[:active] for part in self._velocity]

    def _loss_and_grad(self, step: int) -> tuple[Tensor, list[Tensor]]:
        """The clients' losses, and their gradients with all terms, as `LocalTrainer` has them."""
        trainer, params = self._trainer, self._params
        active, width = int(self._batches.active[step]), int(self._batches.widths[step])
        inputs, target = self._examples(step, active, width)
        weights = self._weights[step, :active, :width]
        losses = self._losses(params, inputs, target)
        grad = list(torch.autograd.grad(losses, params, weights))
        shared = len(params) - len(self._private)
        with torch.no_grad():
            loss = (losses * weights).sum(1)
            if self._corrected:
                grad = [*self._corrections(grad[:shared], step), *grad[shared:]]
            if trainer.max_grad_norm is not None:
                grad = _clipped(grad, trainer.max_grad_norm)
            if trainer.weight_decay:
                grad = list(torch._foreach_add(grad, params, alpha=trainer.weight_decay))
            if self._pulls.any:
                pull = list(torch._foreach_sub(params[:shared], self._anchor))
                grad = [*self._pulls.added(grad[:shared], pull), *grad[shared:]]
        return loss, grad

    def _examples(self, step: int, active: int, width: int) -> tuple[Tensor, Tensor]:
        """Inputs ``(active, width, ...)`` and targets ``(active * width, ...)`` of a step.

        Those of several steps are fetched together.
        """
        if self._ahead is None or step not in self._ahead[0]:
            _, clients, most = self._indices.shape
            steps = range(step, step + max(1, FETCHED // (clients * most)))
            chosen = self._indices[step : steps.stop]
            inputs, target = (
                part.view(*chosen.shape, *part.shape[1:])
                for part in examples(self._trainer, chosen)
            )
            self._ahead = steps, inputs, target
        steps, inputs, target = self._ahead
        mine = inputs[step - steps.start, :active, :width].contiguous()
        return mine, target[step - steps.start, :active, :width].flatten(0, 1)

    def _corrections(self, grad: Sequence[Tensor], step: int) -> list[Tensor]:
        """The gradients as each client's `LocalTrainer.correct` changes them."""
        rows = zip(*(part.unbind() for part in grad), strict=True)
        corrected = [
            client.trainer.correct(list(row), step)
            for client, row in zip(self._clients, rows, strict=False)
        ]
        return [torch.stack(parts) for parts in zip(*corrected, strict=True)]


class _PerClient:
    """A factor for each client, often the same for all.

    Args:
        values: of the clients.
        like: a tensor on their device.
    """

    def __init__(self, values: Sequence[float], like: Tensor) -> None:
        self.any = any(values)
        self._same = values[0] if len(set(values)) == 1 else None
        self._values = like.new_tensor(values)

    def add_to(self, tensors: list[Tensor], others: list[Tensor], sign: float) -> None:
        """Add the others times factor and sign, in place; their rows are the first clients."""
        if self._same is not None:
            torch._foreach_add_(tensors, others, alpha=sign * self._same)
            return
        for tensor, other in zip(tensors, others, strict=True):
            factor = _shaped(self._values[: len(tensor)], tensor)
            tensor.addcmul_(other, factor, value=sign)

    def added(self, tensors: list[Tensor], others: list[Tensor]) -> list[Tensor]:
        """Sums with the others times the factor."""
        if self._same is not None:
            return list(torch._foreach_add(tensors, others, alpha=self._same))
        sums = [tensor.clone() for tensor in tensors]
        self.add_to(sums, others, 1.0)
        return sums


def stacked_losses(trainer: LocalTrainer, forward: Forward) -> Losses:
    """The losses of stacked models.

    Args:
        trainer: has the task.
        forward: through the models.

    Raises:
        NotImplementedError: the task knows no loss of each example.
    """
    of_task = getattr(trainer.task, "losses", None)
    if of_task is None:
        raise NotImplementedError("the task has no loss of each example")

    def losses(params: Sequence[Tensor], inputs: Tensor, target: Tensor) -> Tensor:
        with trainer.processor.mixed():
            output = in_float32(forward(params, inputs))
            each: Tensor = of_task(output.flatten(0, 1), target)
        return each.view(inputs.shape[:2])

    return losses


def examples(trainer: LocalTrainer, chosen: NDArray[np.int64] | Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets, a row each for every example.

    Args:
        trainer: has the data.
        chosen: training examples of any shape; an array, or a tensor of `Processor.places`.
    """
    return trainer.processor.examples(trainer.task, chosen.reshape(-1))


def _clipped(grad: Sequence[Tensor], longest: float) -> list[Tensor]:
    """Stacked gradients, those of a client scaled down if their norm is above `longest`."""
    norms = torch.stack([part.reshape(len(part), -1).norm(dim=1) for part in grad]).norm(dim=0)
    factors = torch.where(norms > longest, longest / norms, torch.ones_like(norms))
    return [part * _shaped(factors, part) for part in grad]


def _views(model: FlatModel, rows: Tensor, *, row_dimension: bool = True) -> list[Tensor]:
    """The shared parameters in rows of shape ``(B, d)``, as leaves that share their memory."""
    entries = sorted(
        (entry for entry in model.layout.entries if entry.trainable),
        key=lambda entry: model.layout.slices[entry.name].start,
    )
    views = []
    for entry in entries:
        part = rows[:, model.layout.slices[entry.name]].view(len(rows), *entry.shape)
        views.append((part if row_dimension else part[0]).detach().requires_grad_())
    return views


def _shaped(values: Tensor, tensor: Tensor) -> Tensor:
    """One value for each row of a tensor, of its number of dimensions."""
    return values.view(-1, *([1] * (tensor.ndim - 1)))
