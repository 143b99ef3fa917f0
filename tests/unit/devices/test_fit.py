"""Measured seconds become a device file, with which the simulator comes to the same seconds."""

import json

import pytest
from helpers import run

from fl_app.devices import Boards, Fleet
from fl_app.devices.table import read_table
from fl_app.engine.server import Server
from fl_app.schedule import Buffered
from lab.rack.fit import main, parse_kinds

TRUE = {
    "kinds": {
        "quick": {"seconds": 2.0, "spread": 0.1, "first": 5.0},
        "late": {"seconds": 9.0, "spread": 0.3},
    },
    "boards": {"quick": 3, "late": 2},
}


def recorded(tmp_path):
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


def fitted(capsys, *arguments):
    assert main([str(each) for each in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_log_gives_back_the_boards_and_the_server(tmp_path, capsys):
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


def test_what_is_fitted_can_be_simulated(tmp_path):
    path = tmp_path / "mine.json"
    assert main([str(recorded(tmp_path)), "--until", "300", "--output", str(path)]) == 0
    table = read_table(str(path))
    assert table.boards == {f"client-{client}": 1 for client in range(5)}
    compute = Boards(num_clients=5, num_examples=[1] * 5, table=str(path))
    assert compute.mean_seconds[0] == pytest.approx(2.0, rel=0.1)


def test_bad_logs_are_refused(tmp_path, capsys):
    log = recorded(tmp_path)
    for words, message in (
        ([tmp_path / "none.jsonl"], "none.jsonl must be the events.jsonl of a run"),
        ([log, log], "is given twice"),
        ([log, "--until", "3"], "the logs hold no order"),
    ):
        assert main([*map(str, words), "--output", str(tmp_path / "out.json")]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("text", ["a", "=1", "a=", "a=x", "a=0-", "a=3-1", "a=0-2,1"])
def test_bad_kinds_are_refused(text):
    with pytest.raises(ValueError, match=r"^--kinds "):
        parse_kinds([text])
