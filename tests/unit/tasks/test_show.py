"""The picture and the numbers of a partition."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fl_app.tasks.partition import LabelQuantity
from fl_app.tasks.schema import Schema
from fl_app.tasks.show import FOLDER, draw, main, table_of
from fl_app.tasks.synthetic import synthetic
from fl_app.tasks.task import Task


def test_the_picture_shows_what_clients_have(tmp_path: Path) -> None:
    task = synthetic(
        partition=LabelQuantity(2, 30, 30), num_clients=50, shape=(1, 2, 2), model="mlp",
        num_examples=400, num_test=10,
    )  # fmt: skip
    counts = draw(task, "", tmp_path / "a.png")
    assert counts.tolist() == [task.label_counts(client_id).tolist() for client_id in range(50)]
    assert counts.tolist() == task.class_counts().tolist()


def test_a_thousand_clients_fit_into_a_picture(tmp_path: Path) -> None:
    x = np.arange(1000.0)
    draw(Task.from_arrays(x, x, model="mlp", clients=x), "", tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        assert image.size[0] < 2000


def test_numbers() -> None:
    task = synthetic(
        partition=LabelQuantity(2, 30, 30), num_clients=50, shape=(1, 2, 2), model="mlp",
        num_examples=400, num_test=10,
    )  # fmt: skip
    counts = task.class_counts()
    assert counts.shape == (50, 10)
    assert counts.sum(1).tolist() == [own.size for own in task.partition]
    table = table_of(task, counts)
    columns = [list(column.cells) for column in table.columns]
    assert columns[0] == ["examples of a client", "classes of a client", "clients with a class"]
    assert columns[3][1] == "2"
    used = np.concatenate(list(task.partition))
    distinct = len(set(used.tolist()))
    assert table.caption == (
        f"{distinct} of 400 examples used,\n"
        f"{used.size - distinct} times an example that another client has, too"
    )


def test_the_command_writes_where_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["task=digits", "partition=shards", "partition.shard_size=20", "num_clients=9"]) == 0
    )
    out = capsys.readouterr().out
    path = FOLDER / "digits-Shards-shard_size=20-contiguous=False-9-clients.png"
    assert out.endswith(f"{path}\n")
    assert "digits (built-in)" in out
    assert path.is_file()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["partition=sharts"], "error: partition=sharts does not exist; did you mean shards?"),
        (["partition.alhpa=1"], "error: unknown key 'partition.alhpa'"),
        (["num_clients=2000"], "error: num_clients=2000 must be at most 1437"),
    ],
)
def test_refusals_are_one_line(
    overrides: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["task=digits", *overrides]) == 2
    assert message in capsys.readouterr().err


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "python -m fl_app.tasks.show task=mnist partition=shards" in capsys.readouterr().out


def test_a_task_without_data_has_no_partition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = Schema("regression", (2,), ("price",))
    (tmp_path / "schema.json").write_text(schema.to_json())
    assert main(["task=arrays", f"task.schema={tmp_path}/schema.json"]) == 2
    assert "task=arrays has no data here: there is no partition to show" in capsys.readouterr().err


def test_numbers_to_predict_count_as_one_class() -> None:
    x = np.arange(40.0)
    task = Task.from_arrays(x, x, model="mlp", clients=[range(30), range(30, 40)])
    assert task.class_counts().tolist() == [[30], [10]]
