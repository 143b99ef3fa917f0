"""Training in this process and in worker processes, also with clients that misbehave."""

import gc
import multiprocessing
import os
import signal
import threading
import weakref
from contextlib import closing
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import MeanDelta, Scripted, run, toward_own_number, vec

from fl_app.core.events import Aggregated
from fl_app.core.types import Order, Reply, Upload
from fl_app.engine.arena import SLOTS_PER_SEGMENT, Arena
from fl_app.engine.guard import Guard
from fl_app.engine.workers import ORDERS_PER_WORKER, Inline, Workers, computing
from fl_app.schedule import Buffered

SCHEDULE = Buffered(concurrency=5, buffer_size=3)


def order(number, client_id=0, vector=None):
    return Order(number, client_id, number, 0, vec(1, 2) if vector is None else vector, {}, 0.0)


@pytest.fixture
def start():
    mailboxes = []

    def start_some(script, num_workers=2, **more):
        mailboxes.append(Workers(Scripted(script), num_workers, 2, **more))
        return mailboxes[-1]

    yield start_some
    for workers in mailboxes:
        workers.close()


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    assert multiprocessing.active_children() == []


def collect(mailbox, count):
    replies = {}
    while len(replies) < count:
        replies.update((reply.number, reply) for reply in mailbox.pull(None))
    return replies


# -- the mailbox ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [0, 1])
def test_results_outlive_later_work(num_workers):
    """More results than fit into one segment of shared memory."""

    class Writer:
        def train(self, order):
            vector = np.full_like(order.vector, order.sequence)
            total = order.extra["shift"] + order.vector
            return Upload(vector, "delta", 1, 0.0, extra={"seen": total})

    mailbox = Workers(Writer(), 1, 3, vectors=2) if num_workers else Inline(Writer())
    results = []
    with closing(mailbox):
        for number in range(SLOTS_PER_SEGMENT + 6):
            extra = {"shift": vec(number, 7, 7)}
            mailbox.push(replace(order(number, vector=vec(1, 2, 3)), extra=extra))
            (reply,) = mailbox.pull(None)
            results.append((reply.upload.vector, reply.upload.extra["seen"]))
    for number, (vector, total) in enumerate(results):
        assert (vector.tolist(), total.tolist()) == ([number] * 3, [number + 1, 9, 10])
        assert not num_workers or vector.ctypes.data % 64 == total.ctypes.data % 64 == 0


def test_a_trainer_with_another_batch_attribute_gets_one_order_at_a_time():
    class Own:
        def batch(self): ...

    with closing(Workers(Own(), 1, 2)) as workers:
        assert Inline(Own()).batch == workers.batch == 1


def test_states_larger_than_a_pipe_travel_both_ways_at_once(start):
    """The next order is sent while the answer to the previous one is sent."""
    state = {"kept": np.zeros(1_000_000, np.float32)}

    def keep(client_id, sequence, received):
        return Upload(received, "delta", 1, 0.0, state=state)

    mailbox = start(keep, 1)
    for number in range(ORDERS_PER_WORKER):
        mailbox.push(replace(order(number), state=state))
    for number in range(ORDERS_PER_WORKER, 20):
        [reply] = mailbox.pull(None)
        assert reply.upload.state["kept"].size == 1_000_000
        mailbox.push(replace(order(number), state=state))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_client_cannot_write_to_the_servers_model(num_workers):
    def vandal(client_id, sequence, received):
        received[:] = 99
        return Upload(received, "model", 1, 0.0)

    mailbox = Workers(Scripted(vandal), 1, 2) if num_workers else Inline(Scripted(vandal))
    model = mailbox.share(np.array([1, 2], np.float32))
    mailbox.push(order(0, vector=model))
    (reply,) = mailbox.pull(None)
    mailbox.close()
    assert reply.error == "ValueError: assignment destination is read-only"
    assert model.tolist() == [1, 2]


def test_closing_ends_all_at_once_also_workers_that_hang():
    mailbox = Workers(Scripted(lambda *_: threading.Event().wait()), 2, 2)
    for number in range(3):
        mailbox.push(order(number))
    mailbox.close()
    assert multiprocessing.active_children() == []


def _parent(pipe):
    Workers(Scripted(toward_own_number), 2, 2)
    pipe.send(True)
    threading.Event().wait()


