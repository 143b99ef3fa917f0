"""The server's own work: what waits for it."""

import pytest
from helpers import Times, run

from fl_app.core.events import Aggregated, from_json, to_json
from fl_app.engine.server import WORK, Server
from fl_app.schedule import Buffered, synchronous

BUSY = {"dispatch": 0.2, "receipt": 0.3, "aggregation": 0.1, "evaluation": 2.0, "poll": 0.7}


def evaluated(version, vector):
    return {"accuracy": 0.5, "loss": 1.0}


def at_work(schedule=None, **more):
    return run(
        schedule or Buffered(4, 2), **{"server": Server(**BUSY), "evaluate": evaluated, **more}
    )


def times(result, kind):
    return [event["t"] for event in result.kind(kind)]


# -- one server -----------------------------------------------------------------------------------


def test_work_is_done_one_after_the_other():
    server = Server(dispatch=2.0, receipt=1.0, evaluation=5.0)
    assert server.work("dispatch", 0.0) == 2.0
    assert server.work("dispatch", 0.5) == 4.0
    assert server.receive(3.0) == 5.0
    assert server.receive(9.0) == 10.0
    assert server.work("evaluation", 10.0) == 15.0
    assert server.busy == {"dispatch": 4.0, "receipt": 2.0, "aggregation": 0.0, "evaluation": 5.0}


def test_side_by_side_orders_and_replies_hold_nothing_up():
    server = Server(dispatch=2.0, receipt=1.0, evaluation=5.0, serial=False)
    assert server.dispatch_delay == 2.0
    assert server.work("dispatch", 0.0) == 0.0
    assert [server.receive(3.0), server.receive(3.0), server.receive(3.5)] == [4.0, 4.0, 4.5]
    assert server.work("evaluation", 4.5) == 9.5
    assert server.receive(5.0) == 10.5  # found when the loop goes on
    assert server.busy["receipt"] == 4.0


def test_an_idle_server_looks_every_poll_seconds():
    server = Server(poll=1.0, receipt=0.25)
    assert server.begins(0.1) == 1.0
    assert server.receive(0.1) == 1.25
    assert server.receive(0.9) == 1.5  # found by the same look
    assert server.receive(1.1) == 2.75  # a look a second after the work
    assert server.receive(7.0) == 8.0  # 2.75 + 5 looks = 7.75


@pytest.mark.parametrize("key", [*WORK, "poll"])
def test_negative_seconds_are_refused(key):
    with pytest.raises(ValueError, match=rf"^devices\.server\.{key}=-1 must be "):
        Server(**{key: -1})


# -- a run ----------------------------------------------------------------------------------------


def test_a_round_takes_what_its_pieces_add_up_to():
    """Three orders leave after 0.5, 1 and 1.5 s and take 10 s each.

    Replies come at 10.5, 11 and 11.5 and are received until 11.25, 12 and 12.75 at 0.75 s each.
    The aggregation ends at 13.75 and the evaluation at 17.75. The first version's evaluation delays
    all of it by 4 s.
    """
    server = Server(dispatch=0.5, receipt=0.75, aggregation=1.0, evaluation=4.0)
    result = run(
        synchronous(3),
        devices=Times(lambda client, order: 10.0),
        num_clients=3,
        num_versions=2,
        server=server,
        evaluate=evaluated,
    )
    assert times(result, "dispatch")[:3] == [4.5, 5.0, 5.5]
    assert times(result, "arrival")[:3] == [15.25, 16.0, 16.75]
    assert times(result, "aggregate") == [17.75, 35.5]
    assert times(result, "evaluate") == [4.0, 21.75, 39.5]


def test_busy_time_adds_up_and_is_read_from_the_log():
    result = at_work(num_versions=6)
    last = result.kind("aggregate")[-1]
    counts = {
        "dispatch": len(result.kind("dispatch")),
        "receipt": len(result.kind("arrival")),
        "aggregation": 6,
        "evaluation": 6,  # the one of version 6 follows
    }
    assert last["busy"] == pytest.approx({what: n * BUSY[what] for what, n in counts.items()})
    assert result.outcome.totals["server_seconds_evaluation"] == pytest.approx(7 * 2.0)
    event = from_json(last)
    assert isinstance(event, Aggregated)
    assert event.busy == last["busy"]
    assert "busy" not in event.report
    assert to_json(event) == last
