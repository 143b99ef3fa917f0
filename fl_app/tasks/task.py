"""A task: the data of all clients in one tensor, their partition, the model and the objective."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from fl_app.core.errors import explaining
from fl_app.core.layout import names_of
from fl_app.core.types import Array, Indices
from fl_app.tasks import conversion
from fl_app.tasks.encoding import Schema
from fl_app.tasks.models import CHUNK, FLAT_MODELS, MODELS, TEXT_MODELS, architecture, chunk_of
from fl_app.tasks.models.foreign import imported, maker_of, require_fit
from fl_app.tasks.objective import Classification, Loss, Objective
from fl_app.tasks.partition import Natural, Partitioner, make_partition
from fl_app.tasks.scaling import Scaling, make_scaling

SHOWN = 10  # classes in a line
DATA = ("inputs", "targets", "test_inputs", "test_targets")
STREAM = 0x686F_6C64_6F75_7400  # keeps the held-out examples' random numbers apart from all others


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class Task:
    """A learning problem with its data. Examples are decoded once and held as one tensor.

    Attributes:
        name: name in the configuration.
        objective: kind of the targets, with loss and metrics.
        architecture: makes a new model. For a task that is sent to another process it is a
            module-level function or a `functools.partial` of one; forked processes take any.
        inputs: training inputs, shape ``(n, ...)``.
        targets: training targets. Classes: int64, shape ``(n,)``, or ``(n, length)`` of sequences.
            Numbers: float32, shape ``(n, k)``.
        test_inputs: the server's test set, shape ``(n_test, ...)``; None = there is none.
        test_targets: as `targets`; None = there is no test set.
        partition: for every client the indices of its training examples, int64; empty = the
            clients follow from the run's configuration (`with_clients`).
        validation: for every client the indices of its examples kept for validation, int64; empty
            = clients evaluate on their training examples.
        owners: owner of each training example, int64, shape ``(n,)``; None = unknown.
        prepare: converts stored inputs to inputs of the model, such as
            `fl_app.tasks.scaling.Scaling`; None if they are the same.
        augment: random change of a training batch before `prepare`; draws from torch's global
            random state, which every order seeds.
        test_chunk: examples per forward pass of a test, >= 1.
        schema: of a user's data, to encode other data alike.
    """

    name: str
    objective: Objective
    architecture: Callable[[], nn.Module]
    inputs: Tensor
    targets: Tensor
    test_inputs: Tensor | None = None
    test_targets: Tensor | None = None
    partition: Sequence[Indices] = ()
    validation: Sequence[Indices] = ()
    owners: Tensor | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    augment: Callable[[Tensor], Tensor] | None = None
    test_chunk: int = CHUNK
    schema: Schema | None = None

    @classmethod
    def from_arrays(
        cls,
        x_train: Any,
        y_train: Any,
        x_test: Any = None,
        y_test: Any = None,
        *,
        model: Callable[..., nn.Module] | nn.Module | str,
        clients: Any = None,
        objective: str | Objective | None = None,
        loss: Loss | None = None,
        augment: Callable[[Tensor], Tensor] | None = None,
        name: str = "arrays",
    ) -> "Task":
        """A task on arrays of NumPy, torch or pandas.

        Inputs: floating point becomes float32. Bytes (uint8) with more than two dimensions are
        pixels and reach the model as numbers in [0, 1]; if `model` is the name of a model for
        images, their channels may come last. Other integers are tokens of a text and reach the
        model as int64, unless `model` is a name.

        Args:
            x_train: training inputs, shape ``(n, ...)``, n >= 1.
            y_train: their targets. Integers, booleans or texts of shape ``(n,)`` are classes; other
                numbers, ``(n,)`` or ``(n, k)``, are what the model predicts.
            x_test: the server's test set; None = there is none.
            y_test: its targets, as `y_train`.
            model: makes a new `torch.nn.Module`; called without arguments, or with the shape of one
                input and the number of outputs if it takes them. Or a module, of which each model
                is a copy, weights included; or a name as of the key ``task.model``.
            clients: a client id for each training example; None = the run's ``partition`` and
                ``num_clients``.
            objective: ``"classification"``, ``"regression"``, or an `Objective`; None = it follows
                from `y_train`.
            loss: maps outputs and targets of a batch to their mean loss; None = cross-entropy or
                squared error. Without it, the numbers of a regression are standardised: the model
                predicts ``(y - objective.mean) / objective.deviation``, and all metrics but the
                loss have the unit of `y_train`.
            augment: random change of a training batch of `x_train`'s type; draws from torch's
                global random state.
            name: of the task.

        Raises:
            ValueError: data, clients or model are refused; the message says what is needed.
        """
        # A user's own model may take tokens; a model given by name takes numbers.
        by_name = isinstance(model, str) and ":" not in model
        images = by_name and model not in (*FLAT_MODELS, *TEXT_MODELS)
        kinds = {"tokens": model not in MODELS, "images": images}
        fields = conversion.examples_of(x_train, y_train, x_test, y_test, objective, loss, **kinds)
        inputs: Tensor = fields["inputs"]
        make: Callable[..., Any] = architecture if isinstance(model, str) else maker_of
        task = cls(
            name=name,
            architecture=make(model, tuple(inputs.shape[1:]), fields["objective"].num_outputs),
            prepare=make_scaling("unit") if inputs.dtype == torch.uint8 else None,
            augment=augment,
            test_chunk=chunk_of(inputs.shape[1:]),
            **fields,
        )
        task.check_model()
        if clients is None:
            return task
        return replace(task, partition=conversion.partition_of(clients, len(task.targets)))

    @classmethod
    def from_datasets(cls, train: Any, test: Any = None, **settings: Any) -> "Task":
        """A task on map-style data sets of torch, whose items are pairs of input and target.

        Every item is read once. Random changes of training images, such as crops, are therefore
        made once; `augment` makes them anew for each batch.

        Args:
            train: has ``len()`` and items by index; inputs are tensors, arrays, numbers or images.
            test: the server's test set; None = there is none.
            settings: as of `from_arrays`.

        Raises:
            ValueError: as `from_arrays`, or a data set cannot be read.
        """
        tests = (None, None) if test is None else conversion.read_pairs(test, "test")
        return cls.from_arrays(*conversion.read_pairs(train, "train"), *tests, **settings)

    @classmethod
    def from_huggingface(
        cls,
        data: Any,
        *,
        inputs: str | Sequence[str],
        target: str,
        subset: str | None = None,
        **settings: Any,
    ) -> "Task":
        """A task on a data set of Hugging Face, or on a `flwr_datasets.FederatedDataset`.

        Args:
            data: a folder, or a name on the hub; or a `datasets.Dataset`, which is the training
                set; or a `datasets.DatasetDict` or a `FederatedDataset`. Of several splits,
                ``train`` is used, and ``test`` or else ``validation``, if there is one. The
                partitions of a `FederatedDataset` are the clients, unless `clients` are given.
            inputs: a column of images or of arrays, or columns of numbers that are put together.
            target: column of the targets.
            subset: of a data set on the hub that has several.
            settings: as of `from_arrays`; `clients` may name a column of client ids, or be a
                partitioner of flwr-datasets.

        Raises:
            ValueError: as `from_arrays`, the data cannot be reached, or a split or a column is
                missing.
        """
        clients = settings.get("clients")
        partitioner = clients if hasattr(clients, "load_partition") else None
        if isinstance(data, str | Path):
            # Imported here: it takes seconds.
            from fl_app.tasks.files import loaded

            with loaded(str(data), subset, "data") as splits:
                if partitioner is not None:  # as a `FederatedDataset` does
                    splits = splits.shuffle(seed=42)
                return cls.from_huggingface(splits, inputs=inputs, target=target, **settings)
        train, test = conversion.splits_of(data)
        if clients is None:
            partitioner = getattr(data, "partitioners", {}).get("train")
        if partitioner is not None:
            if not partitioner.is_dataset_assigned():
                partitioner.dataset = train
            train, settings["clients"] = conversion.rows_by_client(partitioner)
        classes = conversion.class_names(train, target) if target in train.column_names else None
        if classes is not None:
            settings.setdefault("objective", Classification(len(classes), classes=tuple(classes)))
        if isinstance(clients, str) and clients in train.column_names:
            settings["clients"] = conversion.column_of(train, clients)
        tests = (None, None) if test is None else conversion.read_columns(test, inputs, target)
        return cls.from_arrays(*conversion.read_columns(train, inputs, target), *tests, **settings)

    def __repr__(self) -> str:
        """One line with the kind of the targets, the sizes, and the number of each class."""
        names = self.objective.classes if isinstance(self.objective, Classification) else ()
        numbered = names_of((f"{number} = {name}" for number, name in enumerate(names)), SHOWN)
        classes = numbered and f" ({numbered})"
        num_tests = 0 if self.test_targets is None else len(self.test_targets)
        num_clients = f"{self.num_clients} clients" if self.num_clients else "clients of the run"
        return (
            f"Task({self.name}: {self.objective.kind} with {self.objective.num_outputs} outputs"
            f"{classes}, {len(self.targets)} training and {num_tests} test examples of shape "
            f"{tuple(self.inputs.shape[1:])}, {num_clients})"
        )

    def model(self) -> nn.Module:
        """A new model, with initial weights from torch's global random state."""
        return self.architecture()

    def on(self, device: torch.device) -> Self:
        """This task with its data on a device, on which `batch` and all measurements then work.

        `prepare` and `augment` get tensors on this device.

        Args:
            device: of the model.

        Raises:
            torch.OutOfMemoryError: the data do not fit into its memory.
        """
        parts = {name: getattr(self, name) for name in DATA}
        moved = {name: part.to(device) for name, part in parts.items() if part is not None}
        return replace(self, **moved)

    def batch(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """Copies of inputs and targets of training examples, ready for the model."""
        places = self._places(indices)
        inputs = self.inputs.index_select(0, places)
        if self.augment is not None:
            inputs = self.augment(inputs)
        return self._ready(inputs), self.targets.index_select(0, places)

    def _places(self, indices: Indices) -> Tensor:
        """Indices as a tensor on the device of the data."""
        return torch.from_numpy(indices).to(self.inputs.device)

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

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Loss of every example, shape ``(n,)``, if it is known; ``runtime.batch`` needs it."""
        return self.objective.losses(output, target)

    @property
    def mixed(self) -> str:
        """Why a mini-batch may mix its examples or draw at random; "" = it does not."""
        kind, objective = type(self), self.objective
        own_loss = kind.loss is not Task.loss or type(objective).loss is not Objective.loss
        if own_loss or objective.criterion is not None:
            return "a loss of its own has no loss of each example"
        own_batch = kind.batch is not Task.batch or kind._ready is not Task._ready
        if own_batch or self.augment is not None or not isinstance(self.prepare, Scaling | None):
            return "augment, and a batch or prepare of its own may mix examples, or draw at random"
        return ""

    def with_loss(self, path: str) -> Self:
        """This task with a loss of the user's own, as of ``task.loss``.

        Args:
            path: ``package.module:callable``; maps outputs and targets of a batch to their mean
                loss. The model then predicts the numbers of a regression as they are.

        Raises:
            ValueError: it cannot be imported, or does not fit outputs and targets.
        """
        loss = imported("task.loss", path)
        task = replace(self, objective=self.objective.with_loss(loss))
        with explaining(f"task.loss={path}"):
            task.check_model()
        return task

    def check_model(self) -> None:
        """Refuse a model or a loss that does not fit the task's examples.

        torch's random state is the same after the call.

        Raises:
            ValueError: naming what is needed and what was found.
        """
        # A model may need two examples (BatchNorm); a task may have one, or no data.
        inputs, targets = (
            torch.cat([part[:2], part[:1], part.new_zeros(2, *part.shape[1:])])[:2]
            for part in (self.inputs, self.targets)
        )
        require_fit(self.architecture, self._ready(inputs), targets, self.objective)

    # -- clients ----------------------------------------------------------------------------------

    @property
    def has_test_set(self) -> bool:
        """Whether the server can test a model."""
        return self.test_targets is not None

    @property
    def num_clients(self) -> int:
        """N; 0 = the clients follow from the run's configuration."""
        return len(self.partition)

    def train_indices(self, client_id: int) -> Indices:
        """The client's training examples, shape ``(n_i,)``."""
        return self.partition[client_id]

    def evaluation_indices(self, client_id: int) -> Indices:
        """The client's validation examples; without those of any client, its training examples."""
        return (self.validation or self.partition)[client_id]

    def classes(self) -> tuple[Indices, tuple[str, ...]]:
        """The class of each training example, shape ``(n,)``, and the names of the classes.

        All examples of a task without classes are of one, which is called ``"all"``.
        """
        objective = self.objective
        if not isinstance(objective, Classification) or objective.sequences:
            return np.zeros(len(self.targets), np.int64), ("all",)
        names = objective.classes or map(str, range(objective.num_outputs))
        return np.asarray(self.targets), tuple(names)

    def class_counts(self) -> Indices:
        """Training examples of each class on each client, shape ``(N, C)``."""
        labels, names = self.classes()
        return np.stack([np.bincount(labels[ids], minlength=len(names)) for ids in self.partition])

    def with_clients(self, partitioner: Partitioner, num_clients: int | None, seed: int) -> Self:
        """This task with its training examples distributed over clients.

        Args:
            partitioner: distributes by `Objective.strata` or by owners. The owners of a user's
                data are the clients in any case.
            num_clients: N, 1 <= N <= n; None as of `make_partition`.
            seed: seed of the partition.

        Raises:
            ValueError: as `make_partition`.
        """
        owners = None if self.owners is None else self.owners.numpy()
        if self.schema and owners is not None and not getattr(partitioner, "by_owner", False):
            partitioner = Natural()
        strata = self.objective.strata(self.targets)
        parts = make_partition(partitioner, strata, num_clients, seed, owners)
        return replace(self, partition=parts, validation=())

    def with_holdout(self, share: float, seed: int) -> Self:
        """This task with a share of every client's training examples held out for validation.

        A client keeps at least one example for validation and at least one for training; one that
        has a single example trains on it and validates on none.

        Args:
            share: in (0, 1).
            seed: the draw of a client follows from the seed and the client alone.
        """
        train, validation = [], []
        for client_id, indices in enumerate(self.partition):
            rng = np.random.default_rng((seed, client_id, STREAM))
            num_held_out = min(max(1, round(share * indices.size)), max(0, indices.size - 1))
            held_out, remaining = np.split(rng.permutation(indices), [num_held_out])
            train.append(np.sort(remaining))
            validation.append(np.sort(held_out))
        return replace(self, partition=train, validation=validation)

    def label_counts(self) -> Indices:
        """Examples of each class in the test set, shape ``(C,)``.

        Raises:
            ValueError: there is no test set with one class for each example.
        """
        objective = self.objective
        single = isinstance(objective, Classification) and not objective.sequences
        if self.test_targets is None or not single:
            problem = f"task={self.name} ({objective.kind}) has no test set of single classes"
            raise ValueError(f"{problem}: leave metrics= empty")
        labels = self.test_targets.cpu()
        return torch.bincount(labels, minlength=objective.num_outputs).numpy()

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
        metrics, counts = self._measure(model, self.test_inputs, self.test_targets)
        if recall:
            shares = counts[0].double() / torch.from_numpy(self.label_counts())
            metrics.update((f"recall_{label}", share.item()) for label, share in enumerate(shares))
        return metrics

    def evaluate(self, model: nn.Module, client_id: int) -> tuple[dict[str, float], int]:
        """The objective's metrics on one client's validation examples, and how many these are.

        Without validation examples of any client these are its training examples,
        without augmentation. A client whose only example is for training gives ``({}, 0)``.
        """
        indices = self.evaluation_indices(client_id)
        if indices.size == 0:
            return {}, 0
        places = self._places(indices)
        examples = (part.index_select(0, places) for part in (self.inputs, self.targets))
        return self._measure(model, *examples)[0], int(indices.size)

    def answers(self, model: nn.Module, inputs: Tensor) -> Array:
        """A model's predictions for inputs such as this task's, see `Objective.answers`."""
        model.eval()
        with torch.no_grad():
            outputs = [model(self._ready(chunk)) for chunk in torch.split(inputs, self.test_chunk)]
        return self.objective.answers(torch.cat(outputs))

    def _measure(
        self, model: nn.Module, inputs: Tensor, targets: Tensor
    ) -> tuple[dict[str, float], Tensor]:
        """Metrics and summed `Objective.counts` of at least one example."""
        objective = self.objective
        training = [module for module in model.modules() if module.training]
        device = next(model.parameters()).device
        losses: list[float] = []
        counts: list[Tensor] = []
        total = targets.numel()
        chunks = (torch.split(part, self.test_chunk) for part in (inputs, targets))
        model.eval()
        with torch.inference_mode():
            for chunk, chunk_targets in zip(*chunks, strict=True):
                output, target = model(self._ready(chunk.to(device))), chunk_targets.to(device)
                losses.append(objective.loss(output, target).item() * target.numel())
                counts.append(objective.counts(output, target))
        for module in training:
            module.training = True
        summed = torch.stack(counts).sum(0)
        return objective.figures(summed, sum(losses) / total, total), summed
