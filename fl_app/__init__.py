"""Asynchronous federated learning on Flower.

    import fl_app

    task = fl_app.Task.from_arrays(x_train, y_train, x_test, y_test, model=make_model)
    result = fl_app.run("algorithm=fedbuff", "num_versions=200", task=task)

Attributes are imported when they are first used: a node and the command line need none of them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_app.api.compare import Comparison as Comparison
    from fl_app.api.compare import compare as compare
    from fl_app.api.plan import Prediction as Prediction
    from fl_app.api.plan import plan as plan
    from fl_app.api.result import Result as Result
    from fl_app.api.run import run as run
    from fl_app.tasks.task import Task as Task

_FROM = {
    "Comparison": "fl_app.api.compare",
    "Prediction": "fl_app.api.plan",
    "Result": "fl_app.api.result",
    "Task": "fl_app.tasks.task",
    "compare": "fl_app.api.compare",
    "plan": "fl_app.api.plan",
    "run": "fl_app.api.run",
}


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM})
