"""The client: local training as a Flower NumPyClient.

Every runtime calls `LocalTrainer.train`: worker processes on vectors in shared memory, Flower's
ClientApp through `LocalTrainer.fit` with a list of arrays.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from flwr.client import NumPyClient
from flwr.common import Scalar
from numpy.typing import NDArray

from fl_app.client.backend import NUMPY, TORCH
from fl_app.client.bounds import FLOAT32, check_training
from fl_app.client.compression import Compressed
from fl_app.client.compression import Trainer as Sender
from fl_app.client.operations import Arrays, operations
from fl_app.client.private import Private, private_of
from fl_app.core.errors import require
from fl_app.core.layout import Layout
from fl_app.core.types import NO_EXTRA, Config, Extra, Order, Scores, Upload, Vector

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fl_app.client.flat import FlatModel

NOTHING: Vector = np.empty(0, np.float32)
PAUSED_EXTRA = "paused_extra."  # prefix in `state` of an order's extra vectors during a pause


class TrainingTask(Protocol):
    """What local training needs of a task (`fl_app.tasks.task.Task`)."""

    @property
    def name(self) -> str:
        """Name in the configuration."""
        ...

    @property
    def source(self) -> str:
        """Where the data are from; ``"stand-in"`` = made-up data instead of the real ones."""
        ...

    @property
    def num_clients(self) -> int:
        """N."""
        ...

    @property
    def has_test_set(self) -> bool:
        """Whether the server can test a model; if not, `test` is never called."""
        ...

    def model(self) -> "nn.Module":
        """A new model, with initial weights from torch's global random state.

        Parameters with ``requires_grad=False`` are frozen: they are not sent with every order.
        """
        ...

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``, n_i >= 1."""
        ...

    def batch(self, indices: NDArray[np.int64]) -> "tuple[Tensor, Tensor]":
        """Inputs and targets of training examples.

        A task that can put its data on a GPU (`fl_app.tasks.task.Task.on`) also takes a tensor of
        indices there.
        """
        ...

    def loss(self, output: "Tensor", target: "Tensor") -> "Tensor":
        """Mean loss over a batch, a scalar."""
        ...

    def test(self, model: "nn.Module") -> Mapping[str, float]:
        """Metrics of a model on the server's test set, ``"loss"`` among them."""
        ...

    def evaluation_indices(self, client_id: int) -> NDArray[np.int64]:
        """The examples on which a client evaluates, shape ``(m_i,)``."""
        ...

    def evaluate(self, model: "nn.Module", client_id: int) -> tuple[Mapping[str, float], int]:
        """Metrics on one client's validation examples, ``"loss"`` among them, and their number.

        A client without such examples gives ``({}, 0)``.
        """
        ...


