"""What travels to workers, and the references to versions in the store."""

import numpy as np
import pytest
import torch
from helpers import Quadratic, vec

from fl_app.cluster.facts import difference, digest_of_data, facts
from fl_app.cluster.parcels import pack, pack_object, unpack, unpack_object
from fl_app.cluster.versions import Versions
from fl_app.core.types import NO_EXTRA, Order
from fl_app.engine.clock import NO_VECTOR


def test_orders_share_their_vectors() -> None:
    model, control = vec(1, 2), vec(3, 4)
    orders = [
        Order(0, 5, 0, 7, model, {"a": 1}, 2.5, {"kept": np.arange(3)}, {"c": control}),
        Order(1, 6, 1, 7, model, {}, 2.5, evaluates=True),
        Order(2, 5, 1, 7, NO_VECTOR, {"continues": True}, 3.0),
    ]
    parcels, references = pack(orders, lambda vector: vector)
    assert [each is model or each is control for each in references] == [True, True]
    again = unpack(parcels, references)
    assert [each.vector.tolist() for each in again] == [[1, 2], [1, 2], []]
    assert again[0].extra["c"] is control
    assert again[1].extra is NO_EXTRA
    assert [(o.number, o.client_id, o.sequence, o.evaluates) for o in again] == [
        (0, 5, 0, False),
        (1, 6, 1, True),
        (2, 5, 1, False),
    ]
    assert again[0].state["kept"].tolist() == [0, 1, 2]


def test_a_task_travels_without_copies_and_with_functions_of_a_script() -> None:
    data = torch.arange(10_000, dtype=torch.float32)
    content, buffers = pack_object({"data": data, "small": data[:3].clone(), "f": lambda x: x + 1})
    assert len(content) < 10_000
    assert [np.shares_memory(buffer, data.numpy()) for buffer in buffers] == [True]
    frozen = [buffer.copy() for buffer in buffers]
    for buffer in frozen:
        buffer.flags.writeable = False
    again = unpack_object((content, frozen))
    assert torch.equal(again["data"], data)
    assert np.shares_memory(again["data"].numpy(), frozen[0])
    assert again["small"].tolist() == [0, 1, 2]
    assert again["f"](1) == 2


def test_what_cannot_be_pickled_is_named() -> None:
    with pytest.raises(ValueError, match=r"dict cannot be sent to other machines: .*generator"):
        pack_object({"g": (i for i in range(3))})


def test_the_digest_follows_the_data() -> None:
    points = np.zeros((2, 3, 1), np.float32)
    one, same, other = Quadratic(points), Quadratic(points), Quadratic(np.zeros((3, 2, 1)))
    assert digest_of_data(one) == digest_of_data(same) != digest_of_data(other)


def test_the_same_process_has_no_differences() -> None:
    here = facts()
    assert difference(here, facts()) == ""
    assert all(here.versions.values())


def test_the_references_of_a_store_are_bounded() -> None:
    put = []

    def put_one(vector: object) -> int:
        put.append(vector)
        return len(put)

    versions = Versions(put_one, most_bytes=20)
    a, b, c = vec(1, 2), vec(3, 4), vec(5, 6)
    assert [versions.reference(each) for each in (a, b, a, c)] == [1, 2, 1, 3]
    assert versions.num_bytes == 16  # b was used before a, so it made room for c
    assert [versions.reference(each) for each in (a, b)] == [1, 4]
    assert len(put) == 4
    assert Versions(put_one, most_bytes=20, inline_bytes=8).reference(a) is a
    assert len(put) == 4  # a small one travels with its call
    put.clear()
    del a
    assert versions.num_bytes == 8
    versions.clear()
    assert versions.num_bytes == 0
