"""Flower messages <-> vocabulary."""

import gc
import io
import math
import re
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
from fake_grid import FakeGrid
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.common.serde import message_from_proto, message_to_proto

from fl_app.core.layout import Layout
from fl_app.core.types import Order
from fl_app.flower import encoding, wire

INITIAL = {
    "fc.weight": np.array([[1.0, 2.0]], np.float32),
    "bn.running_mean": np.array([5.0], np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
    "fc.bias": np.array([3.0], np.float32),
}
LAYOUT = Layout.of_arrays(INITIAL)
VECTOR = np.array([1, 2, 3, 5, 7], np.float32)  # trainable first: weight, bias; then the buffers


@pytest.fixture(autouse=True)
def _identity() -> None:
    FakeGrid(lambda message, context: message, 0)  # gives this process the identity of a ServerApp


def an_order(vector: np.ndarray = VECTOR, version: int = 4, **config: float) -> Order:
    return Order(9, 2**63 + 5, 6, version, vector, config, 0.0)


def a_message(content: RecordDict) -> Message:
    return through(Message(content, dst_node_id=3, message_type="train"))


def through(message: Message) -> Message:
    return message_from_proto(message_to_proto(message))


def a_reply(
    arrays: dict[str, np.ndarray] | None = None, metrics: dict[str, float] | None = None
) -> Message:
    """What a ClientApp of another project returns."""
    record = ArrayRecord({n: Array(a) for n, a in (INITIAL if arrays is None else arrays).items()})
    numbers = MetricRecord({"num-examples": 10} if metrics is None else metrics)
    return a_message(RecordDict({"arrays": record, "metrics": numbers}))


# -- models ---------------------------------------------------------------------------------------


def test_vector_and_record_are_inverse() -> None:
    record = encoding.to_arrays(VECTOR, LAYOUT)
    assert list(record) == list(INITIAL)
    for name, array in INITIAL.items():
        assert record[name].numpy().dtype == array.dtype
        np.testing.assert_array_equal(record[name].numpy(), array)
    vector = encoding.from_arrays(record, LAYOUT)
    np.testing.assert_array_equal(vector, VECTOR)
    assert not vector.flags.writeable


def test_layout_of_a_record() -> None:
    assert encoding.layout_of(encoding.to_arrays(VECTOR, LAYOUT)) == LAYOUT


# -- orders ---------------------------------------------------------------------------------------


def test_order_follows_flowers_convention() -> None:
    packer = wire.OrderPacker(LAYOUT, {"lr": 0.1, "epochs": 2, "version": 99})
    content = a_message(packer.pack(an_order(lr=0.5))).content
    assert dict(content["config"]) == {
        "lr": 0.5,  # the strategy wins over the user
        "epochs": 2,
        "server-round": 5,
        "version": 4,  # and nobody overrides the tags
        "client-id": 2**63 + 5,
        "sequence": 6,
    }
    np.testing.assert_array_equal(content["arrays"]["fc.weight"].numpy(), [[1.0, 2.0]])


def test_orders_of_one_version_share_its_serialised_arrays() -> None:
    packer = wire.OrderPacker(LAYOUT, {})
    next_version = VECTOR + 1
    first = packer.pack(an_order())["arrays"]
    assert packer.pack(an_order(version=5, vector=next_version))["arrays"] is not first
    assert packer.pack(an_order(lr=0.2))["arrays"] is first
    recent = [VECTOR + i for i in range(wire.RECENT_RECORDS)]
    for vector in recent:
        packer.pack(an_order(vector))
    assert packer.pack(an_order())["arrays"] is not first, "old versions are forgotten"


def test_packer_keeps_no_vector_alive() -> None:
    packer = wire.OrderPacker(LAYOUT, {})
    vector = VECTOR.copy()
    alive = weakref.ref(vector)
    packer.pack(an_order(vector))
    del vector
    gc.collect()
    assert alive() is None


def test_client_reads_what_the_server_packed() -> None:
    message = a_message(wire.OrderPacker(LAYOUT, {"lr": 0.1}).pack(an_order()))
    config = wire.order_config(message)
    assert config["client-id"] == 2**63 + 5
    assert config["lr"] == 0.1
    np.testing.assert_array_equal(LAYOUT.flatten(wire.order_arrays(message, LAYOUT)), VECTOR)


# -- replies --------------------------------------------------------------------------------------


def our_reply(**metrics: float | str | bool) -> Message:
    message = a_message(wire.OrderPacker(LAYOUT, {}).pack(an_order()))
    told = {"kind": "pseudo", "loss": 0.5, "rate-sum": 0.25, **metrics}
    arrays = LAYOUT.unflatten(VECTOR * 2)
    return through(wire.pack_upload(message, LAYOUT, arrays, 12, told))


def test_upload_survives_the_way() -> None:
    upload = wire.unpack_reply(our_reply(accuracy=0.75, paused=True), LAYOUT, version=4)
    np.testing.assert_array_equal(upload.vector, VECTOR * 2)
    assert upload.vector.dtype == np.float32
    assert (upload.kind, upload.num_examples) == ("pseudo", 12)
    assert (upload.loss, upload.rate_sum) == (0.5, 0.25)
    assert upload.metrics == {"accuracy": 0.75}


def test_a_client_that_names_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="tagged with version 4, its order carried 3"):
        wire.unpack_reply(our_reply(), LAYOUT, version=3)


