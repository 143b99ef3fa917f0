"""Whether garbage is judged rightly, on a log that is made up."""

from types import SimpleNamespace
from typing import Any

import pytest

from faults.field import Disappointed
from faults.garbage import BOUND, DATABASE, DISK, HONEST, HOSTILE, garbage, judge
from fl_app.core.events import Arrived, Benched, Event, Failed

CALM, DISTURBED = (0.0, 100.0), (100.0, 200.0)


def log(seconds: float = 8.0, refused: bool = True) -> list[Event]:
    """Every node answers every 8 s at first, and honest ones every `seconds` later."""
    events: list[Event] = []
    for client in (*HONEST, *HOSTILE):
        hostile = client in HOSTILE
        events += [Arrived(8.0 * i, client, 100 * client + i, 0, age=0) for i in range(13)]
        for i in range(1, int(100 / seconds)):
            t, order = 100.0 + seconds * i, 100 * client + 50 + i
            if not hostile:
                events.append(Arrived(t, client, order, 0, age=0))
            elif refused:
                events.append(Failed(t, client, order, 0, "malformed reply: too large"))
    return sorted(events, key=lambda event: event.t)


def found(events: list[Event], **most: float) -> list[str]:
    peaks = {"ServerApp": 300.0, "SuperLink": 200.0, DATABASE: 90.0, **most}
    return judge(events, CALM, DISTURBED, dict.fromkeys(peaks, 100.0), peaks)


def test_garbage_that_costs_little_is_no_problem(capsys: pytest.CaptureFixture[str]) -> None:
    assert found(log()) == []
    said = capsys.readouterr().out
    assert "55 orders of hostile nodes: malformed reply: too large" in said
    assert "SuperLink: at most 200 MiB, 100 before" in said


def test_honest_nodes_that_are_slowed_down_are_a_problem() -> None:
    (problem,) = found(log(seconds=12.0))
    assert "of their rate, of at least 80%" in problem


def test_memory_above_the_bound_is_a_problem() -> None:
    (problem,) = found(log(), SuperLink=BOUND + 1)
    assert problem == "SuperLink took 1025 MiB, above the bound of 1024"


def test_a_database_that_fills_the_disk_is_a_problem() -> None:
    (problem,) = found(log(), **{DATABASE: DISK + 1})
    assert problem == "state.db took 1025 MiB, above the bound of 1024"


@pytest.mark.parametrize("clients", [HOSTILE, HOSTILE[1:]])
def test_a_row_wants_every_hostile_node_benched(
    clients: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = [*log(), *(Benched(190.0, client, 4, "malformed") for client in clients)]

    def until(true: Any, what: str) -> None:
        if not true():
            raise Disappointed(what)

    peaks = {"ServerApp": 300.0, DATABASE: 90.0}
    monkeypatch.setattr("faults.garbage.span", lambda *given: (DISTURBED, peaks))
    field = SimpleNamespace(give=lambda *given, **more: None, processes=lambda *given: [])
    run: Any = SimpleNamespace(field=field, events=lambda: events, until=until)
    rows = garbage(60.0).inject(run)
    assert next(rows)[1] == "55 replies refused in 60 s; at most ServerApp 300 MiB, state.db 90 MiB"
    if clients == HOSTILE:
        assert next(rows)[1] == "5 clients benched; the others go on"
    else:
        with pytest.raises(Disappointed, match="all hostile nodes are benched"):
            next(rows)


def test_garbage_that_nobody_refused_is_a_problem() -> None:
    assert found(log(refused=False)) == ["no garbage was refused"]
