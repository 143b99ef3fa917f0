"""What the scripts read from the logs of predicted and of real runs."""

import json
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import pytest

from lab.rack.fit_pi_rack import add_intervals, mean_step, simulated, table_of
from lab.rack.fit_pi_rack import drawn as drawn_logs
from lab.rack.pi_rack import LEVELS, main, predicted
from lab.rack.twin import Course, course, drawn, mean_of
from lab.rack.twin import main as federation

KINDS = ["rpi5", "rpi4"]


def log(tmp_path: Path, *events: dict[str, Any], cell: str = "fedbuff@mixed-iid-seed3") -> Path:
    folder = tmp_path / cell
    folder.mkdir(parents=True)
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


UNTRAINED = [event for event in EVENTS if event["kind"] != "evaluate"]


def test_a_prediction_ends_at_the_target(tmp_path: Path) -> None:
    found = predicted(log(tmp_path, *EVENTS), KINDS, updates=100)
    assert (found.target, found.seconds, found.rate) == (111.0, 110.0, 0.2)
    assert found.reached == dict.fromkeys(LEVELS, 111.0)
    assert found.shares == {"rpi5": 0.75, "rpi4": 0.25}
    assert found.ages == {"rpi5": pytest.approx(1 / 3), "rpi4": 4.0}


def test_a_prediction_without_accuracy_ends_at_an_update(tmp_path: Path) -> None:
    found = predicted(log(tmp_path, *UNTRAINED), KINDS, updates=6)
    assert (found.target, found.seconds, found.rate) == (None, 120.0, 0.2)
    assert found.shares["rpi4"] == 0.5


def test_accuracies_come_from_a_cell_that_was_trained(tmp_path: Path) -> None:
    evaluated = {"kind": "evaluate", "t": 111.0, "version": 2}
    path = log(tmp_path, *EVENTS[:6], evaluated, *EVENTS[7:])
    short = predicted(path, KINDS, updates=2, learned={2: 0.59})
    assert (short.reached, short.rate) == ({}, None)
    late = predicted(path, KINDS, updates=6, learned={2: 0.59})
    assert (late.reached, late.updates) == ({0.3: 111.0, 0.4: 111.0, 0.5: 111.0, 0.55: 111.0}, 6)
    found = predicted(path, KINDS, updates=2, learned={1: 0.5, 2: 0.6})
    assert (found.target, found.updates) == (111.0, 4)


