"""Orders and uploads as messages of Flower, and back; nodes and server use the same functions.

| message | record | holds |
|---|---|---|
| order (`train`, `evaluate`) | ``arrays`` | the model, or the part that the client trains |
| | ``config`` | ``server-round`` (base version + 1, to evaluate + 0), ``version``, ``client-id``, |
| | | ``sequence``; of this project ``app-config``, ``any-node``, ``frozen``, ``run``; of |
| | | the engine ``width``, ``window``, ``continues``, ``fresh_version``; and what strategy, |
| | | schedule and user add |
| reply | ``arrays`` | the upload's vector or part; not after `evaluate`, empty after a pause |
| | ``metrics`` | ``num-examples``, ``loss`` and what else the client measured |
| | ``upload`` | the other fields of an `Upload` but its records, and who trained it |
| reply that failed | | Flower's Error: type and message, and the traceback |
| both | ``extra.<name>`` | a vector beside the model, where the algorithm exchanges more |
| both | ``state`` | the client's state, where any node serves any client |
| reply to a `query` | ``metrics`` | ``partition-id``, if the node has one; the query is empty |

``arrays``, ``config`` and ``metrics`` follow Flower's own convention: the model travels as named
arrays, and a ClientApp that does not know this project returns ``arrays`` and ``metrics``. Where
the order carries this project's configuration, client and server are both of this project. Flower
sends every array in a request of its own, so a vector is then one array, or its rounded entries and
the buffers. Nothing is ever unpickled: Flower writes arrays in NumPy's format and reads them with
pickle off.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Error,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from fl_app.core import bugs
from fl_app.core.errors import RunError
from fl_app.core.layout import Entry, Layout, names_of
from fl_app.core.npy import reading
from fl_app.core.types import NO_VECTOR, Order, Scores, Upload, Vector
from fl_app.core.vector import read_only
from fl_app.core.width import Places, part_of
from fl_app.flower import names

RECENT = 8  # serialised vectors in the cache
# Fields of an `Upload` in the record of that name. A ClientApp that does not know this project has
# none, and the defaults are true of it.
FIELDS = dict(kind=str, rate_sum=float, done=bool, progress=float, base_version=int, seal=bytes)

Arrays = Mapping[str, NDArray[Any]]


# -- arrays ---------------------------------------------------------------------------------------


def record_of(arrays: Arrays) -> ArrayRecord:
    """Arrays by name, serialised."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in arrays.items()})


def config_record(config: Mapping[str, object]) -> ConfigRecord:
    """An order's settings, with NumPy's numbers as Python's."""
    plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in config.items()}
    return ConfigRecord(plain)  # type: ignore[arg-type]


def arrays_of(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    """The inverse of `record_of`.

    Raises:
        ValueError: an array cannot be read.
    """
    arrays = {}
    for name, array in record.items():
        try:
            with reading:
                arrays[name] = array.numpy()
            if not isinstance(arrays[name], np.ndarray):
                raise TypeError(f"it holds a {type(arrays[name]).__name__}")
        except Exception as error:  # bytes from elsewhere may raise anything
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"array {name!r} cannot be read: {reason}") from error
    return arrays


def from_arrays(record: ArrayRecord, layout: Layout) -> Vector:
    """A vector ``(d,)`` from the arrays of `Layout.named`, or a list of them; new and read-only.

    Raises:
        ValueError: names, shapes or kinds of dtypes are not those of the layout.
    """
    arrays, entries = arrays_of(record), layout.names
    numbers = [*map(str, range(len(entries)))]  # of a list, as NumPyClients return it
    if [*arrays] == numbers and {*entries} != {*numbers}:
        arrays = dict(zip(entries, arrays.values(), strict=True))
    missing, unexpected = layout.slices.keys() - arrays.keys(), arrays.keys() - layout.slices.keys()
    if missing or unexpected:
        lists = [names_of(sorted(odd)) or "none" for odd in (missing, unexpected)]
        raise ValueError(f"arrays do not fit the model: missing {lists[0]}; unexpected {lists[1]}")
    for entry in layout.entries:
        dtype = arrays[entry.name].dtype
        if dtype.kind != np.dtype(entry.dtype).kind:
            raise ValueError(f"array {entry.name!r} has dtype {dtype}, the model's {entry.dtype}")
    with np.errstate(over="ignore"):  # a float64 too large becomes inf, which is refused later
        return read_only(layout.flatten([arrays[name] for name in layout.names]))


