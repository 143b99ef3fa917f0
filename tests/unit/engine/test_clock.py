"""Virtual and real time."""

import math
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import helpers
import numpy as np
import pytest
from helpers import Stays, Times, vec

from fl_app.core.types import Order, Parts, Reply, Upload, Vector
from fl_app.devices import Churn
from fl_app.engine.clock import (
    Alarm,
    Expired,
    Joined,
    Left,
    Replied,
    Returned,
    Stray,
)
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.lookahead import READY_LIMIT
from fl_app.engine.presence import Presence
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered

UPLOAD = Upload(vec(1, 1), "delta", 10, 0.5)


def order(number: int, client_id: int = 0) -> Order:
    return Order(number, client_id, 0, 0, vec(0, 0), {}, 0.0)


class Shelf:
    """A mailbox that answers one order a pull: the oldest, or the newest."""

    def __init__(self, capacity: int = 4, *, newest_first: bool = False) -> None:
        self._capacity = capacity
        self._newest_first = newest_first
        self.orders: list[Order] = []
        self.pushed: list[int] = []
        self.closed = False

    def share(self, vector: Vector) -> Vector:
        return vector

    def capacity(self) -> int:
        return self._capacity - len(self.orders)

    def push(self, order: Order) -> None:
        assert self.capacity() > 0
        self.orders.append(order)
        self.pushed.append(order.number)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        assert self.orders or timeout is not None, "would wait for ever"
        if not self.orders or timeout == 0:
            return []
        done = self.orders.pop(-1 if self._newest_first else 0)
        return [Reply(done.number, UPLOAD)]

    def close(self) -> None:
        self.closed = True


def virtual(mailbox: Shelf, seconds: Any, **more: Any) -> VirtualClock:
    return VirtualClock(mailbox, Times(seconds), 100, **more)


def drain(clock: VirtualClock) -> list[tuple[float, str, int]]:
    events = []
    while (event := clock.next(math.inf)) is not None:
        assert isinstance(event, Replied | Expired | Returned)
        events.append((clock.now, type(event).__name__, event.order.number))
    return events


# -- virtual --------------------------------------------------------------------------------------


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("capacity", [1, 3])
def test_events_come_in_the_order_of_virtual_time(capacity: int, newest_first: bool) -> None:
    """Whatever the order in which the work was finished."""
    durations = [5.0, 1.0, 4.0, 2.0, 3.0]
    clock = virtual(Shelf(capacity, newest_first=newest_first), lambda client, _: durations[client])
    for number in range(5):
        clock.dispatch(order(number, client_id=number))
    expected = [(1, 1), (2, 3), (3, 4), (4, 2), (5, 0)]
    assert drain(clock) == [(t, "Replied", number) for t, number in expected]


def test_work_is_done_in_the_order_of_its_end_and_lazily() -> None:
    mailbox = Shelf(capacity=2)
    clock = virtual(mailbox, lambda client, _: 10.0 - client)
    for number in range(5):
        clock.dispatch(order(number, client_id=number))
    assert mailbox.pushed == []
    clock.next(math.inf)
    # The last to be given was the first to end. One done, two more under way.
    assert mailbox.pushed == [4, 3, 2]


def test_the_next_event_is_computed_however_many_results_lie_ready() -> None:
    class Eager(Shelf):
        def pull(self, timeout: float | None) -> Iterable[Reply]:
            assert self.orders or timeout is not None, "would wait for ever"
            done, self.orders = self.orders, []
            return [Reply(order.number, UPLOAD) for order in done]

    mailbox = Eager(capacity=2 * READY_LIMIT)
    clock = virtual(mailbox, lambda client, _: 0.5 if client == 99 else 1.0 + client)
    for number in range(3 * READY_LIMIT):
        clock.dispatch(order(number, client_id=number))
    clock.next(math.inf)
    urgent = order(1000, client_id=99)
    clock.dispatch(urgent)
    assert clock.next(math.inf) == Replied(urgent, Reply(1000, UPLOAD))
    assert len(mailbox.pushed) < 3 * READY_LIMIT