def test_reply_to_a_server_without_versions_has_no_tag() -> None:
    arrays = encoding.to_arrays(VECTOR, LAYOUT)
    message = a_message(wire.train_record(arrays, ConfigRecord({"server-round": 1})))
    reply = wire.pack_upload(message, LAYOUT, LAYOUT.unflatten(VECTOR), 12, {"loss": 0.5})
    assert dict(reply.content["metrics"]) == {"loss": 0.5, "num-examples": 12}


def test_foreign_reply_is_a_model() -> None:
    arrays = dict(reversed(INITIAL.items()))  # names decide, not the order
    upload = wire.unpack_reply(a_reply(arrays), LAYOUT, version=4)
    np.testing.assert_array_equal(upload.vector, VECTOR)
    assert (upload.kind, upload.rate_sum, upload.num_examples) == ("model", 1.0, 10)
    assert math.isnan(upload.loss)


@pytest.mark.parametrize("name", ["loss", "train_loss", "train-loss"])
def test_foreign_loss_is_found(name: str) -> None:
    metrics = {"num-examples": 10, name: 0.25, "f1": 0.5, "histogram": [1, 2]}
    upload = wire.unpack_reply(a_reply(metrics=metrics), LAYOUT)
    assert upload.loss == 0.25
    assert upload.metrics == {"f1": 0.5}


def test_records_may_have_other_names() -> None:
    content = a_reply().content
    renamed = RecordDict({"weights": content["arrays"], "results": content["metrics"]})
    upload = wire.unpack_reply(a_message(renamed), LAYOUT)
    np.testing.assert_array_equal(upload.vector, VECTOR)


def test_foreign_float64_is_cast_and_what_overflows_is_not_finite() -> None:
    weight = np.array([[1e300, 2.5]], np.float64)
    vector = wire.unpack_reply(a_reply({**INITIAL, "fc.weight": weight}), LAYOUT).vector
    assert vector.dtype == np.float32
    assert vector[:2].tolist() == [math.inf, 2.5]


# What top-k uploads look like: of the trainable (1, 2, 3) the first is left out.
SPARSE = {
    "top-k.places": np.array([1, 2], np.uint32),
    "top-k.entries": np.array([2, 3], np.float16),
    "bn.running_mean": INITIAL["bn.running_mean"],
    "bn.num_batches_tracked": INITIAL["bn.num_batches_tracked"],
}


def sparse_reply(arrays: dict[str, np.ndarray]) -> Message:
    reply = a_reply(arrays)
    reply.content["config"] = ConfigRecord({"encoding": "top-k", "kind": "delta"})
    return reply


