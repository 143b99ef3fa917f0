"""Virtual and real time."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers import MeanDelta, Scripted, Stays, Times, run, toward_own_number, vec

from fl_app.core.errors import Stalled
from fl_app.core.types import Order, Parts, Reply, Upload
from fl_app.devices.fleet import Churn
from fl_app.engine.clock import Alarm, Expired, Joined, Left, Replied, Returned, Stray
from fl_app.engine.lookahead import READY_LIMIT
from fl_app.engine.server import Server
from fl_app.engine.virtual import MAX_ALARMS, VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.schedule import Buffered

UPLOAD = Upload(vec(1, 1), "delta", 10, 0.5)


def order(number, client_id=0):
    return Order(number, client_id, 0, 0, vec(0, 0), {}, 0.0)


class Inbox:
    """A mailbox that answers one order per pull: the oldest, or the newest."""

    def __init__(self, capacity=4, *, newest_first=False):
        self._capacity = capacity
        self._newest_first = newest_first
        self.orders = []
        self.pushed = []
        self.closed = False

    def share(self, vector):
        return vector

    def capacity(self):
        return self._capacity - len(self.orders)

    def push(self, order):
        assert self.capacity() > 0
        self.orders.append(order)
        self.pushed.append(order.number)

    def pull(self, timeout):
        assert self.orders or timeout is not None, "would wait for ever"
        if not self.orders or timeout == 0:
            return []
        item = self.orders.pop(-1 if self._newest_first else 0)
        return [Reply(item.number, UPLOAD)]

    def close(self):
        self.closed = True


def virtual(mailbox, seconds, **more):
    return VirtualClock(mailbox, Times(seconds), 100, **more)


def drain(clock):
    """Second, kind and subject of each event: an order, a client, or a client and lost orders."""
    result = []
    while (event := clock.next(math.inf)) is not None:
        match event:
            case Joined(client_id):
                subject = client_id
            case Left(client_id, lost, "went offline"):
                subject = (client_id, len(lost))
            case Replied(order, _) | Expired(order) | Returned(order):
                subject = order.number
        result.append((clock.now, type(event).__name__, subject))
    return result


# -- virtual --------------------------------------------------------------------------------------


def test_work_is_done_in_the_order_of_its_end_and_lazily():
    mailbox = Inbox(capacity=2)
    clock = virtual(mailbox, lambda client, _: 10.0 - client)
    for number in range(5):
        clock.dispatch(order(number, client_id=number))
    assert mailbox.pushed == []
    clock.next(math.inf)
    # The last order ends first. One is done, two more are under way.
    assert mailbox.pushed == [4, 3, 2]


def test_the_next_event_is_computed_however_many_results_lie_ready():
    class Eager(Inbox):
        def pull(self, timeout):
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


def test_a_late_order_expires_and_returns_and_is_never_computed():
    mailbox = Inbox()
    clock = virtual(mailbox, lambda client, _: [1.0, 7.0, math.inf, 3.0][client], deadline=3.0)
    for number in range(4):
        clock.dispatch(order(number, client_id=number))
    events = drain(clock)
    assert events[0] == (1.0, "Replied", 0)
    assert sorted(events[1:4]) == [(3.0, "Expired", 1), (3.0, "Expired", 2), (3.0, "Replied", 3)]
    assert events[4:] == [(7.0, "Returned", 1)]
    assert sorted(mailbox.pushed) == [0, 3]


# -- wall -----------------------------------------------------------------------------------------


class FakeNodes:
    """Nodes that send batches of messages, with the seconds since the previous batch."""

    def __init__(self, time, batches):
        self.time = time
        self._batches = iter(batches)
        self._next = next(self._batches, None)
        self.pushed = []
        self.share = lambda vector: vector

    def push(self, order):
        self.pushed.append(order.number)

    def pull(self, timeout):
        assert self._next is not None or timeout is not None, "would wait for ever"
        seconds, messages = self._next or (math.inf, [])
        if timeout is not None and seconds > timeout:
            self.time.seconds += timeout
            self._next = (seconds - timeout, messages)
            return []
        self.time.seconds += seconds
        self._next = next(self._batches, None)
        return messages

    def close(self):
        pass


@pytest.fixture
def time():
    """Fake real time: `seconds`."""
    return SimpleNamespace(seconds=100.0)


def wall_clock(field, deadline=math.inf):
    return WallClock(field, deadline=deadline, monotonic=lambda: field.time.seconds)


def test_messages_of_nodes_become_events(time):
    reply = Reply(0, UPLOAD)
    field = FakeNodes(time, [(1.0, [Joined(7)]), (2.0, [reply]), (1.0, [reply, Reply(99)])])
    clock = wall_clock(field)
    assert clock.next(math.inf) == Joined(7)
    assert clock.now == 1.0
    request = order(0, client_id=7)
    clock.dispatch(request)
    assert field.pushed == [0]
    assert clock.next(math.inf) == Replied(request, reply)
    assert clock.now == 3.0
    assert clock.next(math.inf) == Stray(0)  # a duplicate
    assert clock.next(math.inf) == Stray(99)


def test_a_pause_that_comes_twice_is_answered_once(time):
    pause, other = Reply(0, pause_upload(0.5)), Reply(1, UPLOAD)
    clock = wall_clock(FakeNodes(time, [(1.0, [pause, pause, other])]))
    clock.dispatch(request := order(0))
    clock.dispatch(order(1, client_id=1))
    assert clock.next(math.inf) == Replied(request, pause)
    clock.continue_order(request, 0.5)
    assert clock.next(math.inf).reply == other


def test_a_deadline_passes_in_real_time(time):
    field = FakeNodes(time, [(4.0, [Reply(1, UPLOAD)]), (6.0, [Reply(0, UPLOAD)])])
    clock = wall_clock(field, deadline=5.0)
    late, punctual = order(0, client_id=1), order(1, client_id=2)
    clock.dispatch(young := replace(order(2, client_id=3), sent_at=3.0))
    clock.continue_order(late, 0.5)
    clock.dispatch(punctual)
    assert isinstance(clock.next(math.inf), Replied)
    assert clock.next(math.inf) == Expired(late)
    assert clock.now == 5.0
    assert clock.next(math.inf) == Expired(young)
    assert clock.next(math.inf) == Returned(late)
    assert clock.now == 10.0


def test_a_client_that_leaves_loses_its_orders(time):
    lost, other, expired = order(0, client_id=7), order(1, client_id=8), order(2, client_id=7)
    field = FakeNodes(
        time, [(6.0, [Left(7), Reply(0, UPLOAD), Reply(2, UPLOAD)]), (0.0, [Reply(1, UPLOAD)])]
    )
    clock = wall_clock(field, deadline=5.0)
    clock.dispatch(expired)
    assert clock.next(math.inf) == Expired(expired)
    lost, other = replace(lost, sent_at=clock.now), replace(other, sent_at=clock.now)
    clock.dispatch(lost)
    clock.dispatch(other)
    assert clock.next(math.inf) == Left(7, (lost,))
    assert [clock.next(math.inf), clock.next(math.inf)] == [Stray(0), Stray(2)]
    assert isinstance(clock.next(math.inf), Replied)


# -- alarms, pauses, recalls ----------------------------------------------------------------------


def links(seconds):
    """A second of download and one of upload around the training."""
    return Times(lambda *order: Parts(1.0, seconds(*order), 1.0))


class Answers(Inbox):
    """As `Inbox`, with an upload per order."""

    def __init__(self, uploads):
        super().__init__()
        self.uploads = uploads
        self.all_orders = []

    def push(self, order):
        self.all_orders.append(order)
        super().push(order)

    def pull(self, timeout):
        return [
            replace(reply, upload=self.uploads.get(reply.number, UPLOAD))
            for reply in super().pull(timeout)
        ]


def pause_upload(progress):
    return replace(UPLOAD, done=False, progress=progress)


def test_an_alarm_comes_at_its_time_unless_something_else_does():
    clock = virtual(Inbox(), lambda client, sequence: 4.0)
    clock.dispatch(order(0))
    assert clock.next(math.inf, 3.0) == Alarm()
    assert clock.now == 3.0
    assert isinstance(clock.next(math.inf, 4.0), Replied)  # at the same moment
    assert clock.next(math.inf, 4.0) == Alarm()
    assert clock.next(math.inf) is None
    assert clock.next(5.0, 9.0) is None
    assert clock.now == 5.0  # time passes, since an alarm is to come


def test_alarms_that_bring_no_order_do_not_keep_a_clock_going_with_nothing_under_way():
    clock = virtual(Inbox(), lambda client, _: 1.0 if client else math.inf)
    clock.dispatch(order(0))  # which never ends
    assert clock.next(math.inf, 5.0) == Alarm()
    clock.dispatch(order(1, client_id=1))
    assert isinstance(clock.next(math.inf, 10.0), Replied)
    assert clock.next(math.inf, 10.0) == Alarm()
    assert clock.next(math.inf, 15.0) is None
    assert clock.now == 10.0


def at_work(seconds, mailbox=None, config=None, start=0.0, **settings):
    """A clock, and the first of the orders of its clients, by their seconds of training.

    Each begins to train `start` seconds after its download.
    """
    times = Times(lambda client, _: Parts(1.0, start + seconds[client], 1.0, start=start))
    clock = VirtualClock(mailbox or Inbox(), times, len(seconds), **{"epochs": 5, **settings})
    orders = [order(client, client_id=client) for client in range(len(seconds))]
    orders[0] = replace(orders[0], config=config or {})
    for each in orders:
        clock.dispatch(each)
    return clock, orders[0]


def clock_at_an_arrival(mailbox, pauses):
    """A clock at 6 s, and an order in the third of its 5 epochs of 2 s, after 1 s of download.

    Another order of 9 s is under way.
    """
    clock, late = at_work((10.0, 4.0, 9.0), mailbox, pauses=pauses)
    assert isinstance(clock.next(math.inf), Replied)
    assert clock.now == 6.0
    return clock, late


@pytest.mark.parametrize(
    ("capacity", "pauses"), [(1, False), (4, False), (4, True)], ids=["waits", "is_done", "is_seen"]
)
def test_a_recall_shortens_an_order_to_its_epoch(capacity, pauses):
    """It ends at 7 and arrives at 8; the result of the whole order is discarded."""
    mailbox = Answers({-1: replace(UPLOAD, loss=0.25)})
    mailbox._capacity = capacity
    clock, late = clock_at_an_arrival(mailbox, pauses)
    assert clock.recall(late)
    assert clock.next(math.inf) == Replied(late, Reply(-1, mailbox.uploads[-1]))
    assert clock.now == pytest.approx(8.0)
    assert {"local_epochs": 3} in [order.config for order in mailbox.all_orders]
    assert (0 in mailbox.pushed) == (capacity > 1)  # if it waited, it is never computed
    assert [number for _, _, number in drain(clock)] == [2]


def test_a_client_that_sends_is_not_recalled():
    """1 s down, 10 s in 5 epochs, 1 s up; recalled at 6.0, it has 3 epochs at 7.0."""
    clock, late = at_work((10.0, 4.0, 4.5, 5.5))
    recalls = []
    for _ in range(3):
        clock.next(math.inf)
        recalls.append((clock.now, clock.recall(late)))
    assert recalls == [(6.0, True), (6.5, True), (7.5, False)]
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert (clock.now, event.order) == (8.0, late)


def test_a_client_that_is_about_to_pause_is_not_recalled():
    """It pauses after its fourth epoch, at 9 s; the other client's update arrives at 6 s."""
    mailbox = Answers({0: pause_upload(0.8)})
    clock, late = clock_at_an_arrival(mailbox, pauses=True)
    assert not clock.recall(late)
    event = clock.next(math.inf)
    assert isinstance(event, Replied)
    assert clock.now == pytest.approx(9.0)
    assert event.reply.upload == mailbox.uploads[0]


