"""A kind of task: a dataclass whose fields are the keys below ``task``, with their bounds.

Modules that hold one do not import torch at their top, because keys are checked before torch is
loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from fl_app.core.hyper import bounded, check_bounds, one_of, or_none
from fl_app.tasks.models import Shape, architecture, check_model
from fl_app.tasks.partition import Partitioner, make_partition

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

# Arrays, shape of an input, further fields (`Classes.content`).
Content: TypeAlias = tuple[Mapping[str, Any], Shape, dict[str, Any]]

USUAL_CLIENTS = 50  # of a run that does not say, and whose data do not either


@dataclass(kw_only=True)
class TaskKind(ABC):
    """The keys of a task. A call loads its data.

    Args:
        model: a name, a classification model of torchvision, or package.module:callable; None (own
            data) = cnn for images, else mlp.

    Raises:
        ValueError: a value is out of its bounds, or the model takes other inputs.
    """

    model: str | None = None

    text: ClassVar[bool] = False  # whether inputs are sequences of tokens

    def __post_init__(self) -> None:
        check_bounds("task", self)
        if self.model is not None:
            check_model(self.model, text=self.text)

    @abstractmethod
    def __call__(self, *, partition: Partitioner, num_clients: int | None, seed: int = 0) -> "Task":
        """The task.

        Args:
            partition: distributes the training examples.
            num_clients: N >= 1; None = as many as the data or the partition say.
            seed: seed of the partition, and of data that are drawn.

        Raises:
            ValueError: the data are missing or refused, or a client gets none.
        """


@dataclass(kw_only=True)
class Classes(TaskKind):
    """A task of classification whose data are known, or are drawn."""

    def __call__(self, *, partition: Partitioner, num_clients: int | None, seed: int = 0) -> "Task":
        # Imported here, because they load torch.
        import torch

        from fl_app.tasks.objective import Classification
        from fl_app.tasks.task import Task

        arrays, shape, fields = self.content(seed)
        names = {"inputs": "train_inputs", "targets": "train_targets"}
        tensors: dict[str, Any] = {
            name: torch.as_tensor(arrays[names.get(name, name)])
            for name in ("inputs", "targets", "test_inputs", "test_targets")
        }
        num_classes, sequences = fields.pop("num_classes"), fields.pop("sequences", False)
        objective = Classification(num_classes, sequences=sequences)
        strata, owners = objective.strata(tensors["targets"]), arrays.get("train_owners")
        return Task(
            objective=objective,
            architecture=architecture(self.model or "", shape, num_classes),
            partition=make_partition(partition, strata, num_clients, seed, owners),
            **fields,
            **tensors,
        )

    @abstractmethod
    def content(self, seed: int) -> Content:
        """What the task is made of.

        Returns:
            Arrays or tensors ``train_inputs``, ``train_targets``, ``test_inputs``,
            ``test_targets``, and ``train_owners``, int64 of shape ``(n,)``, if they are known; the
            shape of one input of the model; and ``num_classes``, ``sequences`` (whether targets
            are), and further fields of `fl_app.tasks.task.Task` by name.

        Raises:
            ValueError: the data are missing or refused.
        """


def scaling(default: str) -> Any:
    """A field that says how images are scaled (`fl_app.tasks.scaling.make_scaling`)."""
    return bounded(default, one_of("raw255", "unit", "standardised"), "unknown")


def augmentation() -> Any:
    """A field that names a random change of training images; None = they stay as they are."""
    return bounded(None, or_none(one_of("crop_flip")), "unknown")