def test_sparse_uploads_are_inverse() -> None:
    order = a_message(wire.OrderPacker(LAYOUT, {}).pack(an_order()))
    arrays = [
        array.astype(np.float16) if array.dtype == np.float32 else array
        for array in LAYOUT.unflatten(np.array([0, 2, 3, 5, 7], np.float32))
    ]
    metrics = {"encoding": "top-k", "kind": "delta", "loss": 0.5}
    reply = through(wire.pack_upload(order, LAYOUT, arrays, 10, metrics))
    sent = {name: array.numpy() for name, array in reply.content["arrays"].items()}
    assert sent.keys() == SPARSE.keys()
    for name in ("top-k.places", "top-k.entries"):
        assert sent[name].dtype == SPARSE[name].dtype
        np.testing.assert_array_equal(sent[name], SPARSE[name])
    vector = wire.unpack_reply(reply, LAYOUT, version=4).vector
    assert vector.tolist() == [0, 2, 3, 5, 7]
    assert vector.dtype == np.float32
    assert not vector.flags.writeable


def packed_order() -> Message:
    return a_message(wire.OrderPacker(LAYOUT, {}).pack(an_order(), packed=True))


def test_packed_models_are_one_array_and_come_back_whole() -> None:
    order = packed_order()
    assert list(order.content["arrays"]) == ["packed"]
    arrays = wire.order_arrays(order, LAYOUT)
    for array, entry in zip(arrays, INITIAL.values(), strict=True):
        np.testing.assert_array_equal(array, entry)
        assert array.dtype == entry.dtype
    doubled = [array * 2 for array in arrays]
    reply = through(wire.pack_upload(order, LAYOUT, doubled, 12, {"kind": "delta"}))
    assert list(reply.content["arrays"]) == ["packed"]
    upload = wire.unpack_reply(reply, LAYOUT, version=4)
    assert upload.vector.tolist() == [2, 4, 6, 10, 14]
    assert not upload.vector.flags.writeable
    assert upload.kind == "delta"


def test_a_vector_packed_and_by_name_is_kept_as_both() -> None:
    packer = wire.OrderPacker(LAYOUT, {})
    named, packed = (
        packer.pack(an_order())["arrays"],
        packer.pack(an_order(), packed=True)["arrays"],
    )
    assert list(named) == list(INITIAL)
    assert packer.pack(an_order())["arrays"] is named
    assert packer.pack(an_order(), packed=True)["arrays"] is packed


def test_packing_never_costs_bytes() -> None:
    half = Layout.of_arrays({"w": np.zeros(2, np.float16)})
    content = wire.OrderPacker(half, {}).pack(an_order(np.zeros(2, np.float32)), packed=True)
    assert list(content["arrays"]) == ["w"]
    assert "packed" not in content["config"]
    arrays = [array.astype(np.float16) for array in LAYOUT.unflatten(VECTOR)]
    reply = through(wire.pack_upload(packed_order(), LAYOUT, arrays, 12, {}))
    assert "encoding" not in reply.content["config"]


def test_sparse_and_empty_ones_are_not_packed() -> None:
    arrays = LAYOUT.unflatten(np.array([0, 2, 3, 5, 7], np.float32))
    reply = wire.pack_upload(packed_order(), LAYOUT, arrays, 10, {"encoding": "top-k"})
    assert sorted(through(reply).content["arrays"]) == sorted(SPARSE)
    paused = wire.pack_upload(packed_order(), LAYOUT, [], 10, {"done": 0})
    assert not wire.unpack_reply(through(paused), LAYOUT).done
    content = wire.OrderPacker(LAYOUT, {}).pack(an_order(np.zeros(0, np.float32)), packed=True)
    assert wire.order_arrays(a_message(content), LAYOUT) == []


