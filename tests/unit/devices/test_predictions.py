"""What the scripts read from the logs of predicted and of real runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.fit_pi_rack import mean_step, simulated, table_of
from scripts.pi_rack import main, predicted
from scripts.twin import course

KINDS = ["rpi5", "rpi4"]


def log(tmp_path: Path, *events: dict[str, Any]) -> Path:
    folder = tmp_path / "fedbuff@mixed-iid-seed3"
    folder.mkdir()
    path = folder / "events.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def version(number: int, t: float, clients: list[int], ages: list[int]) -> list[dict[str, Any]]:
    """Two updates, and the version that they make."""
    base = {"base_version": 0, "age": 0}
    orders = [2 * number, 2 * number + 1]
    arrivals = [
        {"kind": "arrival", "t": t, "client": client, "order": order, **base}
        for client, order in zip(clients, orders, strict=True)
    ]
    made = {"version": number, "client": clients, "order": orders, "age": ages}
    return [*arrivals, {"kind": "aggregate", "t": t, **made}]


EVENTS = [
    *version(1, 100.0, [0, 0], [0, 0]),
    *version(2, 110.0, [0, 1], [1, 4]),
    {"kind": "evaluate", "t": 111.0, "version": 2, "accuracy": 0.61},
    *version(3, 120.0, [1, 1], [9, 9]),
]


def test_a_prediction_ends_at_the_target(tmp_path: Path) -> None:
    found = predicted(log(tmp_path, *EVENTS), KINDS, updates=100)
    assert (found.target, found.seconds, found.rate) == (111.0, 110.0, 0.2)
    assert found.shares == {"rpi5": 0.75, "rpi4": 0.25}
    assert found.ages == {"rpi5": pytest.approx(1 / 3), "rpi4": 4.0}


def test_a_prediction_without_accuracy_ends_at_an_update(tmp_path: Path) -> None:
    events = [event for event in EVENTS if event["kind"] != "evaluate"]
    found = predicted(log(tmp_path, *events), KINDS, updates=6)
    assert (found.target, found.seconds, found.rate) == (None, 120.0, 0.2)
    assert found.shares["rpi4"] == 0.5


def test_the_table_has_room_for_what_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, *EVENTS)
    assert main([str(tmp_path)]) == 0
    row = capsys.readouterr().out.splitlines()[-1]
    assert row == "|fedbuff@mixed-iid|1|4|110|111|0.200||1.25|||||||"  # both are Raspberry Pi 5
    assert main([str(tmp_path / "nowhere")]) == 2
    (tmp_path / "fedbuff@mixed-iid-seed3").rename(tmp_path / "fedbuff")
    assert main([str(tmp_path)]) == 2
    assert "fedbuff is no cell of experiment=pi_rack" in capsys.readouterr().err


def test_the_rack_is_simulated_as_its_pieces_say() -> None:
    """Fifteen orders leave within 3 s and are done 20 s later; the server looks every second."""
    table = table_of(20.0, spread=0.0, receipt=0.2, evaluation=5.0)
    runs = [simulated(table, "all_rpi5", "fedavg", 4, seed=seed) for seed in range(2)]
    assert runs[0] == runs[1]
    assert 15 * 0.2 + 20 + 0.2 + 5 <= mean_step(runs) <= 15 * 0.2 + 20 + 15 * 0.2 + 1 + 5


def test_the_course_of_a_part_of_a_run(tmp_path: Path) -> None:
    part = course(log(tmp_path, *EVENTS), 105.0, 125.0)
    assert (part.rate, part.age) == (0.2, 23 / 4)
    assert part.shares == {0: 0.25, 1: 0.75}
    assert part.target is None
