"""A task: the data of all clients in one tensor, their partition, the model, loss and metrics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

# Test examples per forward pass: enough to hide overhead, few enough for the processor's cache.
CHUNK = 500


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """A classification task. Its examples are decoded once and held as one tensor.

    Language modelling classifies every token of a sequence; `test` then also gives the perplexity.

    Attributes:
        name: name in the configuration.
        num_classes: C; targets are in [0, C).
        architecture: makes a new model; a module-level function or a `functools.partial` of one, so
            that the task can be sent to another process.
        inputs: training inputs, shape ``(n, ...)``.
        targets: training targets, int64, shape ``(n,)``, or ``(n, length)`` of sequences.
        test_inputs: shape ``(n_test, ...)``.
        test_targets: int64, shape ``(n_test,)`` or ``(n_test, length)``.
        partition: for every client the indices of its training examples, int64, never empty.
        source: source of the data: ``"built-in"``, ``"local"``, ``"hub"``, ``"generated"`` (by the
            task itself) or ``"stand-in"`` (made-up data instead of the real ones).
        prepare: converts stored inputs to inputs of the model, such as
            `fl_app.tasks.scaling.Scaling`; None if they are the same.
        augment: random change of a training batch before `prepare`; draws from torch's global
            random state, which every order seeds.
        test_chunk: test examples per forward pass, >= 1.
    """

    name: str
    num_classes: int
    architecture: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor
    partition: Sequence[NDArray[np.int64]]
    source: str = "built-in"
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    test_chunk: int = CHUNK

    @property
    def num_clients(self) -> int:
        return len(self.partition)

    def model(self) -> nn.Module:
        """A new model, with initial weights from torch's global random state."""
        return self.architecture()

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``, n_i >= 1."""
        return self.partition[client_id]

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Copies of inputs and targets of training examples, ready for the model."""
        places = torch.from_numpy(indices)
        inputs = self.inputs.index_select(0, places)
        if self.augment is not None:
            inputs = self.augment(inputs)
        return self._ready(inputs), self.targets.index_select(0, places)

    def _ready(self, inputs: Tensor) -> Tensor:
        """Inputs ready for the model."""
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        if inputs.ndim == 4:
            # Channels last: convolution and pooling, forward and backward, of LeNet on 1x28x28 take
            # a fifth less time. With one channel, memory is the same and only strides differ.
            num, channels, height, width = inputs.shape
            pixels = inputs.permute(0, 2, 3, 1).reshape(-1)
            inputs = pixels.view(num, height, width, channels).permute(0, 3, 1, 2)
        return inputs

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar; `output` has the shape ``(*target.shape, C)``."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: the task has sequences, whose tokens are not counted by class.
        """
        if self.targets.ndim > 1:
            raise ValueError(f"task={self.name} has sequences: leave metrics= empty")
        targets = self.test_targets
        if client_id is not None:
            targets = self.targets[torch.from_numpy(self.partition[client_id])]
        counts: NDArray[np.int64] = torch.bincount(targets, minlength=self.num_classes).numpy()
        return counts

    def test(self, model: nn.Module, *, recall: bool = False) -> dict[str, float]:
        """Accuracy in [0, 1], mean loss and further metrics on the test set.

        ``"commonest_prediction"`` is the share of the most frequent predicted class: 1.0 for a
        model that has collapsed to a constant. For sequences, accuracy and loss are means over
        tokens, and ``"perplexity"``, the exponential of the loss, replaces
        ``"commonest_prediction"``. With `recall` there are also ``recall_0`` ... ``recall_<C-1>``,
        the share of each class's test examples that are predicted correctly; NaN if a class has
        none. The model's modes are the same after the call.
        """
        classes = self.test_targets.ndim == 1
        training = [module for module in model.modules() if module.training]
        chunks = zip(
            torch.split(self.test_inputs, self.test_chunk),
            torch.split(self.test_targets, self.test_chunk),
            strict=True,
        )
        model.eval()
        parts = [self._test_chunk(model, *chunk) for chunk in chunks]
        for module in training:
            module.training = True
        loss = sum(part.loss for part in parts)
        hits = torch.stack([part.hits for part in parts]).sum(0)
        total = self.test_targets.numel()
        metrics = {"accuracy": int(hits.sum()) / total, "loss": loss / total}
        if classes:
            chosen = torch.stack([part.chosen for part in parts]).sum(0)
            metrics["commonest_prediction"] = int(chosen.max()) / total
        else:
            # The exponential of a diverged model's loss overflows.
            metrics["perplexity"] = math.inf if loss / total > 700 else math.exp(loss / total)
        if recall:
            shares = hits.double() / torch.from_numpy(self.label_counts())
            metrics.update((f"recall_{label}", share.item()) for label, share in enumerate(shares))
        return metrics

    def _test_chunk(self, model: nn.Module, inputs: Tensor, target: Tensor) -> "_Part":
        device = next(model.parameters()).device
        inputs, target = inputs.to(device), target.to(device)
        with torch.inference_mode():
            output = model(self._ready(inputs))
            loss = self.loss(output, target).item() * target.numel()
            chosen = output.argmax(-1)
            return _Part(
                loss,
                self._count(target[chosen == target]),
                self._count(chosen.flatten()),
            )

    def _count(self, labels: Tensor) -> Tensor:
        return torch.bincount(labels.cpu(), minlength=self.num_classes)


class _Part(NamedTuple):
    """Results on a chunk of the test set: summed loss; correct and all predictions by class."""

    loss: float
    hits: Tensor
    chosen: Tensor
