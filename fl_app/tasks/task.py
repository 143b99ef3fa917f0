"""A task: data of all clients in one tensor, who owns which part of it, model, loss and metrics."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

# Test examples evaluated at a time: large enough to hide dispatch, small enough for the cache.
CHUNK = 500


@dataclass(frozen=True, eq=False, slots=True)
class Task:
    """A classification task: examples decoded once, held as one tensor, and indexed per client.

    Language modelling is classification of every token of a sequence; only there `test` also gives
    the perplexity.

    Attributes:
        name: as in the configuration.
        num_classes: C; targets are in [0, C).
        architecture: makes a new model; module-level or a `functools.partial` of such, so that the
            task can be sent to another process.
        inputs: training inputs, shape ``(n, ...)``.
        targets: training targets, int64, shape ``(n,)``, or ``(n, length)`` of sequences.
        test_inputs: shape ``(n_test, ...)``.
        test_targets: int64, shape ``(n_test,)`` or ``(n_test, length)``.
        partition: for every client the places of its training examples, int64, none empty.
        source: where the data are from: ``"built-in"``, ``"local"``, ``"hub"``, ``"generated"`` by
            the task itself, or ``"stand-in"`` for made-up data in place of the real ones.
        prepare: from a batch of inputs as stored to what the model takes, such as
            `fl_app.tasks.scaling.Scaling`; None if that is the same.
        augment: random change of a training batch, before `prepare`; draws from torch's global
            random state, which an order seeds.
        test_chunk: test examples evaluated at a time, >= 1.
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
        """A new model; its initial weights follow torch's global random state."""
        return self.architecture()

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``, n_i >= 1."""
        return self.partition[client_id]

    def batch(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Inputs and targets of training examples, copied, as the model takes them."""
        places = torch.from_numpy(indices)
        inputs = self.inputs.index_select(0, places)
        if self.augment is not None:
            inputs = self.augment(inputs)
        return self._ready(inputs), self.targets.index_select(0, places)

    def _ready(self, inputs: Tensor) -> Tensor:
        """Inputs as the model takes them."""
        if self.prepare is not None:
            inputs = self.prepare(inputs)
        if inputs.ndim == 4:
            # Pixel by pixel rather than plane by plane: convolution and pooling, forward and
            # backward, of LeNet on 1x28x28 take a fifth less time.
            # Of one channel both orders are the same in memory, and only the strides tell.
            num, channels, height, width = inputs.shape
            pixels = inputs.permute(0, 2, 3, 1).reshape(-1)
            inputs = pixels.view(num, height, width, channels).permute(0, 3, 1, 2)
        return inputs

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean cross-entropy, a scalar; `output` has the shape of `target` and one of classes."""
        return F.cross_entropy(output.flatten(0, -2), target.flatten())

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: the task is one of sequences, whose tokens nobody counts by class.
        """
        if self.targets.ndim > 1:
            raise ValueError(f"task={self.name} has sequences: leave metrics= empty")
        targets = self.test_targets
        if client_id is not None:
            targets = self.targets[torch.from_numpy(self.partition[client_id])]
        counts: NDArray[np.int64] = torch.bincount(targets, minlength=self.num_classes).numpy()
        return counts

    def test(self, model: nn.Module, *, recall: bool = False) -> dict[str, float]:
        """Accuracy in [0, 1] and mean loss on the test set; the model's modes are left as found.

        ``"commonest_prediction"`` is the share of the test examples that are put into the class
        most often chosen: 1.0 of a model that has collapsed to a constant, whatever its weights.
        Of sequences, the first two are means over tokens, and instead of the third there is
        ``"perplexity"``, the loss's exponential.
        With `recall` there are also ``recall_0`` ... ``recall_<C-1>``, the share of every class's
        test examples that the model gets right; NaN for a class that has none.
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
            # The exponential of a diverged model's loss is beyond a float.
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
    """What a chunk of the test set gives: summed loss; right answers and all answers by class."""

    loss: float
    hits: Tensor
    chosen: Tensor