def test_a_late_order_expires_and_returns_and_is_never_computed() -> None:
    mailbox = Shelf()
    clock = virtual(mailbox, lambda client, _: [1.0, 7.0, math.inf, 3.0][client], deadline=3.0)
    for number in range(4):
        clock.dispatch(order(number, client_id=number))
    events = drain(clock)
    assert events[0] == (1.0, "Replied", 0)
    assert sorted(events[1:4]) == [(3.0, "Expired", 1), (3.0, "Expired", 2), (3.0, "Replied", 3)]
    assert events[4:] == [(7.0, "Returned", 1)]
    assert sorted(mailbox.pushed) == [0, 3]


def test_a_late_order_does_not_keep_its_model_version() -> None:
    clock = virtual(Shelf(), lambda *_: 7.0, deadline=3.0)
    clock.dispatch(order(0))
    expired = clock.next(math.inf)
    assert isinstance(expired, Expired)
    assert expired.order.vector.size == 0


def test_time_stops_where_it_is_told_to() -> None:
    clock = virtual(Shelf(), lambda *_: 2.0)
    clock.dispatch(order(0))
    assert clock.next(1.5) is None
    assert clock.now == 1.5
    assert isinstance(clock.next(2.0), Replied)  # an event at the limit still happens
    assert clock.now == 2.0
    assert clock.next(math.inf) is None
    assert clock.now == 2.0


# -- wall -----------------------------------------------------------------------------------------

Batch = tuple[float, list[Reply | Joined | Left]]


class Field:
    """Nodes of which batches of messages come, each so many seconds after the one before."""

    def __init__(self, time: SimpleNamespace, batches: Iterable[Batch]) -> None:
        self.time = time
        self._batches = iter(batches)
        self._next: Batch | None = next(self._batches, None)
        self.pushed: list[int] = []
        self.share = lambda vector: vector

    def push(self, order: Order) -> None:
        self.pushed.append(order.number)

    def pull(self, timeout: float | None) -> list[Reply | Joined | Left]:
        assert self._next is not None or timeout is not None, "would wait for ever"
        seconds, messages = self._next or (math.inf, [])
        if timeout is not None and seconds > timeout:
            self.time.seconds += timeout
            self._next = (seconds - timeout, messages)
            return []
        self.time.seconds += seconds
        self._next = next(self._batches, None)
        return messages

    def close(self) -> None:
        pass


@pytest.fixture
def time() -> SimpleNamespace:
    """Real time in the test's hands: `seconds`."""
    return SimpleNamespace(seconds=100.0)


def wall_clock(field: Field, deadline: float = math.inf) -> WallClock:
    return WallClock(field, deadline=deadline, monotonic=lambda: field.time.seconds)


def test_messages_of_nodes_become_events(time: SimpleNamespace) -> None:
    reply = Reply(0, UPLOAD)
    field = Field(time, [(1.0, [Joined(7)]), (2.0, [reply]), (1.0, [reply, Reply(99)])])
    clock = wall_clock(field)
    assert clock.next(math.inf) == Joined(7)
    assert clock.now == 1.0
    given = order(0, client_id=7)
    clock.dispatch(given)
    assert field.pushed == [0]
    assert clock.next(math.inf) == Replied(given, reply)
    assert clock.now == 3.0
    assert clock.next(math.inf) == Stray(0)  # a duplicate
    assert clock.next(math.inf) == Stray(99)


def test_a_deadline_passes_in_real_time(time: SimpleNamespace) -> None:
    field = Field(time, [(4.0, [Reply(1, UPLOAD)]), (6.0, [Reply(0, UPLOAD, supplied=400)])])
    clock = wall_clock(field, deadline=5.0)
    late, punctual = order(0, client_id=1), order(1, client_id=2)
    clock.dispatch(late)
    clock.dispatch(punctual)
    assert isinstance(clock.next(math.inf), Replied)
    assert clock.next(math.inf) == Expired(late)
    assert clock.now == 5.0
    assert clock.next(math.inf) == Returned(late, supplied=400)
    assert clock.now == 10.0


