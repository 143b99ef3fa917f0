"""Exactly what was there comes back, and nothing else is ever made."""

import json
from collections import Counter, OrderedDict, defaultdict, deque

import numpy as np
import pytest
from helpers import vec

from fl_app.core.snapshot import Encoder, Unkeepable, decode
from fl_app.core.types import Order, Parts
from fl_app.engine.virtual import Kind


def again(value):
    encoder = Encoder()
    text = json.dumps(encoder.encode(value))
    assert "fl_app" not in text  # no class by its path
    return decode(json.loads(text), [np.array(array) for array in encoder.arrays])


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        0.1 + 0.2,
        float("inf"),
        "text",
        b"\x00\xff",
        [1, [2.5, None]],
        (1, ("a", 2)),
        {3, 4},
        frozenset({1}),
        {1: "by number", "a": {(1, 2): "by tuple"}},
        deque([1, 2]),
        Counter({5: 2}),
        defaultdict(list, {1: [2]}),
        OrderedDict({2: 1, 1: 2}),
    ],
)
def test_values_come_back_with_their_types(value):
    back = again(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "array", [np.arange(3, dtype=np.float32), np.array(2.5), np.zeros((0, 3)), np.array([True])]
)
def test_arrays_come_back_to_the_bit(array):
    back = again({"a": array})["a"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())


def test_an_array_met_twice_is_one_again():
    vector = vec(1, 2)
    order = Order(0, 1, 2, 3, vector, {"lr": 0.5}, 4.0, {"h": vec(7)})
    back_vector, back_order = again((vector, order))
    assert back_order.vector is back_vector
    assert back_order.config == {"lr": 0.5}
    assert back_order.state["h"].tolist() == [7.0]
    assert (back_order.number, back_order.sent_at) == (0, 4.0)


def test_a_generator_goes_on_where_it_was():
    rng = np.random.default_rng(3)
    rng.random(5)
    back = again(rng)
    assert back.random(4).tolist() == rng.random(4).tolist()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({"f": again}, "f is a function, which a checkpoint cannot hold"),
        ({"a": [0, {"b": Parts(1.0, 2.0, 3.0)}]}, "a.1.b is a Parts"),
        ({"kind": Kind.REPLY}, "kind is a Kind"),
        ({"words": np.array(["a"])}, "words is an array of <U1"),
        ({"d": defaultdict(lambda: 1)}, "d is a defaultdict"),
        ({Kind.REPLY: 1}, "Kind.REPLY is a Kind|0 is a Kind"),
    ],
)
def test_what_cannot_be_kept_is_told_with_its_key_and_type(value, told):
    with pytest.raises(Unkeepable, match=told):
        Encoder().encode(value)


@pytest.mark.parametrize(
    "encoded",
    [
        {"$": "object", "by": "subprocess:Popen", "of": {"$": "dict", "of": []}},
        {"$": "defaultdict", "by": "os:system", "of": []},
        {"$": "rng", "of": {"$": "dict", "of": [["bit_generator", "default_rng"]]}},
        {"$": "surprise", "of": []},
    ],
)
def test_unknown_kinds_are_refused(encoded):
    with pytest.raises(ValueError, match=r"a checkpoint holds a .* of the unknown kind"):
        decode(encoded, [])
