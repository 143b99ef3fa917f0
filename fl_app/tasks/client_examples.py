"""Which client has which examples of a task, for training and for validation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from fl_app.tasks.partition import Partitioner, make_partition

# Test examples per forward pass: enough to hide overhead, few enough for the processor's cache.
CHUNK = 500

STREAM = 0x686F_6C64_6F75_7400  # keeps the held-out examples' random numbers apart from all others


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class ClientExamples:
    """The part of a task that says who has what; a task also has `targets` and `objective`.

    Attributes:
        objective: kind of the targets.
        targets: of all training examples.
        test_inputs: the server's test set; None = there is none.
        test_targets: as `targets`; None = there is no test set.
        partition: for every client the indices of its training examples, int64; empty = the
            clients follow from the run's configuration (`with_clients`).
        validation: for every client the indices of its examples kept for validation, int64; empty
            = clients evaluate on their training examples.
        holdout: share of every client's examples that `with_clients` keeps for validation, in
            [0, 1).
    """

    objective: Any
    targets: Any
    test_inputs: Any = None
    test_targets: Any = None
    partition: Sequence[NDArray[np.int64]] = ()
    validation: Sequence[NDArray[np.int64]] = ()
    holdout: float = 0.0

    @property
    def has_test_set(self) -> bool:
        return self.test_targets is not None

    @property
    def num_clients(self) -> int:
        """N; 0 = the clients follow from the run's configuration."""
        return len(self.partition)

    def train_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's training examples, shape ``(n_i,)``."""
        return self.partition[client_id]

    def evaluation_indices(self, client_id: int) -> NDArray[np.int64]:
        """The client's validation examples; without those of any client, its training examples."""
        return (self.validation or self.partition)[client_id]

    def classes(self) -> tuple[NDArray[np.int64], tuple[str, ...]]:
        """The class of each training example, shape ``(n,)``, and the names of the classes.

        All examples of a task without classes are of one, which is called ``"all"``.
        """
        objective = self.objective
        if objective.kind != "classification" or getattr(objective, "sequences", False):
            return np.zeros(len(self.targets), np.int64), ("all",)
        names = objective.classes or map(str, range(objective.num_outputs))
        return np.asarray(self.targets), tuple(names)

    def class_counts(self) -> NDArray[np.int64]:
        """Training examples of each class on each client, shape ``(N, C)``."""
        labels, names = self.classes()
        return np.stack([np.bincount(labels[own], minlength=len(names)) for own in self.partition])

    def with_clients(self, partitioner: Partitioner, num_clients: int, seed: int) -> Self:
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

    def with_holdout(self, share: float, seed: int) -> Self:
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
