"""Tasks from a user's arrays: what they become, and what is refused."""

import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from fl_app.tasks.objective import Classification, MultiLabel, Regression
from fl_app.tasks.partition import Dirichlet
from fl_app.tasks.task import Task

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3))
CLASSES = np.arange(40) % 4
PLANES = RNG.random((40, 8, 8))
NUMBERS = X @ [1.0, 2.0, 3.0] + 100


def linear(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(input_shape)), num_outputs))


def made(x: Any = X, y: Any = CLASSES, *tests: Any, **settings: Any) -> Task:
    return Task.from_arrays(x, y, *tests, **({"model": linear} | settings))


# -- what arrays become ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        np.asarray,
        torch.from_numpy,
        pd.DataFrame,
        np.ndarray.tolist,
        np.asfortranarray,
        lambda x: x.astype(object),
    ],
)
def test_inputs_of_any_kind_are_float32(convert: Any) -> None:
    task = made(convert(X))
    assert task.inputs.dtype == torch.float32
    np.testing.assert_array_equal(task.inputs.numpy(), X.astype(np.float32))


def test_float32_is_shared_with_the_user_and_a_file_is_not_read_whole(tmp_path: Any) -> None:
    single = X.astype(np.float32)
    assert np.shares_memory(made(single).inputs.numpy(), single)
    np.save(tmp_path / "x.npy", single)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert np.shares_memory(made(mapped).inputs.numpy(), mapped)
    assert made(single[::-1]).inputs[0].tolist() == single[-1].tolist()


def test_bytes_of_images_are_pixels_and_other_integers_tokens() -> None:
    images = RNG.integers(256, size=(40, 1, 4, 4), dtype=np.uint8)
    task = made(images)
    assert task.inputs.dtype == torch.uint8
    batch, _ = task.batch(np.array([3]))
    np.testing.assert_allclose(batch[0].numpy(), images[3] / 255, rtol=1e-6)

    def embedding(input_shape: tuple[int, ...], num_outputs: int) -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(8, num_outputs))

    assert made(CLASSES[:, None].repeat(4, 1), model=embedding).inputs.dtype == torch.int64
    assert made(CLASSES[:, None] > 2).inputs.dtype == torch.float32


@pytest.mark.parametrize(
    ("y", "kind", "num_outputs"),
    [
        (CLASSES, Classification, 4),
        (CLASSES > 1, Classification, 2),
        (CLASSES[:, None], Classification, 4),
        (np.array(["no", "yes"])[CLASSES % 2], Classification, 2),
        (pd.Series(["b", "a"] * 20, dtype="category"), Classification, 2),
        (np.eye(4, dtype=int)[CLASSES], MultiLabel, 4),
        (np.eye(4, dtype=bool)[CLASSES], MultiLabel, 4),
        (torch.eye(4)[CLASSES], MultiLabel, 4),
        (NUMBERS, Regression, 1),
        (NUMBERS.astype(object), Regression, 1),
        (CLASSES.astype(object), Classification, 4),
        (X, Regression, 3),
        (torch.from_numpy(X).half(), Regression, 3),
    ],
)
def test_the_objective_follows_from_the_targets(y: Any, kind: type, num_outputs: int) -> None:
    objective = made(y=y).objective
    assert type(objective) is kind
    assert objective.num_outputs == num_outputs


def test_classes_are_their_places_in_order() -> None:
    task = made(y=np.array(["b", "a", "c", "a"] * 10))
    assert task.targets[:4].tolist() == [1, 0, 2, 0]
    assert isinstance(task.objective, Classification)
    assert task.objective.classes == ("a", "b", "c")
    assert repr(task) == (
        "Task(arrays: classification with 3 outputs (0 = a, 1 = b, 2 = c), 40 training and 0 test "
        f"examples of shape {X.shape[1:]}, clients of the run)"
    )
    unseen = made(X, CLASSES % 2, X[:2], np.array([1, 7]))
    assert unseen.objective.num_outputs == 3
    assert unseen.test_targets is not None
    assert unseen.test_targets.tolist() == [1, 2]