def encode(vector: Vector, split: int, dtype: str) -> Arrays:
    """A vector as few and small arrays.

    Args:
        vector: shape ``(d,)``.
        split: number of trainable entries, which lead.
        dtype: of these entries, which were rounded to it.
    """
    if dtype == "float32":
        return {names.VECTOR: vector}
    entries, buffers = np.split(vector, [split])
    with np.errstate(over="ignore"):  # infinite entries are refused by the server
        return {names.ENTRIES: entries.astype(dtype), names.BUFFERS: buffers}


def decode(
    record: ArrayRecord, layout: Layout, part: Places | None = None, base: Vector | None = None
) -> Vector:
    """The inverse of `encode`, read-only.

    Args:
        record: of the arrays.
        layout: of the vector.
        part: places in the vector that the arrays hold, of a model without buffers; None = all.
        base: values of the other places; None = 0.

    Raises:
        ValueError: the arrays do not fit the model.
    """
    if part is not None:
        entry = Entry("part", (part.size,), "float32", True)
        whole = np.zeros(layout.size, np.float32) if base is None else base.copy()
        whole[part] = decode(record, Layout((entry,)))
        return read_only(whole)
    arrays, size, split = arrays_of(record), layout.size, layout.num_trainable
    if not arrays:  # a paused client: it sends nothing, and may be sent nothing
        return NO_VECTOR
    if arrays.keys() == {names.VECTOR}:
        return read_only(_fitting(arrays, names.VECTOR, "f4", size))
    if arrays.keys() != {names.ENTRIES, names.BUFFERS}:
        raise ValueError(f"arrays do not fit the model: got {names_of(arrays) or 'none'}")
    buffers = _fitting(arrays, names.BUFFERS, "f4", size - split)
    entries = _fitting(arrays, names.ENTRIES, "f2", split)
    return read_only(np.concatenate([entries, buffers], dtype=np.float32))


def _fitting(arrays: Arrays, name: str, dtype: str, size: int) -> NDArray[Any]:
    array = arrays[name]
    if array.dtype.str[1:] != dtype or array.shape != (size,):
        actual = f"{array.dtype}{list(array.shape)}"
        expected = f"{np.dtype(dtype)}[{size}]"
        raise ValueError(f"arrays do not fit the model: {name} is {actual}, expected {expected}")
    return array


# -- server ---------------------------------------------------------------------------------------


