"""Worker processes that inherit nothing, each with a device of its own."""

import multiprocessing
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from helpers import vec
from spawned import Equips

from fl_app.core.errors import RunError
from fl_app.core.types import Order, Reply
from fl_app.engine.workers import Workers


def order(number: int, client_id: int = 0) -> Order:
    return Order(number, client_id, 0, 0, vec(1, 2), {}, 0.0)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    yield
    assert multiprocessing.active_children() == []


def test_three_workers_on_two_devices_and_a_killed_one_is_replaced_on_its_own() -> None:
    with closing(Workers(Equips(), 3, 2, devices=["7", "8"])) as mailbox:
        for number in range(6):
            mailbox.push(order(number))
        replies: list[Reply] = []
        while len(replies) < 6:
            replies += mailbox.pull(None)
        uploads = [reply.upload for reply in replies if reply.upload]
        assert [upload.vector.tolist() for upload in uploads] == [[2, 4]] * 6
        places = {upload.metrics["process"]: upload.metrics["device"] for upload in uploads}
        assert sorted(places.values()) == [7, 7, 8]
        mailbox.push(order(6, client_id=9))
        assert [*mailbox.pull(None)] == [Reply(6, error="worker process died (exit code -9)")]
        for number in range(7, 13):
            mailbox.push(replace(order(number), evaluates=number == 12))
        replies = []
        while len(replies) < 6:
            replies += mailbox.pull(None)
        devices = [r.upload.metrics["device"] for r in replies if r.upload]
        assert set(devices) == {7, 8}
        assert [r.scores.metrics for r in replies if r.scores] == [{"loss": 3.0}]


def test_a_device_that_does_not_work_ends_the_run_with_its_reason() -> None:
    with closing(Workers(Equips(broken=["8"]), 1, 2, devices=["8"])) as mailbox:
        mailbox.push(order(0))
        with pytest.raises(RunError, match=r"^a worker process cannot train: OSError: no GPU 8$"):
            mailbox.pull(None)


def test_what_cannot_be_pickled_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"cannot be pickled \(.*define classes and functions in"):
        Workers(lambda device: Equips()(device), 1, 2, devices=["1"])
