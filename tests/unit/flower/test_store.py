"""Messages through Flower's own object store and grid."""

import os
import threading

import numpy as np
import pytest
from store_grid import SuperLink, serve

from fl_app.core.layout import Layout
from fl_app.core.types import Order, Upload
from fl_app.flower import codec
from fl_app.flower.grid import AnyNode, GridMailbox

LAYOUT = Layout.of_arrays({"w": np.zeros(2, np.float32)})
MODEL = np.ones(2, np.float32)


def order(number, client_id, model=MODEL):
    return Order(number, client_id, 0, 0, model, {}, 0.0)


def answer(message):
    vector = codec.read_order(message, LAYOUT).vector + 1
    return codec.pack_upload(message, Upload(vector, "model", 10, 0.5), LAYOUT)


@pytest.mark.parametrize(
    "count", [3, pytest.param(2001, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_three_nodes_lose_no_order_whose_model_is_sent_again_when_they_have_it(count, monkeypatch):
    """All start from one version at a time, and what a second thread brings of it comes late."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # with one, a grid sends the parts one by one
    link = SuperLink(3)
    mailbox = GridMailbox(link.grid, LAYOUT)
    clients = [event.client_id for event in mailbox.pull(5.0)]
    push_messages, push_object = link.client.PushMessages, link.client.PushObject
    registered, received = threading.Barrier(3), threading.Event()
    brought = set()

    def register(request):
        response = push_messages(request)
        registered.wait(10.0)  # so all three bring the model
        return response

    def bring(request):
        if request.object_content.startswith(b"ArrayChunk"):  # a grid sends two parts at a time
            if request.object_id in brought:
                assert received.wait(10.0)
            brought.add(request.object_id)
        return push_object(request)

    link.client.PushMessages, link.client.PushObject = register, bring
    errors = []
    for version in range(count // 3):
        received.clear()
        brought.clear()
        model = np.full(2, version, np.float32)
        for client_id in clients:
            mailbox.push(order(len(errors) + clients.index(client_id), client_id, model))
        for connection in link.connections:
            while not serve(connection, answer):
                pass
        received.set()
        errors += [next(iter(mailbox.pull(5.0))).error for _ in clients]
    mailbox.close()
    assert errors == [""] * count


@pytest.mark.parametrize("step", range(1, 6))
def test_a_model_that_goes_while_the_next_message_is_registered(step):
    """The store lets go of its lock after every part of a message."""
    link = SuperLink(2)
    mailbox = AnyNode(link.grid, LAYOUT)
    mailbox.push(order(0, 0))
    confirmed = []
    for connection in link.connections:
        if serve((*connection[:-1], lambda *message: confirmed.append(message)), answer):
            confirm = connection[-1]

    class Lock:
        def __init__(self):
            self.lock, self.steps = threading.RLock(), 0

        def __enter__(self):
            self.lock.acquire()

        def __exit__(self, *_):
            self.lock.release()
            self.steps += 1
            if self.steps == step:
                confirm(*confirmed[0])

    link.store.lock_store = Lock()
    mailbox.push(order(1, 1))
    assert sum(serve(connection, answer) for connection in link.connections) == 1
    replies = [reply for _ in range(2) for reply in mailbox.pull(0.0)]
    assert [reply.error for reply in replies] == ["", ""]