@pytest.mark.parametrize("arrays", [
    {"packed": VECTOR[:4]},
    {"packed": VECTOR[None]},
    {"packed": VECTOR.astype(np.float64)},
    {"packed": VECTOR, "extra": VECTOR},
    INITIAL,
    {},
])  # fmt: skip
def test_packed_uploads_that_do_not_fit(arrays: dict[str, np.ndarray]) -> None:
    reply = a_reply(arrays)
    reply.content["config"] = ConfigRecord({"encoding": "packed"})
    with pytest.raises(ValueError, match=r"expected packed float32\[5\], got (none|packed|fc)"):
        wire.unpack_reply(reply, LAYOUT)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"top-k.places": np.array([1, 3], np.uint32)}, "must increase and be below 3"),
        ({"top-k.places": np.array([1, 1], np.uint32)}, "must increase and be below 3"),
        ({"top-k.places": np.array([2, 1], np.uint32)}, "must increase and be below 3"),
        ({"top-k.places": np.array([-1, 1], np.int32)}, "one floating entry for every uint32"),
        ({"top-k.places": np.array([1], np.uint32)}, "one floating entry for every uint32"),
        ({"top-k.entries": np.array([1, 2])}, "one floating entry for every uint32"),
        ({"bn.running_mean": np.zeros(2, np.float32)}, r"'bn.running_mean' has shape \(2,\)"),
        ({"extra": np.zeros(1)}, "must hold top-k.places, top-k.entries and the model's buffers"),
        ({"top-k.places": np.array(1, np.uint32)}, "one floating entry"),
        # -1, to who takes it for signed: the last entry.
        ({"top-k.places": np.array([1, 2**64 - 1], np.uint64)}, "one floating entry"),
    ],
)
def test_sparse_uploads_that_do_not_fit(changed: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wire.unpack_reply(sparse_reply({**SPARSE, **changed}), LAYOUT)


def raw(data: bytes) -> Array:
    return Array("float32", (1,), "numpy.ndarray", data)


def npy(array: np.ndarray, *, allow_pickle: bool = False) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


WITHOUT_BIAS = {name: array for name, array in INITIAL.items() if name != "fc.bias"}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (WITHOUT_BIAS, "missing fc.bias; unexpected none"),
        ({**INITIAL, "extra": np.zeros(1)}, "missing none; unexpected extra"),
        ({**INITIAL, "fc.weight": np.zeros((2, 1), np.float32)}, r"has shape \(2, 1\)"),
        ({**INITIAL, "fc.weight": np.zeros((1, 2), np.int32)}, "has dtype int32, the model's"),
        ({**INITIAL, "fc.weight": np.zeros((1, 2), np.complex64)}, "has dtype complex64"),
        ({**INITIAL, "bn.num_batches_tracked": np.array(1.5)}, "has dtype float64"),
    ],
)
def test_arrays_that_do_not_fit(changed: dict[str, np.ndarray], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wire.unpack_reply(a_reply(changed), LAYOUT)


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", npy(INITIAL["fc.bias"])[:-2], b"PK\x03\x04" + b"\0" * 30],
    ids=["empty", "nonsense", "truncated", "zip"],
)
def test_unreadable_bytes(data: bytes) -> None:
    reply = a_reply()
    reply.content["arrays"]["fc.bias"] = raw(data)
    with pytest.raises(ValueError, match=r"array 'fc.bias' cannot be read"):
        wire.unpack_reply(reply, LAYOUT)


