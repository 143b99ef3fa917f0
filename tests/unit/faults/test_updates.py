"""What a misbehaving client sends, and what the server makes of it, on a Grid in memory."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from fake_grid import FakeGrid
from helpers import Recorder

from faults.app.faulty.client import app
from faults.groups import GROUPS, QUICK, UNTESTED
from faults.injections import UPDATES
from faults.story import never_arrived, orders
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.core.layout import Layout
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.guard import Guard
from fl_app.engine.wall import WallClock
from fl_app.flower.grid import GridMailbox
from fl_app.record.log import events_of
from fl_app.schedule import Buffered

LAYOUT = Layout.of_arrays({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3, np.float32)})
BEFORE = 12  # good orders, so that the guard can compare and version 0 is forgotten


@pytest.mark.parametrize("fault", UPDATES)
def test_a_bad_update_is_an_event_that_says_why_and_is_never_aggregated(
    fault: str, tmp_path: Path
) -> None:
    path = tmp_path / "orders.json"
    path.write_text(json.dumps({"seconds": 0.0, "faults": [""] * BEFORE + [fault]}))
    grid = FakeGrid(app, 1, [{"partition-id": 0, "orders": str(path)}])
    recorder = Recorder()
    engine = Engine(
        strategy=FedBuff(),
        schedule=Buffered(concurrency=1, buffer_size=1),
        clock=WallClock(GridMailbox(grid, LAYOUT, poll_seconds=0.01)),
        initial=np.ones(LAYOUT.size, np.float32),
        stop=Stop(num_versions=BEFORE + 2),
        guard=Guard(max_norm_ratio=10.0, max_examples=100_000),
        sinks=[recorder],
    )
    outcome = engine.run()
    assert (outcome.stopped, outcome.version) == ("num_versions", BEFORE + 2)
    assert np.isfinite(outcome.params).all()
    events = list(events_of(recorder.events))
    assert never_arrived(events) == []
    (client,) = recorder.history.sequences
    told = orders(events, client)
    assert [order.ended for order in told[:BEFORE]] == ["arrival"] * BEFORE
    assert [order.ended for order in told[BEFORE + 1 :]] == ["arrival"] * 2
    bad = told[BEFORE]
    kind, reason = UPDATES[fault]
    assert bad.ended == kind
    assert re.search(reason, bad.reason)
    notes = path.with_suffix(".done").read_text().splitlines()
    assert [json.loads(note)["fault"] for note in notes][BEFORE:] == [fault, "", ""]


def test_every_fault_has_a_row_of_its_own() -> None:
    full = [name for group in GROUPS for name in group.faults]
    assert len({*full, *UNTESTED}) == len(full) + len(UNTESTED)
    assert {name for group in QUICK for name in group.faults} <= {*full}
    assert {*UPDATES} <= {*full}


def test_a_choice_of_faults_leaves_the_others_out() -> None:
    (chosen,) = [g for g in GROUPS if g.only(["nan", "late-reply"]).injections]
    assert chosen.only(["nan", "late-reply"]).faults == ["nan", "late-reply"]
    assert chosen.only(chosen.faults).faults == chosen.faults