def test_an_objective_can_be_given() -> None:
    assert made(y=CLASSES, objective="regression").targets.shape == (40, 1)
    ten = made(y=CLASSES, objective=Classification(10))
    assert ten.targets.tolist() == CLASSES.tolist()
    assert ten.objective.num_outputs == 10


def test_numbers_are_standardised_for_the_model_alone() -> None:
    """A model that always gives 0 predicts the mean; its error is the deviation."""
    task = made(X, NUMBERS, X, NUMBERS)
    model = task.model()
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    metrics = task.test(model)
    assert metrics["loss"] == pytest.approx(1.0, rel=1e-5)
    assert metrics["rmse"] == pytest.approx(NUMBERS.std(), rel=1e-5)
    own = made(X, NUMBERS, X, NUMBERS, loss=nn.functional.mse_loss)
    assert own.test(model)["loss"] == pytest.approx((NUMBERS**2).mean(), rel=1e-5)


# -- clients --------------------------------------------------------------------------------------


def test_clients_by_id_are_in_the_order_of_ids() -> None:
    ids = np.array(["zoe", "al", "bo", "al"] * 10)
    for given in (ids, ids.tolist(), pd.Series(ids)):
        task = made(clients=given)
        assert [set(ids[part]) for part in task.partition] == [{"al"}, {"bo"}, {"zoe"}]
    assert made(clients=torch.from_numpy(CLASSES)).num_clients == 4


def test_clients_by_indices_and_by_partition() -> None:
    task = made(clients=[[3, 1], np.arange(4, 9)])
    assert [part.tolist() for part in task.partition] == [[1, 3], [4, 5, 6, 7, 8]]
    assert made(clients="dirichlet", num_clients=4).num_clients == 4
    given = made(clients=Dirichlet(alpha=0.1, min_size=2), num_clients=5, seed=3)
    again = made(clients=Dirichlet(alpha=0.1, min_size=2), num_clients=5, seed=3)
    assert [p.tolist() for p in given.partition] == [p.tolist() for p in again.partition]
    assert [part.size for part in made(num_clients=4).partition] == [10] * 4
    assert made().num_clients == 0  # the run decides


def test_validation_examples_are_kept() -> None:
    task = made(clients=CLASSES, holdout=0.2)
    assert [(t.size, v.size) for t, v in zip(task.partition, task.validation, strict=True)] == [
        (8, 2)
    ] * 4


# -- models ---------------------------------------------------------------------------------------


class Takes(nn.Linear):
    def __init__(self, num_outputs: int, width: int = 3) -> None:
        super().__init__(width, num_outputs)


@pytest.mark.parametrize(
    "model",
    [
        linear,
        lambda: nn.Linear(3, 4),
        lambda shape, outputs: nn.Linear(shape[0], outputs),
        lambda *, num_outputs: nn.Linear(3, num_outputs),
        Takes,
        nn.Linear(3, 4),
        "mlp",
        "logistic",
    ],
)
def test_models(model: Any) -> None:
    task = made(model=model)
    assert task.model()(torch.zeros(2, 3)).shape == (2, 4)
    assert task.model() is not task.model()


def test_models_by_name() -> None:
    assert made(PLANES, model="mlp").model()(torch.zeros(2, 8, 8)).shape == (2, 4)
    assert made(PLANES[:, None], model="cnn").model()(torch.zeros(2, 1, 8, 8)).shape == (2, 4)
    tokens = RNG.integers(30, size=(40, 7))
    assert made(tokens, model="logistic").inputs.dtype == torch.float32
    assert made(tokens, model="textcnn").model()(torch.from_numpy(tokens)).shape == (40, 4)