def test_whoever_leaves_takes_its_orders_along(time: SimpleNamespace) -> None:
    lost, kept, expired = order(0, client_id=7), order(1, client_id=8), order(2, client_id=7)
    field = Field(
        time,
        [
            (6.0, [Left(7), Reply(0, UPLOAD), Reply(2, UPLOAD)]),
            (0.0, [Reply(1, UPLOAD)]),
        ],
    )
    clock = wall_clock(field, deadline=5.0)
    clock.dispatch(expired)
    assert clock.next(math.inf) == Expired(expired)
    lost, kept = replace(lost, sent_at=clock.now), replace(kept, sent_at=clock.now)
    clock.dispatch(lost)
    clock.dispatch(kept)
    assert clock.next(math.inf) == Left(7, (lost,))
    assert [clock.next(math.inf), clock.next(math.inf)] == [Stray(0), Stray(2)]
    assert isinstance(clock.next(math.inf), Replied)


# -- alarms, pauses, recalls ----------------------------------------------------------------------


class Parted(Times):
    """A second of download and one of upload around the training."""

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        return super().parts(client_id, sequence, now)._replace(download=1.0, upload=1.0)


class Answers(Shelf):
    """As a shelf, with an upload of its own for every order."""

    def __init__(self, uploads: dict[int, Upload]) -> None:
        super().__init__()
        self.uploads = uploads
        self.given: list[Order] = []

    def push(self, order: Order) -> None:
        self.given.append(order)
        super().push(order)

    def pull(self, timeout: float | None) -> Iterable[Reply]:
        return [
            replace(reply, upload=self.uploads.get(reply.number, UPLOAD))
            for reply in super().pull(timeout)
        ]


def paused(progress: float) -> Upload:
    return replace(UPLOAD, done=False, progress=progress)


def test_an_alarm_comes_at_its_time_unless_something_else_does() -> None:
    clock = virtual(Shelf(), lambda client, sequence: 4.0)
    clock.dispatch(order(0))
    assert clock.next(math.inf, 3.0) == Alarm()
    assert clock.now == 3.0
    assert isinstance(clock.next(math.inf, 4.0), Replied)  # of the same moment
    assert clock.next(math.inf, 4.0) == Alarm()
    assert clock.next(math.inf) is None
    assert clock.next(5.0, 9.0) is None


def test_alarms_that_bring_no_order_do_not_keep_a_clock_going_with_nothing_under_way() -> None:
    clock = virtual(Shelf(), lambda client, _: 1.0 if client else math.inf)
    clock.dispatch(order(0))  # which never ends
    assert clock.next(math.inf, 5.0) == Alarm()
    clock.dispatch(order(1, client_id=1))
    assert isinstance(clock.next(math.inf, 10.0), Replied)
    assert clock.next(math.inf, 10.0) == Alarm()
    assert clock.next(math.inf, 15.0) is None
    assert clock.now == 10.0


def test_a_client_pauses_when_it_says_and_goes_on_with_the_rest() -> None:
    """1 s down, 10 s in 5 epochs, 1 s up: it pauses after 2 epochs, at 5; fetches 1 s; 6 + 1 s."""
    mailbox = Answers({0: paused(0.4)})
    clock = VirtualClock(mailbox, Parted(lambda *_: 10.0), 1, epochs=5, pauses=True)
    clock.dispatch(order(0))
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert event.reply.upload is not None
    assert not event.reply.upload.done
    assert clock.now == pytest.approx(5.0)
    mailbox.uploads.clear()
    clock.continue_order(replace(event.order, config={"continues": True}), 0.4)
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert event.order.config == {"continues": True}
    assert clock.now == pytest.approx(13.0)


@pytest.mark.parametrize("computed", [False, True])
def test_a_recall_shortens_an_order_to_its_epoch(computed: bool) -> None:
    """At 6, in the third of 5 epochs of 2 s after 1 s of download: it ends at 7, arrives at 8."""
    mailbox = Answers({})
    clock = VirtualClock(
        mailbox,
        Parted(lambda client, sequence: 4.0 if client else 10.0),
        2,
        epochs=5,
    )
    late, other = order(0), order(1, client_id=1)
    clock.dispatch(late)
    clock.dispatch(other)
    if computed:  # its workers ran ahead
        assert isinstance(clock.next(math.inf), Replied)
        mailbox.pull(None)
    else:
        mailbox._capacity = 1  # only the next one is computed
        assert isinstance(clock.next(math.inf), Replied)
    assert clock.now == 6.0
    assert clock.recall(late)
    mailbox._capacity = 4
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert event.order is late
    assert clock.now == pytest.approx(8.0)
    assert mailbox.given[-1].config == {"local_epochs": 3}
    assert clock.next(math.inf) is None