def test_threads_read_arrays_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPython 3.11 fails now and then where two parse headers at once."""
    both = Barrier(2)

    def load(*_: object, **__: object) -> object:
        both.wait(timeout=0.1)
        return INITIAL["fc.bias"]

    array = Array(INITIAL["fc.bias"])
    monkeypatch.setattr(np, "load", load)
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(encoding.to_numpy, "fc.bias", array) for _ in range(2)]
    assert all("BrokenBarrierError" in str(each.exception()) for each in read)


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    bomb = npy(np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    reply = a_reply()
    reply.content["arrays"]["fc.bias"] = raw(bomb)
    with pytest.raises(ValueError, match="cannot be read: ValueError: Object arrays"):
        wire.unpack_reply(reply, LAYOUT)
    assert not trace.exists()
    np.load(io.BytesIO(bomb), allow_pickle=True)
    assert trace.exists(), "the bomb is a dud, so this test proves nothing"


@pytest.mark.parametrize(
    ("metrics", "text"),
    [
        ({}, "num-examples=None"),
        ({"num-examples": math.nan}, "num-examples=nan"),
        ({"num-examples": math.inf}, "num-examples=inf"),
        ({"num-examples": [3, 4]}, "num-examples=None"),
    ],
)
def test_number_of_examples_is_needed(metrics: dict[str, float], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        wire.unpack_reply(a_reply(metrics=metrics), LAYOUT)


def test_reply_without_arrays_or_with_several() -> None:
    content = a_reply().content
    metrics = RecordDict({"metrics": content["metrics"]})
    with pytest.raises(ValueError, match="0 ArrayRecords, expected exactly one"):
        wire.unpack_reply(a_message(metrics), LAYOUT)
    content["more"] = content["arrays"]
    with pytest.raises(ValueError, match="2 ArrayRecords, expected exactly one"):
        wire.unpack_reply(a_message(content), LAYOUT)


# -- other messages -------------------------------------------------------------------------------


def test_what_a_client_keeps_travels_both_ways_in_a_record_of_its_own() -> None:
    state = {"slot": np.array(3), "memory": np.array([[0.5, 1.5]], np.float32)}
    packed = wire.OrderPacker(LAYOUT, {}).pack(replace(an_order(), state=state))
    assert list(packed.array_records) == ["arrays", "state"]
    message = a_message(packed)
    np.testing.assert_array_equal(LAYOUT.flatten(wire.order_arrays(message, LAYOUT)), VECTOR)
    received = wire.state_of(message)
    reply = wire.pack_upload(message, LAYOUT, LAYOUT.unflatten(VECTOR), 12, {}, received)
    upload = wire.unpack_reply(through(reply), LAYOUT, version=4)
    np.testing.assert_array_equal(upload.vector, VECTOR)
    for name, array in state.items():
        assert upload.state[name].dtype == array.dtype
        np.testing.assert_array_equal(upload.state[name], array)


def test_a_client_that_keeps_nothing_has_exactly_one_record() -> None:
    assert list(wire.OrderPacker(LAYOUT, {}).pack(an_order()).array_records) == ["arrays"]
    reply = our_reply()
    assert list(reply.content.array_records) == ["arrays"]
    assert wire.unpack_reply(reply, LAYOUT, version=4).state == {}


def test_a_strangers_only_record_is_its_model_whatever_its_name() -> None:
    reply = a_reply()
    reply.content["state"] = reply.content.pop("arrays")
    upload = wire.unpack_reply(reply, LAYOUT)
    np.testing.assert_array_equal(upload.vector, VECTOR)
    assert upload.state == {}


def test_a_state_that_cannot_be_read_is_a_malformed_reply() -> None:
    reply = a_reply()
    array = Array(np.zeros(2))
    array.data = b""
    reply.content["state"] = ArrayRecord({"slot": array})
    with pytest.raises(ValueError, match="array 'slot' cannot be read: "):
        wire.unpack_reply(reply, LAYOUT)


def test_evaluation_reply_holds_numbers_only() -> None:
    message = a_message(RecordDict())
    reply = through(wire.pack_metrics(message, 5, {"accuracy": 0.5, "kind": "x"}))
    assert dict(reply.content["metrics"]) == {"accuracy": 0.5, "num-examples": 5}


@pytest.mark.parametrize(("config", "partition"), [({"partition-id": 4}, 4), ({}, None)])
def test_introduction(config: dict[str, int], partition: int | None) -> None:
    context = Context(1, 7, config, RecordDict(), {})
    reply = wire.pack_introduction(a_message(wire.query_record()), context)
    assert wire.partition_of(through(reply)) == partition
    assert wire.takes_packed(through(reply))


def test_introduction_with_an_impossible_partition() -> None:
    assert not wire.takes_packed(a_reply(metrics={"partition-id": 1}))
    assert wire.partition_of(a_reply(metrics={"partition-id": -1})) is None
    assert wire.partition_of(a_reply(metrics={"partition-id": 1.5})) is None


# -- vectors beside the model ---------------------------------------------------------------------

CONTROL = np.array([0.5, 0, -0.25, 3, 0], np.float32)


def with_extra(**extra: np.ndarray) -> Order:
    return replace(an_order(), extra=extra)


def test_vectors_beside_the_model_travel_in_a_record_of_their_own() -> None:
    content = wire.OrderPacker(LAYOUT, {}).pack(with_extra(c=CONTROL, d=VECTOR))
    assert content["arrays"].keys() == INITIAL.keys()  # all that strangers look at
    message = a_message(content)
    found = wire.extra_of(message, LAYOUT)
    assert {name: vector.tolist() for name, vector in found.items()} == {
        "c": CONTROL.tolist(),
        "d": VECTOR.tolist(),
    }
    assert not any(vector.flags.writeable for vector in found.values())
    arrays = wire.order_arrays(message, LAYOUT)
    assert LAYOUT.flatten(arrays).tolist() == VECTOR.tolist()
    without = wire.OrderPacker(LAYOUT, {}).pack(an_order())
    assert without.keys() == {"arrays", "config"}
    assert wire.extra_of(a_message(without), LAYOUT) == {}


def test_orders_with_the_same_vectors_share_what_is_serialised() -> None:
    packer = wire.OrderPacker(LAYOUT, {})
    vector = CONTROL.copy()
    first = packer.pack(with_extra(c=vector))["extra"]
    assert packer.pack(with_extra(c=vector))["extra"] is first
    assert packer.pack(with_extra(c=CONTROL))["extra"] is not first
    assert packer.pack(with_extra(d=vector))["extra"] is not first
    alive = weakref.ref(vector)
    del vector
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("dtype", "sparse", "arrays"),
    [
        (np.float32, False, {"vector:c": (np.float32, 5)}),
        (np.float16, False, {"entries:c": (np.float16, 3), "buffers:c": (np.float32, 2)}),
        (
            np.float32,
            True,
            {
                "entries:c": (np.float32, 2),
                "places:c": (np.uint32, 2),
                "buffers:c": (np.float32, 2),
            },
        ),
    ],
)
def test_they_are_made_as_small_as_the_upload(dtype: type, sparse: bool, arrays: dict) -> None:
    reply = Message(
        RecordDict(
            {
                "arrays": encoding.to_arrays(VECTOR, LAYOUT),
                "extra": encoding.extra_record({"c": CONTROL}, LAYOUT, dtype, sparse=sparse),
                "metrics": MetricRecord({"num-examples": 3}),
            }
        ),
        dst_node_id=3,
        message_type="train",
    )
    sent = {key: array.numpy() for key, array in reply.content["extra"].items()}
    assert {key: (array.dtype, array.size) for key, array in sent.items()} == arrays
    upload = wire.unpack_reply(through(reply), LAYOUT)
    assert upload.vector.tolist() == VECTOR.tolist()
    assert upload.extra["c"].tolist() == CONTROL.tolist()


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        (
            {"vector:c": np.zeros(4, np.float32)},
            "extra vector 'c' is float32[4], expected",
        ),
        ({"vector:c": np.zeros(5)}, "extra vector 'c' is float64[5], expected float32[5]"),
        ({"c": CONTROL}, "extra vector '' holds c"),
        ({"entries:c": CONTROL[:3]}, "extra vector 'c' holds entries"),
        (
            {"entries:c": np.zeros(3, np.int32), "buffers:c": CONTROL[3:]},
            "extra vector 'c' must have 3 floating trainable entries",
        ),
        (
            {"entries:c": CONTROL[:3], "buffers:c": CONTROL},
            "extra vector 'c' must have 2 float32 buffers",
        ),
        (
            {
                "entries:c": CONTROL[:1],
                "places:c": np.array([3], np.uint32),
                "buffers:c": CONTROL[3:],
            },
            "top-k.places must increase and be below 3",
        ),
    ],
)
def test_vectors_beside_the_model_that_do_not_fit(arrays: dict, text: str) -> None:
    content = wire.OrderPacker(LAYOUT, {}).pack(an_order())
    content["extra"] = ArrayRecord({key: Array(array) for key, array in arrays.items()})
    with pytest.raises(ValueError, match=re.escape(text)):
        wire.extra_of(a_message(content), LAYOUT)