class LocalTrainer(NumPyClient):
    """Mini-batch SGD on one client's data, from the received model.

    A step computes ``g = grad f(w; batch) + weight_decay * w + proximal * (w - w_received)``, then
    ``v <- momentum * v + g``, then ``w <- w - lr * v``. Every epoch permutes the data anew.

    All hooks are optional. `penalty` and `correct` change the step, `should_pause` and `merge` let
    a client pause. What a client needs in its next order is kept in `state`.

    The task decides what computes: torch, or NumPy (`fl_app.tasks.array_task`). A subclass whose
    hooks compute with `operations` alone, and so with both, says so in `backends`. Other subclasses
    need torch.

    Args:
        task: data, model and loss of every client.
        upload: ``"gradient"`` (gradient of one mini-batch, no step), ``"pseudo"`` ((w_o - w_end) /
            sum of learning rates), ``"delta"`` (w_end - w_o) or ``"model"`` (w_end).
        local_lr: eta_l > 0.
        batch_size: m >= 1; a client with fewer examples uses all of them.
        local_epochs: passes over the data, >= 1, unless `local_steps` is given.
        local_steps: number of mini-batches, >= 1.
        momentum: in [0, 1); the velocity is zero at the start of every order.
        weight_decay: >= 0.
        proximal: mu >= 0, pulls towards the received model (Li et al. 2020, FedProx).
        lr_decay: in (0, 1]; every version of the global model multiplies eta_l by it.
        max_grad_norm: largest norm of a batch's gradient with penalty and correction, > 0; a longer
            gradient is scaled down; None = no bound.
        upload_dtype: type of an upload's entries, ``"float32"`` or ``"float16"``.
        top_k: share of an upload's entries that is sent, in (0, 1]; the others are added to the
            client's next upload (`fl_app.client.compression`); None = all.
        private: patterns of the names of parameters and buffers that stay on the client
            (`fl_app.client.private`); None = there are none. Penalty, correction and proximal term
            leave them out.
        seed: seed of the run; an order's random draws follow from (seed, client, `Order.sequence`),
            and the model's first weights from it alone.
        device: torch device; ``"auto"`` takes a GPU if there is one.
        precision: of products in forward and backward pass, ``"float32"`` or ``"bfloat16"``
            (`fl_app.client.tensors.TensorOperations`).

    Attributes:
        backends: what can compute the hooks of this class, ``"torch"`` and ``"numpy"``; a subclass
            does not inherit it.
        operations: arithmetic on lists of the model's arrays (`fl_app.client.operations`).
        model: the model in training, with its layout.
        compression: what is done to uploads (`fl_app.client.compression`).
        overlaps: whether it trains while models travel.
        sender: this trainer with private parameters kept in the client's state, and compression
            applied to its uploads. Orders are given to it.
        client_id: the client of the current order.
        state: arrays by name that this client keeps between its orders. Replace them; never change
            them in place.
        extra: extra vectors of the order by name, shape ``(d,)``.

    Raises:
        ValueError: a value is out of its bounds.
    """

    backends: ClassVar[Sequence[str]] = (TORCH, NUMPY)
    overlaps: ClassVar[bool] = False

    def __init__(
        self,
        task: TrainingTask,
        *,
        upload: str = "model",
        local_lr: float = 0.05,
        batch_size: int = 32,
        local_epochs: int = 1,
        local_steps: int | None = None,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        proximal: float = 0.0,
        lr_decay: float = 1.0,
        max_grad_norm: float | None = None,
        upload_dtype: str = "float32",
        top_k: float | None = None,
        private: Sequence[str] | None = None,
        seed: int = 0,
        device: str = "cpu",
        precision: str = FLOAT32,
    ) -> None:
        self.compression = check_training(
            upload=upload,
            local_lr=local_lr,
            batch_size=batch_size,
            local_epochs=local_epochs,
            local_steps=local_steps,
            momentum=momentum,
            weight_decay=weight_decay,
            proximal=proximal,
            lr_decay=lr_decay,
            max_grad_norm=max_grad_norm,
            upload_dtype=upload_dtype,
            top_k=top_k,
            private=private,
        )
        self.upload = upload
        self.local_lr = local_lr
        self.batch_size = batch_size
        self.local_epochs = local_epochs
        self.local_steps = local_steps
        self.momentum = momentum
        self.weight_decay = weight_decay
        self.proximal = self._proximal = proximal
        self.lr_decay = lr_decay
        self.max_grad_norm = max_grad_norm
        self.private = private
        self.seed = seed
        self.client_id = 0
        self.state: dict[str, NDArray[Any]] = {}
        self.extra: Extra = NO_EXTRA
        cls = type(self)
        backend = backend_of_task(task)
        require(
            backend in computable(cls),
            "runtime.backend",
            backend,
            f"torch or auto with {cls.__name__}",
            "it computes with tensors of torch",
        )
        self.operations = operations(backend, device, precision)
        self.device = self.operations.device
        self.model: FlatModel = self.operations.build_model(task, seed, private or (), None)
        self.task: TrainingTask = self.operations.placed(task)
        self.sender: Sender = self
        if private:
            require(
                not cls.overlaps,
                "algorithm.client.private",
                list(private),
                f"null with {cls.__name__}",
                "it trains for orders that it has not received, and private parameters would be "
                "ahead of their client's state",
            )
            self.sender = Private(self.sender, self.model)
        if top_k is not None or upload_dtype != "float32":
            self.sender = Compressed(self.sender, self.compression, self.model.layout)
        self._penalised = cls.penalty is not LocalTrainer.penalty
        self._corrected = cls.correct is not LocalTrainer.correct
        self._pauses = cls.should_pause is not LocalTrainer.should_pause

    @property
    def epochs(self) -> int:
        """Number of equal parts of an order; a client can pause or stop after each part."""
        return 1 if self.local_steps is not None else self.local_epochs

    @property
    def work_per_update(self) -> str:
        """What a client does for one upload, in words."""
        if self.upload == "gradient":
            return "1 mini-batch"
        number, unit = (self.local_steps, "step") if self.local_steps else (self.epochs, "epoch")
        return f"{number} {unit}{'s' * (number > 1)}"

    @property
    def pauses(self) -> bool:
        """Whether a client may pause in the middle of an order."""
        return self._pauses

    @property
    def batches(self) -> bool:
        """Whether orders of several clients can be trained in one operation, with equal results.

        A subclass says so itself. Then `basis`, `begin`, `correct` and `finish` are called on a
        copy of the trainer for each client, whose `model` has `layout`, `params`, `flat` and `read`
        alone, and `train` is not called. `penalty` and `should_pause` are not called either.
        """
        return type(self) is LocalTrainer

    # -- hooks ------------------------------------------------------------------------------------

    def penalty(self, params: "list[Tensor]", received: "list[Tensor]") -> "Tensor":
        """A scalar that is added to the loss of every batch, once a subclass defines it."""
        raise NotImplementedError

    def correct(self, grad: Arrays, step: int) -> Arrays:
        """The gradient for the step, computed from the batch's gradient; shapes stay the same.

        Args:
            grad: tensors of torch or arrays of NumPy, as `FlatModel.params` of the model.
            step: number of the step in its order, from 0.
        """
        raise NotImplementedError

    def basis(self, order: Order) -> Order:
        """The order that is trained in place of this one, for the same client."""
        return order

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Prepare an order; called before its first batch."""

    def finish(self, order: Order, upload: Upload) -> Upload:
        """The upload with what the trainer adds to it, such as the client's new state.

        Args:
            order: the order as it came, after its last step.
            upload: as it would be without.
        """
        del order
        return upload

    def should_pause(self, epoch: int) -> bool:
        """Whether to ask for a fresh model after `epoch` local epochs; at most once per order."""
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

    def merge(self, fresh: Vector, config: Config, rng: np.random.Generator) -> dict[str, float]:
        """Merge the fresh model that answers a pause into `model`; returns metrics for the upload.

        Args:
            fresh: w_g, shape ``(d,)``.
            config: the order's config, with ``version`` o and ``fresh_version`` g > o.
            rng: the order's generator.
        """
        raise NotImplementedError

    # -- training ---------------------------------------------------------------------------------

    @np.errstate(over="ignore", invalid="ignore")  # the server refuses an upload that diverged
    def train(self, order: Order, out: Vector | None = None) -> Upload:
        """Carry out one order, or the rest of an order that paused.

        Args:
            order: the order. Its vector, w_o, is not changed. After a pause the vector is the fresh
                model, or empty, shape ``(0,)``, if there is none. Keys of the config, all
                optional: ``local_epochs`` and ``proximal-mu`` replace the trainer's own values;
                ``local_lr_factor`` multiplies the rate; ``version`` (of w_o) counts for `lr_decay`;
                ``continues`` marks the rest of an order that paused.
            out: array for the upload's vector, shape ``(d,)``; default a new one.

        Raises:
            ValueError: the client has no training data, or the order continues without a pause.
        """
        upload = self._train(self.basis(order), out)
        whole = upload.done and not order.config.get("continues", False)
        return self.finish(order, upload) if whole else upload

    def _train(self, order: Order, out: Vector | None = None) -> Upload:
        """See `train`; the upload before `finish`."""
        received, config = order.vector, order.config
        indices, rng, seed = self._take(order)
        self.operations.seed(seed)
        self.operations.train_mode(self.model)
        if config.get("continues", False):
            return self._continue_order(indices, rng, received, config, out)
        # A new order ends a paused order that was never answered.
        self.state = {k: v for k, v in self.state.items() if not k.startswith("paused")}
        self.model.load(received)
        self.begin(config, rng)
        if self.upload == "gradient":
            return self._gradient(indices, rng, received, out)
        return self._descend(indices, rng, received, config, out, _Progress())

    def _take(self, order: Order) -> tuple[NDArray[np.int64], np.random.Generator, int]:
        """Make an order the current one.

        Returns:
            The client's training examples, the order's generator, and torch's seed.
        """
        client_id = order.client_id
        indices = self.task.train_indices(client_id)
        if indices.size == 0:
            raise ValueError(f"client {client_id} has no training examples")
        self.client_id = client_id
        self.state = dict(order.state)
        self.extra = order.extra
        self._proximal = float(order.config.get("proximal-mu", self.proximal))
        entropy = (self.seed, client_id, order.sequence)
        continues = bool(order.config.get("continues", False))
        rng = np.random.default_rng((*entropy, 1) if continues else entropy)
        return indices, rng, int(rng.integers(1 << 62))

    def _lengths(self, num_examples: int, config: Config) -> tuple[int, int]:
        """Number of mini-batches of an epoch, and of an order."""
        per_epoch = math.ceil(num_examples / self.batch_size)
        epochs = int(config.get("local_epochs", self.local_epochs))
        return per_epoch, self.local_steps or epochs * per_epoch

    def _rate(self, config: Config) -> float:
        """The learning rate of an order."""
        version = float(config.get("version", 0))
        lr: float = self.local_lr * self.lr_decay**version
        return lr * float(config.get("local_lr_factor", 1.0))

    def _gradient(
        self,
        indices: NDArray[np.int64],
        rng: np.random.Generator,
        received: Vector,
        out: Vector | None,
    ) -> Upload:
        chosen = rng.permutation(indices)[: self.batch_size]
        loss, grad = self._loss_and_grad(chosen, self._anchor(), step=0)
        vector = np.empty(self.model.layout.size, np.float32) if out is None else out
        split = self.model.layout.num_trainable
        self.operations.flat(grad, out=vector[:split])
        if split < vector.size:
            np.subtract(received[split:], self.model.read(start=split), out=vector[split:])
        return Upload(vector, "gradient", int(indices.size), loss.item(), state=self.state)

    def _descend(
        self,
        indices: NDArray[np.int64],
        rng: np.random.Generator,
        received: Vector,
        config: Config,
        out: Vector | None,
        before: "_Progress",
    ) -> Upload:
        """Local SGD from the step after `before` to the end of the order, or to a pause."""
        params: Arrays = self.model.trained
        anchor = before.anchor or self._anchor()
        velocity = before.velocity
        lr = self._rate(config)
        per_epoch, steps = self._lengths(indices.size, config)
        pauses = self._pauses and not before.steps
        losses = []
        for step, chosen in enumerate(
            self._batches(indices, rng, before.steps, steps), before.steps
        ):
            loss, grad = self._loss_and_grad(chosen, anchor, step)
            velocity = self.operations.descend(params, grad, velocity, self.momentum, lr)
            losses.append(loss)
            done = step + 1
            at_epochs_end = done % per_epoch == 0 and done < steps
            if pauses and at_epochs_end and self.should_pause(done // per_epoch):
                reached = _Progress(done, self.operations.total(losses), anchor, velocity)
                return self._pause(reached, received, done / steps, int(indices.size))
            if at_epochs_end and self.should_stop(done // per_epoch):
                steps = done
                break
        vector = self.model.read(out)
        rate_sum = lr * steps
        if self.upload != "model":
            np.subtract(vector, received, out=vector)
        if self.upload == "pseudo":
            split = self.model.layout.num_trainable
            vector[:split] *= np.float32(-1.0 / rate_sum)
            vector[split:] *= np.float32(-1.0)
        mean_loss = self.operations.mean(losses)
        if before.steps:
            mean_loss = (before.loss + mean_loss * len(losses)) / steps
        return Upload(vector, self.upload, int(indices.size), mean_loss, rate_sum, state=self.state)

    def _pause(
        self, reached: "_Progress", received: Vector, progress: float, num_examples: int
    ) -> Upload:
        """Save in `state` what the rest of the order needs, and ask for a fresh model."""
        self.state["paused"] = self.model.read()
        self.state["paused_at"] = np.array([reached.steps, reached.loss])
        if self.upload != "model":
            self.state["paused_received"] = received.copy()
        self.state |= {PAUSED_EXTRA + name: vector for name, vector in self.extra.items()}
        for name, tensors in (("anchor", reached.anchor), ("velocity", reached.velocity)):
            if tensors is not None:
                self.state[f"paused_{name}"] = self.operations.flat(tensors)
        return Upload(
            NOTHING,
            self.upload,
            num_examples,
            reached.loss / reached.steps,
            done=False,
            progress=progress,
            state=self.state,
        )

    def _continue_order(
        self,
        indices: NDArray[np.int64],
        rng: np.random.Generator,
        fresh: Vector,
        config: Config,
        out: Vector | None,
    ) -> Upload:
        """Train the rest of an order that paused, from the saved state."""
        if "paused" not in self.state:
            raise ValueError(
                f"client {self.client_id} is to continue an order, but has none that paused"
            )
        saved = {key: self.state.pop(key) for key in list(self.state) if key.startswith("paused")}
        self.extra = self.extra or {
            key.removeprefix(PAUSED_EXTRA): vector
            for key, vector in saved.items()
            if key.startswith(PAUSED_EXTRA)
        }
        self.model.load(saved["paused"])
        metrics = self.merge(fresh, config, rng) if fresh.size else {}
        before = _Progress(
            int(saved["paused_at"][0]),
            float(saved["paused_at"][1]),
            self._like_params(saved.get("paused_anchor")),
            self._like(saved.get("paused_velocity"), self.model.trained),
        )
        received = saved.get("paused_received", saved["paused"])
        upload = self._descend(indices, rng, received, config, out, before)
        return replace(upload, metrics=metrics)

    def _like_params(self, flat: NDArray[Any] | None) -> Arrays | None:
        """A flat array as arrays with the shapes of the parameters in the vector."""
        return self._like(flat, self.model.params)

    def _like(self, flat: NDArray[Any] | None, params: Arrays) -> Arrays | None:
        # A copy: steps change the velocity in place, and the saved state may be needed again.
        return None if flat is None else self.operations.like(flat, params)

    def _anchor(self) -> Arrays | None:
        """The received parameters, if the proximal term or the penalty needs them."""
        if not (self._proximal or self._penalised):
            return None
        return self.operations.copies(self.model.params)

    def _loss(self, chosen: Any) -> Any:
        """A batch's loss, without penalty."""
        return self.operations.loss(self.model, self.task, chosen)

    def _loss_and_grad(self, chosen: Any, anchor: Arrays | None, step: int) -> tuple[Any, Arrays]:
        """A batch's loss without penalty, and the gradient g with all its terms.

        The gradient has an entry for each of `FlatModel.trained`: first those in the vector, which
        every term concerns, then the private ones.
        """
        ops, params, trained = self.operations, self.model.params, self.model.trained
        penalty = None
        if self._penalised and anchor is not None:
            penalty = partial(self.penalty, params, anchor)  # type: ignore[arg-type]
        loss, grad = ops.gradient(self.model, self.task, chosen, penalty)
        shared = len(params)
        # Nothing is added in place: two parameters may share one gradient tensor.
        with ops.without_gradients():
            if self._corrected:
                grad = [*self.correct(grad[:shared], step), *grad[shared:]]
            if self.max_grad_norm is not None:
                length = ops.norm(grad)
                if length > self.max_grad_norm:
                    grad = ops.scale(grad, self.max_grad_norm / length)
            if self.weight_decay:
                grad = ops.add(grad, trained, self.weight_decay)
            if self._proximal and anchor is not None:
                pull = ops.subtract(params, anchor)
                pulled = ops.add(grad[:shared], pull, self._proximal)
                grad = [*pulled, *grad[shared:]]
        return loss, grad

    def _batches(
        self, indices: NDArray[np.int64], rng: np.random.Generator, first: int, steps: int
    ) -> Iterator[Any]:
        """The mini-batches of steps `first` to `steps` - 1; every epoch permutes the data."""
        per_epoch = math.ceil(indices.size / self.batch_size)
        for step in range(first, steps):
            place = step % per_epoch * self.batch_size
            if place == 0:  # also for `first`: a pause is at the end of an epoch
                permuted = self.operations.places(rng.permutation(indices))
            yield permuted[place : place + self.batch_size]

    # -- evaluation -------------------------------------------------------------------------------

    def score(self, order: Order) -> Scores:
        """Measure the order's model on the client's own data; nothing is kept of it."""
        self.model.load(order.vector)
        return Scores(*self.task.evaluate(self.model.module, order.client_id))

    def evaluation_share(self, client_id: int) -> float:
        """Seconds of an evaluation over those of an order's training.

        A forward pass takes a third of a training step's time, the backward pass the rest.
        """
        own = max(1, self.task.train_indices(client_id).size)
        batch = min(self.batch_size, own)
        trained = self.local_steps * batch if self.local_steps else self.local_epochs * own
        if self.upload == "gradient":
            trained = batch
        return self.task.evaluation_indices(client_id).size / (3 * trained)

    # -- Flower -----------------------------------------------------------------------------------

    def get_parameters(self, config: dict[str, Scalar]) -> list[NDArray[Any]]:
        """The model's arrays in the layout's order; before training, its initial arrays."""
        del config
        return self.model.layout.unflatten(self.model.read())

    def fit(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[list[NDArray[Any]], int, dict[str, Scalar]]:
        """Carry out the order ``config["sequence"]`` of client ``config["client-id"]``.

        Before the call, `state` is the client's state from its previous order, and `extra` holds
        the order's extra vectors. After it, `state` is the new state, and `extra` holds the
        upload's extra vectors.

        Returns:
            The upload as arrays in the layout's order (none after a pause), the number of examples,
            and metrics ``loss``, ``rate-sum`` and ``kind``. If they apply, there are also
            ``encoding`` (``"top-k"``: all but k trainable entries are 0; ``"masked"``: one array of
            integers, and the ``seal`` of its mask), ``done``, ``progress``, ``base-version``, and
            ``trainer``, this class and its bases below `LocalTrainer`.
        """
        received = self.model.layout.flatten(parameters) if parameters else NOTHING
        settings = {k: v for k, v in config.items() if not isinstance(v, bytes)}
        order = Order(
            number=0,  # unknown here, like `sent_at`; only the server uses them
            client_id=int(config.get("client-id", 0)),
            sequence=int(config.get("sequence", 0)),
            base_version=int(config.get("version", 0)),
            vector=received,
            config=settings,
            sent_at=0.0,
            state=self.state,
            extra=self.extra,
        )
        upload = self.sender.train(order)
        self.state, self.extra = dict(upload.state), upload.extra
        metrics: dict[str, Scalar] = {
            **upload.metrics,
            "loss": upload.loss,
            "rate-sum": upload.rate_sum,
            "kind": upload.kind,
        }
        own = [c.__name__ for c in type(self).__mro__ if issubclass(c, LocalTrainer)][:-1]
        if own:
            metrics["trainer"] = " ".join(own)
        if upload.base_version is not None:
            metrics["base-version"] = upload.base_version
        if not upload.done:
            metrics |= {"done": 0, "progress": upload.progress}
            return [], upload.num_examples, metrics
        if upload.seal:
            metrics |= {"encoding": "masked", "seal": upload.seal}
            return [upload.vector.view(np.uint32)], upload.num_examples, metrics
        if self.compression.top_k is not None:
            metrics["encoding"] = "top-k"
        arrays = self.model.layout.unflatten(upload.vector)
        with np.errstate(over="ignore"):  # diverged: inf, which the server refuses
            for place, entry in enumerate(self.model.layout.entries):
                if entry.trainable:  # `sender` has rounded them already
                    arrays[place] = arrays[place].astype(self.compression.dtype, copy=False)
        return arrays, upload.num_examples, metrics

    def evaluate(
        self, parameters: list[NDArray[Any]], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Loss, number of examples and metrics of a model on the client's validation examples.

        See `TrainingTask.evaluate`; the loss is NaN if there are no examples.
        """
        self.model.load(self.model.layout.flatten(parameters))
        self.model.load_private(private_of(self.state))
        client_id = int(config.get("client-id", 0))
        metrics, num_examples = self.task.evaluate(self.model.module, client_id)
        loss = metrics.get("loss", math.nan)
        return loss, num_examples, {k: v for k, v in metrics.items() if k != "loss"}


@dataclass(frozen=True)
class _Progress:
    """How much of an order is done.

    Attributes:
        steps: number of steps.
        loss: sum of their losses.
        anchor: the received parameters, if `_anchor` keeps them.
        velocity: of momentum, if there is one.
    """

    steps: int = 0
    loss: float = 0.0
    anchor: Arrays | None = None
    velocity: Arrays | None = None


def build_model(
    task: TrainingTask,
    seed: int,
    device: str = "cpu",
    private: Sequence[str] | None = None,
    weights: str | None = None,
) -> "FlatModel":
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
    made: FlatModel = operations(backend_of_task(task), device).build_model(
        task, seed, private or (), weights
    )
    return made


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


def backend_of_task(task: object) -> str:
    """What computes a task's models, ``"torch"`` or ``"numpy"``."""
    backend: str = getattr(task, "backend", TORCH)
    return backend


def computable(trainer: type[LocalTrainer]) -> list[str]:
    """The backends that can compute the hooks of a class and of its bases."""
    classes = [c for c in trainer.__mro__ if issubclass(c, LocalTrainer)]
    every = [vars(c).get("backends", (TORCH,)) for c in classes]
    return [backend for backend in (TORCH, NUMPY) if all(backend in known for known in every)]