def test_workers_do_not_outlive_a_parent_that_was_killed():
    """The parent and its workers hold one end of a pipe, which ends with the last of them."""
    ours, theirs = multiprocessing.Pipe()
    parent = multiprocessing.get_context("fork").Process(target=_parent, args=(theirs,))
    parent.start()
    theirs.close()
    assert ours.recv()
    parent.kill()
    parent.join()
    assert ours.poll(20)
    with pytest.raises(EOFError):
        ours.recv()


# -- clients that misbehave -----------------------------------------------------------------------


def good(client_id, sequence, received):
    """An upload with an extra vector."""
    upload = toward_own_number(client_id, sequence, received)
    return replace(upload, extra={"own": np.full_like(received, client_id)})


GOOD = good(1, 0, vec(0, 0))


def bad(changes, *_):
    return replace(GOOD, **changes)


class EveryKind(MeanDelta):
    """Also uses the updates as gradients."""

    upload_extra = ("own",)

    def aggregate(self, model, updates):
        params = super().aggregate(model, updates)
        return params + sum(np.float32(0) * model.gradient(update) for update in updates)


def full_disk(client_id, sequence, received):
    raise OSError(f"disk of client {client_id} is full")


OF_NUMBERS = "and a checkpoint holds arrays of numbers"
NO_UPLOAD = "the client returned NoneType, expected Upload"
NO_EXTRA = "the upload's extra is a NoneType instead of a mapping"
REFUSED = [
    ({"vector": vec(0, np.nan)}, "payload has non-finite entries"),
    ({"vector": vec(1, 2, 3)}, "payload has shape (3,), expected (2,)"),
    ({"vector": np.zeros(2)}, "payload is float64, expected float32"),
    ({"vector": vec(1e30, 1e30)}, "norm=inf is above guard.max_norm=1e+06"),
    ({"num_examples": 10**9}, "num_examples=1000000000 is above guard.max_examples=1000"),
    ({"base_version": 0}, "base_version=0 is one that no order under way cites"),
    ({"kind": "weights"}, "kind 'weights' is none of gradient, pseudo, delta, model"),
    ({"num_examples": 0}, "num_examples=0 must be at least 1"),
    ({"kind": "model", "rate_sum": 1e-40}, "rate_sum=1e-40 must be between 1e-18 and 1e+18"),
    (
        {"vector": vec(1, -1e30), "rate_sum": 1e-10},
        "payload overflows as a gradient or a displacement: rate_sum=1e-10",
    ),
    ({"state": {"n": 3}}, f"state 'n' is of int, {OF_NUMBERS}"),
    ({"state": {"n": np.array([None])}}, f"state 'n' is of object, {OF_NUMBERS}"),
    ({"loss": None}, "loss=None must be a number"),
    ({"extra": {}}, "extra vectors are none, expected own"),
    ({"extra": {"own": vec(1)}}, "extra vector 'own': payload has shape (1,), expected (2,)"),
    ({"extra": {"own": [1, 1]}}, "extra vector 'own': payload is list, expected float32"),
    ({"extra": {"own": vec(0, np.nan)}}, "extra vector 'own' has non-finite entries"),
]


@pytest.mark.parametrize(
    ("misbehave", "kind", "reason"),
    [
        (full_disk, "failure", "OSError: disk of client 3 is full"),
        (lambda *_: None, "failure", NO_UPLOAD),
        (lambda *_: replace(GOOD, extra=None), "failure", NO_EXTRA),
        *((partial(bad, changes), "reject", reason) for changes, reason in REFUSED),
    ],
)
def test_a_client_that_misbehaves_is_an_event_and_the_run_goes_on(misbehave, kind, reason):
    """Client 3 misbehaves from its second order on."""

    def script(client_id, sequence, received):
        function = misbehave if client_id == 3 and sequence else good
        return function(client_id, sequence, received)

    inline, workers = (
        run(
            SCHEDULE,
            Scripted(script),
            workers=count,
            strategy=EveryKind(),
            guard=Guard(max_norm=1e6, max_examples=1000),
            num_versions=30,
        )
        for count in (0, 2)
    )
    assert inline.events == workers.events
    assert inline.final == workers.final
    assert inline.outcome.version == 30
    assert np.abs(inline.outcome.params).max() < 10
    incidents = inline.kind("failure", "reject")
    assert len(incidents) >= 2
    assert {(e["kind"], e["client"], e["reason"]) for e in incidents} == {(kind, 3, reason)}
    clients = [client for event in inline.kind("aggregate") for client in event["client"]]
    assert clients.count(3) == 1
    # Its place is refilled at once, and it is given orders again.
    for incident in incidents:
        after = inline.events[inline.events.index(incident) + 1]
        assert (after["kind"], after["t"]) == ("dispatch", incident["t"])


