"""What an upload means, whatever its kind.

Two trainable entries and one buffer, d = 3. w_o = [1, 2, 10] (version 3), w_i = [3, -2, 14],
current model w_t = [0, 0, 20] (version 5), rates sum to 1/2:

    delta    = w_i - w_o                                   = [ 2, -4,  4]
    gradient = (w_o - w_i) / (1/2), the buffer as b_o - b_i = [-4,  8, -4]
"""

import numpy as np
import pytest
from helpers import vec

from fl_app.core.types import GlobalModel, Update, Vector

MODEL = GlobalModel(vec(0, 0, 20), 5, {3: vec(1, 2, 10), 5: vec(0, 0, 20)}, num_trainable=2)
PAYLOADS = {
    "model": vec(3, -2, 14),
    "delta": vec(2, -4, 4),
    "pseudo": vec(-4, 8, -4),
    "gradient": vec(-4, 8, -4),
}


def update(kind: str, vector: Vector, version: int = 3) -> Update:
    return Update(7, version, vector, kind, 10, 0.1, rate_sum=0.5)


@pytest.mark.parametrize("kind", PAYLOADS)
def test_every_kind_means_the_same(kind: str) -> None:
    uploaded = update(kind, PAYLOADS[kind])
    assert MODEL.delta(uploaded).tolist() == [2, -4, 4]
    assert MODEL.gradient(uploaded).tolist() == [-4, 8, -4]
    assert MODEL.local(uploaded).tolist() == [3, -2, 14]
    assert uploaded.vector.tolist() == PAYLOADS[kind].tolist()


def test_step_moves_buffers_by_the_whole_direction() -> None:
    """[0, 0] - 1/4 [-4, 8] = [1, -2]; buffer 20 - (-4) = 24."""
    stepped = MODEL.step(vec(-4, 8, -4), 0.25)
    assert stepped.tolist() == [1, -2, 24]
    assert stepped.dtype == np.float32


def test_base_is_the_version_that_was_cited() -> None:
    assert MODEL.base(update("delta", vec(0, 0, 0))).tolist() == [1, 2, 10]
    assert MODEL.base(update("delta", vec(0, 0, 0), version=5)) is MODEL.params
    with pytest.raises(KeyError, match=r"client 7 cites version 4, .* not in the history \[3, 5\]"):
        MODEL.base(update("model", vec(0, 0, 0), version=4))
