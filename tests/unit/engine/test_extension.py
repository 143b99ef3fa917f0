"""A run that goes on past its end is as one that had a later end from the beginning."""

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from helpers import MeanDelta, Scripted, toward_own_number, vec

from fl_app.core.events import Event, to_json
from fl_app.core.pool import ClientPool
from fl_app.core.types import Update
from fl_app.devices import Fleet, UniformRatio
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Schedule


class Moody(Schedule):
    """Draws whenever it is asked, and makes two versions of every two updates that wait."""

    def __init__(self) -> None:
        self.asked = 0
        self.left = 0

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self.asked, "left": self.left}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.asked, self.left = state["asked"], state["left"]

    def start(
        self,
        idle: ClientPool,
        busy: Collection[int],
        buffer: Sequence[Update],
        rng: np.random.Generator,
    ) -> Sequence[int]:
        self.asked += 1
        return idle.draw(int(rng.integers(3)) if len(busy) > 2 else 3, rng)

    def take(self, buffer: Sequence[Update]) -> Sequence[Update]:
        if len(buffer) >= 2:
            self.left = len(buffer)
        if not self.left:
            return ()
        self.left -= 1
        return buffer[:1]

    def validate_population(self, num_clients: int) -> None:
        pass


class Log:
    """Keeps every event as it is written."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: Event) -> None:
        self.events.append(to_json(event))

    def close(self) -> None: ...


def course(stop: Stop, kept: dict[str, Any] | None = None) -> tuple[list[dict[str, Any]], Any, str]:
    """The events of a run, what it kept at its end, and what ended it; `kept` is gone on with."""
    log, ends = Log(), []
    engine = Engine(
        strategy=MeanDelta(),
        schedule=Moody(),
        clock=VirtualClock(
            Inline(Scripted(toward_own_number)),
            Fleet(UniformRatio(ratio=5, num_clients=10, seed=3)),
            10,
        ),
        initial=vec(0, 0),
        stop=stop,
        evaluate=lambda version, _: {"accuracy": version / 100, "loss": 1.0},
        eval_every=7,
        checkpoint=lambda _: ends.append((deepcopy(engine.state_dict()), len(log.events))),
        checkpoint_final=True,
        sinks=[log],
    )
    if kept is not None:
        engine.load_state_dict(kept)
    stopped = engine.run().stopped
    return log.events, ends[-1], stopped


@pytest.mark.parametrize("short", [{key: n} for key in ("num_versions", "updates") for n in (5, 6)])
@pytest.mark.parametrize("long", [{"num_versions": 23}, {"seconds": 9.0}, {"updates": 24}])
def test_events_are_those_of_one_long_run(short: dict[str, float], long: dict[str, float]) -> None:
    """In the midst of an aggregation, and where asking a schedule twice would draw others."""
    check_extension(Stop(**short), Stop(**long))


def test_two_ends_at_a_time() -> None:
    """The update that completes a version is also the last one that was asked for."""
    events, _, stopped = course(Stop(updates=10, num_versions=10))
    assert stopped == "num_versions"
    assert sum(event["kind"] == "arrival" for event in events) == 10
    check_extension(Stop(updates=10, num_versions=10), Stop(updates=10, num_versions=20))
    check_extension(Stop(updates=10, num_versions=9), Stop(updates=10, num_versions=20))
    check_extension(Stop(updates=10, num_versions=10), Stop(updates=20, num_versions=20))


def check_extension(short: Stop, long: Stop) -> None:
    first, (kept, length), _ = course(short)
    rest, _, stopped = course(long, kept)
    whole, _, expected = course(long)
    assert first[:length] + rest == whole
    assert stopped == expected


def test_a_run_that_is_at_its_end_stays_there() -> None:
    for end in ({"num_versions": 6}, {"seconds": 4.0}, {"updates": 9}):
        events, (kept, length), stopped = course(Stop(**end))
        again, _, likewise = course(Stop(**end), kept)
        assert events[:length] + again == events
        assert likewise == stopped


def test_updates_end_a_run_with_what_they_complete() -> None:
    events, _, stopped = course(Stop(updates=8))
    assert stopped == "updates"
    kinds = [event["kind"] for event in events]
    assert kinds.count("arrival") == 8
    assert kinds.count("aggregate") == 8
    assert kinds[-1] == "evaluate"
