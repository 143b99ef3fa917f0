"""Orders and uploads as Flower's messages, and back."""

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
from fake_grid import FakeGrid, through
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fl_app.core.layout import Layout
from fl_app.core.types import Order, Scores, Upload
from fl_app.flower import codec

INITIAL = {
    "fc.weight": np.array([[1.0, 2.0]], np.float32),
    "bn.running_mean": np.array([5.0], np.float32),
    "bn.num_batches_tracked": np.array(7, np.int64),
    "fc.bias": np.array([3.0], np.float32),
}
LAYOUT = Layout.of_arrays(INITIAL)
VECTOR = np.array([1, 2, 3, 5, 7], np.float32)  # trainable first: weight, bias; then the buffers
CONTROL = np.array([0.5, 0, -0.25, 3, 0], np.float32)
OURS = {"app-config": "seed: 1"}


@pytest.fixture(autouse=True)
def _identity():
    FakeGrid(lambda message, context: message, 0)  # gives this process the identity of a ServerApp


def an_order(vector=VECTOR, version=4, **config):
    return Order(9, 2**63 + 5, 6, version, vector, config, 0.0)


def a_message(content, kind="train"):
    return through(Message(content, dst_node_id=3, message_type=kind))


def pack(order, config, kind="train"):
    return a_message(codec.OrderPacker(LAYOUT, config).pack(order), kind)


def foreign_reply(arrays=INITIAL, **metrics):
    """The reply of another project's ClientApp."""
    numbers = MetricRecord({"num-examples": 10, **metrics})
    return a_message(RecordDict({"arrays": codec.record_of(arrays), "metrics": numbers}))


# -- orders ---------------------------------------------------------------------------------------


def test_order_follows_flowers_convention():
    content = pack(an_order(lr=np.float32(0.5)), {"lr": 0.1, "epochs": 2, "version": 99}).content
    assert dict(content["config"]) == {
        "lr": 0.5,  # the strategy wins over the user
        "epochs": 2,
        "server-round": 5,
        "version": 4,  # nobody overrides the tags
        "client-id": 2**63 + 5,
        "sequence": 6,
    }
    assert content.keys() == {"arrays", "config"}
    for name, array in INITIAL.items():
        np.testing.assert_array_equal(content["arrays"][name].numpy(), array)
        assert content["arrays"][name].numpy().dtype == array.dtype


@pytest.mark.parametrize("config", [{}, OURS])
def test_a_client_reads_the_order_that_the_server_packed(config):
    state = {"slot": np.array(3), "memory": np.array([[0.5, 1.5]], np.float32)}
    order = replace(an_order(lr=0.5), state=state, extra={"c": CONTROL, "d": VECTOR})
    for kind in ("train", "evaluate"):
        message = pack(order, config, kind)
        assert len(message.content["arrays"]) == (1 if config else 4)
        read = codec.read_order(message, LAYOUT)
        assert read.vector.tolist() == VECTOR.tolist()
        assert (read.client_id, read.sequence, read.base_version) == (2**63 + 5, 6, 4)
        assert read.config["lr"] == 0.5
        assert read.evaluates == (kind == "evaluate")
        assert {name: v.tolist() for name, v in read.extra.items()} == {
            "c": CONTROL.tolist(),
            "d": VECTOR.tolist(),
        }
        for name, array in state.items():
            assert read.state[name].dtype == array.dtype
            np.testing.assert_array_equal(read.state[name], array)
        assert not any(v.flags.writeable for v in (read.vector, *read.extra.values()))
    empty = codec.read_order(pack(an_order(np.zeros(0, np.float32)), config), LAYOUT)
    assert empty.vector.shape == (0,)