def test_an_idle_worker_that_died_costs_no_order(start):
    mailbox = start(lambda *_: GOOD, num_workers=1)
    (worker,) = multiprocessing.active_children()
    worker.kill()
    worker.join()
    assert list(mailbox.pull(0.0)) == []  # detects it, and starts another worker
    mailbox.push(order(0))
    (reply,) = mailbox.pull(None)
    assert reply.error == ""


def test_no_worker_is_forked_while_another_thread_computes(start):
    workers = start(toward_own_number, num_workers=1)
    (process,) = multiprocessing.active_children()
    process.kill()
    process.join()
    with computing:
        workers.push(order(0))
        thread = threading.Thread(target=collect, args=(workers, 1), daemon=True)
        thread.start()
        thread.join(0.3)
        assert thread.is_alive()
    thread.join(10)
    assert not thread.is_alive()


def replies_of_clients_3_and_4(mailbox):
    mailbox.push(order(0, client_id=3))
    mailbox.push(order(1, client_id=4))
    return collect(mailbox, 2)


def test_orders_behind_the_one_that_killed_its_worker_are_given_again(start):
    def script(client_id, sequence, received):
        if client_id == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(GOOD, loss=float(client_id))

    replies = replies_of_clients_3_and_4(start(script, num_workers=1))
    assert replies[0] == Reply(0, error="worker process died (exit code -9)")
    assert replies[1].upload.loss == 4.0


def test_a_worker_that_was_asked_to_end_fails_no_order(start):
    """For example by a SIGTERM to the process group, whose parent ends after a checkpoint."""
    event = multiprocessing.get_context("fork").Event()

    def script(client_id, sequence, received):
        if not event.is_set():
            event.set()
            os.kill(os.getpid(), signal.SIGTERM)
            threading.Event().wait()
        return replace(GOOD, loss=float(client_id))

    replies = replies_of_clients_3_and_4(start(script, num_workers=1))
    assert {reply.error for reply in replies.values()} == {""}
    assert {n: reply.upload and reply.upload.loss for n, reply in replies.items()} == {0: 3, 1: 4}


# -- Ctrl-C ---------------------------------------------------------------------------------------


def test_workers_ignore_ctrl_c_of_a_terminal():
    class Terminal:
        def emit(self, event):
            if isinstance(event, Aggregated):
                for worker in multiprocessing.active_children():
                    os.kill(worker.pid or 0, signal.SIGINT)

        def close(self): ...

    result = run(SCHEDULE, workers=2, sinks=[Terminal()])
    assert (result.outcome.version, result.history.failures) == (20, 0)


@pytest.mark.parametrize("part", [slice(None), slice(2, 3), slice(None, None, 2)])
def test_a_view_keeps_its_slot(part):
    arena = Arena(4)
    slot, vector = arena.new()
    vector[:] = [1, 2, 3, 4]
    view = vector[part]
    expected = view.tolist()
    del vector
    others = [arena.new() for _ in range(3)]
    for _, other in others:
        other[:] = -1
    assert view.tolist() == expected
    del view
    assert arena.new()[0] == slot


def test_an_unused_arena_frees_its_memory():
    """The last vector keeps it alive; then its file is closed, because there may be many runs."""
    arena = Arena(3)
    _, vector = arena.new()
    vector[:] = 5
    reference = weakref.ref(arena)
    gc.collect()
    files = len(os.listdir("/proc/self/fd"))
    del arena
    assert vector.tolist() == [5, 5, 5]
    del vector
    gc.collect()
    assert reference() is None
    # One for the file, one for each mapping's own duplicate of it.
    assert len(os.listdir("/proc/self/fd")) == files - 2
