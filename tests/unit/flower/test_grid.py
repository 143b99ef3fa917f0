"""Mailboxes over a Flower Grid: real nodes, and any node in virtual time."""

import math
import os
import signal
import threading
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import httpx
import numpy as np
import pytest
from fake_grid import FakeGrid, SuperLink, serve
from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.clientapp.client_app import ClientAppException
from helpers import MeanDelta, Recorder

from fl_app import client_app
from fl_app.core.errors import RunError
from fl_app.core.layout import Layout
from fl_app.core.types import Order, Reply, Scores, Upload
from fl_app.engine.clock import Expired, Joined, Left, Returned
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.wall import WallClock
from fl_app.flower import codec, nodes
from fl_app.flower import grid as mailboxes
from fl_app.flower.grid import AnyNode, GridMailbox
from fl_app.flower.orders import pause
from fl_app.schedule import Buffered

LAYOUT = Layout.of_arrays({"w": np.zeros(2, np.float32)})
VECTOR = np.array([1.0, 2.0], np.float32)


def plus_one(message, context):
    """A foreign client that adds 1 to the model, and answers no queries."""
    if message.metadata.message_type != "train":
        raise ValueError("no such function")
    arrays = codec.record_of({"w": codec.from_arrays(message.content["arrays"], LAYOUT) + 1})
    metrics = MetricRecord({"num-examples": 10 + context.node_config.get("partition-id", 0)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def our_app(message, context):
    """As `plus_one`, but with this project's messages."""
    if message.metadata.message_type == "query":
        return client_app.query(message, context)
    vector = codec.read_order(message, LAYOUT).vector + 1
    num_examples = 10 + int(context.node_config.get("partition-id", 0))
    return codec.pack_upload(message, Upload(vector, "model", num_examples, 0.5), LAYOUT)


def order(number, client_id, version=0):
    return Order(number, client_id, 0, version, VECTOR, {}, 0.0)


Events = list[Reply | Joined | Left]


def pull(mailbox, count):
    """Pull exactly `count` events; fail instead of waiting for ever."""
    events = []
    while len(events) < count:
        more = mailbox.pull(timeout=5.0)
        assert more, f"waited in vain after {events}"
        events.extend(more)
    assert len(events) == count, events
    return events


OURS = {"app-config": "seed: 1"}  # to nodes with this project's ClientApp


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(nodes, "POLL", 0.01)
    monkeypatch.setattr(nodes, "FIRST_REST", 0.05)
    monkeypatch.setattr(mailboxes, "HEED", 0.01)
    monkeypatch.setattr(mailboxes, "LOOK", 0.0)


@pytest.fixture
def patience(monkeypatch):
    monkeypatch.setattr(nodes, "PATIENCE", 0.1)


@pytest.fixture
def open_mailbox():
    mailboxes = []

    def open_one(grid, **settings):
        mailboxes.append(GridMailbox(grid, LAYOUT, **settings))
        return mailboxes[-1]

    yield open_one
    for mailbox in mailboxes:
        mailbox.close()


@pytest.fixture
def one_node(open_mailbox):
    """Makes a grid, its only node, and a clock of the mailbox in which the node has joined."""

    def connect(deadline=math.inf):
        grid = FakeGrid(plus_one, 1)
        (node,) = grid.node_ids
        clock = WallClock(open_mailbox(grid, deadline=deadline), deadline=deadline)
        assert clock.next(math.inf) == Joined(node)
        return grid, node, clock

    return connect


# -- real nodes -----------------------------------------------------------------------------------


def test_nodes_join_under_their_ids_and_answer(open_mailbox):
    grid = FakeGrid(plus_one, 2)
    mailbox = open_mailbox(grid, train_config={"lr": 0.5}, deadline=30.0)
    assert set(pull(mailbox, 2)) == {Joined(node) for node in grid.node_ids}
    assert mailbox.capacity() == 2
    for number, node in enumerate(grid.node_ids):
        mailbox.push(order(number, node))
    replies = {reply.number: reply for reply in pull(mailbox, 2)}
    for number in range(2):
        assert replies[number].upload.vector.tolist() == [2.0, 3.0]
        assert replies[number].upload.num_examples == 10 + number
    settings = {(m.content["config"]["lr"], m.metadata.ttl) for m in grid.received}
    assert settings == {(0.5, 60.0)}  # twice as long as the deadline
    assert mailbox.capacity() == 2


def test_a_node_that_cannot_introduce_itself_joins_all_the_same(open_mailbox, caplog):
    grid = FakeGrid(plus_one, 1)
    assert pull(open_mailbox(grid, train_config=OURS), 1) == [Joined(grid.node_ids[0])]
    silent = FakeGrid(our_app, 0)
    node = silent.connect({})  # our ClientApp, on a node without --node-config
    assert pull(open_mailbox(silent, train_config=OURS), 1) == [Joined(node)]
    assert caplog.text == ""


def test_nodes_are_looked_at_less_often_the_longer_nothing_comes():
    assert [pause(seconds, 0.02, 1.0) for seconds in (0.0, 3.0, 99.0)] == pytest.approx(
        [0.02, 0.3, 1.0]
    )


def test_a_node_that_did_not_hear_the_question_is_asked_again(open_mailbox):
    """For example a node that is away but still counts as online after the SuperLink died."""
    grid = FakeGrid(our_app, 1)
    (node,) = grid.node_ids
    grid.held.add(node)
    mailbox = open_mailbox(grid, train_config=OURS)
    assert mailbox.pull(timeout=0.05) == []
    grid.held.discard(node)
    grid.vanish(node)
    grid.node_ids.append(node)
    assert pull(mailbox, 1) == [Joined(0)]
    assert len(grid.received) == 2


def test_a_vanished_node_takes_its_orders_along(one_node):
    grid, node, clock = one_node()
    grid.held.add(node)
    clock.dispatch(order(0, node))
    grid.node_ids.remove(node)
    assert clock.next(math.inf) == Left(node, (order(0, node),))
    clock.mailbox.push(order(1, node))  # the engine had not seen `Left` yet
    grid.node_ids.append(node)
    assert clock.next(math.inf) == Joined(node)
    grid.release(node)  # its reply to order 0 is not used
    clock.dispatch(order(2, node))
    assert clock.next(math.inf).reply.number == 2
    assert clock.next(clock.now + 0.1) is None


def test_a_restarted_node_takes_its_client_over(open_mailbox, caplog):
    grid = FakeGrid(our_app, 1)
    (old,) = grid.node_ids
    mailbox = open_mailbox(grid, train_config=OURS)
    assert pull(mailbox, 1) == [Joined(0)]
    new = grid.connect({"partition-id": 0})
    departure, joined = pull(mailbox, 2)
    assert (departure.client_id, joined) == (0, Joined(0))
    assert f"node {new} takes over client 0 from node {old}: it has res" in caplog.text
    assert departure.reason in caplog.text
    mailbox.push(order(0, 0))
    assert pull(mailbox, 1)[0].number == 0
    assert grid.received[-1].metadata.dst_node_id == new
    grid.vanish(old)
    assert mailbox.pull(timeout=0.1) == []


def test_a_slow_uplink_does_not_block_others(open_mailbox):
    grid = FakeGrid(plus_one, 2)
    slow, fast = grid.node_ids
    grid.uploading[slow] = threading.Event()
    mailbox = open_mailbox(grid)
    pull(mailbox, 2)
    mailbox.push(order(0, slow))
    for number in range(1, 6):
        mailbox.push(order(number, fast))
        assert pull(mailbox, 1)[0].number == number
    grid.uploading[slow].set()
    assert pull(mailbox, 1)[0].number == 0


def test_an_upload_that_is_interrupted_occupies_its_node_no_longer_than_its_message(one_node):
    grid, node, clock = one_node(deadline=0.05)
    grid.uploading[node] = threading.Event()
    clock.dispatch(order(0, node))
    assert clock.next(math.inf) == Expired(order(0, node))
    assert clock.next(math.inf) == Returned(order(0, node))
    assert clock.mailbox.capacity() == 1
    clock.dispatch(replace(order(1, node), sent_at=clock.now))
    grid.uploading[node].set()
    assert clock.next(math.inf).reply.number == 1
    assert clock.next(clock.now + 0.1) is None, "the first reply is of no use to anybody"


def test_errors_become_replies_with_the_reason(open_mailbox, monkeypatch):
    def app(message, context):
        if context.node_config["partition-id"] == 0:
            raise ClientAppException("out of memory")
        return Message(RecordDict(), reply_to=message)

    grid = FakeGrid(app, 3)
    raising, empty, refused = grid.node_ids
    grid.refused.add(refused)
    mailbox = open_mailbox(grid)
    pull(mailbox, 3)
    for number, node in enumerate([raising, empty, refused]):
        mailbox.push(order(number, node))
    replies = {reply.number: reply for reply in pull(mailbox, 3)}
    errors = {number: reply.error for number, reply in replies.items()}
    assert replies[1].traceback == errors[1]
    assert errors[0] == "out of memory"
    assert errors[1] == "malformed reply: reply holds 0 MetricRecords, expected exactly one"
    assert errors[2] == f"node {refused} was not given the order"

    request = httpx.Request("POST", "http://link")
    for number, error in (
        # The run has been stopped: no client has failed.
        (3, httpx.HTTPStatusError("", request=request, response=httpx.Response(401))),
        (4, ConnectionError("refused")),
    ):
        monkeypatch.setattr(grid, "pull_messages", Mock(side_effect=error))
        mailbox.push(order(number, empty))
    assert pull(mailbox, 1) == [Reply(4, error="grid: ConnectionError('refused')")]


def test_an_app_that_cannot_train_ends_a_run_only_before_another_has_trained(open_mailbox):
    def app(message, context):
        if context.node_config["partition-id"] == 0:
            raise ClientAppException("KeyError: 'fitins.parameters'")
        return plus_one(message, context)

    grid = FakeGrid(app, 2)
    mailbox = open_mailbox(grid)
    bad, good = [each.client_id for each in pull(mailbox, 2)]
    mailbox.push(order(0, bad))
    with pytest.raises(RunError, match="client_fn"):
        pull(mailbox, 1)
    replies = []
    for number, node in ((1, good), (2, bad)):
        mailbox.push(order(number, node))
        replies += pull(mailbox, 1)
    assert ["client_fn" in reply.error for reply in replies] == [False, True]


def test_a_node_that_restarts_between_two_looks_has_lost_its_order(one_node):
    """Flower reports the error of an absent node only while it is absent."""
    grid, node, clock = one_node()
    grid.held.add(node)
    clock.dispatch(order(0, node))
    grid.restart(node)
    assert [clock.next(5.0), clock.next(5.0)] == [Left(node, (order(0, node),)), Joined(node)]
    grid.held.clear()
    clock.dispatch(order(1, node))
    assert clock.next(5.0).reply.upload.num_examples == 10


@pytest.mark.usefixtures("patience")
def test_connections_may_be_unknown_only_for_a_while(open_mailbox, monkeypatch):
    """For example while the SuperLink or its proxy restarts."""
    grid = FakeGrid(plus_one, 1)
    errors = [ConnectionError("refused"), RuntimeError("500 Internal Server Error")]

    def nodes():
        if errors:
            raise errors.pop()
        return grid.node_ids

    monkeypatch.setattr(grid, "get_node_ids", nodes)
    mailbox = open_mailbox(grid)
    assert pull(mailbox, 1) == [Joined(grid.node_ids[0])]
    errors += [ConnectionError("refused"), ConnectionError("refused")]
    late = grid.connect()
    assert pull(mailbox, 1) == [Joined(late)]
    errors += [ConnectionError("refused")] * 10_000
    with pytest.raises(RunError, match=r"cannot see which nodes are connected: ConnectionError"):
        mailbox.pull(timeout=5.0)


@pytest.mark.usefixtures("patience")
def test_without_nodes_the_run_ends_with_advice(open_mailbox):
    mailbox = open_mailbox(FakeGrid(plus_one, 0))
    with pytest.raises(RunError, match=r"no node connected within 0\.1 s: start some with"):
        mailbox.pull(timeout=None)
    with pytest.raises(RunError, match=r"no node connected within 0\.1 s: .* num-supernodes"):
        AnyNode(FakeGrid(plus_one, 0), LAYOUT)


@pytest.mark.usefixtures("patience")
def test_waiting_nodes_are_logged(open_mailbox, caplog):
    """For example with a synchronous schedule whose cohort is larger than the federation."""
    grid = FakeGrid(plus_one, 2)
    node, _ = grid.node_ids
    mailbox = open_mailbox(grid)
    pull(mailbox, 2)
    grid.held.add(node)
    mailbox.push(order(0, node))
    assert mailbox.pull(timeout=0.2) == []
    assert mailbox.pull(timeout=0.2) == []
    assert caplog.text.count("no reply came for 0.1 s, and 1 nodes have orders") == 1
    grid.release(node)
    pull(mailbox, 1)
    assert mailbox.pull(timeout=0.2) == []
    assert mailbox.pull(timeout=0.2) == []
    assert caplog.text.count("no order was under way for 0.1 s, and 2 nodes are connected") == 1


def test_a_signal_raised_in_a_thread_is_heeded_during_a_wait_without_end(open_mailbox):
    """Flower ends a ServerApp without SuperLink this way, which does not wake the main thread."""
    grid = FakeGrid(plus_one, 0)
    mailbox = open_mailbox(grid)
    default = signal.signal(signal.SIGUSR1, lambda *_: grid.connect())
    try:
        threading.Timer(0.1, signal.raise_signal, [signal.SIGUSR1]).start()
        assert mailbox.pull(timeout=None) == [Joined(grid.node_ids[0])]
    finally:
        signal.signal(signal.SIGUSR1, default)


def test_close_ends_all_threads(open_mailbox):
    before = set(threading.enumerate())
    grid = FakeGrid(our_app, 2)
    grid.held.add(grid.node_ids[0])
    mailbox = open_mailbox(grid, train_config=OURS)
    pull(mailbox, 1)
    grid.held.add(grid.node_ids[1])
    mailbox.push(order(0, 1))
    threads = set(threading.enumerate()) - before
    assert len(threads) == 3  # they watch, introduce, and await the order
    mailbox.close()
    for thread in threads:
        thread.join(timeout=1.0)
        assert not thread.is_alive()


# -- any node, virtual time -----------------------------------------------------------------------


def test_any_node_serves_any_client_one_order_at_a_time():
    grid = FakeGrid(plus_one, 2)
    mailbox = AnyNode(grid, LAYOUT, train_config={"lr": 0.5})
    assert mailbox.capacity() == 2
    mailbox.push(order(0, client_id=41))
    mailbox.push(order(1, client_id=42))
    assert mailbox.capacity() == 0
    assert {m.metadata.dst_node_id for m in grid.received} == set(grid.node_ids)
    configs = [dict(m.content["config"]) for m in grid.received]
    assert [c["client-id"] for c in configs] == [41, 42]
    assert all(c["any-node"] is True and c["lr"] == 0.5 for c in configs)
    assert {reply.number for reply in mailbox.pull(None)} == {0, 1}
    assert mailbox.capacity() == 2


def test_a_node_that_takes_no_order_is_passed_over():
    grid = FakeGrid(plus_one, 2)
    mailbox = AnyNode(grid, LAYOUT)
    grid.refused.add(grid.node_ids[1])
    mailbox.push(order(0, 0))
    assert grid.received[0].metadata.dst_node_id == grid.node_ids[0]
    grid.refused.add(grid.node_ids[0])
    list(mailbox.pull(None))
    with pytest.raises(RunError, match="no node accepts an order"):
        mailbox.push(order(1, 1))


def test_nodes_that_come_late_are_waited_for_and_used(monkeypatch):
    grid = FakeGrid(plus_one, 0)
    looks = iter([[], []])
    monkeypatch.setattr(grid, "get_node_ids", lambda: next(looks, list(grid.node_ids)))
    node = grid.connect()
    mailbox = AnyNode(grid, LAYOUT)
    assert mailbox.capacity() == 1
    mailbox.push(order(0, 0))
    grid.connect()
    assert mailbox.capacity() == 1, "one new, one at work"
    assert grid.received[0].metadata.dst_node_id == node


def test_a_process_of_the_engine_that_dies_ends_the_run():
    def dead_actor(message, context):
        return Message(Error(0, "the actor is dead\nbecause"), reply_to=message)

    mailbox = AnyNode(FakeGrid(dead_actor, 1), LAYOUT)
    mailbox.push(order(0, 0))
    with pytest.raises(RunError, match=r"died with its order.*: the actor is dead ... because$"):
        mailbox.pull(None)


# -- with an engine -------------------------------------------------------------------------------


def test_a_client_that_fails_repeatedly_rests_and_returns(open_mailbox, caplog):
    """Its second failure is reported as `Left`, so that it gets no order in between."""
    broken = {0}

    def app(message, context):
        if context.node_config["partition-id"] in broken:
            raise RuntimeError("a line\nno data")
        return our_app(message, context)

    grid = FakeGrid(app, 2)
    mailbox = open_mailbox(grid)
    bad, sound = grid.node_ids
    clock = WallClock(mailbox)
    assert {clock.next(math.inf) for _ in range(2)} == {Joined(bad), Joined(sound)}
    reason = "<class 'RuntimeError'>:<'a line\nno data'>"
    failure = {"error": "no data'>", "traceback": reason}  # as Flower reports it
    clock.dispatch(order(0, bad))
    assert clock.next(math.inf).reply == Reply(0, **failure)
    clock.dispatch(order(1, bad))
    assert clock.next(math.inf) == Left(bad, (order(1, bad),), "no data'>", reason)
    assert f"client {bad} gets no order for 0.05 s: no data'>" in caplog.text
    clock.dispatch(order(2, sound))
    assert clock.next(math.inf).reply.upload.num_examples == 11
    assert clock.next(math.inf) == Joined(bad)
    broken.clear()
    for number in (3, 4):
        clock.dispatch(order(number, bad))
        assert clock.next(math.inf).reply.upload.num_examples == 10
    broken.add(0)
    clock.dispatch(order(5, bad))
    assert clock.next(math.inf).reply == Reply(5, **failure)


def measures(message, context):
    """As `plus_one`, but also evaluates: the loss is the round. Partition 0 has no examples."""
    if message.metadata.message_type == "evaluate":
        if context.node_config["partition-id"] == 0:
            return Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)
        numbers = {"num-examples": 7, "loss": float(message.content["config"]["server-round"])}
        return Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)
    return plus_one(message, context)


