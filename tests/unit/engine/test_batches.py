"""Orders that are computed in one batch: virtual time alone decides."""

import random
from dataclasses import replace

import pytest
from helpers import MeanDelta, Recorder, Times, vec

from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import Order, Reply, Scores, Upload
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.lookahead import READY_LIMIT, Lookahead
from fl_app.engine.virtual import VirtualClock
from fl_app.schedule import Buffered, fully_async, synchronous


def order(number, *, evaluates=False):
    return Order(number, number, 0, 0, vec(0, 0), {}, 0.0, evaluates=evaluates)


class FakeMailbox:
    """Answers one push per pull, the oldest or a random one; vectors identify the batch."""

    def __init__(self, batch, capacity=4, rng=None):
        self.batch = batch
        self.pushes = []
        self._capacity = capacity
        self._rng = rng
        self._under_way = []

    def share(self, vector):
        return vector

    def capacity(self):
        return self._capacity - len(self._under_way)

    def push(self, *orders):
        assert self.capacity() > 0
        self.pushes.append([order.number for order in orders])
        self._under_way.append(orders)

    def pull(self, timeout):
        assert self._under_way or timeout is not None, "would wait for ever"
        if not self._under_way or (
            timeout == 0 and (self._rng is None or self._rng.random() < 0.5)
        ):
            return []
        place = 0 if self._rng is None else self._rng.randrange(len(self._under_way))
        orders = self._under_way.pop(place)
        members = hash(tuple(order.number for order in orders)) % 1000 / 1000
        return [
            Reply(o.number, scores=Scores({"loss": 0.0}, 1))
            if o.evaluates
            else Reply(o.number, Upload(vec(o.client_id % 7 / 8, members), "delta", 10, 0.5))
            for o in orders
        ]

    def close(self): ...


def piled(count, pile):
    """A pile, and orders for it that are due one second after the other."""
    batches = Lookahead(pile)
    for number in range(count):
        batches.submit(float(number), 0.5, order(number))
    return pile, batches


def test_a_batch_is_formed_of_those_that_are_due_first():
    pile = FakeMailbox(3)
    batches = Lookahead(pile)
    for number, time in enumerate([5.0, 1.0, 4.0, 2.0, 3.0]):
        batches.submit(time, 0.5, order(number))
    batches.submit(0.5, 0.5, order(6, evaluates=True))
    assert pile.pushes == []  # the clock needs none of them
    batches.result(1)
    assert pile.pushes == [[6], [1, 3, 4], [2, 0]]
    assert batches.result(6).scores is not None
    batches.submit(1.5, 0.5, order(5))
    batches.result(3)
    assert len(pile.pushes) == 3  # the result that the clock needs is ready
    batches.result(5)
    assert pile.pushes[3] == [5]


@pytest.mark.parametrize(
    ("count", "lengths"), [(4, [4]), (5, [3, 2]), (8, [4, 4]), (9, [3, 3, 3]), (10, [4, 3, 3])]
)
def test_batches_that_are_formed_together_have_equal_length(count, lengths):
    pile, batches = piled(count, FakeMailbox(4))
    batches.result(0)
    assert list(map(len, pile.pushes)) == lengths


def test_a_batch_is_formed_ahead_where_more_orders_wait_than_may_lie_ready():
    pile, batches = piled(2 * READY_LIMIT + 3, FakeMailbox(4, capacity=100))
    for number in range(4):
        batches.result(number)
    assert len(pile.pushes) == READY_LIMIT // 4
    batches.result(4)  # there is room for four, and more than READY_LIMIT wait
    assert len(pile.pushes) == READY_LIMIT // 4 + 1
    for number in range(5, 9):
        batches.result(number)
    assert len(pile.pushes) == READY_LIMIT // 4 + 1  # READY_LIMIT do not wait any more


def test_dropped_orders_leave_their_batch_as_it_is():
    pile, batches = piled(6, FakeMailbox(3))
    batches.result(0)
    batches.cancel([1, 4])  # one of a batch that is formed, one of another
    for number in (2, 3, 5):
        assert batches.result(number).number == number
    assert pile.pushes == [[0, 1, 2], [3, 4, 5]]
    assert batches.state_dict() == {"ready": [], "under_way": [], "needed": []}
    assert batches._ready == {}  # nothing would ever fetch their results


# -- in a run -------------------------------------------------------------------------------------


def engine(schedule, batch, *, stop=40, rng=None, **more):
    pile, recorder = FakeMailbox(batch, 1 if rng is None else 4, rng), Recorder()
    devices = Times(lambda client_id, sequence: 1.0 + (client_id * 7 + sequence * 3) % 11 / 10)
    clock = VirtualClock(pile, devices, 50)
    result = Engine(
        strategy=MeanDelta(),
        schedule=schedule,
        clock=clock,
        initial=vec(0, 0),
        stop=Stop(stop),
        sinks=[recorder],
        **more,
    )
    return result, pile, recorder


SCHEDULES = [fully_async(20), Buffered(20, 5), synchronous(20)]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("batch", [2, 6, 20, 64])
def test_batches_do_not_depend_on_the_workers(schedule, batch):
    one, pile, recorder = engine(schedule, batch)
    expected = one.run()
    assert sum(len(members) for members in pile.pushes if len(members) > 1) > 20
    assert sum(map(len, pile.pushes)) >= recorder.history.client_updates
    for seed in range(4):
        other, others, events = engine(schedule, batch, rng=random.Random(seed))
        assert other.run().params.tobytes() == expected.params.tobytes()
        assert events.events == recorder.events
        # At the end, one may have run further ahead than the other.
        batches = {number: members for members in others.pushes for number in members}
        assert all(batches.get(number, one) == one for one in pile.pushes for number in one)


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: type(schedule).__name__)
@pytest.mark.parametrize("batch", [2, 6, 20])
@pytest.mark.parametrize("at", [1, 7, 12])
def test_a_resumed_run_has_the_same_batches(schedule, batch, at):
    """Unused results of a batch are restored, not computed again in another batch."""
    whole, _, recorder = engine(schedule, batch, stop=15)
    expected = whole.run()
    states = []

    def checkpoint(version):
        states.append(dumps(first.state_dict()))
        first.ask_to_stop()

    first, _, before = engine(
        schedule, batch, stop=15, rng=random.Random(3), checkpoint=checkpoint, checkpoint_every=at
    )
    first.run()
    second, _, after = engine(schedule, batch, stop=15, rng=random.Random(4))
    second.load_state_dict(loads(states[0]))
    assert second.run().params.tobytes() == expected.params.tobytes()
    events = [e for e in before.events + after.events if e["kind"] != "checkpoint"]
    assert events == recorder.events


def test_a_recalled_order_is_computed_again_with_others():
    pile = FakeMailbox(4)
    clock = VirtualClock(pile, Times(lambda *_: 4.0), 10, epochs=4)
    orders = [replace(order(number), config={"local_epochs": 4}) for number in range(6)]
    for each in orders:
        clock.dispatch(each)
    clock.next(1e9, 1.5)
    assert clock.recall(orders[5])
    assert clock.next(1e9).order is orders[5]
    assert clock.now == 2.0
    assert sorted(map(len, pile.pushes)) == [3, 3]
    assert -6 in pile.pushes[0]
