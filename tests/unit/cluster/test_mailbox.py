"""Orders for the workers of a cluster: whatever is lost, the replies are the same."""

import random
from typing import Any

import numpy as np
import pytest
from fake_cluster import NEVER, FakeCluster, FakeWorker, mailbox_over
from helpers import MeanDelta, Recorder, Scripted, Times, toward_own_number, vec

from fl_app.cluster import crew as crew_module
from fl_app.cluster.machines import Lost
from fl_app.cluster.mailbox import CALLS, MOST_DEATHS, MOST_ORDERS, ClusterMailbox
from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply, Vector
from fl_app.engine.clock import Mailbox
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered

TRAINER = Scripted(toward_own_number)


def order(number: int, vector: Vector | None = None) -> Order:
    return Order(number, number, 0, 0, vec(1, 2) if vector is None else vector, {}, 0.0)


def collect(mailbox: ClusterMailbox, count: int) -> dict[int, Reply]:
    replies: dict[int, Reply] = {}
    while len(replies) < count:
        replies.update((reply.number, reply) for reply in mailbox.pull(None))
    return replies


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are replaced at once."""
    monkeypatch.setattr(crew_module, "PAUSE", 0.0)


# -- orders and replies ---------------------------------------------------------------------------


def test_replies_are_those_of_training_in_this_process() -> None:
    mailbox = mailbox_over(FakeCluster(TRAINER))
    inline = Inline(TRAINER)
    for number in range(6):
        mailbox.push(order(number))
    replies = collect(mailbox, 6)
    for number in range(6):
        inline.push(order(number))
        (expected,) = inline.pull(None)
        found = replies[number].upload
        assert found is not None
        assert expected.upload is not None
        assert found.vector.tolist() == expected.upload.vector.tolist()
        assert not found.vector.flags.writeable
    assert list(mailbox.pull(None)) == []  # nothing is under way, so there is nothing to wait for


def test_calls_grow_while_orders_are_short_and_are_spread() -> None:
    cluster = FakeCluster(TRAINER)
    mailbox = mailbox_over(cluster)
    assert mailbox.capacity() == 2 * CALLS
    mailbox.push(order(0))
    collect(mailbox, 1)
    assert mailbox.capacity() == 2 * CALLS * MOST_ORDERS
    cluster.work.clear()
    for number in range(1, 9):
        mailbox.push(order(number))
    collect(mailbox, 8)
    assert [len(parcels) for _, parcels in cluster.work] == [2, 2, 2, 2]
    assert len({worker for worker, _ in cluster.work}) == 2
    first = [parcel.order.number for parcel in cluster.work[0][1]]
    assert first == [1, 2]  # those that are due first


def test_a_version_is_put_once_and_freed() -> None:
    cluster = FakeCluster(TRAINER)
    mailbox = mailbox_over(cluster)
    version = mailbox.share(np.array([3, 4], np.float32))
    for number in range(10):
        mailbox.push(order(number, version))
    collect(mailbox, 10)
    assert [put.value.tolist() for put in cluster.puts] == [[3, 4]]
    assert mailbox._versions.num_bytes == version.nbytes
    del version
    assert mailbox._versions.num_bytes == 0


def test_orders_that_share_a_small_version_take_it_along_once() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1})
    cluster.inline_bytes = 8
    mailbox = mailbox_over(cluster)
    version = mailbox.share(np.array([3, 4], np.float32))
    mailbox.push(order(0, version))
    collect(mailbox, 1)
    for number in range(1, 5):
        mailbox.push(order(number, version))
    replies = collect(mailbox, 4)
    assert not any(reply.error for reply in replies.values())
    assert cluster.puts == []
    assert [[parcel.place for parcel in parcels] for _, parcels in cluster.work[1:]] == [
        [0] * 2
    ] * 2


def test_a_bug_in_a_worker_ends_the_run() -> None:
    cluster = FakeCluster(
        TRAINER, fate=lambda worker, method, n: KeyError("x") if method == "work" else None
    )
    mailbox = mailbox_over(cluster)
    mailbox.push(order(0))
    with pytest.raises(RunError, match="a worker of the cluster failed: 'x'"):
        collect(mailbox, 1)


# -- losses ---------------------------------------------------------------------------------------


def test_orders_of_a_lost_worker_go_to_others() -> None:
    died: list[FakeWorker] = []

    def dies_once(worker: FakeWorker, method: str, number: int) -> Any:
        if method == "work" and not died:
            died.append(worker)
            return Lost("killed by the kernel")
        return None

    cluster = FakeCluster(TRAINER, fate=dies_once)
    mailbox = mailbox_over(cluster)
    for number in range(4):
        mailbox.push(order(number))
    replies = collect(mailbox, 4)
    assert not any(reply.error for reply in replies.values())
    assert died[0].dead
    mailbox.pull(0.0)
    assert len([worker for worker in cluster.workers if not worker.dead]) == 2  # it was replaced


def test_an_order_that_kills_its_workers_fails_alone() -> None:
    def poisonous(worker: FakeWorker, method: str, number: int) -> Any:
        if method != "work":
            return None
        numbers = [parcel.order.number for parcel in arguments[0]]
        return Lost("exit code 139") if 3 in numbers else None

    cluster = FakeCluster(TRAINER)
    arguments: list[Any] = []
    call = cluster.call

    def spied(worker: FakeWorker, method: str, *args: Any, then: Any) -> None:
        arguments[:] = args
        call(worker, method, *args, then=then)

    cluster.call = spied  # type: ignore[method-assign]
    mailbox = mailbox_over(cluster)
    mailbox.push(order(100))
    collect(mailbox, 1)  # now calls have several orders
    cluster.fate = poisonous
    for number in range(12):
        mailbox.push(order(number))
    replies = collect(mailbox, 12)
    failed = {number: reply.error for number, reply in replies.items() if reply.error}
    assert failed == {3: f"{MOST_DEATHS} workers died with this order, the last one: exit code 139"}


def test_a_machine_that_is_gone_takes_nothing_along() -> None:
    """Also if its workers never say another word."""
    cluster = FakeCluster(TRAINER, {"a": 1, "b": 1})
    mailbox = mailbox_over(cluster)
    cluster.fate = lambda worker, method, n: NEVER if worker.machine == "b" else None
    for number in range(4):
        mailbox.push(order(number))
    assert len(collect(mailbox, 2)) == 2
    del cluster.rooms["b"]
    mailbox._crew._next_look = 0.0  # a second has passed
    assert len(collect(mailbox, 2)) == 2


def test_a_worker_that_hangs_is_replaced_and_its_order_fails() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1})
    mailbox = mailbox_over(cluster, patience=0.05)
    cluster.fate = lambda worker, method, n: (
        NEVER if method == "work" and worker is cluster.workers[0] else None
    )
    mailbox.push(order(0))
    mailbox.push(order(1))
    replies = collect(mailbox, 2)
    assert replies[0].error == "no result after 0.05 s of real time: worker replaced"
    assert not replies[1].error


def test_a_late_word_of_a_lost_worker_does_not_count() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1, "b": 1})
    mailbox = mailbox_over(cluster)
    late: list[Any] = []
    call = cluster.call

    def delayed(worker: FakeWorker, method: str, *args: Any, then: Any) -> None:
        if worker.machine == "b" and method == "work":
            late.append(lambda: call(worker, method, *args, then=then))
        else:
            call(worker, method, *args, then=then)

    cluster.call = delayed  # type: ignore[method-assign]
    mailbox.push(order(0))
    mailbox.push(order(1))
    collect(mailbox, 1)
    del cluster.rooms["b"]
    mailbox._crew._next_look = 0.0
    collect(mailbox, 1)
    cluster.workers[1].dead = False
    late[0]()
    assert list(mailbox.pull(0.0)) == []


def test_a_run_with_losses_is_the_run_without() -> None:
    """Workers die at random, machines come and go; every event and every byte is the same."""
    rng = random.Random(1)
    cluster = FakeCluster(TRAINER, {"a": 2, "b": 2})

    def fate(worker: FakeWorker, method: str, number: int) -> Any:
        if method == "work" and rng.random() < 0.1:
            return Lost("killed", alone=rng.random() < 0.3)
        if rng.random() < 0.05:
            cluster.rooms = {"a": 2, "c": 1} if "b" in cluster.rooms else {"a": 2, "b": 2}
            mailbox._crew._next_look = 0.0
        return None

    def events_of(mailbox: Mailbox) -> tuple[list[Any], bytes]:
        recorder = Recorder()
        engine = Engine(
            strategy=MeanDelta(),
            schedule=Buffered(concurrency=8, buffer_size=3),
            clock=VirtualClock(mailbox, Times(lambda c, n: 1 + (7 * c + n) % 5), 20),
            initial=vec(0, 0),
            stop=Stop(num_versions=60),
            sinks=[recorder],
        )
        return recorder.events, engine.run().params.tobytes()

    mailbox = mailbox_over(cluster)
    cluster.fate = fate
    assert events_of(mailbox) == events_of(Inline(TRAINER))
    assert sum(worker.dead for worker in cluster.workers) > 10
    assert cluster.closed


# -- the crew -------------------------------------------------------------------------------------


def test_workers_are_spread_and_come_up_on_machines_that_join() -> None:
    cluster = FakeCluster(TRAINER, {"a": 3, "b": 1})
    mailbox = mailbox_over(cluster, 2)
    assert sorted(worker.machine for worker in cluster.workers) == ["a", "b"]
    cluster.rooms["c"] = 5
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    assert len(cluster.workers) == 2  # as many as were asked for
    mailbox = mailbox_over(cluster)
    assert len(cluster.workers) == 2 + 9
    cluster.rooms["d"] = 2
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    assert len(cluster.workers) == 2 + 9 + 2


def test_runs_side_by_side_share_the_room_also_of_machines_that_join() -> None:
    cluster = FakeCluster(TRAINER, {"a": 3, "b": 2})
    mailbox = mailbox_over(cluster, shares=2)
    assert len(cluster.workers) == 2
    cluster.rooms["c"] = 3
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    assert sorted(worker.machine for worker in cluster.workers) == ["a", "a", "b", "c"]
    alone = FakeCluster(TRAINER, {"a": 1})
    mailbox_over(alone, shares=2)
    assert len(alone.workers) == 1  # nobody trains with less


def test_a_worker_comes_up_elsewhere_if_others_hold_the_processors_of_a_machine() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1, "b": 1})
    cluster.busy["a"] = "b"
    mailbox = mailbox_over(cluster, 1)
    assert [member.machine for member in mailbox._crew.members] == ["b"]
    del cluster.rooms["a"]  # where no worker of this run is
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    assert len(cluster.workers) == 1


def test_no_worker_comes_up_by_chance_on_a_machine_that_was_left_out() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1})
    mailbox = mailbox_over(cluster)
    cluster.told["b"] = {"versions": {}}
    cluster.rooms["b"] = 1
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    cluster.rooms["c"] = 1
    cluster.busy["c"] = "b"
    mailbox._crew._next_look = 0.0
    mailbox.pull(0.0)
    assert [worker.machine for worker in cluster.workers] == ["a", "b", "c"]


@pytest.mark.parametrize("name", ["Python", "torch", "fl_app's code"])
def test_other_versions_are_refused_and_named(name: str) -> None:
    here = crew_module.facts().versions
    cluster = FakeCluster(TRAINER, {"a": 1, "b": 1})
    cluster.told["b"] = {"versions": {**here, name: "0.1"}}
    with pytest.raises(RunError, match=rf"^b has {name} 0\.1 instead of {here[name]}: .* install"):
        mailbox_over(cluster)
    assert cluster.closed
    assert all(worker.dead for worker in cluster.workers)


def test_a_machine_of_other_versions_that_joins_later_is_left_out() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1})
    mailbox = mailbox_over(cluster)
    cluster.told["b"] = {"versions": {}}
    cluster.rooms["b"] = 4
    for _ in range(3):
        mailbox._crew._next_look = 0.0
        mailbox.pull(0.0)
    assert [worker.machine for worker in cluster.workers if not worker.dead] == ["a"]
    assert len(cluster.workers) <= 1 + 4  # and is not tried again


def test_another_processor_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = FakeCluster(TRAINER, {"a": 2})
    cluster.told["a"] = {"processor": "Abacus 3000"}
    mailbox_over(cluster)
    told = [line for line in caplog.messages if "Abacus 3000" in line]
    assert len(told) == 1
    assert "last bits" in told[0]


def test_a_worker_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"cpus_per_worker .* no worker can be placed \(a has 0"):
        mailbox_over(FakeCluster(TRAINER, {"a": 0}))
    with pytest.raises(ValueError, match="no machine is there"):
        mailbox_over(FakeCluster(TRAINER, {}))


def test_workers_without_a_place_are_an_error_in_time() -> None:
    cluster = FakeCluster(TRAINER, fate=lambda worker, method, n: NEVER)
    with pytest.raises(RunError, match=r"no worker got a place within 0\.05 s .*`ray status`"):
        mailbox_over(cluster, start_seconds=0.05)
    assert cluster.closed


def test_workers_that_die_at_the_start_are_an_error() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1}, lambda worker, method, n: Lost("out of memory"))
    with pytest.raises(RunError, match=r"no worker stays alive \(3 workers .*: out of memory\)"):
        mailbox_over(cluster)


def test_a_machine_without_memory_does_not_keep_others_from_training() -> None:
    cluster = FakeCluster(
        TRAINER,
        {"a": 1, "b": 1},
        lambda worker, method, n: Lost("out of memory") if worker.machine == "b" else None,
    )
    mailbox = mailbox_over(cluster)
    mailbox.push(order(0))
    assert not collect(mailbox, 1)[0].error


def test_no_worker_for_too_long_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crew_module, "NO_WORKER_SECONDS", 0.05)
    cluster = FakeCluster(TRAINER, {"a": 1})
    mailbox = mailbox_over(cluster)
    cluster.rooms.clear()
    mailbox._crew._next_look = 0.0
    monkeypatch.setattr(crew_module, "REFRESH", 0.01)
    mailbox.push(order(0))
    with pytest.raises(RunError, match=r"no worker was there for .*its machine is gone.*resume"):
        collect(mailbox, 1)


# -- data -----------------------------------------------------------------------------------------


def test_data_are_put_once_for_machines_that_lack_them() -> None:
    cluster = FakeCluster(TRAINER, {"a": 1, "b": 2})
    cluster.without_data.add("b")
    mailbox_over(cluster)
    assert len(cluster.puts) == 1
    assert sorted(cluster.prepared) == [("a", False), *[("b", False)] * 2, *[("b", True)] * 2]


def test_data_that_do_not_fit_into_a_store_are_refused() -> None:
    class Small(FakeCluster):
        def machines(self) -> Any:
            return {
                k: m.__class__(m.name, m.room, 10, m.has) for k, m in super().machines().items()
            }

    cluster = Small(TRAINER)
    cluster.without_data.add("a")
    with pytest.raises(RunError, match=r"a has an object store of 0 MB, .* --object-store-memory"):
        mailbox_over(cluster)