def test_a_module_starts_every_run_with_its_own_weights() -> None:
    module = nn.Linear(3, 4)
    copy = made(model=module).model()
    assert isinstance(copy, nn.Linear)
    assert torch.equal(copy.weight, module.weight)
    assert copy.weight is not module.weight
    task = made(model=module)
    nn.init.zeros_(module.weight)  # later changes do not count
    assert torch.equal(task.model().weight, copy.weight)  # type: ignore[arg-type]


def test_trying_a_model_leaves_the_random_state_alone() -> None:
    torch.manual_seed(0)
    made(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5)))
    after = torch.rand(1)
    torch.manual_seed(0)
    assert torch.equal(after, torch.rand(1))


# -- refusals -------------------------------------------------------------------------------------


def changed(values: Any, place: Any, value: Any) -> Any:
    copy = values.copy()
    copy[place] = value
    return copy


def squares(output: Tensor, target: Tensor) -> Tensor:
    return (output - target) ** 2


class NotOne:
    """Computes two numbers."""

    def clone(self) -> "NotOne":
        return self

    def update(self, output: Tensor, target: Tensor) -> None: ...

    def compute(self) -> Tensor:
        return torch.zeros(2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"x": changed(X, (3, 2), np.nan)}, "x_train[3, 2] is nan and must be a finite float32"),
        (
            {"x": changed(X, (3, 2), 1e300)},
            "x_train[3, 2] is 1e+300 and must be a finite float32: sc",
        ),
        ({"y": changed(NUMBERS, 7, np.inf)}, "y_train[7] is inf and must be a finite float32"),
        ({"y": CLASSES[:-1]}, "y_train has 39 targets and x_train 40 examples"),
        ({"x": X[:0], "y": CLASSES[:0]}, "x_train has the shape (0, 3): its examples hold nothing"),
        ({"y": CLASSES * 0}, "y_train has only one class: there would be nothing to tell apart"),
        ({"y": np.arange(40)}, "y_train has 40 different integers in 40 examples: say objective="),
        (
            {"y": np.array(["a", None] * 20)},
            "y_train[1] has no class: fill it in, or remove the row",
        ),
        ({"x": X.astype(str)}, "x_train has '0.1257302210933933' where numbers are needed: turn"),
        ({"x": pd.DataFrame({"a": ["x"] * 40})}, "x_train has 'x' where numbers are needed"),
        ({"x": [[1.0], [1.0, 2.0]]}, "x_train is no array, since its rows differ in shape"),
        (
            {"x": np.array([[1.0], [1.0, 2.0]], dtype=object)},
            "x_train is no array, since its rows differ in shape",
        ),
        ({"x": 3}, "x_train is a int and must be an array of examples"),
        (
            {"y": np.array(["1.5"] * 40), "objective": "regression"},
            "y_train has '1.5' where numbers are needed",
        ),
        ({"y": X, "objective": "multi_label"}, "y_train has 0.12573 and must have 0 or 1"),
        ({"y": X, "objective": "classification"}, "y_train has the shape (40, 3) and must have (n"),
        (
            {"y": X, "objective": Regression(2)},
            "y_train has 3 columns, and the objective 2 outputs",
        ),
        (
            {"y": CLASSES, "objective": Classification(3)},
            "y_train has the class 3, which is none of the objective's 0 to 2",
        ),
        (
            {"y": CLASSES, "objective": Classification(2, classes=(0, 1))},
            "y_train has the class 2, which is none of the objective's 0, 1",
        ),
        ({"objective": "ranking"}, "objective=ranking must be one of classification, multi_label"),
        ({"holdout": 1}, "holdout=1 must be a number >= 0 and below 1"),
        ({"clients": "dirichlt"}, "clients='dirichlt' must be one of iid, dirichlet"),
        ({"clients": "iid"}, "num_clients is missing: clients=iid needs their number"),
        ({"clients": "natural", "num_clients": 2}, "clients=Natural(min_size=1) needs the owner"),
        ({"clients": CLASSES[:5]}, "clients has the shape (5,) and must have (40,)"),
        ({"clients": CLASSES, "num_clients": 3}, "num_clients=3 must be 4, or left out"),
        ({"clients": np.array([None, "a"] * 20)}, "clients[0] is None and must be an id"),
        ({"clients": [[1], []]}, "clients[1] has no examples: it could not train"),
        (
            {"clients": [[1], [40]]},
            "clients[1] has the index 40 and must have indices from 0 to 39",
        ),
        ({"clients": [[1], [0.5]]}, "clients[1] must be an array of indices"),
        ({"clients": [[1], [2, 3, 2]]}, "clients[1] has the index 2 twice"),
        ({"num_clients": 2.5}, "num_clients=2.5 must be an integer >= 1"),
        ({"x": X[:, :0]}, "x_train has the shape (40, 0): its examples hold nothing"),
        ({"metrics": {"loss": NotOne()}}, "metrics has the name 'loss', which a run's table has"),
        ({"num_clients": 41}, "num_clients=41 must be at most 40"),
        (
            {"model": lambda: nn.Linear(3, 5)},
            "the model gives outputs of shape (2, 5) for 2 examples and must give (2, 4): "
            "classification needs 4 outputs for each",
        ),
        (
            {"model": lambda: nn.Linear(7, 4)},
            "the model cannot process inputs of shape (2, 3) and type torch.float32: give a model",
        ),
        (
            {"x": CLASSES[:, None]},
            "the model cannot process inputs of shape (2, 1) and type torch.i",
        ),
        ({"model": lambda: 3}, "model gives a int and must give a torch.nn.Module"),
        ({"model": nn.Flatten}, "the model has no parameter that can be trained"),
        ({"model": 3}, "model is a int and must be a callable"),
        (
            {"model": lambda a, b, c: None},
            "model needs the arguments a, b, c: it can have those two",
        ),
        (
            {"model": "lenet"},
            "task.model=lenet needs images (channels, height, width), the task's ",
        ),
        ({"x": PLANES, "model": "cnn"}, "task.model=cnn needs images (channels, height, width), t"),
        (
            {"model": "textcnn"},
            "task.model=textcnn must be one that fits the task's inputs: it tak",
        ),
        ({"y": NUMBERS, "loss": squares}, "loss must give one number that depends on the output"),
        (
            {"loss": nn.functional.mse_loss},
            "loss cannot process outputs of shape (2, 4) and targets",
        ),
        ({"metrics": {"two": NotOne()}}, "metrics['two'] must compute one number"),
        ({"metrics": {"no": max}}, "metrics['no'] must be a torchmetrics.Metric that fits classif"),
    ],
)
def test_bad_data_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        made(**settings)


@pytest.mark.parametrize(
    ("tests", "told"),
    [
        ((X[:0], CLASSES[:0]), "x_test has the shape (0, 3): its examples hold nothing; leave out"),
        ((X,), "y_test is missing: give it with x_test, or neither of them"),
        ((None, CLASSES), "x_test is missing"),
        ((X[:, :2], CLASSES), "x_test has examples of (2,), and must have those of x_train"),
        (
            (PLANES.astype(np.uint8), CLASSES),
            "x_test has examples of torch.uint8, and must have those of x_",
        ),
        ((X, X), "y_test has targets of (3,), and must have those of y_train, ()"),
        ((X, CLASSES[:3]), "y_test has 3 targets and x_test 40 examples"),
    ],
)
def test_bad_test_sets_are_refused(tests: tuple[Any, ...], told: str) -> None:
    x = PLANES if "uint8" in told else X
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        made(x, CLASSES, *tests)


def test_integers_of_a_test_set_are_numbers_where_those_for_training_are() -> None:
    test_inputs = made(X, CLASSES, X.round().astype(int), CLASSES).test_inputs
    assert test_inputs is not None
    assert test_inputs.dtype == torch.float32