@dataclass(eq=False)
class OrderPacker:
    """Packs orders; may be called from several threads.

    An Array is serialised when it is made. So the last few are cached, and shared by all orders
    with the same vector.

    Args:
        layout: of the vectors.
        config: sent with every training order; the strategy's settings override it.
        evaluate_config: sent with every evaluate order; None = `config`.
    """

    layout: Layout
    config: Mapping[str, object]
    evaluate_config: Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._recent = deque[tuple[weakref.ref[Vector], object, object, ArrayRecord]](maxlen=RECENT)

    def pack(self, order: Order) -> RecordDict:
        """Content of an order's message; its arrays are shared and must not be changed."""
        override = self.evaluate_config if order.evaluates else None
        config = {
            **(self.config if override is None else override),
            **order.config,
            # The model of version t is that of Flower's round t; round t + 1 trains from it.
            names.SERVER_ROUND: order.base_version + (0 if order.evaluates else 1),
            names.VERSION: order.base_version,
            names.CLIENT_ID: order.client_id,
            names.SEQUENCE: order.sequence,
        }
        part, whole = part_of(order.config, self.layout), names.APP_CONFIG in config
        arrays = self._record(order.vector, part, whole=whole)
        content = RecordDict({names.ARRAYS: arrays, names.CONFIG: config_record(config)})
        for name, vector in order.extra.items():
            content[names.EXTRA + name] = self._record(vector, whole=True)
        if order.state:
            content[names.STATE] = record_of(order.state)
        return content

    def _record(self, vector: Vector, part: Places | None = None, *, whole: bool) -> ArrayRecord:
        if not vector.size:  # the client continues with what it has
            return ArrayRecord({})
        with self._lock:
            for reference, its_part, as_whole, record in self._recent:
                if reference() is vector and its_part is part and as_whole is whole:
                    return record
            sent = vector if part is None else vector[part]
            record = record_of({names.VECTOR: sent} if whole else self.layout.named(sent))
            self._recent.append((weakref.ref(vector), part, whole, record))
            return record


def read_upload(
    message: Message, layout: Layout, needs: str = "", order: Order | None = None
) -> Upload:
    """The upload in a client's reply.

    A ClientApp that does not know this project returns ``arrays``, ``metrics`` with
    ``num-examples`` and perhaps a loss: kind "model", rate sum 1.

    Args:
        message: a reply with content.
        layout: of the model that was sent.
        needs: full name of the class that must have trained; "" = any class.
        order: of the upload; needed if its client may have had only a part of the model.

    Raises:
        ValueError: the reply is malformed.
        RunError: the client did not train with `needs`. All clients run the same app.
    """
    content = message.content
    sent: Mapping[str, Any] = content.config_records.get(names.UPLOAD, {})
    ours = names.TRAINER in sent
    values = sent if ours else {}  # a record of that name without a trainer is the user's
    if needs and needs.rpartition(".")[2] not in str(values.get(names.TRAINER, "")).split():
        raise RunError(
            f"the ClientApp must train with {needs}: the algorithm is one of client and server, "
            "and without its half the run would be one of another algorithm"
        )
    fields: dict[str, Any] = {"kind": "model", **{n: values[n] for n in FIELDS if n in values}}
    if wrong := [name for name, value in fields.items() if type(value) is not FIELDS[name]]:
        raise ValueError(f"{names.UPLOAD} holds {wrong[0]}={fields[wrong[0]]!r}")
    scores = read_scores(message)
    losses = [scores.metrics[name] for name in names.LOSS_NAMES if name in scores.metrics]
    if ours:
        arrays = content.array_records.get(names.ARRAYS, ArrayRecord({}))
        part = part_of(order.config, layout) if order else None
        base = order.vector if order and fields["kind"] == "model" else None
        fields |= {"vector": decode(arrays, layout, part, base), **_side_fields(content, layout)}
    else:
        fields["vector"] = from_arrays(_only(content.array_records, "ArrayRecord"), layout)
        fields["records"] = {
            names.ARRAYS: {name: {} for name in content.array_records},
            names.METRICS: {name: dict(record) for name, record in content.metric_records.items()},
            names.CONFIG: {name: dict(record) for name, record in content.config_records.items()},
        }
    return Upload(
        num_examples=scores.num_examples,
        loss=losses[0] if losses else math.nan,
        metrics={n: value for n, value in scores.metrics.items() if n not in names.LOSS_NAMES},
        **fields,
    )


def read_scores(message: Message) -> Scores:
    """The numbers of a client's reply: ``metrics`` with ``num-examples``.

    Raises:
        ValueError: the reply is malformed.
    """
    record = _only(message.content.metric_records, "MetricRecord")
    numbers = {name: float(v) for name, v in record.items() if isinstance(v, int | float)}
    num_examples = numbers.pop(names.NUM_EXAMPLES, None)
    if num_examples is None or not num_examples.is_integer():
        actual = "no" if num_examples is None else num_examples
        raise ValueError(f"metrics hold {actual} {names.NUM_EXAMPLES}, expected a whole number")
    return Scores(numbers, int(num_examples))