@pytest.mark.parametrize(
    "settings",
    [
        {"seconds": (10.0, 4.0), "deadline": 11.0},
        # It begins to train at 3.5 and has 1.25 epochs at 6, so 2 at 7.5.
        {"seconds": (10.0, 1.5), "deadline": 11.0, "start": 2.5},
        {"seconds": (10.0, 4.0), "availability": Stays({0: [11.0]})},
        # 20 s in 10 epochs, where 5 take 10 s; recalled at 6.5.
        {"seconds": (10.0, 4.5), "counts_epochs": True, "config": {"local_epochs": 10}},
    ],
    ids=["deadline", "start", "departure", "epochs"],
)
def test_an_order_that_would_end_too_late_is_recalled_if_its_epoch_ends_in_time(settings):
    """1 s down, 10 s in 5 epochs, 1 s up: recalled at 6, it has 3 epochs at 7."""
    clock, late = at_work(mailbox=Answers({-1: UPLOAD}), **settings)
    clock.next(math.inf)
    assert clock.recall(late)
    assert clock.next(math.inf) == Replied(late, Reply(-1, UPLOAD))
    assert clock.now == pytest.approx(8.0 + settings.get("start", 0) / 5)
    assert not [event for event in drain(clock) if event[1] == "Expired" or event[2] == (0, 1)]


