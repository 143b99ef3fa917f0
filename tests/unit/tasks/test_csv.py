"""Tables: encoded as scikit-learn would, by client, refused with column, row and remedy."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from fl_app.api.settings import plan_of
from fl_app.cli import compose
from fl_app.client.build import build_task
from fl_app.runner.validate import checked_cells
from fl_app.tasks.cache import cache_folder
from fl_app.tasks.csv import csv
from fl_app.tasks.objective import Classification, MultiLabel, Regression
from fl_app.tasks.own_task import OwnTask
from fl_app.tasks.partition import Iid
from fl_app.tasks.schema import read_schema

ROWS = """age,city,owner,bought
20,Bern,b,no
30,Rome,b,yes
40,Bern,a,no
50,Bern,a,yes
"""
Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str, name: str = "table.csv") -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def build(path: str | None, *, num_clients: int | None = 1, **keys: Any) -> OwnTask:
    given = {"target": "bought", "test_share": 0.0, **keys}
    return csv(partition=Iid(), num_clients=num_clients, path=path, **given)


def test_numbers_are_standardised_and_categories_have_an_input_each(write: Write) -> None:
    """The ages have mean 35 and deviation sqrt(125)."""
    task = build(write(ROWS), ignore=["owner"])
    deviation = math.sqrt(125)
    expected = [
        [-15 / deviation, 1, 0],
        [-5 / deviation, 0, 1],
        [5 / deviation, 1, 0],
        [15 / deviation, 1, 0],
    ]
    np.testing.assert_allclose(task.inputs, expected, rtol=1e-6)
    assert task.targets.tolist() == [0, 1, 0, 1]
    assert isinstance(task.objective, Classification)
    assert task.objective.classes == ("no", "yes")
    assert not task.has_test_set
    assert (task.name, task.source) == ("csv-table", "own")


def test_mean_and_deviation_are_those_of_the_training_rows(write: Write) -> None:
    path, test = write(ROWS), write("bought,age,city,more\nyes,35,Rome,1\n", "test.csv")
    task = build(path, ignore=["owner"], test_path=test)
    assert len(task.inputs) == 4
    assert task.test_inputs is not None
    assert task.test_inputs.tolist() == [[0, 0, 1]]
    shared = build(path, inputs="age", test_share=0.25)
    assert shared.test_inputs is not None
    assert len(shared.inputs) == 3
    assert shared.inputs.mean().item() == pytest.approx(0, abs=1e-6)
    assert shared.inputs.std(correction=0).item() == pytest.approx(1)


def test_each_value_of_the_client_column_is_a_client(write: Write) -> None:
    task = build(write(ROWS), client="owner", num_clients=2)
    assert [own.tolist() for own in task.partition] == [[2, 3], [0, 1]]
    assert task.inputs.shape == (4, 3)
    with pytest.raises(ValueError, match="num_clients=3 must be at most 2, the owners"):
        build(write(ROWS), client="owner", num_clients=3)


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [([], 3), (["partition=natural", "partition.min_size=2"], 2), (["num_clients=2"], 2)],
)
def test_the_client_column_decides_how_many_clients_there_are(
    write: Write, overrides: list[str], expected: int
) -> None:
    path = write(ROWS + "60,Bern,c,no\n")
    words = ["task=csv", f"task.path={path}", "task.target=bought", "task.test_share=0"]
    words += ["task.client=owner", *overrides]
    (cell,) = checked_cells(compose(words), words).values()
    assert (cell.num_clients, cell.algorithm.schedule.concurrency) == (expected, expected)
    assert plan_of(words).config.num_clients == build_task(cell).num_clients == expected


def test_without_owners_there_are_fifty_clients(tmp_path: Path) -> None:
    rows = np.arange(600)
    np.savez(tmp_path / "a.npz", x_train=rows[:, None], y_train=rows % 2)  # it may have `client`
    config = plan_of(["task=arrays", f"task.path={tmp_path / 'a.npz'}", "task.test_share=0"]).config
    assert config.num_clients == compose([]).num_clients == 50


@pytest.mark.parametrize(
    ("values", "keys", "kind", "targets"),
    [
        (["1", "0", "1"], {}, Classification, [1, 0, 1]),
        (["10", "9", "10"], {}, Classification, [1, 0, 1]),  # in the order of numbers
        (["x", "y", "x"], {}, Classification, [0, 1, 0]),
        (["True", "False", "True"], {}, Classification, [1, 0, 1]),
        (["1.5", "2", "4"], {}, Regression, [[1.5], [2.0], [4.0]]),
        (["1", "2", "4"], {"kind": "regression"}, Regression, [[1.0], [2.0], [4.0]]),
        (["1.5", "2", "1.5"], {"kind": "classification"}, Classification, [0, 1, 0]),
        (["1", "0", "1"], {"kind": "multi_label"}, MultiLabel, [[1.0], [0.0], [1.0]]),
    ],
)
def test_the_kind_follows_from_the_target(
    write: Write, values: list[str], keys: dict[str, str], kind: type, targets: list[Any]
) -> None:
    rows = "".join(f"{place},{value}\n" for place, value in enumerate(values))
    task = build(write(f"x,bought\n{rows}"), **keys)
    assert type(task.objective) is kind
    assert task.targets.tolist() == targets


def test_several_targets(write: Write) -> None:
    path = write("x,a,b\n1,0,1\n2,1,1\n3,0,0\n")
    task = build(path, target=["a", "b"])
    assert isinstance(task.objective, MultiLabel)
    assert task.objective.labels == ("a", "b")
    assert task.targets.tolist() == [[0, 1], [1, 1], [0, 0]]
    task = build(write("x,a,b\n1,0,1.5\n2,1,1\n3,0,0\n"), target=["a", "b"])
    assert isinstance(task.objective, Regression)


def test_numbers_to_predict_are_standardised_for_the_model_and_measured_as_they_are(
    write: Write,
) -> None:
    """A model that gives 0 predicts the mean, 200: errors 100, 0 and 100."""
    task = build(write("x,bought\n1,100.5\n2,200.5\n3,300.5\n"), model="logistic")
    model = task.model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    metrics, count = task.evaluate(model, 0)
    assert count == 3
    assert metrics["loss"] == pytest.approx(1)
    assert metrics["mae"] == pytest.approx(200 / 3)
    assert metrics["rmse"] == pytest.approx(math.sqrt(20000 / 3))
    assert metrics["r2"] == pytest.approx(0)


def test_a_file_is_read_again_if_it_or_a_key_changes(write: Write) -> None:
    path = write("x,bought\n1,no\n2,yes\n")

    def entries() -> int:
        return len([p for p in cache_folder().iterdir() if p.name.startswith("csv-table-")])

    build(path)
    build(path, num_clients=2, model="logistic", seed=3)
    assert entries() == 1
    write("x,bought\n1,no\n2,yes\n3,yes\n")
    assert len(build(path).inputs) == 3
    assert entries() == 1  # what was there before is not kept


@pytest.mark.parametrize(
    ("text", "keys", "message"),
    [
        ("x,y\n1,a\n", {}, r"task.target=bought must be a column of task.path=.* has x, y"),
        ("x,y\n1,a\n", {"target": None}, r"task.target=null must be a column .* has x, y"),
        (ROWS, {"client": "user"}, r"task.client=user must be a column .* has age, city"),
        (ROWS, {"inputs": ["ages"]}, r"task.inputs=ages must be a column"),
        (ROWS, {"ignore": ["ages"]}, r"task.ignore=ages must be a column"),
        (ROWS, {"categories": ["ages"]}, r"task.categories=ages must be a column"),
        (ROWS, {"inputs": ["age", "bought"]}, "without bought: it is the target"),
        (ROWS, {"ignore": ["age", "city", "owner"]}, "there is nothing to predict from"),
        ("x,bought\n", {}, "has no rows"),
        ("", {}, "must be a table in UTF-8.* No columns"),
        ("x,bought\n1,no,2\n", {}, "must be a table in UTF-8.*Length of header"),
        ("x,bought\n1,no\n2,no\n", {}, "only the class 'no'.*task.schema"),
        ("x,bought\n1,no\n,yes\n", {}, r"column 'x' has no value .* in row 2 and 1 .*task.ignore"),
        ("x,bought\n1,no\n2,\n", {}, "column 'bought' has no value .* in row 2"),
        ("x,bought\n1,no\ninf,yes\n", {}, "column 'x' needs finite numbers .* 'inf' in row 2"),
        (
            "x,bought\n1,no\n2,yes\n3x,yes\n", {},
            r"column 'x' needs finite numbers and has '3x' in row 3: .*task.categories=\[x\]",
        ),
        ("x,bought\n1,1.5\n2,2\n3,3 m\n", {}, "'bought' needs finite numbers .* '3 m' in row 3"),
        ("x,bought\n1,1.5\n2,inf\n", {}, "'bought' needs finite numbers .* 'inf' in row 2"),
        ("x,bought\n1,a\n2,b\n", {"kind": "regression"}, "needs finite numbers .* 'a' in row 1"),
        ("x,bought\n1,0\n2,2\n", {"kind": "multi_label"}, "is 2 in row 2, and must be 0 or 1"),
        (ROWS, {"target": ["age", "city"]}, "'city' needs finite numbers"),
        (
            ROWS, {"target": ["age", "city"], "kind": "classification"},
            "task.kind=classification must be multi_label or regression with the 2 target columns",
        ),
        (ROWS, {"num_clients": 5}, "num_clients=5 must be at most 4"),
        ("x,bought\n1,no\n2,yes\n", {"test_share": 0.5}, "2 examples, too few for a test set"),
    ],
)  # fmt: skip
def test_a_table_that_does_not_fit_is_refused(
    write: Write, text: str, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(write(text), **keys)


def test_the_test_file_is_checked_too(write: Write) -> None:
    path = write(ROWS)
    for text, message in (
        ("age,city,bought\n1,Bern,no\n2,Oslo,no\n", "'city' has 'Oslo' in row 2.*Bern, Rome"),
        ("age,city,bought\n1,Bern,maybe\n", "has 'maybe' in row 1.* none of no, yes"),
        ("age,city,bought\nx,Bern,no\n", "test_path=.* column 'age' needs finite numbers"),
        ("age,bought\n1,no\n", "task.test_path=.*, which has age, bought"),
        ("age,city,bought\n", "has no rows"),
    ):
        test = write(text, "test.csv")
        with pytest.raises(ValueError, match=message):
            build(path, ignore=["owner"], test_path=test)


# -- with a schema --------------------------------------------------------------------------------


def test_a_schema_encodes_other_data_alike(write: Write) -> None:
    """A device has one class and one city only, and one more column."""
    server = build(write(ROWS), ignore=["owner"])
    device = write("more,city,bought,age\n1,Rome,no,35\n", "device.csv")
    task = build(device, target=None, schema=server.schema.to_json())
    assert task.inputs.tolist() == [[0, 0, 1]]
    assert task.targets.tolist() == [0]
    assert task.schema == server.schema
    assert task.model().state_dict().keys() == server.model().state_dict().keys()


def test_what_the_schema_does_not_know_is_refused(write: Write) -> None:
    schema = build(write(ROWS), ignore=["owner"]).schema.to_json()
    for text, keys, message in (
        ("age,city,bought\n1,Oslo,no\n", {}, "'city' has 'Oslo' in row 1.* write a schema"),
        ("age,city,bought\n1,Bern,maybe\n", {}, "has 'maybe' in row 1.* write a schema"),
        ("age,city,bought\nold,Bern,no\n", {}, "'age' needs finite numbers and has 'old'"),
        ("age,bought\n1,no\n", {}, "a column of task.schema=city must be a column of task.path"),
        (ROWS, {"target": "city"}, "task.target=city must be bought as in task.schema"),
        (ROWS, {"kind": "regression"}, "task.kind=regression must be auto or classification"),
    ):
        with pytest.raises(ValueError, match=message):
            build(write(text, "device.csv"), schema=schema, **keys)


def test_a_column_of_row_numbers_is_no_input(write: Write) -> None:
    """`DataFrame.to_csv` writes one unless told otherwise, and sorted rows would tell the class."""
    path = write("," + ROWS.replace("\n", "\n7,").removesuffix("7,"))
    assert build(path, ignore=["owner"]).inputs.shape == (4, 3)
    assert build(path, inputs=["Unnamed: 0", "city"]).inputs.shape == (4, 3)


GAPS = """age,city,smoker,weight,owner,bought
20,Bern,True,1,b,no
30,,False,,b,yes
,Rome,,3,a,no
70,Rome,True,NA,a,yes
,Bern,True,5,,yes
"""


def test_missing_values_become_those_of_training_rows_and_nodes_use_the_same(write: Write) -> None:
    """As scikit-learn's imputers and scaler encode the first four rows; the fifth is another's."""
    rows = GAPS.splitlines(keepends=True)
    path, keys = write("".join(rows[:5])), {"ignore": ["owner"], "missing": "median"}
    task = build(path, **keys)
    numbers = pd.read_csv(path)[["age", "smoker", "weight"]].to_numpy(float)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(numbers)
    age, smoker, weight = scaled.transform(numbers).T
    city = [[1, 0], [0, 1], [0, 1], [0, 1]]  # Rome is the commonest
    np.testing.assert_allclose(task.inputs, np.c_[age, city, smoker, weight], rtol=1e-5)
    assert [column.fill for column in task.schema.columns] == [30, "Rome", 1, 2]
    node = build(write(rows[0] + rows[4] + ",,,,,no\n", "node.csv"), schema=task.schema.to_json())
    age, smoker, weight = scaled.transform([[np.nan] * 3]).T
    np.testing.assert_allclose(node.inputs[0], task.inputs[3])
    np.testing.assert_allclose(node.inputs[1:], np.c_[age, [[0, 1]], smoker, weight], rtol=1e-5)
    assert read_schema(task.schema.to_json()) == task.schema
    for refused, told in (
        (
            {"schema": task.schema.to_json(), "missing": "drop"},
            "missing=drop must be .*median",
        ),
        ({**keys, "client": "owner", "ignore": []}, "'owner' has no value .* row 5"),
        ({**keys, "target": "empty"}, "column 'empty' has no value"),
    ):
        with pytest.raises(ValueError, match=told):
            build(write(GAPS.replace("bought", "bought,empty").replace("\n", ",\n")), **refused)


def test_rows_without_a_value_are_left_out_and_counted(
    write: Write, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(GAPS)
    keys = {"inputs": ["age", "smoker"], "client": "owner", "missing": "drop"}
    task = build(path, num_clients=None, test_path=path, **keys)
    assert (task.targets.tolist(), task.num_clients) == ([0, 1, 1], 2)
    assert len(task.test_targets) == 3  # the owner does not matter there
    assert "task.missing=drop leaves out 4 rows" in caplog.text
    assert len(build(path, schema=task.schema.to_json()).targets) == 3
    with pytest.raises(ValueError, match="has no rows without a gap"):
        build(write("x,bought\n,no\n,yes\n"), missing="drop")


def test_the_median_is_that_of_the_training_rows(write: Write) -> None:
    ages = [1, 2, 4, 8, 16, 32, 64, 128]
    rows = "".join(f"{age},{'no' if age % 3 == 1 else 'yes'}\n" for age in ages)
    task = build(write("age,bought\n,no\n" + rows), test_share=0.5, missing="median")
    (column,) = task.schema.columns
    trained = task.inputs[:, 0] * column.deviation + column.mean
    assert column.fill == np.median([age for age in trained.round().tolist() if age in ages])
    assert column.fill != np.median(ages)
    with pytest.raises(ValueError, match="'age' has no value in any training row"):
        build(write("age,x,bought\n,1,no\n,2,yes\n"), missing="median")