def test_evaluate_orders_have_their_own_config_and_failures_cause_no_rest(open_mailbox):
    grid = FakeGrid(measures, 2)
    mailbox = open_mailbox(grid, train_config={"lr": 0.5}, evaluate_config={"chunk": 2})
    pull(mailbox, 2)
    bad, sound = grid.node_ids
    mailbox.push(replace(order(0, sound, version=3), evaluates=True))
    assert pull(mailbox, 1) == [Reply(0, scores=Scores({"loss": 3.0}, 7))]
    (message,) = grid.received
    assert message.metadata.message_type == "evaluate"
    assert message.content["config"]["chunk"] == 2
    assert "lr" not in message.content["config"]
    for number in (1, 2, 3):
        mailbox.push(replace(order(number, bad), evaluates=True))
        (reply,) = pull(mailbox, 1)
        assert (
            reply.error == "malformed reply: metrics hold no num-examples, expected a whole number"
        )
    mailbox.push(order(4, bad))
    assert pull(mailbox, 1)[0].upload.num_examples == 10


def test_an_error_in_a_nodes_code_is_logged_once_with_its_place(open_mailbox, caplog):
    """Also if the node rests. Its cause stays on the node, because it may reveal data."""

    def app(message, context):
        try:
            if context.node_config["partition-id"] == 0:
                raise KeyError("age") from ValueError("private")
        except KeyError as error:
            return codec.pack_error(message, error)
        return plus_one(message, context)

    recorder = Recorder()
    outcome = Engine(
        strategy=MeanDelta(),
        schedule=Buffered(concurrency=3, buffer_size=2),
        clock=WallClock(open_mailbox(FakeGrid(app, 4)), deadline=30.0),
        initial=VECTOR,
        stop=Stop(num_versions=10),
        sinks=[recorder],
    ).run()
    assert (outcome.stopped, outcome.version) == ("num_versions", 10)
    failures = [event for event in recorder.events if event["kind"] == "failure"]
    assert len(failures) > 1
    assert {(event["reason"], event["raised"]) for event in failures} == {("KeyError: 'age'", True)}
    (log,) = (r.getMessage() for r in caplog.records if "Traceback" in r.getMessage())
    assert f'File "{__file__}"' in log
    assert "ValueError: private" not in log


