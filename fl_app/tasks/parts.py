"""What tasks are made of: classes and functions of one backend, under the same names.

Data are read into arrays of NumPy, whatever computes the model. `parts_of` gives what turns them
into a task.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fl_app.client.backend import NUMPY
from fl_app.core.errors import require


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Classes and functions of one backend.

    Attributes:
        task: `fl_app.tasks.task.Task`, or what it is without torch.
        own_task: the task on a user's data.
        classification: the objective with classes; `multi_label` and `regression` are the others.
        multi_label: see `classification`.
        regression: see `classification`.
        array: an array as the task holds it.
        make_scaling: see `fl_app.tasks.scaling.make_scaling`.
        architecture: a callable that makes models, from name, shape and number of outputs.
        augmented: keywords for a task whose training batches are changed at random, by the name of
            the change; None = they are not.
        chunk: most examples per forward pass of a test.
    """

    task: Any
    own_task: Any
    classification: Any
    multi_label: Any
    regression: Any
    array: Callable[[NDArray[Any]], Any]
    make_scaling: Callable[[str, float, NDArray[np.float64]], Any]
    architecture: Callable[..., Any]
    augmented: Callable[[str | None], dict[str, Any]]
    chunk: int


def parts_of(backend: str) -> Parts:
    """The parts of a backend, ``"torch"`` or ``"numpy"``."""
    return _with_numpy() if backend == NUMPY else _with_torch()


def _with_torch() -> Parts:
    # Imported here: torch takes seconds to import, and may not be installed.
    import torch

    from fl_app.tasks.augmentation import crop_flip
    from fl_app.tasks.client_examples import CHUNK
    from fl_app.tasks.models import architecture
    from fl_app.tasks.objective import Classification, MultiLabel, Regression
    from fl_app.tasks.own_task import OwnTask
    from fl_app.tasks.scaling import make_scaling
    from fl_app.tasks.task import Task

    augmentations = {"crop_flip": crop_flip}
    return Parts(
        task=Task,
        own_task=OwnTask,
        classification=Classification,
        multi_label=MultiLabel,
        regression=Regression,
        array=torch.from_numpy,
        make_scaling=make_scaling,
        architecture=architecture,
        augmented=lambda name: {} if name is None else {"augment": augmentations[name]},
        chunk=CHUNK,
    )


def _with_numpy() -> Parts:
    from fl_app.tasks import array_objective as objective
    from fl_app.tasks.array_task import ARRAY_CHUNK, ArrayTask, OwnArrayTask, make_array_scaling
    from fl_app.tasks.models.arrays import array_architecture

    return Parts(
        task=ArrayTask,
        own_task=OwnArrayTask,
        classification=objective.ArrayClassification,
        multi_label=objective.ArrayMultiLabel,
        regression=objective.ArrayRegression,
        array=lambda array: array,
        make_scaling=make_array_scaling,
        architecture=array_architecture,
        augmented=_not_augmented,
        chunk=ARRAY_CHUNK,
    )


def _not_augmented(name: str | None) -> dict[str, Any]:
    require(
        name is None,
        "task.augment",
        name,
        "null with runtime.backend=numpy",
        "it draws random numbers from torch",
    )
    return {}