def test_an_order_whose_epoch_ends_too_late_is_not_recalled():
    """The third epoch ends at 7, and its upload would arrive at 8."""
    clock, late = at_work((10.0, 4.0), deadline=7.5)
    clock.next(math.inf)
    assert not clock.recall(late)
    assert clock.next(math.inf).order.number == 0
    assert clock.now == 7.5


@pytest.mark.parametrize(
    ("progress", "start", "events"),
    [
        (0.4, 0, [(5.0, "Replied", 0)]),
        (0.4, 1, [(6.0, "Replied", 0)]),
        (0.8, 0, [(6.0, "Expired", 0), (9.0, "Returned", 0)]),
    ],
)
def test_a_client_whose_order_would_end_too_late_pauses_in_time_or_expires(progress, start, events):
    """1 s down, 10 s in 5 epochs, 1 s up: it would end at 12."""
    mailbox = Answers({0: pause_upload(progress)})
    clock, _ = at_work((10.0,), mailbox, start=start, pauses=True, deadline=6.0)
    assert drain(clock) == events


def test_an_order_in_steps_pauses_whenever_it_does_and_is_not_recalled():
    """1 s down, 10 s for 4 steps: a tenth is done at 2, before the first of 5 epochs ends."""
    steps = {"config": {"local_steps": 4}, "steps": lambda client: 4}
    clock, _ = at_work((10.0,), Answers({0: pause_upload(0.1)}), pauses=True, **steps)
    assert drain(clock) == [(2.0, "Replied", 0)]
    clock, late = at_work((10.0, 4.0), **steps)
    clock.next(math.inf)
    assert not clock.recall(late)


