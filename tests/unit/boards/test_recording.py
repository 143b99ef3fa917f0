"""Orders of a run, carried out again, give the uploads that they gave; differences are found."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from boards import replay
from boards.recording import Recording, as_runs, difference, record, relative
from fl_app.core.types import Order, Upload

RUN = ("algorithm=scaffold", "task=digits", "num_clients=3", "num_versions=2", "eval_every=10")


@pytest.fixture(scope="module")
def recording() -> Recording:
    return record(RUN)


def test_orders_carried_out_again_give_the_same_uploads(recording: Recording, tmp_path: Path):
    assert len(recording.orders) == len(recording.uploads) >= 6
    assert any(order.state for order in recording.orders)
    replay.save(tmp_path / "orders.safetensors", as_runs({"it": recording}))
    run = replay.load(tmp_path / "orders.safetensors")["it"]
    uploads = replay.replay(run["config"], run["orders"])
    replay.save(tmp_path / "uploads.safetensors", {"it": uploads})
    again = replay.load(tmp_path / "uploads.safetensors")["it"]
    assert difference(recording.uploads, again, recording.orders) == 0.0


def test_another_learning_rate_is_a_difference(recording: Recording):
    uploads = replay.replay(
        recording.config, recording.orders, ["algorithm.client.local_lr=0.0501"]
    )
    assert difference(recording.uploads, uploads, recording.orders) > 1e-3


def test_what_may_not_depend_on_a_processor(recording: Recording):
    first = recording.uploads[0]
    more = [replace(first, num_examples=first.num_examples + 1), *recording.uploads[1:]]
    with pytest.raises(ValueError, match=r"num_examples of order \d+ is"):
        difference(recording.uploads, more, recording.orders)
    with pytest.raises(ValueError, match="uploads for"):
        difference(recording.uploads, more[1:], recording.orders)
    stateless = [replace(first, state={}), *recording.uploads[1:]]
    with pytest.raises(ValueError, match=r"state of order \d+"):
        difference(recording.uploads, stateless, recording.orders)


def test_a_model_counts_as_its_displacement():
    received = np.full(4, 100, np.float32)
    order = Order(0, 0, 0, 0, received, {}, 0.0)
    upload = Upload(received + 1, "model", 10, 0.5)
    other = replace(upload, vector=received + np.float32(1.5))
    assert difference([upload], [other], [order]) == pytest.approx(0.5)


def test_relative_difference():
    ones = np.ones(3, np.float32)
    assert relative(ones, ones) == 0.0
    assert relative(2 * ones, ones) == pytest.approx(0.5)
    assert relative(0 * ones, ones) == 1.0
    with pytest.raises(ValueError, match="not finite"):
        relative(ones, np.float32([1, 1, np.nan]))
    with pytest.raises(ValueError, match="shape"):
        relative(ones, ones[:2])


def test_an_order_that_continues_without_a_fresh_model():
    order = Order(0, 0, 0, 0, np.empty(0, np.float32), {"continues": True}, 0.0)
    upload = Upload(np.ones(4, np.float32), "model", 10, 0.5)
    assert difference([upload], [upload], [order]) == 0.0
    assert difference([upload], [replace(upload, vector=2 * upload.vector)], [order]) == 1.0
