"""A kind of task: a dataclass whose fields are the keys below ``task``, with their bounds.

Modules that hold one do not import torch at their top, because keys are checked before torch is
loaded.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from fl_app.core.hyper import Checked
from fl_app.tasks.models import Shape, architecture, check_model, chunk_of

if TYPE_CHECKING:
    from fl_app.tasks.objective import Objective
    from fl_app.tasks.task import Task


@dataclass(kw_only=True)
class TaskKind(Checked, ABC):
    """The keys of a task. A call loads its data.

    Args:
        model: a name, a classification model of torchvision, or package.module:callable; None (own
            data) = cnn for images, else mlp.

    Raises:
        ValueError: a value is out of its bounds, or the model takes other inputs.
    """

    _group = "task"

    model: str | None = None

    text: ClassVar[bool] = False  # whether inputs are sequences of tokens

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model is not None:
            check_model(self.model, text=self.text)

    @abstractmethod
    def __call__(self, *, seed: int = 0) -> "Task":
        """The task with its data, which no client has yet (`fl_app.tasks.task.Task.with_clients`).

        Args:
            seed: of the run, for data that are drawn.

        Raises:
            ValueError: the data are missing or refused.
        """

    def made_of(
        self, arrays: Mapping[str, Any], shape: Shape, objective: "Objective | int", **fields: Any
    ) -> "Task":
        """A task with the model that the keys name.

        Args:
            arrays: fields of `fl_app.tasks.task.Task` that are tensors, by name.
            shape: of one input, see `fl_app.tasks.models.architecture`.
            objective: of the task; a number of classes, with a class or a sequence of classes for
                each example, as the targets are.
            fields: further fields.
        """
        # Imported here, because they load torch.
        import torch

        from fl_app.tasks.objective import Classification
        from fl_app.tasks.task import Task

        if isinstance(objective, int):
            objective = Classification(objective, sequences=arrays["targets"].ndim > 1)
        model = self.model or ("cnn" if len(shape) == 3 else "mlp")
        fields = {"test_chunk": chunk_of(shape), **fields}
        fields |= {name: torch.as_tensor(array) for name, array in arrays.items()}
        make = architecture(model, shape, objective.num_outputs)
        return Task(objective=objective, architecture=make, **fields)