# -- through Flower's own object store -------------------------------------------------------------


def order_with_model(number, client_id, model):
    return replace(order(number, client_id), vector=model)


def answer(message):
    return our_app(message, SimpleNamespace(node_config={}))


@pytest.mark.parametrize(
    "count", [3, pytest.param(2001, marks=[pytest.mark.slow, pytest.mark.timeout(300)])]
)
def test_three_nodes_lose_no_order_if_a_known_model_is_sent_again(count, monkeypatch):
    """All start from the same version, and a second thread uploads parts of it late."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)  # with one CPU, a grid sends parts one by one
    link = SuperLink(3)
    mailbox = GridMailbox(link.grid, LAYOUT)
    clients = [event.client_id for event in mailbox.pull(5.0)]
    push_messages, push_object = link.client.PushMessages, link.client.PushObject
    registered, received = threading.Barrier(3), threading.Event()
    parts = set()

    def register(request):
        response = push_messages(request)
        registered.wait(10.0)  # so all three bring the model
        return response

    def push_part(request):
        if request.object_content.startswith(b"ArrayChunk"):  # a grid sends two parts at a time
            if request.object_id in parts:
                assert received.wait(10.0)
            parts.add(request.object_id)
        return push_object(request)

    link.client.PushMessages, link.client.PushObject = register, push_part
    errors = []
    for version in range(count // 3):
        received.clear()
        parts.clear()
        model = np.full(2, version, np.float32)
        for client_id in clients:
            mailbox.push(order_with_model(len(errors) + clients.index(client_id), client_id, model))
        for connection in link.connections:
            while not serve(connection, answer):
                pass
        received.set()
        errors += [next(iter(mailbox.pull(5.0))).error for _ in clients]
    mailbox.close()
    assert errors == [""] * count


@pytest.mark.parametrize("step", range(1, 6))
def test_a_model_that_goes_while_the_next_message_is_registered(step):
    """The store releases its lock after every part of a message."""
    link = SuperLink(2)
    mailbox = AnyNode(link.grid, LAYOUT)
    mailbox.push(order(0, 0))
    confirmations = []
    for connection in link.connections:
        if serve((*connection[:-1], lambda *message: confirmations.append(message)), answer):
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
                confirm(*confirmations[0])

    link.store.lock_store = Lock()
    mailbox.push(order(1, 1))
    assert sum(serve(connection, answer) for connection in link.connections) == 1
    replies = [reply for _ in range(2) for reply in mailbox.pull(0.0)]
    assert [reply.error for reply in replies] == ["", ""]
