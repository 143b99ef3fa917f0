"""The client: local SGD with hooks.

Every runtime gives orders to `LocalTrainer.train`, through the transformations of the run
(`fl_app.client.transform`).
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.client import gpus
from fl_app.client.flat import to_tensors, to_vector
from fl_app.client.initial import build_model
from fl_app.client.pauses import EXTRA, PAUSED, RECEIVED, Progress, without_pause
from fl_app.client.settings import RATE_SUM, TrainingSettings
from fl_app.client.transform import Compressed, below
from fl_app.core.bugs import check_names
from fl_app.core.types import NO_EXTRA, Array, Config, Indices, Order, Rng, Scores, Upload, Vector

if TYPE_CHECKING:
    from fl_app.tasks.task import Task


log = logging.getLogger(__name__)
_warn_once = cache(log.warning)
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


@dataclass(eq=False, repr=False)
class LocalTrainer(TrainingSettings):
    """Mini-batch SGD on one client's data, from the received model.

    A step computes ``g = grad f(w; batch) + weight_decay * w + proximal * (w - w_received)``, then
    ``v <- momentum * v + g``, then ``w <- w - lr * v``. Every epoch permutes the data anew.

    The gradient of `penalty` is part of grad f; `correct` and `max_grad_norm` change it before the
    other terms are added. All hooks are optional. `should_pause` and `merge` let a client pause.
    What a client needs in its next order is kept in `state`.

    Attributes:
        task: data, model and loss of every client.
        seed: seed of the run; an order's random draws follow from (seed, client, `Order.sequence`),
            and the model's first weights from it alone.
        device: as configured; ``"auto"`` takes a GPU if there is one.
        torch_device: the device that this became; the model is on it.
        model: the model in training, with its layout.
        compressed: the compression of uploads (`fl_app.client.transform`).
        overlaps: whether it trains while models travel.
        batches: whether a subclass can be trained for several clients at once
            (`fl_app.client.batch.obstacle`).
        twins: whether it keeps further models beside the one that it trains.
        lineage: names of its class and of the bases below `LocalTrainer`.
        client_id: the client of the current order.
        state: arrays by name that this client keeps between its orders. Replace them; never change
            them in place.
        extra: extra vectors of the order by name, shape ``(d,)``.

    Raises:
        ValueError: a value is out of its bounds.
    """

    overlaps: ClassVar[bool] = False
    batches: ClassVar[bool] = False
    twins: ClassVar[bool] = False

    task: "Task"
    _: KW_ONLY
    seed: int = 0
    device: str = "cpu"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_names(cls)

    def __post_init__(self) -> None:
        super().__post_init__()
        cls = type(self)
        self._has_penalty = cls.penalty is not LocalTrainer.penalty
        self._has_correction = cls.correct is not LocalTrainer.correct
        self._pauses = cls.should_pause is not LocalTrainer.should_pause
        reason = "a client pauses at the end of a local epoch"
        self._require(not (self._pauses and self.local_steps), "local_steps", "null", reason)
        self._proximal = self.proximal
        self.lineage = [c.__name__ for c in cls.__mro__ if issubclass(c, LocalTrainer)][:-1]
        self.client_id = 0
        self.state: dict[str, Array] = {}
        self.extra = NO_EXTRA
        self.torch_device = torch.device(gpus.resolve_device(self.device))
        self.model = build_model(self.task, self.seed, self.torch_device, self.private)
        self._normalises = any(isinstance(layer, NORMS) for layer in self.model.module.modules())
        if self.torch_device.type != gpus.CPU:
            try:
                self.task = self.task.on(self.torch_device)
            except torch.OutOfMemoryError:
                note = "the data do not fit on %s: mini-batches are copied there"
                log.warning(note, self.torch_device)
        self.compressed = Compressed(self.model.layout, self.upload_dtype)

    @property
    def pauses(self) -> bool:
        """Whether a client may pause in the middle of an order."""
        return self._pauses

    # -- hooks ------------------------------------------------------------------------------------

    def penalty(self, params: list[Tensor], received: list[Tensor]) -> Tensor:
        """A scalar that is added to the loss of every batch, once a subclass defines it."""
        raise NotImplementedError

    def correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        """The gradient for the step, computed from the batch's gradient; shapes stay the same.

        Args:
            grad: as `FlatModel.params` of the model; it is not changed in place.
            step: number of the step in its order, from 0.
        """
        raise NotImplementedError

    def basis(self, order: Order) -> Order:
        """The order that is trained in place of this one; it is of the same client."""
        return order

    def begin(self, config: Config, rng: Rng) -> None:
        """Prepare an order; called before its first batch, and not again after a pause."""

    def finish(self, order: Order, upload: Upload) -> Upload:
        """The upload with what the trainer adds to it; not called for an order that paused.

        Args:
            order: the original order (not `basis`), after its last step.
            upload: the upload before this hook.
        """
        return upload

    def should_pause(self, epoch: int) -> bool:
        """Whether to ask for a fresh model after `epoch` >= 1 local epochs; at most once an order.

        A trainer that defines it is refused with `local_steps`.
        """
        raise NotImplementedError

    def should_stop(self, epoch: int) -> bool:
        """Whether to end an order after `epoch` of its local epochs."""
        return False

    def work_ahead(self, until: Callable[[], bool]) -> None:
        """Train before the next order arrives; only trainers with `overlaps` do.

        Args:
            until: called after every local epoch; True ends the training.
        """
        raise NotImplementedError

    def merge(self, fresh: Vector, config: Config, rng: Rng) -> dict[str, float]:
        """Merge the fresh model that answers a pause into `model`; returns metrics for the upload.

        Args:
            fresh: w_g, shape ``(d,)``.
            config: the order's config, with ``version`` o and ``fresh_version`` g > o.
            rng: the order's generator.
        """
        raise NotImplementedError

    # -- training ---------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # the server refuses an upload that diverged
    def train(self, order: Order) -> Upload:
        """Carry out one order, or the rest of an order that paused.

        Args:
            order: the order. Its vector, w_o, is not changed. After a pause the vector is the fresh
                model, or empty, shape ``(0,)``, if there is none. Keys of the config, all
                optional: ``local_epochs``, ``local_steps`` and ``proximal-mu`` replace the
                trainer's own values (steps, of either, replace epochs); ``local_lr_factor``
                multiplies the rate; ``version`` (of w_o) counts for `lr_decay`; ``continues`` marks
                the rest of an order that paused.

        Raises:
            ValueError: the client has no training data, the order continues without a pause, the
                first batch of version 0 is not finite, or a pseudo upload's rates are too small.
            TypeError: `penalty` or `correct` returned no tensor of the right shape.
        """
        upload = self._train(self.basis(order))
        is_complete = upload.done and not order.config.get("continues", False)
        return self.finished(order, upload) if is_complete else upload

    def finished(self, order: Order, upload: Upload) -> Upload:
        """The upload after `finish`, which may have replaced `state`."""
        before, upload = self.state, self.finish(order, upload)
        replaced = self.state is not before and upload.state is before
        return replace(upload, state=self.state) if replaced else upload

    def _train(self, order: Order) -> Upload:
        """See `train`; the upload before `finish`."""
        indices, rng, seed = self._take(order)
        # `torch.manual_seed` seeds all kinds of devices. If CUDA is built in but not in use, it
        # formats a stack trace each time, which takes 0.3 ms.
        torch.default_generator.manual_seed(seed)
        if self.torch_device.type == "cuda":
            torch.cuda.manual_seed(seed)
        if not self.model.module.training:  # `train` visits every submodule, in 0.1 ms
            self.model.module.train()
        if order.config.get("continues", False):
            return self._continue(order, indices, rng)
        self.state = without_pause(self.state)  # a paused order was never answered
        self.model.load(order.vector)
        self.begin(order.config, rng)
        if self.upload == "gradient":
            return self._gradient(order, indices, rng)
        velocity = [torch.zeros_like(p) for p in self.model.trained] if self.momentum else None
        return self._descend(order, indices, rng, Progress(velocity))

    def _take(self, order: Order) -> tuple[Indices, Rng, int]:
        """Make an order the current one.

        Returns:
            The client's training examples, the order's generator, and torch's seed.
        """
        client_id = order.client_id
        indices = self.task.train_indices(client_id)
        if indices.size == 0:
            raise ValueError(f"client {client_id} has no training examples")
        self.client_id = client_id
        # Views, read-only: an order may be trained again from these arrays.
        self.state = {name: np.asarray(array).view() for name, array in order.state.items()}
        for array in self.state.values():
            array.flags.writeable = False
        self.extra = order.extra
        self._proximal = float(order.config.get("proximal-mu", self.proximal))
        entropy = (self.seed, client_id, order.sequence)
        continues = bool(order.config.get("continues", False))
        rng = np.random.default_rng((*entropy, 1) if continues else entropy)
        return indices, rng, int(rng.integers(1 << 62))

    def _gradient(self, order: Order, indices: Indices, rng: Rng) -> Upload:
        """The gradient of one mini-batch, and the change of the buffers by its forward pass."""
        chosen = rng.permutation(indices)[: self.batch_size]
        loss, grad = self._loss_and_grad(chosen, self._anchor(order.vector), step=0)
        if order.base_version == 0:
            _require_finite(loss, grad)
        vector = to_vector(grad[: len(self.model.params)])  # without private parameters
        if (split := vector.size) < order.vector.size:
            vector = np.concatenate([vector, order.vector[split:] - self.model.read(start=split)])
        return Upload(vector, "gradient", int(indices.size), loss.item(), state=self.state)

    def _descend(self, order: Order, indices: Indices, rng: Rng, progress: Progress) -> Upload:
        """Local SGD from `progress` to the end of the order, or to a pause."""
        lr, size = self.rate(order.config), int(indices.size)
        per_epoch, steps = self.lengths(size, order.config)
        may_pause = self._pauses and not progress.steps
        anchor, losses = self._anchor(order.vector), []
        batches = self._batches(indices, rng, progress.steps, steps)
        for step, chosen in enumerate(batches, progress.steps):
            loss, grad = self._loss_and_grad(chosen, anchor, step)
            if step == 0 and order.base_version == 0:
                _require_finite(loss, grad)
            self._step(grad, progress.velocity, lr)
            losses.append(loss)
            epoch, remainder = divmod(step + 1, per_epoch)
            if remainder or step + 1 == steps:
                continue
            if may_pause and self.should_pause(epoch):
                paused = replace(progress, steps=step + 1, loss=float(torch.stack(losses).sum()))
                # What the rest of the order needs.
                self.state |= paused.to_state(self.model.read(), order.vector.copy(), self.extra)
                mean_loss = paused.loss / paused.steps
                return self._pause(size, mean_loss, paused.steps / steps)
            if self.should_stop(epoch):
                steps = step + 1
                break
        mean_loss = float(torch.stack(losses).mean())
        if progress.steps:
            mean_loss = (progress.loss + mean_loss * len(losses)) / steps
        vector = self._result(self.model.read(), order.vector, lr * steps)
        return Upload(vector, self.upload, size, mean_loss, lr * steps, state=self.state)

    def _loss_and_grad(
        self, chosen: Indices, anchor: list[Tensor] | None, step: int
    ) -> tuple[Tensor, list[Tensor]]:
        """A batch's loss without penalty, and the gradient g with all its terms.

        The gradient has an entry for each of `FlatModel.trained`: first those in the vector, which
        every term concerns, then the private ones.
        """
        params, trained = self.model.params, self.model.trained
        total = loss = self.loss(chosen)
        if self._has_penalty and anchor is not None:
            total = loss + self._penalty(anchor)
        grad = list(torch.autograd.grad(total, trained))
        shared = len(params)
        # Nothing is added in place: two parameters may share one gradient tensor.
        with torch.no_grad():
            if self._has_correction:
                grad[:shared] = self._correct(grad[:shared], step)
            if self.max_grad_norm is not None:
                length = torch.nn.utils.get_total_norm(grad).item()
                if length > self.max_grad_norm:
                    grad = [g * (self.max_grad_norm / length) for g in grad]
            if self.weight_decay:
                grad = [
                    g.add(w, alpha=self.weight_decay) for g, w in zip(grad, trained, strict=True)
                ]
            if self._proximal and anchor is not None:
                grad[:shared] = [
                    g.add(w - w_o, alpha=self._proximal)
                    for g, w, w_o in zip(grad[:shared], params, anchor, strict=True)
                ]
        return loss.detach(), grad

    def _penalty(self, anchor: list[Tensor]) -> Tensor:
        value, name = self.penalty([*self.model.params], anchor), type(self).__name__
        if not isinstance(value, Tensor) or value.ndim:
            raise TypeError(f"{name}.penalty returned {value!r:.60}: it must be a scalar tensor")
        if not value.requires_grad and value:  # a zero may be right in a client's first order
            _warn_once(f"{name}.penalty is not computed from params: it changes nothing")
        return value

    def _correct(self, grad: list[Tensor], step: int) -> list[Tensor]:
        corrected = [*(self.correct(grad, step) or ())]
        expected = [g.shape for g in grad]
        shapes = [g.shape if isinstance(g, Tensor) else type(g) for g in corrected]
        if shapes != expected:
            problem = f"{type(self).__name__}.correct returned {shapes}"
            raise TypeError(f"{problem}: there must be a tensor for each of grad's, {expected}")
        return corrected

    @torch.no_grad()
    def _step(self, grad: list[Tensor], velocity: list[Tensor] | None, lr: float) -> None:
        """``v <- momentum * v + g``, then ``w <- w - lr * v``."""
        if velocity is not None:
            for v, g in zip(velocity, grad, strict=True):
                v.mul_(self.momentum).add_(g)
            grad = velocity
        for w, g in zip(self.model.trained, grad, strict=True):
            w.add_(g, alpha=-lr)

    def _batches(self, indices: Indices, rng: Rng, first: int, steps: int) -> Iterator[Indices]:
        """The mini-batches of steps `first` to `steps` - 1; every epoch permutes the data."""
        per_epoch = math.ceil(indices.size / self.batch_size)
        for step in range(first, steps):
            place = step % per_epoch * self.batch_size
            if place == 0:  # also for `first`: a pause is at the end of an epoch
                permuted = rng.permutation(indices)
            # BatchNorm has no statistics of one example, so a remainder of one gets a second one.
            is_single = self._normalises and permuted[place:].size == 1
            yield permuted[max(place - is_single, 0) : place + self.batch_size]

    def _anchor(self, received: Vector) -> list[Tensor] | None:
        """The received parameters, if the proximal term or the penalty needs them."""
        if not self._proximal and not self._has_penalty:
            return None
        return to_tensors(received[: self.model.layout.num_trainable], self.model.params)

    def _result(self, vector: Vector, received: Vector, rate_sum: float) -> Vector:
        """The upload's vector, made in place from the model after the last step."""
        if self.upload != "model":
            vector -= received
        if self.upload == "pseudo":
            remedy = "nothing of its steps is left: raise algorithm.client.lr_decay or local_lr"
            RATE_SUM.check("the sum of an order's learning rates", rate_sum, remedy)
            split = self.model.layout.num_trainable
            vector[:split] *= np.float32(-1.0 / rate_sum)
            vector[split:] *= np.float32(-1.0)
        return vector

    def examples(self, chosen: Indices) -> tuple[Tensor, Tensor]:
        """Inputs and targets of training examples, where the model is."""
        inputs, target = self.task.batch(chosen)
        return inputs.to(self.torch_device), target.to(self.torch_device)

    def loss(self, chosen: Indices) -> Tensor:
        """A batch's loss, a scalar, without penalty."""
        inputs, target = self.examples(chosen)
        return self.task.loss(self.model.module(inputs), target)

    # -- pauses -----------------------------------------------------------------------------------

    def _pause(self, num_examples: int, loss: float, share: float) -> Upload:
        """An upload that asks for a fresh model after this share of the order's training."""
        vector, state = np.empty(0, np.float32), self.state
        return Upload(
            vector, self.upload, num_examples, loss, done=False, progress=share, state=state
        )

    def _continue(self, order: Order, indices: Indices, rng: Rng) -> Upload:
        """Train the rest of an order that paused, from the saved state."""
        if PAUSED not in self.state:
            raise ValueError(
                f"client {self.client_id} is to continue an order, but has none that paused"
            )
        saved, self.state = self.state, without_pause(self.state)
        self.extra = self.extra or below(EXTRA, saved)
        self.model.load(saved[PAUSED])
        metrics = self.merge(order.vector, order.config, rng) if order.vector.size else {}
        remaining = replace(order, vector=saved[RECEIVED])
        progress = Progress.of_state(saved, self.model.trained)
        upload = self._descend(remaining, indices, rng, progress)
        return replace(upload, metrics=metrics)

    # -- evaluation -------------------------------------------------------------------------------

    def score(self, order: Order) -> Scores:
        """Measure the order's model on the client's own data; the client's state stays."""
        self.model.load(order.vector)
        return Scores(*self.task.evaluate(self.model.module, order.client_id))

    def evaluation_share(self, client_id: int) -> float:
        """Seconds of an evaluation over those of an order's training.

        A forward pass takes a third of a training step's time, the backward pass the rest.
        """
        size = max(1, self.task.train_indices(client_id).size)
        batch = min(self.batch_size, size)
        num_trained = self.local_steps * batch if self.local_steps else self.local_epochs * size
        if self.upload == "gradient":
            num_trained = batch
        return self.task.evaluation_indices(client_id).size / (3 * num_trained)


def _require_finite(loss: Tensor, grad: list[Tensor]) -> None:
    """Refuse numbers that are not finite before any step: of the first batch of version 0."""
    for name, numbers in (("loss", [loss]), ("gradient", grad)):
        if not all(each.isfinite().all().item() for each in numbers):
            raise ValueError(
                f"the {name} of the first batch of version 0 is not finite: look at the data, the "
                "model, the loss, penalty() and correct()"
            )
