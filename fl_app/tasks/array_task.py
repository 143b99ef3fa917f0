"""A task whose model NumPy computes: `fl_app.tasks.task.Task` without torch."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fl_app.client.backend import NUMPY
from fl_app.tasks.array_objective import ArrayClassification, ArrayObjective
from fl_app.tasks.client_examples import ClientExamples
from fl_app.tasks.models.layers import Sequential
from fl_app.tasks.moments import factor_and_offset
from fl_app.tasks.schema import Schema

Array: TypeAlias = NDArray[np.float32]

ARRAY_CHUNK = 20  # examples per forward pass: rows of a convolution's windows take megabytes


@dataclass(frozen=True, eq=False)
class ArrayScaling:
    """``x * factor + offset`` in float32; see `fl_app.tasks.scaling.Scaling`.

    Attributes:
        factor: shape ``(channels, 1, 1)`` or ``(1,)``.
        offset: shape of `factor`.
    """

    factor: Array
    offset: Array

    def __call__(self, images: NDArray[Any]) -> Array:
        """Scaled float32 copies of images, shape ``(n, channels, height, width)``, any type."""
        scaled = images.astype(np.float32)
        scaled *= self.factor
        scaled += self.offset
        return scaled


def make_array_scaling(
    scaling: str, maximum: float, train_moments: NDArray[np.float64]
) -> ArrayScaling:
    """As `fl_app.tasks.scaling.make_scaling`."""
    return ArrayScaling(*factor_and_offset(scaling, maximum, train_moments))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ArrayTask(ClientExamples):
    """A learning problem with its data, as arrays.

    Attributes:
        name: see `fl_app.tasks.task.Task`, as for all that follow.
        objective: kind of the targets, with loss and metrics.
        architecture: makes a new network.
        inputs: training inputs, shape ``(n, ...)``.
        targets: training targets.
        test_inputs: the server's test set; None = there is none.
        test_targets: as `targets`.
        source: of the data.
        prepare: converts stored inputs to inputs of the network; None if they are the same.
        test_chunk: examples per forward pass of a test, >= 1.
    """

    backend: ClassVar[str] = NUMPY

    name: str
    objective: ArrayObjective
    architecture: Callable[[], Sequential]
    inputs: NDArray[Any]
    targets: NDArray[Any]
    test_inputs: NDArray[Any] | None = None
    test_targets: NDArray[Any] | None = None
    source: str = "built-in"
    prepare: Callable[[NDArray[Any]], Array] | None = None
    test_chunk: int = ARRAY_CHUNK

    def model(self) -> Sequential:
        """A new network, with weights of 0."""
        return self.architecture()

    def check_model(self) -> None:
        """Refuse a model that does not accept the task's inputs.

        Raises:
            ValueError: naming what was needed and what there was.
        """
        self.architecture()

    def loss(self, network: Sequential, indices: NDArray[np.int64]) -> np.float32:
        """Mean loss over a batch of training examples."""
        output = network(self._ready(self.inputs[indices]))
        return self.objective.loss(output, self.targets[indices])[0]

    def gradient(
        self, network: Sequential, indices: NDArray[np.int64]
    ) -> tuple[np.float32, dict[str, Array]]:
        """Mean loss over a batch of training examples, and its gradient by every parameter."""
        output = network(self._ready(self.inputs[indices]), keep=True)
        loss, slope = self.objective.loss(output, self.targets[indices])
        return loss, network.backward(slope)

    def _ready(self, inputs: NDArray[Any]) -> Array:
        return inputs if self.prepare is None else self.prepare(inputs)

    def label_counts(self, client_id: int | None = None) -> NDArray[np.int64]:
        """Examples of each class that a client has, or the test set, shape ``(C,)``.

        Raises:
            ValueError: targets are no classes, or there is no test set.
        """
        if not isinstance(self.objective, ArrayClassification):
            kind = self.objective.kind
            raise ValueError(f"task={self.name} has no classes ({kind}): leave metrics= empty")
        if client_id is not None:
            targets = self.targets[self.partition[client_id]]
        elif self.test_targets is not None:
            targets = self.test_targets
        else:
            raise ValueError(f"task={self.name} has no test set: leave metrics= empty")
        return np.bincount(targets, minlength=self.objective.num_outputs)

    # -- measurements -----------------------------------------------------------------------------

    def test(self, network: Sequential, *, recall: bool = False) -> dict[str, float]:
        """The metrics on the server's test set; see `fl_app.tasks.task.Task.test`.

        Raises:
            ValueError: there is no test set, or `recall` of a task without classes.
        """
        if self.test_inputs is None or self.test_targets is None:
            raise ValueError(f"task={self.name} has no test set: nothing can be tested")
        inputs, targets = self.test_inputs, self.test_targets
        starts = range(0, len(targets), self.test_chunk)
        parts = [slice(start, start + self.test_chunk) for start in starts]
        metrics, counts = self._measure(network, ((inputs[p], targets[p]) for p in parts))
        if recall:
            with np.errstate(invalid="ignore"):  # NaN of a class without examples
                shares = counts[0] / self.label_counts()
            metrics.update((f"recall_{label}", float(share)) for label, share in enumerate(shares))
        return metrics

    def evaluate(self, network: Sequential, client_id: int) -> tuple[dict[str, float], int]:
        """The metrics on one client's validation examples, and how many these are."""
        own = self.evaluation_indices(client_id)
        if own.size == 0:
            return {}, 0
        places = np.split(own, range(self.test_chunk, own.size, self.test_chunk))
        chunks = ((self.inputs[part], self.targets[part]) for part in places)
        return self._measure(network, chunks)[0], int(own.size)

    @np.errstate(over="ignore", invalid="ignore")  # a model that diverged has any loss
    def _measure(
        self, network: Sequential, chunks: Iterable[tuple[NDArray[Any], NDArray[Any]]]
    ) -> tuple[dict[str, float], NDArray[Any]]:
        """Metrics and summed `ArrayObjective.counts` of at least one chunk."""
        losses, counts, total = 0.0, [], 0
        for inputs, target in chunks:
            output = network(self._ready(inputs))
            losses += float(self.objective.loss(output, target)[0]) * target.size
            counts.append(self.objective.counts(output, target))
            total += target.size
        summed: NDArray[Any] = np.sum(counts, axis=0)
        return self.objective.figures(summed, losses / total, total), summed


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class OwnArrayTask(ArrayTask):
    """A task on a user's data; see `fl_app.tasks.own_task.OwnTask`."""

    schema: Schema
    by_owner: bool = False
