"""Names and places of arrays in one vector."""

import numpy as np
import pytest

from fl_app.core.layout import Layout, check_vector

ARRAYS = {
    "conv.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bn.running_mean": np.array([7.0, 8.0], np.float32),
    "bn.num_batches_tracked": np.array(9, np.int64),
    "head.bias": np.array([10.0], np.float64),
}
LAYOUT = Layout.of_arrays(ARRAYS)


def test_trainable_entries_come_first() -> None:
    assert LAYOUT.size == 10
    assert LAYOUT.num_trainable == 7
    vector = LAYOUT.flatten(list(ARRAYS.values()))
    assert vector.tolist() == [0, 1, 2, 3, 4, 5, 10, 7, 8, 9]
    assert LAYOUT.slices["head.bias"] == slice(6, 7)


def test_round_trip_keeps_names_order_shapes_and_dtypes() -> None:
    back = LAYOUT.named(LAYOUT.flatten(list(ARRAYS.values())))
    assert list(back) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


def test_integers_are_rounded_to_the_nearest() -> None:
    """A mean of counters, such as 9.6, is nearer to 10 than to 9."""
    vector = LAYOUT.flatten(list(ARRAYS.values()))
    vector[-1] = 9.6
    assert LAYOUT.named(vector)["bn.num_batches_tracked"] == 10


def test_arrays_that_do_not_fit() -> None:
    arrays = list(ARRAYS.values())
    with pytest.raises(ValueError, match=r"^got 3 arrays, the model has 4$"):
        LAYOUT.flatten(arrays[:3])
    arrays[0] = arrays[0].T
    with pytest.raises(
        ValueError, match=r"^array 'conv.weight' has shape \(3, 2\), the model's has \(2, 3\)$"
    ):
        LAYOUT.flatten(arrays)


@pytest.mark.parametrize(
    ("vector", "reason"),
    [
        (np.zeros(3, np.float32), ""),
        (np.full(3, 1e30, np.float32), ""),  # finite, though its squares are not
        (np.array([0, np.nan, 0], np.float32), "payload has non-finite entries"),
        (np.array([0, np.inf, -np.inf], np.float32), "payload has non-finite entries"),
        (np.zeros(4, np.float32), "payload has shape (4,), expected (3,)"),
        (np.zeros((3, 1), np.float32), "payload has shape (3, 1), expected (3,)"),
        (np.zeros(3), "payload is float64, expected float32"),
        (np.zeros(3, np.int32), "payload is int32, expected float32"),
        ([0.0, 0.0, 0.0], "payload is list, expected float32"),
        (None, "payload is NoneType, expected float32"),
    ],
)
def test_what_may_enter_an_aggregation(vector: object, reason: str) -> None:
    assert check_vector(vector, 3) == reason
