"""Smaller uploads, by hand: what travels, what stays for the next time, and how many bytes.

Six trainable entries and a buffer; k = 2 of them (a third).

    u1 = (5, -4, 3, 0, 0, 1)                   sent (5, -4, 0, 0, 0, 0)   e = (0, 0, 3, 0, 0, 1)
    u2 = (1, 0, 3, 0, -3, 1), p = (1, 0, 6, 0, -3, 2)
                                               sent (0, 0, 6, 0, -3, 0)   e = (1, 0, 0, 0, 0, 2)
"""

from dataclasses import replace

import numpy as np
import pytest
from helpers import Scripted, order_for, vec

from fl_app.client.transform import Compressed, Transformed
from fl_app.core.layout import Layout, check_vector
from fl_app.core.types import Upload

LAYOUT = Layout.of_arrays(
    {"w": np.zeros((2, 3), np.float32), "running_mean": np.zeros(1, np.float32)}
)


def test_what_is_left_out_is_sent_later():
    compression = Compressed(LAYOUT, top_k=1 / 3)
    residual = None
    for upload, sent, kept in (
        ((5, -4, 3, 0, 0, 1, 9), [5, -4, 0, 0, 0, 0, 9], [0, 0, 3, 0, 0, 1]),
        ((1, 0, 3, 0, -3, 1, 8), [0, 0, 6, 0, -3, 0, 8], [1, 0, 0, 0, 0, 2]),
    ):
        vector = vec(*upload).copy()
        residual = compression.apply(vector, residual)
        assert vector.tolist() == sent
        assert residual.tolist() == kept


def test_half_precision_alone_keeps_nothing():
    vector = vec(1 / 3, 1e6, -1e6, 1e-9, 2, 0, 1 / 3).copy()
    assert Compressed(LAYOUT, "float16").apply(vector, None) is None
    third = float(np.float16(1 / 3))
    # Too large a number is the largest there is; the buffer stays as it is.
    assert vector.tolist() == [third, 65504, -65504, 0, 2, 0, np.float32(1 / 3)]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("dtype", "top_k"), [("float16", None), ("float32", 0.5), ("float16", 0.5)]
)
def test_an_upload_that_is_not_finite_stays_so_and_leaves_the_residual_alone(dtype, top_k, bad):
    compression = Compressed(LAYOUT, dtype, top_k)
    before = compression.apply(vec(6, 5, 4, 3, 2, 1, 9).copy(), None)
    spoiled = vec(6, 5, 1e6, bad, 2, 1, 9).copy()
    assert compression.apply(spoiled, before) is before
    assert check_vector(spoiled, LAYOUT.size) == "payload has non-finite entries"


@pytest.mark.parametrize(
    ("dtype", "top_k", "num_bytes"),
    [
        ("float32", None, 6 * 4 + 4),
        ("float16", None, 6 * 2 + 4),
        ("float32", 1 / 3, 2 * (4 + 4) + 4),
        ("float16", 1 / 3, 2 * (2 + 4) + 4),
        ("float16", 0.001, 1 * (2 + 4) + 4),  # at least one entry
    ],
)
def test_sizes(dtype, top_k, num_bytes):
    assert Compressed(LAYOUT, dtype, top_k).num_bytes == num_bytes


# -- a trainer whose uploads are compressed ------------------------------------------------------

LINE = Layout.of_arrays({"w": np.zeros(4, np.float32)})
HALF = Compressed(LINE, top_k=0.5)


def counting(client_id, sequence, received):
    return Upload(vec(4, 3, 2, 1).copy(), "delta", 10, 0.5, state={"orders": np.array(sequence)})


def test_a_pause_leaves_the_residual_alone():
    def pausing(client_id, sequence, received):
        upload = counting(client_id, sequence, received)
        return replace(upload, vector=vec(), done=False, progress=0.5)

    paused = Transformed(Scripted(pausing), HALF).train(
        order_for(0, 0, vec(0, 0, 0, 0), {}, {"residual": vec(0, 0, 2, 1)})
    )
    assert paused.vector.size == 0
    assert paused.state["residual"].tolist() == [0, 0, 2, 1]


def test_extra_vectors_have_residuals_of_their_own_and_what_is_kept_stays_whole():
    def training(client_id, sequence, received):
        upload = counting(client_id, sequence, received)
        control = vec(1, 2, 3, 4)
        return replace(upload, extra={"c": control}, state={"control": control})

    compressed = Transformed(Scripted(training), HALF)
    first = compressed.train(order_for(0, 0, vec(0, 0, 0, 0), {}))
    assert first.vector.tolist() == [4, 3, 0, 0]
    assert first.extra["c"].tolist() == [0, 0, 3, 4]
    assert first.state["control"].tolist() == [1, 2, 3, 4]
    assert first.state["residual.c"].tolist() == [1, 2, 0, 0]
    assert first.state["residual"].tolist() == [0, 0, 2, 1]
    second = compressed.train(order_for(0, 1, vec(0, 0, 0, 0), {}, first.state))
    assert second.vector.tolist() == [4, 0, 4, 0]  # of (4, 3, 4, 2)
    assert second.state["residual"].tolist() == [0, 3, 0, 2]
    assert second.extra["c"].tolist() == [0, 4, 0, 4]  # of (2, 4, 3, 4)
    assert second.state["residual.c"].tolist() == [2, 0, 3, 0]
    own = HALF.receive(order_for(0, 1, vec(), {}, first.state)).state
    assert own.keys() == {"control"}