def test_a_schedule_that_wakes_in_the_past_ends_the_run():
    clock, _ = at_work((10.0,))
    for _ in range(MAX_ALARMS):
        assert clock.next(math.inf, alarm=0.0) == Alarm()
    with pytest.raises(Stalled, match="wake returned 0 at second 0 again and again"):
        clock.next(math.inf, alarm=0.0)


def test_a_client_that_continues_after_a_pause_is_not_recalled():
    """1 s down, 10 s in 5 epochs, 1 s up: it pauses at 3; the other's update arrives at 6."""
    clock, late = at_work((10.0, 4.0), Answers({0: pause_upload(0.2)}), pauses=True)
    assert clock.next(math.inf).order.number == 0
    continued = replace(late, config={"continues": True})
    clock.continue_order(continued, 0.2)
    assert clock.next(math.inf).order.number == 1
    assert not clock.recall(continued)


@pytest.mark.parametrize(
    ("counts_epochs", "start", "end"), [(True, 0, 22.0), (True, 3, 25.0), (False, 0, 12.0)]
)
def test_an_order_for_more_epochs_takes_longer_where_epochs_count(counts_epochs, start, end):
    """1 s down, 10 s in 5 epochs, so 20 s in 10, 1 s up."""
    more = {"local_epochs": 10}
    clock, _ = at_work((10.0,), config=more, start=start, counts_epochs=counts_epochs)
    clock.next(math.inf)
    assert clock.now == pytest.approx(end)
    clock.dispatch(order(1))
    clock.next(math.inf)
    assert clock.now == pytest.approx(end + 12.0 + start)


def test_an_order_for_fewer_steps_takes_its_share_of_its_own_clients_steps():
    """10 s for 4 steps of client 0, 8 of client 1: 2 steps take 5 s and 2.5 s; 2 s to travel."""
    clock = VirtualClock(Inbox(), links(lambda *_: 10.0), 2, steps=lambda client: (4, 8)[client])
    for client_id in (0, 1):
        clock.dispatch(replace(order(client_id, client_id=client_id), config={"local_steps": 2}))
    assert [(clock.next(math.inf).order.client_id, clock.now) for _ in range(2)] == [
        *((1, 4.5), (0, 7.0))
    ]


def test_an_order_for_steps_of_a_client_without_examples_takes_time_as_for_one_step():
    clock, _ = at_work((10.0,), config={"local_steps": 2}, steps=lambda client: 0)
    clock.next(math.inf)
    assert clock.now == 22.0


def test_no_client_is_recalled_in_its_last_epoch_or_when_it_is_gone():
    clock, late = at_work((5.0, 4.0), epochs=2)
    other = clock.next(math.inf).order
    assert not clock.recall(late)  # at 6 it trains its second epoch, or sends
    assert not clock.recall(other)


# -- availability ---------------------------------------------------------------------------------


