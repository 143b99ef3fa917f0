"""A task: the data of all clients in one tensor, their partition, the model and the objective."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fl_app.tasks.objective import Classification, Objective
from fl_app.tasks.partition import Partitioner, make_partition

# Test examples per forward pass: enough to hide overhead, few enough for the processor's cache.
CHUNK = 500

STREAM = 0x686F_6C64_6F75_7400  # keeps the held-out examples' random numbers apart from all others


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Task:
    """A learning problem with its data. Examples are decoded once and held as one tensor.

    Attributes:
        name: name in the configuration.
        objective: kind of the targets, with loss and metrics.
        architecture: makes a new model. For a task that is sent to another process it is a
            module-level function or a `functools.partial` of one; forked processes take any.
        inputs: training inputs, shape ``(n, ...)``.
        targets: training targets. Classes: int64, shape ``(n,)``, or ``(n, length)`` of sequences.
            Several labels: float32, 0 or 1, shape ``(n, C)``. Numbers: float32, shape ``(n, k)``.
        test_inputs: the server's test set, shape ``(n_test, ...)``; None = there is none.
        test_targets: as `targets`; None = there is no test set.
        partition: for every client the indices of its training examples, int64; empty = the
            clients follow from the run's configuration (`with_clients`).
        validation: for every client the indices of its examples kept for validation, int64; empty
            = clients evaluate on their training examples.
        holdout: share of every client's examples that `with_clients` keeps for validation, in
            [0, 1).
        source: source of the data: ``"built-in"``, ``"local"``, ``"hub"``, ``"generated"`` (by the
            task itself), ``"own"`` (the user's) or ``"stand-in"`` (made-up data instead of the real
            ones).
        prepare: converts stored inputs to inputs of the model, such as
            `fl_app.tasks.scaling.Scaling`; None if they are the same.
        augment: random change of a training batch before `prepare`; draws from torch's global
            random state, which every order seeds.
        test_chunk: examples per forward pass of a test, >= 1.
    """

    name: str
    objective: Objective
    architecture: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    partition: Sequence[NDArray[np.int64]] = ()
    validation: Sequence[NDArray[np.int64]] = ()
    holdout: float = 0.0
    source: str = "built-in"
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    test_chunk: int = CHUNK

    @property
    def num_clients(self) -> int:
        """N; 0 = the clients follow from the run's configuration."""
        return len(self.partition)

    @property
    def has_test_set(self) -> bool:
        return self.test_targets is not None

    def model(self) -> nn.Module:
        """A new model, with initial weights from torch's global random state."""
        return self.architecture()

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``."""
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
        """Mean loss over a batch, a scalar."""
        return self.objective.loss(output, target)

    # -- clients ----------------------------------------------------------------------------------

    def with_clients(self, partitioner: Partitioner, num_clients: int, seed: int) -> "Task":
        """This task with its training examples distributed over clients.

        Args:
            partitioner: distributes by `Objective.strata`.
            num_clients: N, 1 <= N <= n.
            seed: seed of the partition and of the examples kept for validation.

        Raises:
            ValueError: as `make_partition`.
        """
        strata = self.objective.strata(self.targets)
        parts = make_partition(partitioner, strata, num_clients, seed)
        dealt = replace(self, partition=parts, validation=())
        return dealt.with_holdout(self.holdout, seed) if self.holdout else dealt

    def with_holdout(self, share: float, seed: int) -> "Task":
        """This task with a share of every client's training examples kept for validation.

        A client keeps at least one example for validation and at least one for training; one that
        has a single example trains on it and validates on none.

        Args:
            share: in (0, 1).
            seed: the draw of a client follows from the seed and the client alone.
        """
        train, validation = [], []
        for client_id, indices in enumerate(self._client_examples()):
            rng = np.random.default_rng((seed, client_id, STREAM))
            num_kept = min(max(1, round(share * indices.size)), max(0, indices.size - 1))
            kept, rest = np.split(rng.permutation(indices), [num_kept])
            train.append(np.sort(rest))
            validation.append(np.sort(kept))
        return replace(self, partition=train, validation=validation, holdout=share)

    def _client_examples(self) -> Sequence[NDArray[np.int64]]:
        """All examples of every client, for training and for validation."""
        if not self.validation:
            return self.partition
        both = zip(self.partition, self.validation, strict=True)
        return [np.sort(np.concatenate(parts)) for parts in both]

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: targets are no classes, they are sequences, whose tokens are not counted by
                class, or there is no test set.
        """
        objective = self.objective
        if not isinstance(objective, Classification):
            raise ValueError(
                f"task={self.name} has no classes ({objective.kind}): leave metrics= empty"
            )
        if objective.sequences:
            raise ValueError(f"task={self.name} has sequences: leave metrics= empty")
        if client_id is not None:
            targets = self.targets[torch.from_numpy(self.partition[client_id])]
        elif self.test_targets is not None:
            targets = self.test_targets
        else:
            raise ValueError(f"task={self.name} has no test set: leave metrics= empty")
        counts: NDArray[np.int64] = torch.bincount(targets, minlength=objective.num_outputs).numpy()
        return counts

    # -- measurements -----------------------------------------------------------------------------

    def test(self, model: nn.Module, *, recall: bool = False) -> dict[str, float]:
        """The objective's metrics on the server's test set.

        With `recall` there are also ``recall_0`` ... ``recall_<C-1>``, the share of each class's
        test examples that are predicted correctly; NaN if a class has none. The model's modes are
        the same after the call.

        Raises:
            ValueError: there is no test set, or `recall` of a task without classes.
        """
        if self.test_inputs is None or self.test_targets is None:
            raise ValueError(f"task={self.name} has no test set: nothing can be tested")
        chunks = zip(
            torch.split(self.test_inputs, self.test_chunk),
            torch.split(self.test_targets, self.test_chunk),
            strict=True,
        )
        metrics, counts = self._measure(model, chunks)
        if recall:
            shares = counts[0].double() / torch.from_numpy(self.label_counts())
            metrics.update((f"recall_{label}", share.item()) for label, share in enumerate(shares))
        return metrics

    def evaluate(self, model: nn.Module, client_id: int) -> tuple[dict[str, float], int]:
        """The objective's metrics on one client's validation examples, and how many these are.

        Without validation examples of any client (`holdout` is 0) these are its training examples,
        without augmentation. A client whose only example is for training gives ``({}, 0)``.
        """
        own = (self.validation or self.partition)[client_id]
        if own.size == 0:
            return {}, 0
        places = torch.split(torch.from_numpy(own), self.test_chunk)
        chunks = (
            (self.inputs.index_select(0, part), self.targets.index_select(0, part))
            for part in places
        )
        return self._measure(model, chunks)[0], int(own.size)

    def _measure(
        self, model: nn.Module, chunks: Iterable[tuple[Tensor, Tensor]]
    ) -> tuple[dict[str, float], Tensor]:
        """Metrics and summed `Objective.counts` of at least one chunk."""
        objective = self.objective
        training = [module for module in model.modules() if module.training]
        device = next(model.parameters()).device
        further = {name: m.clone().to(device) for name, m in objective.metrics.items()}
        losses: list[float] = []
        counts: list[Tensor] = []
        total = 0
        model.eval()
        with torch.inference_mode():
            for chunk_inputs, chunk_target in chunks:
                inputs, target = chunk_inputs.to(device), chunk_target.to(device)
                output = model(self._ready(inputs))
                losses.append(objective.loss(output, target).item() * target.numel())
                counts.append(objective.counts(output, target))
                total += target.numel()
                for metric in further.values():
                    metric.update(*objective.for_metrics(output, target))
        for module in training:
            module.training = True
        summed = torch.stack(counts).sum(0)
        metrics = objective.figures(summed, sum(losses) / total, total)
        metrics |= {name: float(metric.compute()) for name, metric in further.items()}
        return metrics, summed