def table_of_folder(*arguments: Any, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main([str(each) for each in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_table_has_room_for_what_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log(tmp_path, *EVENTS)
    lines = table_of_folder(tmp_path, capsys=capsys)  # both clients are Raspberry Pi 5
    assert lines[2] == "|fedbuff@mixed-iid|1|1|4|110|111|0.200||1.25|||||||"
    assert lines[-1] == "- mixed-iid: fedbuff"
    assert main([str(tmp_path / "nowhere")]) == 2
    (tmp_path / "fedbuff@mixed-iid-seed3").rename(tmp_path / "fedbuff")
    assert main([str(tmp_path)]) == 2
    assert "fedbuff is no cell of experiment=pi_rack" in capsys.readouterr().err


def test_a_round_of_all_is_trained_once_for_both_kinds_of_boards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = {"kind": "evaluate", "t": 111.0, "version": 2}
    for algorithm in ("fedavg", "fedbuff"):
        for boards in ("equal", "mixed"):
            for seed in (3, 4):
                cell = f"{algorithm}@{boards}-iid-seed{seed}"
                log(tmp_path / "all", *EVENTS[:6], evaluated, *EVENTS[7:], cell=cell)
        path = log(tmp_path / "trained", *EVENTS, cell=f"{algorithm}@equal-iid")
        (path.parent / "config.yaml").write_text("seed: 4")
    rows = (
        "iid,all_rpi5,fedavg,1,1,15,100,0.45\niid,all_rpi5,fedavg,1,2,30,150,0.61\n"
        "iid,all_rpi5,fedavg,2,1,15,110,0.45\niid,all_rpi5,fedavg,2,2,30,170,0.59\n"
    )
    names = "data,boards,algorithm,seed,server_step,client_updates,seconds,accuracy\n"
    (tmp_path / "published.csv").write_text(names + rows)
    lines = table_of_folder(
        *(tmp_path / "all", "--trained", tmp_path / "trained"),
        *("--measured", tmp_path / "published.csv"),
        capsys=capsys,
    )
    table = [line.split("|")[1:8] for line in lines]
    assert ["fedavg@equal-iid", "2", "1", "4", "110 ± 0", "111", "0.200 ± 0.000"] in table
    assert ["fedavg@mixed-iid", "2", "1", "4", "110 ± 0", "111", "0.200 ± 0.000"] in table
    assert ["fedbuff@mixed-iid", "2", "", "6", "120 ± 0", "", "0.200 ± 0.000"] in table
    measured = "105 ± 7|105 ± 7|160 ± 14|160 ± 14||"
    assert f"|fedavg@equal-iid|measured|2|{measured}" in lines
    assert lines[-1] == "- mixed-iid: fedavg (not trained to 60 %: fedbuff)"


def test_numbers_out_of_their_bounds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([".", "--updates", "0"])
    assert "--updates 0 must be at least 1" in capsys.readouterr().err
    for seconds in ("-1", "nan", "inf"):
        with pytest.raises(SystemExit):
            federation(["--seconds", seconds])
        assert f"--seconds {seconds} must be a number > 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [("kind,seconds\nrpi5,3\n", "is no calibration: KeyError"), ("", "holds no row")],
)
def test_a_file_that_is_no_calibration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    log(tmp_path, *EVENTS)
    (tmp_path / "other.csv").write_text(text)
    assert main([str(tmp_path), "--measured", str(tmp_path / "other.csv")]) == 2
    assert told in capsys.readouterr().err


def test_the_rack_is_simulated_as_its_pieces_say() -> None:
    """Fifteen orders leave within 3 s and are done 20 s later; the server looks every second."""
    table = table_of(20.0, spread=0.0, receipt=0.2, evaluation=5.0)
    runs = [simulated(table, "all_rpi5", "fedavg", 4, seed=seed) for seed in range(2)]
    assert runs[0] == runs[1]
    assert 15 * 0.2 + 20 + 0.2 + 5 <= mean_step(runs) <= 15 * 0.2 + 20 + 15 * 0.2 + 1 + 5


def test_drawn_logs_are_as_long_and_differ_from_draw_to_draw() -> None:
    table = table_of(20.0, spread=0.1, receipt=0.2, evaluation=5.0)
    logs = {("iid", "all_rpi5", "fedavg"): {7: [1.0, 2.0, 3.0], 9: [1.0, 2.0]}}
    first, again, other = (drawn_logs(logs, table, {}, number) for number in (0, 0, 1))
    runs = first["iid", "all_rpi5", "fedavg"]
    assert first == again != other
    assert {seed: len(run) for seed, run in runs.items()} == {7: 3, 9: 2}
    assert runs[7][:2] != runs[9]


def test_intervals_are_those_of_the_refits() -> None:
    tables = [table_of(20.0 + n, 0.0, 0.2, 5.0, [90.0, 80.0 - n]) for n in (0, -1, 1)]
    add_intervals(tables[0], tables[1:])
    half = 1.96
    rpi5, rpi4 = (tables[0]["kinds"][kind]["interval"] for kind in ("rpi5", "rpi4"))
    assert rpi5 == pytest.approx([20 - half, 20 + half], abs=1e-3)
    assert rpi4[0] == [90.0, 90.0]
    assert rpi4[1] == pytest.approx([80 - half, 80 + half], abs=1e-3)
    assert tables[0]["server"]["interval"] == {"receipt": [0.2, 0.2], "evaluation": [5.0, 5.0]}


def test_the_course_of_a_part_of_a_run(tmp_path: Path) -> None:
    part = course(log(tmp_path, *EVENTS), 105.0, 125.0)
    assert (part.rate, part.age) == (0.2, 23 / 4)
    assert part.shares == {0: 0.25, 1: 0.75}
    assert part.reached == {}


def test_a_target_is_that_of_the_mean_of_five_evaluations(tmp_path: Path) -> None:
    scores = [0.99, 0.75, 0.83, 0.85, 0.83, 0.85, 0.9]  # means of five: 0.85, 0.822, 0.852
    events = [
        {"kind": "evaluate", "t": float(place), "version": place, "accuracy": score}
        for place, score in enumerate(scores)
    ]
    reached = course(log(tmp_path, *EVENTS[:6], *events), 0.0, 125.0).reached
    assert reached == {0.85: 4.0}


def test_simulations_draw_seconds_from_their_intervals() -> None:
    table = {"kinds": {"a": {"seconds": 2.0, "interval": [1.0, 3.0], "first": 1.0}}, "boards": {}}
    assert drawn(table, 0) == table
    draws = [drawn(table, number)["kinds"]["a"]["seconds"] for number in range(1, 401)]
    assert drawn(table, 3)["kinds"]["a"] == {**table["kinds"]["a"], "seconds": draws[2]}
    assert fmean(draws) == pytest.approx(2.0, abs=0.1)
    assert pstdev(draws) == pytest.approx(1 / 1.96, rel=0.1)


def test_a_prediction_is_the_mean_of_simulations() -> None:
    one = Course(1.0, 2.0, {0: 1.0}, {0.85: 10.0, 0.9: 20.0})
    other = Course(2.0, 4.0, {0: 0.5, 1: 0.5}, {0.85: 20.0})
    assert mean_of([one, other]) == Course(1.5, 3.0, {0: 0.75, 1: 0.25}, {0.85: 15.0})