def at_the_arrival_of_another(mailbox: Answers) -> tuple[VirtualClock, Order]:
    """A clock at 6, and an order of ten seconds under way."""
    times = Parted(lambda client, sequence: 4.0 if client else 10.0)
    clock = VirtualClock(mailbox, times, 2, epochs=5, pauses=True)
    late, other = order(0), order(1, client_id=1)
    clock.dispatch(late)
    clock.dispatch(other)
    assert isinstance(clock.next(math.inf), Replied)
    return clock, late


def test_a_recall_shortens_an_order_too_that_was_seen_not_to_pause() -> None:
    """As above; what was computed for the whole order is forgotten, here and at the mailbox."""
    mailbox = Answers({-1: replace(UPLOAD, loss=0.25)})
    clock, late = at_the_arrival_of_another(mailbox)
    assert clock.now == 6.0
    assert clock.recall(late)
    assert clock.state_dict()["early"] == {}
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert (clock.now, event.order) == (pytest.approx(8.0), late)
    assert event.reply.upload is not None
    assert event.reply.upload.loss == 0.25


def test_a_client_that_sends_what_it_has_is_not_recalled_into_more() -> None:
    """1 s down, 10 s in 5 epochs, 1 s up; recalled at 6.0, it has 3 epochs at 7.0."""
    times = Parted(lambda client, sequence: [10.0, 4.0, 4.5, 5.5][client])
    clock = VirtualClock(Shelf(), times, 4, epochs=5)
    late = order(0)
    for client_id in range(4):
        clock.dispatch(late if client_id == 0 else order(client_id, client_id=client_id))
    again = []
    for _ in range(3):
        clock.next(math.inf)
        again.append((clock.now, clock.recall(late)))
    assert again == [(6.0, True), (6.5, True), (7.5, False)]
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert (clock.now, event.order) == (8.0, late)


def test_a_client_that_is_about_to_pause_is_not_recalled() -> None:
    """It asks after its fourth epoch, at 9; the other is there at 6."""
    mailbox = Answers({0: paused(0.8)})
    clock, late = at_the_arrival_of_another(mailbox)
    assert not clock.recall(late)
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert clock.now == pytest.approx(9.0)
    assert event.reply.upload == mailbox.uploads[0]


@pytest.mark.parametrize(("counts_epochs", "end"), [(True, 22.0), (False, 12.0)])
def test_an_order_for_more_epochs_takes_longer_where_epochs_count(
    counts_epochs: bool, end: float
) -> None:
    """1 s down, 10 s in 5 epochs, so 20 s in 10, 1 s up."""
    clock = VirtualClock(Shelf(), Parted(lambda *_: 10.0), 1, epochs=5, counts_epochs=counts_epochs)
    clock.dispatch(replace(order(0), config={"local_epochs": 10}))
    clock.next(math.inf)
    assert clock.now == pytest.approx(end)
    clock.dispatch(order(1))
    clock.next(math.inf)
    assert clock.now == pytest.approx(end + 12.0)


def test_no_client_is_recalled_in_its_last_epoch_or_when_it_is_gone() -> None:
    clock = VirtualClock(Shelf(), Parted(lambda client, _: 4.0 if client else 5.0), 2, epochs=2)
    late, other = order(0), order(1, client_id=1)
    clock.dispatch(late)
    clock.dispatch(other)
    clock.next(math.inf)
    assert not clock.recall(late)  # at 6 it trains its second epoch, or sends
    assert not clock.recall(other)


