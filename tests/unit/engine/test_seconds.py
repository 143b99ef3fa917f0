"""`Update.seconds`: from the dispatch of an order to its arrival, on the run's clock."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from helpers import MeanDelta, Scripted, Times, toward_own_number, vec

from fl_app.core.events import Arrived, Event
from fl_app.core.snapshot import Encoder, decode
from fl_app.core.types import Config, GlobalModel, Parts, Update, Upload, Vector
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered


class Noting(MeanDelta):
    """Notes the seconds of the updates that it is shown."""

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        noted = self.state.setdefault("noted", [])
        noted.append([(update.client_id, update.seconds) for update in updates])
        return super().aggregate(model, updates)

    def refresh(self, model: GlobalModel, paused: Update) -> tuple[Vector, Config]:
        self.state["paused"] = paused.seconds
        return model.params, {}


def engine(clock: Any, num_versions: int, **more: Any) -> Engine:
    schedule = more.pop("schedule", Buffered(concurrency=3, buffer_size=2))
    settings = {"initial": vec(0, 0), "stop": Stop(num_versions), **more}
    return Engine(strategy=Noting(), schedule=schedule, clock=clock, **settings)


def noted(made: Engine) -> Any:
    return made.strategy.state["noted"]


def virtual() -> VirtualClock:
    times = Times(lambda client, _: (1.0, 2.5, 4.0)[client])
    return VirtualClock(Inline(Scripted(toward_own_number)), times, 3)


BY_HAND = [
    [(0, 1.0), (0, 1.0)],  # at 1 and 2
    [(1, 2.5), (0, 1.0)],  # at 2.5 and 3
    [(0, 1.0), (2, 4.0)],  # both at 4, in an order that the seed draws
    [(1, 2.5), (0, 1.0)],  # both at 5, likewise
]


def sorted_within(versions: Any) -> list[Any]:
    return [sorted(map(tuple, version)) for version in versions]


def test_in_virtual_time_they_are_those_of_the_device_also_after_a_resume() -> None:
    once = engine(virtual(), num_versions=4)
    once.run()
    assert sorted_within(noted(once)) == sorted_within(BY_HAND)

    class Stopping:
        """Asks for a checkpoint while the third update, of client 1, waits in the buffer."""

        arrived = 0

        def emit(self, event: Event) -> None:
            self.arrived += isinstance(event, Arrived)
            if self.arrived == 3:
                first.ask_to_stop()

        def close(self) -> None: ...

    kept = []

    def keep(version: int) -> None:
        encoder = Encoder()
        text = json.dumps(encoder.encode(first.state_dict()))
        kept.append(decode(json.loads(text), [np.array(array) for array in encoder.arrays]))

    first = engine(virtual(), num_versions=4, checkpoint=keep, sinks=[Stopping()])
    assert first.run().stopped == "interrupted"
    again = engine(virtual(), num_versions=4)
    again.load_state_dict(kept[-1])
    again.run()
    assert sorted_within(noted(again)) == sorted_within(BY_HAND)


def test_a_pause_counts_and_its_own_seconds_are_those_until_then() -> None:
    """1 s down, 10 s in 5 epochs, 1 s up: client 1 pauses after 2 epochs, at 5 s; 1 + 6 + 1 s."""

    def script(client: int, sequence: int, received: Vector) -> Upload:
        if (client, sequence) in paused:
            paused.remove((client, sequence))
            return Upload(vec(), "delta", 10, 0.5, done=False, progress=0.4)
        return toward_own_number(client, sequence, received)

    class Slow:
        def parts(self, client_id: int, sequence: int, now: float) -> Parts:
            return Parts(1.0, 10.0, 1.0) if client_id else Parts(0.0, 4.0, 0.0)

    paused = [(1, 0)]
    clock = VirtualClock(Inline(Scripted(script)), Slow(), 2, epochs=5, pauses=True)
    made = engine(clock, num_versions=4, schedule=Buffered(concurrency=2, buffer_size=1))
    made.run()
    assert made.strategy.state["paused"] == 5.0
    assert noted(made)[:4] == [[(0, 4.0)], [(0, 4.0)], [(0, 4.0)], [(1, 13.0)]]