def test_a_client_that_goes_offline_loses_its_order_and_returns():
    clock = virtual(Inbox(), lambda *_: 5.0, availability=Stays({0: [3.0, 4.0]}))
    clock.dispatch(order(0))
    clock.dispatch(order(1, client_id=1))
    assert drain(clock) == [(3.0, "Left", (0, 1)), (5.0, "Replied", 1), (7.0, "Joined", 0)]


@pytest.mark.parametrize(
    ("end", "events"), [(3.0, []), (6.0, [(5.0, "Returned", 0)])], ids=["early", "late"]
)
def test_a_deadline_that_passes_before_the_client_leaves_fails_the_order_once(end, events):
    clock = virtual(Inbox(), lambda *_: 5.0, availability=Stays({0: [end]}), deadline=2.0)
    clock.dispatch(order(0))
    assert drain(clock) == [(2.0, "Expired", 0), *events, (end, "Left", (0, 0))]


def test_an_absence_that_ended_while_the_server_worked_ends_no_later_order():
    """Client 0 is away from 3 to 4 s, and client 1 from 4 to 9 s; the server works until 5 s."""
    stays = Stays({0: [3.0, 1.0, 10.0], 1: [4.0, 5.0]})
    clock = virtual(Inbox(), lambda *_: 2.0, availability=stays, server=Server(evaluation=5.0))
    clock.work("evaluation")
    for client_id in (0, 1):
        clock.dispatch(replace(order(client_id, client_id=client_id), sent_at=5.0))
    events = [
        (5.0, "Left", (1, 1)),
        (7.0, "Replied", 0),
        (9.0, "Joined", 1),
        (14.0, "Left", (0, 0)),
    ]
    assert drain(clock) == events


def test_a_stay_of_no_time_is_refused():
    with pytest.raises(ValueError, match=r"devices\.availability=0\.0 must be stays above 0"):
        virtual(Inbox(), lambda *_: 2.0, availability=Stays({0: [0.0]}))


ONE = Buffered(concurrency=1, buffer_size=1)


def test_an_offline_client_is_given_nothing_and_its_lost_order_is_a_failure():
    stays = Stays({0: [2.5, 10.0], 1: [4.5]}, offline=[1])
    result = run(
        ONE, devices=Times(lambda *_: 1.0), availability=stays, num_clients=2, num_versions=5
    )
    dispatches = [(e["t"], e["client"]) for e in result.kind("dispatch")]
    assert dispatches == [(0.0, 0), (1.0, 0), (2.0, 0), (4.5, 1), (5.5, 1), (6.5, 1)]
    (failure,) = result.kind("failure")
    assert (failure["t"], failure["client"], failure["base_version"]) == (2.5, 0, 2)
    assert failure["reason"] == "went offline"
    assert result.outcome.stopped == "num_versions"


def test_orders_that_no_stay_can_hold_stall_the_run():
    churn = Churn(mean_online=1.0, mean_offline=1.0)
    result = run(ONE, devices=Times(lambda *_: 100.0), availability=churn, num_clients=2)
    assert "went offline" in result.outcome.stopped


# -- `Update.seconds`, from the dispatch of an order to its arrival -------------------------------


class RecordingSeconds(MeanDelta):
    """Records the seconds of its updates."""

    def __init__(self):
        super().__init__()
        self.state["noted"] = []

    def aggregate(self, model, updates):
        seconds = sorted((update.client_id, update.seconds) for update in updates)
        self.state["noted"].append(seconds)
        return super().aggregate(model, updates)

    def refresh(self, model, pause_upload):
        self.state["paused"] = pause_upload.seconds
        return model.params, {}


def test_a_pause_counts_and_its_own_seconds_are_those_until_then():
    """1 s down, 10 s in 5 epochs, 1 s up: client 1 pauses after 2 epochs, at 5 s; 1 + 6 + 1 s."""

    def script(client, sequence, received):
        if (client, sequence) in pause_upload:
            pause_upload.remove((client, sequence))
            return Upload(vec(), "delta", 10, 0.5, done=False, progress=0.4)
        return toward_own_number(client, sequence, received)

    pause_upload = [(1, 0)]
    result = run(
        Buffered(concurrency=2, buffer_size=1),
        Scripted(script),
        strategy=RecordingSeconds(),
        devices=Times(lambda client, _: Parts(1.0, 10.0, 1.0) if client else 4.0),
        num_clients=2,
        num_versions=4,
        epochs=5,
        pauses=True,
    )
    assert result.strategy.state["paused"] == 5.0
    assert result.strategy.state["noted"] == [[(0, 4.0)], [(0, 4.0)], [(0, 4.0)], [(1, 13.0)]]