def _side_fields(content: RecordDict, layout: Layout) -> dict[str, Any]:
    """`state` and `extra` of an order or an upload."""
    state, extra = {}, {}
    for name, record in content.array_records.items():
        if name == names.STATE:
            state = arrays_of(record)
        elif name.startswith(names.EXTRA):
            extra[name.removeprefix(names.EXTRA)] = decode(record, layout)
    return {"state": state, "extra": extra}


def _only(records: Any, kind: str) -> Any:
    if len(records) != 1:
        raise ValueError(f"reply holds {len(records)} {kind}s, expected exactly one")
    return next(iter(records.values()))


# -- client ---------------------------------------------------------------------------------------


def order_config(message: Message) -> dict[str, Any]:
    """The settings of an order, or of a query."""
    records = message.content.config_records
    return dict(records[names.CONFIG]) if names.CONFIG in records else {}


def read_order(message: Message, layout: Layout) -> Order:
    """The order in a message. Its number and time are unknown here; only the server uses them.

    Raises:
        ValueError: an array cannot be read, or does not fit the model.
    """
    content, config = message.content, order_config(message)
    record = content.array_records[names.ARRAYS]
    whole, part = names.APP_CONFIG in config or not len(record), part_of(config, layout)
    return Order(
        number=0,
        client_id=config[names.CLIENT_ID],
        sequence=config[names.SEQUENCE],
        base_version=config[names.VERSION],
        vector=decode(record, layout, part) if whole else from_arrays(record, layout),
        config=config,
        sent_at=0.0,
        **_side_fields(content, layout),
        evaluates=message.metadata.message_type == MessageType.EVALUATE,
    )


def pack_upload(
    message: Message,
    upload: Upload,
    layout: Layout,
    *,
    dtype: str = "float32",
    lineage: str = "",
) -> Message:
    """The reply to a training order.

    Args:
        message: the order.
        upload: the client's.
        layout: of its model.
        dtype: of trainable entries, to which they were rounded.
        lineage: names of the classes that trained, of an algorithm with clients of its own.
    """
    values = {name: getattr(upload, name) for name in FIELDS}
    fields = {name: FIELDS[name](value) for name, value in values.items() if value is not None}
    content = RecordDict(
        {
            names.ARRAYS: ArrayRecord({}),
            names.METRICS: MetricRecord(
                {**upload.metrics, names.NUM_EXAMPLES: upload.num_examples, names.LOSS: upload.loss}
            ),
            names.UPLOAD: ConfigRecord({**fields, names.TRAINER: lineage}),
        }
    )
    part = part_of(order_config(message), layout)
    if upload.seal:  # its entries are the bits of integers
        dtype = "float32"
    if upload.done:  # a paused client sends no vectors
        vectors = {names.EXTRA + name: vector for name, vector in upload.extra.items()}
        vectors[names.ARRAYS] = upload.vector if part is None else upload.vector[part]
        for name, vector in vectors.items():
            content[name] = record_of(encode(vector, layout.num_trainable, dtype))
    if upload.state:
        content[names.STATE] = record_of(upload.state)
    return Message(content, reply_to=message)


def pack_scores(message: Message, scores: Scores) -> Message:
    """The reply to an evaluate order."""
    numbers = MetricRecord({**scores.metrics, names.NUM_EXAMPLES: scores.num_examples})
    return Message(RecordDict({names.METRICS: numbers}), reply_to=message)


def pack_error(message: Message, error: Exception) -> Message:
    """The reply to an order that failed, worded as in the other runtimes.

    The errors that caused it stay on the node, since they may quote its data.
    """
    parts = [f"{type(error).__name__}: {error}", bugs.traceback_of(error, chain=False)]
    reason = "\n".join(filter(None, parts))
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
