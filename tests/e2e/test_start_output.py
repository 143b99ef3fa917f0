"""`start` in an app of somebody else's: its files, its sinks and what it logs."""

import csv
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import foreign_app
import numpy as np
import pytest
import torch
from fake_grid import FakeGrid
from flwr.app import ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedProx

from fl_app import report
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.asynchronous import Asynchronous
from fl_app.core.errors import RunError
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.record.files import JsonLines
from fl_app.schedule import Buffered
from fl_app.strategy import AsyncStrategy


def initial() -> ArrayRecord:
    torch.manual_seed(0)
    return ArrayRecord(foreign_app.Net().state_dict())


def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"accuracy": version / 4, "loss": 1.0 / (1 + version)})


def start(strategy: AsyncStrategy, **settings: Any) -> Any:
    return strategy.start(
        FakeGrid(foreign_app.app, 3),
        initial(),
        **{
            "num_rounds": 4,
            "train_config": ConfigRecord({"lr": 0.1}),
            "evaluate_fn": evaluate,
            "schedule": Buffered(concurrency=3, buffer_size=2),
            **settings,
        },
    )


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    logging.getLogger("flwr").addHandler(caplog.handler)  # which does not propagate
    try:
        with caplog.at_level(logging.INFO, "flwr"):
            yield caplog
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)


def test_a_run_writes_the_files_of_the_command_line(
    tmp_path: Path, logged: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "runs" / "one"
    result = start(Asynchronous(FedProx(proximal_mu=0.1)), output=folder)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [e["version"] for e in events if e["kind"] == "aggregate"] == [1, 2, 3, 4]
    with (folder / "metrics.csv").open(newline="") as file:
        assert [row["accuracy"] for row in csv.DictReader(file)] == [
            *("0.0", "0.25", "0.5", "0.75", "1.0")
        ]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["algorithm"] == "FedProx"
    assert (summary["num_versions"], summary["stopped"]) == (4, "num_versions")
    assert (summary["final_accuracy"], summary["num_clients"]) == (1.0, 3)
    assert summary["aggregation"]["train_loss"] > 0
    with np.load(folder / "model.npz") as model:
        assert list(model) == list(result.arrays)
        assert all(np.array_equal(model[n], a.numpy()) for n, a in result.arrays.items())
    assert "FedProx" in (folder / report.PAGE).read_text()
    assert (folder / "table.csv").is_file()
    assert "proximal_mu=0.1" in (folder / "config.yaml").read_text()
    assert f"Report, to open in a browser: {folder / report.PAGE}" in logged.messages


def test_what_clients_measure_is_in_the_files(tmp_path: Path) -> None:
    """Beside the server's metrics, which have other names."""
    tolerance = ConfigRecord({"tolerance": 0.5})
    start(FedBuff(), output=tmp_path, evaluate_config=tolerance, client_eval_every=2)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    server = [row for row in rows if row["accuracy"]]
    clients = [row for row in rows if row["client_eval_eval_loss_mean"]]
    assert [row["version"] for row in server] == ["0", "1", "2", "3", "4"]
    assert [row["version"] for row in clients] == ["2", "4"]
    assert len(rows) == 7
    assert {row["client_eval_clients"] for row in clients} <= {"1", "2", "3"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["client_eval_version"] == 4
    mean = summary["client_eval_eval_loss_mean"]
    assert mean == float(clients[-1]["client_eval_eval_loss_mean"])
    assert summary["client_eval_eval_loss_worst_decile"] >= mean
    assert summary["final_accuracy"] == 1.0


@pytest.mark.parametrize("name", ["events.jsonl", "summary.json"])
def test_a_run_that_is_there_stays_there(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=r"^output=.* holds a run, whose files would be lost"):
        start(FedBuff(), output=tmp_path)
    assert {path: path.read_text() for path in tmp_path.iterdir()} == {tmp_path / name: "{}"}


def test_a_refused_argument_leaves_no_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="eval_every=0"):
        start(FedBuff(), output=tmp_path / "run", eval_every=0)
    assert list(tmp_path.iterdir()) == []


class Raises(FedBuff):
    """Gets as far as version 2."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        if model.version == 2:
            raise self._error
        return super().aggregate(model, updates)


def test_a_run_that_cannot_go_on_has_its_files(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no more"):
        start(Raises(RunError("no more")), output=tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped"], summary["num_versions"]) == ("RunError: no more", 2)
    assert (tmp_path / report.PAGE).is_file()


def test_ctrl_c_returns_what_was_reached_and_leaves_the_files(tmp_path: Path) -> None:
    result = start(Raises(KeyboardInterrupt()), output=tmp_path)
    assert list(result.evaluate_metrics_serverapp) == [0, 1, 2]
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["stopped"], summary["num_versions"]) == ("interrupted", 2)
    assert (tmp_path / report.PAGE).is_file()


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyboardInterrupt(), None])
def test_the_callers_sinks_are_closed_however_a_run_ends(
    error: BaseException | None, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    strategy = FedBuff() if error is None else Raises(error)
    with pytest.raises(RuntimeError) if isinstance(error, RuntimeError) else nullcontext():
        start(strategy, sinks=[JsonLines(path)])
    assert aggregations(path) == (4 if error is None else 2)


def aggregations(path: Path) -> int:
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    return kinds.count("aggregate")
