"""Models of torchvision and of a user's own module, by the key ``task.model``."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from configs import composed
from torch import nn

from fl_app.client.build import build_task
from fl_app.runner.validate import validate_config
from fl_app.tasks.models import architecture
from fl_app.tasks.options import MODELS, TORCHVISION_MODELS
from fl_app.tasks.vision import torchvision

MODULE = """
from torch import nn

def needs_both(input_shape, num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_outputs))

def complete():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

def too_small():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def too_wide():
    return nn.Sequential(nn.Flatten(), nn.Linear(65, 10))

def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(10))

def smoothed(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)

def distance(outputs, targets):
    return (outputs - targets).abs().mean()

def of_each(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")

number = 3
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_models.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_all_classification_models_of_torchvision_are_known() -> None:
    models = torchvision().models
    names = models.list_models(module=models)
    assert sorted({*names} - {*MODELS}) == sorted(TORCHVISION_MODELS)


@pytest.mark.parametrize(
    ("name", "size"), [("squeezenet1_1", 32), ("resnet34", 32), ("googlenet", 64)]
)
def test_a_model_of_torchvision_has_as_many_outputs_as_the_task(name: str, size: int) -> None:
    model = architecture(name, (3, size, size), 7)()
    assert model(torch.zeros(2, 3, size, size)).shape == (2, 7)


@pytest.mark.parametrize("name", ["needs_both", "complete"])
def test_a_model_of_ones_own(name: str) -> None:
    config = composed("num_clients=20", f"task.model=my_models:{name}")
    validate_config(config)
    assert isinstance(build_task(config).model()[1], nn.Linear)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        (
            "my_models:too_small",
            "task.model=my_models:too_small: the model gives outputs of shape (2, 3) for 2 examples"
            " and must give (2, 10): classification needs 10 outputs for each",
        ),
        ("my_models:too_wide", "task.model=my_models:too_wide: the model cannot process inputs of"),
        ("my_models:number", "task.model=my_models:number is a int, which cannot be called"),
        ("my_models:absent", "task.model=my_models:absent must be package.module:callable, found "),
        ("absent:model", "task.model=absent:model must be package.module:callable, found from wh"),
        (
            "my_models:lazy",
            "task.model=my_models:lazy: the layer '1' is a LazyLinear",
        ),
        ("squeezenet1_1", "task.model=squeezenet1_1: the model cannot process inputs of shape (2,"),
    ],
)
def test_models_that_do_not_fit_are_refused(name: str, told: str) -> None:
    config = composed("num_clients=20", f"task.model={name}")
    validate_config(config)
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        build_task(config)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ["task.model=lenett"],
            "task.model=lenett must be one of logistic, .*or package.module:ca",
        ),
        (["task=imdb", "task.model=resnet34"], "task.model=resnet34 must be one that fits the ta"),
    ],
)
def test_unknown_models_are_refused_before_the_data_are_read(
    overrides: list[str], told: Any
) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        validate_config(composed(*overrides))


def test_a_loss_of_ones_own() -> None:
    config = composed("num_clients=20", "task.loss=my_models:smoothed")
    validate_config(config)
    outputs, targets = torch.randn(4, 10), torch.arange(4)
    expected = nn.functional.cross_entropy(outputs, targets, label_smoothing=0.5)
    assert build_task(config).objective.loss(outputs, targets) == expected


def test_a_loss_of_ones_own_gets_the_numbers_of_a_regression_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{i},{i + 0.5}\n" for i in range(40)))
    words = ["task=csv", f"task.path={tmp_path / 't.csv'}", "task.target=y", "num_clients=2"]
    config = composed(*words, "partition=iid", "task.loss=my_models:distance")
    objective = build_task(config).objective
    assert objective.loss(torch.zeros(2, 1), torch.tensor([[7.0], [9.0]])) == 8


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("absent:loss", r"No module named 'absent'; absent.py or absent/ must lie in the folder"),
        ("my_models:number", "is a int, which cannot be called"),
        ("my_models:of_each", "loss must give one number"),
        ("my_models:too_small", "loss cannot process outputs of shape"),
    ],
)
def test_losses_that_do_not_fit_are_refused(name: str, told: str) -> None:
    config = composed("num_clients=20", f"task.loss={name}")
    validate_config(config)
    with pytest.raises(ValueError, match=f"^task.loss={name}.*{told}"):
        build_task(config)
    with pytest.raises(ValueError, match=r"task.loss=smoothed must be package.module:callable"):
        validate_config(composed("task.loss=smoothed"))
