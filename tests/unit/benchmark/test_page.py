"""The page of what entered, from judged runs made by hand."""

import json

import pandas as pd
import pytest

from fl_app.benchmark.conformance import Verdict
from fl_app.benchmark.page import NUMBERS, PAGE, read, write

END = {"score": "accuracy", "higher_is_better": True, "stopped": "updates"}
# Accuracy at the end, updates and seconds to the target, by seed.
RUNS = {
    "entry-X@iid": [(0.80, 100, 5.0), (0.82, 200, 7.0), (0.84, None, None)],
    "fedbuff@iid": [(0.70, None, None), (0.72, None, None), (0.74, None, None)],
    "fedavg@iid": [(0.85, 40, 9.0), (0.80, 40, 9.0), (0.87, 40, 9.0)],  # +5, -2, +3 points
}
# Of 10 seconds the last tenth has two evaluations, of FedAvg only the second half has one.
CURVES = {"fedavg@iid": [(0, 0.1), (6, 0.5), (12, 0.8)]}
CURVE = [(0, 0.1), (8.9, 0.2), (9.2, 0.6), (9.9, 0.7), (10.1, 0.9)]


@pytest.fixture
def runs(tmp_path):
    for name, own in RUNS.items():
        for seed, (accuracy, updates, seconds) in enumerate(own):
            folder = tmp_path / f"{name}-seed{seed}"
            folder.mkdir()
            cost = {"updates_to_target": updates, "seconds_to_target": seconds}
            summary = {**END, "last10_accuracy": accuracy, **cost}
            (folder / "summary.json").write_text(json.dumps(summary))
            curve = pd.DataFrame(CURVES.get(name, CURVE), columns=["t", "accuracy"])
            curve.to_csv(folder / "metrics.csv", index=False)
    failed = tmp_path / "entry-X@slow-seed0"
    failed.mkdir()
    (failed / "summary.json").write_text(json.dumps({**END, "stopped": "diverged"}))
    (failed / "metrics.csv").write_text("t,accuracy\n0,0.1\n")
    return read(tmp_path, 10.0)


def test_the_protocols_follow_from_the_judged_runs(runs):
    first = runs.set_index(["method", "seed"]).early
    assert first["entry-X", 0] == pytest.approx(0.65)  # mean of 0.6 and 0.7
    assert first["fedavg", 0] == 0.5
    assert "slow" not in set(runs.setting)  # a run that failed has no result


def test_the_page_says_place_and_cost(runs, tmp_path):
    """FedAvg is ahead by +5, -2, +3: 2 +- 4.30 x 3.61 / sqrt(3) reaches 0, so it ties."""
    published = pd.DataFrame(
        [(m, "iid", seed, 0.9) for m in ("fedbuff", "cana") for seed in range(3)],
        columns=["method", "setting", "seed", "accuracy"],
    )
    verdicts = [Verdict("no update is counted twice", False, "3 times")]
    budget = (2000, 10.0, 0.7)
    told = write(tmp_path, "entry-X", "How.", verdicts, runs, published, budget)
    assert told == (
        "entry-X is number 3 of 4 by mean rank. In mean accuracy 1 are ahead of it, 1 behind, and "
        "1 tie (fedavg)."
    )
    page = (tmp_path / PAGE).read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert ["no update is counted twice", "**FAILS**", "3 times"] in rows
    # The published FedBuff is left out: it was run beside the entry.
    assert [row[0] for row in rows[3:7]] == ["cana", "fedavg", "**entry-X**", "fedbuff"]
    assert ["**entry-X**", "2.7±1.4", "82.0±5.0"] in rows  # ranks 3, 2 and 3
    assert rows[-3:] == [
        ["**entry-X**", "150 in 6.0 s (2 of 3)"],
        ["fedavg", "40 in 9.0 s"],
        ["fedbuff", "-"],
    ]
    numbers = json.loads((tmp_path / NUMBERS).read_text())
    assert numbers["places"][0] == told
    assert len(numbers["runs"]) == 9 + 3


def test_an_entry_without_a_result_has_no_place(runs, tmp_path):
    lacks = runs[(runs.method != "entry-X") | (runs.seed > 0)]
    told = write(tmp_path, "entry-X", "", [], lacks, lacks[:0], (1, 1.0, 0.5))
    assert told.startswith("entry-X lacks a result in one of the settings")
