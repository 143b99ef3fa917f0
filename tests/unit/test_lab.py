"""Tables of a benchmark, device files of real runs, certificates, and heterogeneity of devices."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import Stays, run

from fl_app.devices.compute import Boards
from fl_app.devices.fleet import Fleet
from fl_app.engine.server import Server
from fl_app.schedule import Buffered
from lab import benchmark
from lab.heterogeneity import ALWAYS, Line, rounds
from lab.rack import fit, twin

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_tables_of_the_docs_are_those_of_the_judged_runs(capsys):
    for name in ("benchmark.csv", "benchmark_states.csv", "benchmark_networks.csv"):
        benchmark.main([str(DOCS / name)])
    text = (DOCS / "benchmark.md").read_text()
    rows = re.findall(r"^\|.*\d±\d.*$", text, re.MULTILINE)
    assert len(rows) == 39 + 10 + 13  # methods, where clients come and go, with networks
    assert {*rows} <= {*capsys.readouterr().out.splitlines()}


# -- measured seconds become a device file ---------------------------------------------------------

QUICK, LATE = {"seconds": 2.0, "spread": 0.1, "first": 5.0}, {"seconds": 9.0, "spread": 0.3}
TRUE = {"kinds": {"quick": QUICK, "late": LATE}, "boards": {"quick": 3, "late": 2}}


def write_log(tmp_path):
    """Write the log of a run on known boards."""
    table = tmp_path / "true.json"
    table.write_text(json.dumps(TRUE))
    compute = Boards(num_clients=5, num_examples=[1] * 5, table=str(table))
    result = run(
        Buffered(5, 3),
        num_clients=5,
        num_versions=400,
        devices=Fleet(compute),
        server=Server(dispatch=0.01, aggregation=0.05, evaluation=0.2),
        evaluate=lambda version, vector: {"accuracy": 0.5},
    )
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps(event) + "\n" for event in result.events))
    return log


def fit_table(capsys, *arguments):
    assert fit.main([str(each) for each in arguments]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_log_gives_back_the_boards_and_the_server(tmp_path, capsys):
    table = fit_table(capsys, write_log(tmp_path), "--kinds", "quick=0-2", "late=3,4")
    quick, late = table["kinds"]["quick"], table["kinds"]["late"]
    assert table["boards"] == {"quick": 3, "late": 2}
    assert quick["seconds"] == pytest.approx(2.0, rel=0.05)  # including waits for evaluations
    assert late["seconds"] == pytest.approx(9.0, rel=0.08)
    assert late["interval"][0] < late["seconds"] < late["interval"][1]
    assert late["spread"] == pytest.approx(0.3, rel=0.2)
    assert quick["first"] == pytest.approx(5.0, rel=0.15)
    assert table["server"] == pytest.approx(
        {"dispatch": 0.01, "aggregation": 0.05, "evaluation": 0.2}, abs=1e-6
    )


# -- a certificate ---------------------------------------------------------------------------------


def make_run(every, old, rate):
    """A run of 160 s: node i mod 8 arrives after `every` seconds, a quarter of updates is `old`."""
    rows = []
    for i in range(int(160 / every)):
        t = every * (i + 1)
        rows += [
            {"kind": "arrival", "t": t, "client": i % 8},
            {"kind": "aggregate", "t": t, "age": [old if i % 4 == 0 else 0]},
            {"kind": "evaluate", "t": t, "accuracy": min(rate * (i + 1), 1.0)},
        ]
    return pd.DataFrame(rows)


def certificate(every=1.0, old=1, rate=0.01):
    """For a run with an arrival each second, age 1 in a quarter, and 1 % per version."""
    simulated = [make_run(every, old, rate + each) for each in (-0.0001, 0.0, 0.0001)]
    return twin.compare(make_run(1.0, 1, 0.01), simulated, {twin.RATE: 1.0}, 160.0)


def test_a_certificate_of_an_exact_simulation():
    rows = certificate()
    assert rows.good.dropna().all()
    assert len(rows.good.dropna()) == 11  # rate, eight shares, accuracy, distance
    assert rows.measured["updates a second"] == 1.0
    assert rows.measured["mean age"] == 20 / 81  # of 80 to 160 s, both included
    assert rows.measured["share of node 3"] == 0.125
    assert rows.measured["seconds to 80%"] == 82.0  # mean of 78 to 82 %
    assert rows.measured[twin.DISTANCE] == 0.0


def test_a_certificate_of_wrong_simulations():
    assert not certificate(every=0.94).good["updates a second"]
    assert certificate(old=0).measured[twin.DISTANCE] == pytest.approx(20 / 81)
    assert not certificate(old=0).good[twin.DISTANCE]
    assert not certificate(rate=0.001).good[twin.ACCURACY]


# -- heterogeneity: MC-T = t / (10,000 / c * 20 s) for c of the clients in a round -----------------


def test_a_round_lasts_until_four_fifths_of_its_clients_are_done():
    """Equal clients: 20 + 120. 16 with 60 s and 4 with 300: place 15.2 of 19, 60 + 0.2 * 240."""
    for size in (2, 20):
        always = [Line(ALWAYS, client) for client in range(size)]
        assert rounds(np.full((size, 1), 120.0), always, 20.0) == pytest.approx(140 / 20)
    seconds = np.array([[60.0]] * 16 + [[300.0]] * 4)
    assert rounds(seconds, always, 20.0) == pytest.approx(128 / 20)


def test_work_continues_when_its_client_is_back_and_rounds_wait_for_a_client():
    """One client is 40 s online and 40 s offline by turns; a break is 20 s.

    Orders of 0 s begin at 20, 80, 100, 160, 180 ...: the last one at 80 * 5,000. Those of 30 s
    begin at 20 (done at 80 + 10), 110 (done at 160 + 20), then 240 + 160 n and, as 310 is offline,
    330 + 160 n: the last one ends at 330 + 160 * 4,998 + 30.
    """
    line = [Line(Stays({0: [40.0] * 40_000}), 0)]
    assert rounds(np.zeros((1, 1)), line, 20.0) == pytest.approx(400_000 / 200_000)
    assert rounds(np.full((1, 1), 30.0), line, 20.0) == pytest.approx(800_040 / 200_000)
    lost = [Line(Stays({0: [500.0]}), 0)]
    assert rounds(np.full((1, 1), 30.0), lost, 20.0) == math.inf