def test_orders_of_one_version_share_its_serialised_arrays_and_keep_it_not_alive():
    packer = codec.OrderPacker(LAYOUT, {})
    vector = VECTOR.copy()
    first = packer.pack(replace(an_order(vector), extra={"c": vector}))
    second = packer.pack(replace(an_order(vector, lr=0.2), extra={"c": vector}))
    assert second["arrays"] is first["arrays"]
    assert second["extra.c"] is first["extra.c"]
    for i in range(codec.RECENT):
        assert packer.pack(an_order(VECTOR + i))["arrays"] is not first["arrays"]
    assert packer.pack(an_order(vector))["arrays"] is not first["arrays"], "old ones are forgotten"
    reference = weakref.ref(vector)
    del vector
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("kind", ["model", "delta"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_messages_hold_only_the_part_that_a_client_trains(kind, dtype):
    """2-4-2: units 1 and 2 have 4 weights, 2 biases and 4 weights; the outputs have 2 biases."""
    layout = Layout.of_arrays(
        {"a": np.ones((4, 2)), "b": np.ones(4), "c": np.ones((2, 4)), "d": np.ones(2)}
    )
    base, mine = np.arange(22, dtype=np.float32), [2, 3, 4, 5, 9, 10, 13, 14, 17, 18, 20, 21]
    order = an_order(base, width=0.5, window=1)
    packer = codec.OrderPacker(layout, OURS)
    message = a_message(content := packer.pack(order))
    assert packer.pack(order)["arrays"] is content["arrays"]
    assert message.content["arrays"]["vector"].numpy().tolist() == mine
    read = codec.read_order(message, layout)
    assert read.vector.tolist() == [i if i in mine else 0 for i in range(22)]
    reply = codec.pack_upload(message, Upload(read.vector * 2, kind, 1, 0.5), layout, dtype=dtype)
    upload = codec.read_upload(through(reply), layout, order=order)
    rest = base if kind == "model" else np.zeros(22)
    assert upload.vector.tolist() == [2 * i if i in mine else rest[i] for i in range(22)]
    whole = codec.pack_upload(a_message(message.content), Upload(base, kind, 1, 0.5), layout)
    whole.content["arrays"] = codec.record_of({"vector": base})
    with pytest.raises(ValueError, match=re.escape("float32[22], expected float32[12]")):
        codec.read_upload(whole, layout, order=order)


# -- uploads --------------------------------------------------------------------------------------

UPLOAD = Upload(
    VECTOR * 2,
    "pseudo",
    12,
    0.5,
    rate_sum=0.25,
    metrics={"accuracy": 0.75},
    base_version=3,
    state={"slot": np.array(3)},
    extra={"c": CONTROL},
)


@pytest.mark.parametrize("config", [{}, OURS])
@pytest.mark.parametrize(
    ("form", "arrays"),
    [
        ({}, {"vector": ("float32", 5)}),
        ({"dtype": "float16"}, {"entries": ("float16", 3), "buffers": ("float32", 2)}),
    ],
)
def test_an_upload_arrives_as_it_was(config, form, arrays):
    upload = replace(UPLOAD, vector=np.array([0, 2, 3, 5, 7], np.float32))
    reply = through(codec.pack_upload(pack(an_order(), config), upload, LAYOUT, **form))
    for record in ("arrays", "extra.c"):
        actual = {name: array.numpy() for name, array in reply.content[record].items()}
        assert {name: (str(a.dtype), a.size) for name, a in actual.items()} == arrays
    read = codec.read_upload(reply, LAYOUT)
    assert read.vector.tolist() == upload.vector.tolist()
    assert read.extra["c"].tolist() == CONTROL.tolist()
    assert (read.vector.dtype, read.vector.flags.writeable) == (np.float32, False)
    assert read.state["slot"] == 3
    bad = replace(upload, vector=np.array([np.nan, -1e9, 3, 5, 7], np.float32))
    reply = codec.pack_upload(pack(an_order(), config), bad, LAYOUT, **form)
    assert not np.isfinite(codec.read_upload(reply, LAYOUT).vector[0])
    plain = {"vector": NONE, "state": {}, "extra": {}}
    assert replace(read, **plain) == replace(upload, **plain)


NONE = np.zeros(0, np.float32)


def test_a_paused_client_sends_its_progress_alone():
    pause = Upload(NONE, "pseudo", 12, 0.5, done=False, progress=0.4)
    reply = through(codec.pack_upload(pack(an_order(), OURS), pause, LAYOUT))
    read = codec.read_upload(reply, LAYOUT)
    assert (read.done, read.progress, read.vector.size) == (False, 0.4, 0)


def test_a_masked_upload_keeps_every_bit():
    bits = np.array([0x7FA00001, 0xFFFFFFFF, 0, 1, 0x80000000], np.uint32)
    masked = replace(UPLOAD, vector=bits.view(np.float32), seal=b"\x00seal", extra={})
    order = pack(an_order(), OURS)
    reply = through(codec.pack_upload(order, masked, LAYOUT, dtype="float16"))
    read = codec.read_upload(reply, LAYOUT)
    assert read.vector.view(np.uint32).tolist() == bits.tolist()
    assert read.seal == b"\x00seal"


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"vector": VECTOR[:4]}, "vector is float32[4], expected float32[5]"),
        ({"vector": VECTOR[None]}, "vector is float32[1, 5], expected float32[5]"),
        ({"vector": VECTOR.astype(np.float64)}, "vector is float64[5], expected float32[5]"),
        ({"vector": VECTOR, "more": VECTOR}, "arrays do not fit the model: got vector, more"),
        (INITIAL, "arrays do not fit the model: got fc.weight"),
        ({"entries": VECTOR[:3]}, "arrays do not fit the model: got entries"),
        ({"entries": VECTOR[:3], "buffers": VECTOR[:1]}, "float32[1], expected float32[2]"),
        ({"entries": np.zeros(3, int), "buffers": VECTOR[3:]}, "entries is int64[3]"),
    ],
)
def test_vectors_that_do_not_fit(arrays, text):
    for record in ("arrays", "extra.c"):
        reply = codec.pack_upload(pack(an_order(), OURS), UPLOAD, LAYOUT)
        reply.content[record] = codec.record_of(arrays)
        with pytest.raises(ValueError, match=re.escape(text)):
            codec.read_upload(through(reply), LAYOUT)