def make_clock(availability: Any, seconds: float, deadline: float = math.inf) -> VirtualClock:
    return VirtualClock(
        Inline(helpers.Scripted(helpers.toward_own_number)),
        helpers.Times(lambda client, sequence: seconds),
        2,
        deadline=deadline,
        availability=availability,
    )


def order_presence(client_id: int, number: int = 0) -> Order:
    return Order(number, client_id, 0, 0, helpers.vec(0.0, 0.0), {}, 0.0)


def events(clock: VirtualClock) -> list[Any]:
    """What happens, as (time, kind, client, orders lost)."""
    happened = []
    while (event := clock.next(math.inf)) is not None:
        match event:
            case Replied(given, _) | Expired(given) | Returned(given):
                happened.append((clock.now, type(event), given.client_id))
            case Joined(client_id):
                happened.append((clock.now, Joined, client_id))
            case Left(client_id, orders, reason):
                assert reason == "went offline"
                happened.append((clock.now, Left, client_id, len(orders)))
    return happened


def test_presence_gives_changes_in_the_order_of_time() -> None:
    presence = Presence(Stays({0: [3.0, 4.0], 2: [2.0]}, offline=[2]), 3)
    assert list(presence.online) == [0, 1]
    assert presence.until(0) == 3.0
    changes = []
    while presence.due < math.inf:
        changes.append((presence.due, *presence.change()))
    assert changes == [(2.0, 2, True), (3.0, 0, False), (7.0, 0, True)]
    assert set(presence.online) == {0, 1, 2}
    assert presence.until(0) == math.inf


def test_who_goes_offline_loses_its_order_and_comes_back() -> None:
    clock = make_clock(Stays({0: [3.0, 4.0]}), seconds=5.0)
    clock.dispatch(order_presence(0))
    clock.dispatch(order_presence(1, number=1))
    assert events(clock) == [(3.0, Left, 0, 1), (5.0, Replied, 1), (7.0, Joined, 0)]


def test_a_deadline_that_passes_before_the_client_leaves_fails_the_order_once() -> None:
    clock = make_clock(Stays({0: [3.0]}), seconds=5.0, deadline=2.0)
    clock.dispatch(order_presence(0))
    assert events(clock) == [(2.0, Expired, 0), (3.0, Left, 0, 0)]
    clock = make_clock(Stays({0: [6.0]}), seconds=5.0, deadline=2.0)
    clock.dispatch(order_presence(0))
    assert events(clock) == [(2.0, Expired, 0), (5.0, Returned, 0), (6.0, Left, 0, 0)]


def run(availability: Any, seconds: float, **settings: Any) -> tuple[Engine, helpers.Recorder]:
    recorder = helpers.Recorder()
    engine = Engine(
        strategy=helpers.MeanDelta(),
        clock=make_clock(availability, seconds),
        initial=np.zeros(2, np.float32),
        sinks=[recorder],
        **settings,
    )
    return engine, recorder


def test_an_offline_client_is_given_nothing_and_its_lost_order_is_a_failure() -> None:
    engine, recorder = run(
        Stays({0: [2.5, 10.0], 1: [4.5]}, offline=[1]),
        1.0,
        schedule=Buffered(concurrency=1, buffer_size=1),
        stop=Stop(num_versions=5),
    )
    outcome = engine.run()
    dispatches = [(e["t"], e["client"]) for e in recorder.events if e["kind"] == "dispatch"]
    assert dispatches == [(0.0, 0), (1.0, 0), (2.0, 0), (4.5, 1), (5.5, 1), (6.5, 1)]
    (failure,) = [e for e in recorder.events if e["kind"] == "failure"]
    del failure["order"]
    assert failure == {
        "kind": "failure", "t": 2.5, "client": 0, "base_version": 2, "reason": "went offline"
    }  # fmt: skip
    assert recorder.history.failures == 1
    assert outcome.stopped == "num_versions"


def test_orders_that_no_stay_can_hold_stall_the_run() -> None:
    engine, _ = run(
        Churn(mean_online=1.0, mean_offline=1.0),
        100.0,
        schedule=Buffered(concurrency=1, buffer_size=1),
        stop=Stop(num_versions=1),
    )
    assert "went offline" in engine.run().stopped
