"""Measured seconds become a device file, with which the simulator comes to the same seconds."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers import run

from fl_app.devices import Boards, Fleet
from fl_app.devices.fit import main, parse_kinds
from fl_app.devices.table import read_table
from fl_app.engine.server import Server
from fl_app.schedule import Buffered

TRUE = {
    "kinds": {
        "quick": {"seconds": 2.0, "spread": 0.1, "first": 5.0},
        "late": {"seconds": 9.0, "spread": 0.3},
    },
    "boards": {"quick": 3, "late": 2},
}


def recorded(tmp_path: Path) -> Path:
    """The log of a run on boards that are known."""
    table = tmp_path / "true.json"
    table.write_text(json.dumps(TRUE))
    compute = Boards(num_clients=5, num_examples=[1] * 5, table=str(table))
    result = run(
        Buffered(5, 3),
        num_clients=5,
        num_versions=400,
        devices=Fleet(compute),
        server=Server(dispatch=0.01, aggregation=0.05, evaluation=0.2, serial=False),
        evaluate=lambda version, vector: {"accuracy": 0.5},
    )
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in result.events))
    return log


def fitted(capsys: pytest.CaptureFixture[str], *arguments: Any) -> dict[str, Any]:
    assert main([str(each) for each in arguments]) == 0
    table: dict[str, Any] = json.loads(capsys.readouterr().out)
    return table


def test_a_log_gives_back_the_boards_and_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = fitted(capsys, recorded(tmp_path), "--kinds", "quick=0-2", "late=3,4")
    quick, late = table["kinds"]["quick"], table["kinds"]["late"]
    assert table["boards"] == {"quick": 3, "late": 2}
    assert quick["seconds"] == pytest.approx(2.0, rel=0.05)  # with what waits for evaluations
    assert late["seconds"] == pytest.approx(9.0, rel=0.08)
    assert late["interval"][0] < late["seconds"] < late["interval"][1]
    assert quick["first"] == pytest.approx(5.0, rel=0.15)
    assert table["server"] == pytest.approx(
        {"dispatch": 0.0, "aggregation": 0.05, "evaluation": 0.2}, abs=1e-6
    )


def test_what_is_fitted_can_be_simulated(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert main([str(recorded(tmp_path)), "--until", "300", "--output", str(path)]) == 0
    table = read_table(str(path))
    assert table.boards == {f"client-{client}": 1 for client in range(5)}
    compute = Boards(num_clients=5, num_examples=[1] * 5, table=str(path))
    assert compute.mean_seconds[0] == pytest.approx(2.0, rel=0.1)


def test_recorded_durations_and_tables_of_seconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    durations, table = tmp_path / "devices.csv", tmp_path / "seconds.csv"
    durations.write_text(
        "client,order,start,seconds,bytes_down,bytes_up\n7,0,0,9,8,8\n7,1,9,2,8,8\n7,2,11,4,8,8\n"
    )
    table.write_text("kind,seconds,first\njetson,3,0\njetson,5,0\njetson,10,1\n")
    kinds = fitted(capsys, durations, table)["kinds"]
    assert (kinds["client-7"]["seconds"], kinds["client-7"]["first"]) == (3.0, 6.0)
    jetson = kinds["jetson"]
    assert (jetson["seconds"], jetson["first"]) == (4.0, 6.0)
    assert jetson["spread"] == pytest.approx(2**0.5 / 4, abs=1e-6)
    assert jetson["interval"] == pytest.approx([4 - 1.959964, 4 + 1.959964], abs=1e-6)
    early = fitted(capsys, durations, "--until", 12)["kinds"]["client-7"]
    assert (early["seconds"], early["orders"]) == (2.0, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "bad.csv, line 1: its columns a, b must be kind and seconds, or client,"),
        ("kind,seconds\nx,0\n", "line 2: seconds=0 must be a number > 0"),
        ("kind,seconds\nx,3,5\n", "line 2: it must have 2 values, as the first line has"),
        ("seconds,kind\n3,\n", "line 2: kind is empty"),
        ("kind,seconds,first\nx,3,1\n", "kind x has no order but its clients' first ones"),
        ("kind,seconds\n", "the logs hold no order"),
    ],
)
def test_bad_logs_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert main([str(path), "--output", str(tmp_path / "out.json")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_kinds() -> None:
    assert parse_kinds(["a=0-2,5", "b=3"]) == {0: "a", 1: "a", 2: "a", 5: "a", 3: "b"}


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=x", "a=0-", "a=3-1", "a=0-2,1"])
def test_bad_kinds_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^--kinds "):
        parse_kinds([text])