@pytest.mark.parametrize(
    ("name", "value"), [("rate_sum", "much"), ("seal", "text"), ("base_version", 1.5), ("done", 1)]
)
def test_fields_of_another_type_are_malformed(name, value):
    reply = codec.pack_upload(pack(an_order(), OURS), UPLOAD, LAYOUT)
    reply.content["upload"][name] = value
    with pytest.raises(ValueError, match=f"upload holds {name}="):
        codec.read_upload(through(reply), LAYOUT)


# -- replies of ClientApps that do not know this project ------------------------------------------


@pytest.mark.parametrize("loss", ["loss", "train_loss", "train-loss"])
def test_a_foreign_reply_is_a_model_whatever_its_records_are_called(loss):
    arrays = dict(reversed(INITIAL.items()))  # names decide, not the order
    content = foreign_reply(arrays, **{loss: 0.25, "f1": 0.5, "histogram": [1, 2]}).content
    records = RecordDict({"weights": content["arrays"], "results": content["metrics"]})
    records["upload"] = ConfigRecord({"kind": "mine"})
    upload = codec.read_upload(a_message(records), LAYOUT)
    assert upload.vector.tolist() == VECTOR.tolist()
    assert (upload.kind, upload.rate_sum, upload.num_examples) == ("model", 1.0, 10)
    assert (upload.loss, upload.metrics) == (0.25, {"f1": 0.5})
    assert upload.records["metrics"]["results"]["histogram"] == [1, 2]
    assert math.isnan(codec.read_upload(foreign_reply(), LAYOUT).loss)
    listed = {str(number): array for number, array in enumerate(INITIAL.values())}
    assert codec.read_upload(foreign_reply(listed), LAYOUT).vector.tolist() == VECTOR.tolist()
    numbered = Layout.of_arrays({"1": np.ones(1), "0": np.ones(1)})  # names, not places
    reply = foreign_reply({"0": np.zeros(1), "1": np.ones(1)})
    assert codec.read_upload(reply, numbered).vector.tolist() == [1, 0]


