"""Which orders go to workers together, which go again after a loss, and how they travel."""

import socket

import numpy as np
import pytest
from helpers import vec

from fl_app.cluster.connection import connect
from fl_app.cluster.queue import CALL_SECONDS, MOST_DEATHS, MOST_ORDERS, OrderQueue, pack, unpack
from fl_app.core.errors import RunError
from fl_app.core.types import NO_EXTRA, Order
from fl_app.engine.clock import NO_VECTOR


def filled(count, call_size=1):
    queue = OrderQueue()
    queue.call_size = call_size
    for number in range(count):
        queue.push(Order(number, number, 0, 0, vec(1, 2), {}, 0.0))
    return queue


def numbers(orders):
    return [order.number for order in orders]


def test_a_call_carries_as_many_orders_as_are_worth_a_tenth_of_a_second():
    queue = filled(3)
    first = queue.next_call(places=1)
    assert numbers(first) == [0]
    queue.done(first, CALL_SECONDS / 4)
    assert queue.call_size == 4
    queue.done(first, 1e-9)
    assert queue.call_size == MOST_ORDERS
    queue.done(first, 10.0)
    assert queue.call_size == 1


def test_orders_are_spread_over_the_workers_in_their_sequence():
    queue = filled(8, call_size=32)
    assert [numbers(queue.next_call(places)) for places in (4, 3, 2, 1)] == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
    ]
    assert not queue


def test_orders_of_a_lost_worker_go_again_first_and_those_it_was_at_travel_alone():
    queue = filled(6, call_size=2)
    calls = [queue.next_call(1), queue.next_call(1)]
    assert queue.lost(calls, "killed") == []
    assert [numbers(queue.next_call(1)) for _ in range(4)] == [[0], [1], [2, 3], [4, 5]]


def test_an_order_that_loses_three_workers_fails_and_the_one_behind_it_does_not():
    queue = filled(2)
    for _ in range(MOST_DEATHS):
        calls = [queue.next_call(1), queue.next_call(1)]
        failed = queue.lost(calls, "exit code 139")
    (reply,) = failed
    assert reply.number == 0
    assert reply.error == "3 workers died with this order, the last one: exit code 139"
    assert numbers(queue.next_call(1)) == [1]


def test_orders_of_a_call_share_their_vectors():
    model, control = vec(1, 2), vec(3, 4)
    orders = [
        Order(0, 5, 0, 7, model, {"a": 1}, 2.5, {"kept": np.arange(3)}, {"c": control}),
        Order(1, 6, 1, 7, model, {}, 2.5, evaluates=True),
        Order(2, 5, 1, 7, NO_VECTOR, {"continues": True}, 3.0),
    ]
    parcels, references = pack(orders, lambda vector: vector)
    assert [id(each) for each in references] == [id(model), id(control), id(NO_VECTOR)]
    assert not any(parcel.order.vector.size for parcel in parcels)
    again = unpack(parcels, references)
    assert [id(order.vector) for order in again] == [id(model), id(model), id(NO_VECTOR)]
    assert again[0].extra["c"] is control
    assert again[1].extra is NO_EXTRA
    assert [(o.number, o.client_id, o.sequence, o.evaluates) for o in again] == [
        (0, 5, 0, False),
        (1, 6, 1, True),
        (2, 5, 1, False),
    ]


# -- an address -----------------------------------------------------------------------------------


def test_an_address_where_nobody_listens_is_refused():
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"no Ray cluster answers at {address} .*--head"):
            connect(address, 1)