def test_foreign_float64_is_cast_and_overflow_is_not_finite():
    weight = np.array([[1e300, 2.5]], np.float64)
    vector = codec.read_upload(foreign_reply({**INITIAL, "fc.weight": weight}), LAYOUT).vector
    assert vector.dtype == np.float32
    assert vector[:2].tolist() == [math.inf, 2.5]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fc.bias": None}, "missing fc.bias; unexpected none"),
        ({"extra": np.zeros(1)}, "missing none; unexpected extra"),
        ({"fc.weight": np.zeros((2, 1), np.float32)}, r"has shape \(2, 1\)"),
        ({"fc.weight": np.zeros((1, 2), np.int32)}, "has dtype int32, the model's"),
        ({"fc.weight": np.zeros((1, 2), np.complex64)}, "has dtype complex64"),
        ({"bn.num_batches_tracked": np.array(1.5)}, "has dtype float64"),
    ],
)
def test_named_arrays_that_do_not_fit(changes, text):
    arrays = {name: a for name, a in {**INITIAL, **changes}.items() if a is not None}
    with pytest.raises(ValueError, match=text):
        codec.read_upload(foreign_reply(arrays), LAYOUT)


@pytest.mark.parametrize("value", [math.nan, math.inf, 1.5, [3, 4], None])
def test_number_of_examples_is_needed(value):
    reply = foreign_reply()
    reply.content["metrics"].pop("num-examples")
    if value is not None:
        reply.content["metrics"]["num-examples"] = value
    for read in (codec.read_scores, lambda message: codec.read_upload(message, LAYOUT)):
        with pytest.raises(ValueError, match=r"hold (no|nan|inf|1.5) num-examples, expected"):
            read(reply)


def test_a_foreign_reply_has_one_record_of_arrays():
    content = foreign_reply().content
    for records in ({}, {"a": content["arrays"], "b": content["arrays"]}):
        reply = a_message(RecordDict({"metrics": content["metrics"], **records}))
        with pytest.raises(ValueError, match=f"{len(records)} ArrayRecords, expected exactly one"):
            codec.read_upload(reply, LAYOUT)


def test_scores():
    order = pack(an_order(), OURS, "evaluate")
    scores = Scores({"accuracy": 0.5, "loss": 1.5}, 5)
    reply = through(codec.pack_scores(order, scores))
    assert codec.read_scores(reply) == scores


# -- bytes from elsewhere -------------------------------------------------------------------------


def npy(array, *, allow_pickle=False):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


class Bomb:
    """Leaves a trace when it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", npy(INITIAL["fc.bias"])[:-2], b"PK\x03\x04" + b"\0" * 30],
    ids=["empty", "nonsense", "truncated", "zip"],
)
def test_unreadable_bytes(data):
    reply = foreign_reply()
    reply.content["arrays"]["fc.bias"] = Array("float32", (1,), "numpy.ndarray", data)
    with pytest.raises(ValueError, match=r"array 'fc.bias' cannot be read"):
        codec.read_upload(reply, LAYOUT)


def test_nothing_is_ever_unpickled(tmp_path):
    trace = tmp_path / "trace"
    bomb = npy(np.array([Bomb(trace)], dtype=object), allow_pickle=True)
    record = ArrayRecord({"slot": Array("float32", (1,), "numpy.ndarray", bomb)})
    for name in ("arrays", "state", "extra.c"):
        reply = codec.pack_upload(pack(an_order(), OURS), UPLOAD, LAYOUT)
        reply.content[name] = record
        with pytest.raises(ValueError, match="cannot be read: ValueError: Object arrays"):
            codec.read_upload(reply, LAYOUT)
    assert not trace.exists()
    np.load(io.BytesIO(bomb), allow_pickle=True)
    assert trace.exists(), "the bomb is a dud, so this test proves nothing"


def test_threads_read_arrays_one_at_a_time(monkeypatch):
    """CPython 3.11 sometimes fails if two threads parse headers at once."""
    barrier = Barrier(2)

    def load(*_, **__):
        barrier.wait(timeout=0.1)
        return INITIAL["fc.bias"]

    record = codec.record_of({"fc.bias": INITIAL["fc.bias"]})
    monkeypatch.setattr(np, "load", load)
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(codec.arrays_of, record) for _ in range(2)]
    assert all("BrokenBarrierError" in str(each.exception()) for each in read)
