"""Flower messages <-> vocabulary; every record name and key is here.

Records follow Flower's own convention, so that clients and servers that never heard of this project
understand them:

| message | record | holds |
|---|---|---|
| order (`train`) | ``arrays`` | the model by name |
| | ``config`` | ``server-round`` (base version + 1), ``version``, ``client-id``, ``sequence`` |
| | | and what the strategy and the user add; ours also ``run`` |
| reply | ``arrays`` | the upload by name |
| | ``metrics`` | ``num-examples``; ours also ``version``, ``loss``, ``rate-sum`` |
| | ``config`` | ours: ``kind``, ``trainer``, ``encoding`` |
| both, where the algorithm exchanges more | ``extra`` | vectors beside the model, by name |
| both, where any node serves any client | ``state`` | what the client keeps between its orders |
| introduction (`query`) | ``metrics`` | the reply holds ``partition-id``; ours also ``packed`` |

Flower sends every array in requests of its own. Between a server and a client that are both ours
``arrays`` therefore holds one, ``packed``, with all of them: on loopback, that halves the time that
LeNet's ten travel.

Nothing is ever unpickled: Flower writes arrays in NumPy's format and reads them with pickle off.
"""

import math
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TypeVar

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Error,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.app.message.typeddict import TypedDict
from flwr.common import Scalar
from flwr.common.constant import ErrorCode
from flwr.common.serde import (
    context_from_proto,
    context_to_proto,
    message_from_proto,
    message_to_proto,
)
from flwr.proto.message_pb2 import Context as ProtoContext
from flwr.proto.message_pb2 import Message as ProtoMessage
from numpy.typing import NDArray

from fl_app.core.errors import RunError
from fl_app.core.layout import Layout, names_of
from fl_app.core.types import NO_EXTRA, Extra, Order, State, Upload, Vector
from fl_app.core.vector import read_only

ARRAYS = "arrays"
CONFIG = "config"
METRICS = "metrics"
STATE = "state"
EXTRA = "extra"

SERVER_ROUND = "server-round"
VERSION = "version"
CLIENT_ID = "client-id"
SEQUENCE = "sequence"
ANY_NODE = "any-node"  # the node works for client `client-id`, not for a client of its own
APP_CONFIG = "app-config"  # the resolved configuration, YAML
RUN = "run"  # letters and digits, the same for all ServerApps that carry a run out in turn

NUM_EXAMPLES = "num-examples"
KIND = "kind"
TRAINER = "trainer"  # names of the classes that trained, of algorithms with clients of their own
ENCODING = "encoding"
TOP_K = "top-k"  # the encoding in which ``arrays`` holds places, entries and buffers
PLACES, ENTRIES = "top-k.places", "top-k.entries"
# Of an extra vector, each before a colon and its name: the whole of it, or what travels of its
# trainable part (and of which places), and its buffers.
VECTOR, EXTRA_ENTRIES, EXTRA_PLACES, BUFFERS = "vector", "entries", "places", "buffers"
PACKED = "packed"  # the encoding, and the name, of a vector (d,); 1 where it is understood
LOSS = "loss"
RATE_SUM = "rate-sum"
DONE = "done"  # 0: the client paused
PROGRESS = "progress"
BASE_VERSION = "base-version"  # that the client trained from, if not its order's
LOSS_NAMES = (LOSS, "train_loss", "train-loss")  # ours, and those of Flower's examples

PARTITION_ID = "partition-id"

# Errors of the way, or of a process that was killed, and not what an app says.
UNHEARD = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)

RECENT_RECORDS = 4  # serialised model versions kept

T = TypeVar("T")


# -- models ---------------------------------------------------------------------------------------


def layout_of(record: ArrayRecord) -> Layout:
    """How the arrays of a record lie in one vector."""
    return Layout.of_arrays({name: array.numpy() for name, array in record.items()})


def to_arrays(vector: Vector, layout: Layout) -> ArrayRecord:
    """A vector of shape ``(d,)`` as named arrays with their own shapes and dtypes, serialised."""
    return ArrayRecord({name: Array(array) for name, array in layout.named(vector).items()})


def from_arrays(record: ArrayRecord, layout: Layout) -> Vector:
    """The inverse of `to_arrays`; a new, read-only vector.

    Raises:
        ValueError: names, shapes or dtypes are not those of the layout.
    """
    with np.errstate(over="ignore"):  # a float64 too large becomes inf, which is refused later
        vector = layout.flatten(_read(record, layout))
    vector.flags.writeable = False
    return vector


def _read(record: ArrayRecord, layout: Layout) -> list[NDArray[np.generic]]:
    """Arrays in the layout's order; floats of any width pass for floats, integers for integers."""
    missing = [name for name in layout.names if name not in record]
    unexpected = [name for name in record if name not in layout.slices]
    if missing or unexpected:
        raise ValueError(
            "arrays do not fit the model: "
            f"missing {names_of(missing) or 'none'}; unexpected {names_of(unexpected) or 'none'}"
        )
    arrays = []
    for entry in layout.entries:
        array = _numpy(entry.name, record[entry.name])
        if array.dtype.kind != np.dtype(entry.dtype).kind:
            raise ValueError(
                f"array {entry.name!r} has dtype {array.dtype}, the model's has {entry.dtype}"
            )
        arrays.append(array)
    return arrays


def _vector(record: ArrayRecord, layout: Layout, encoding: Scalar | None) -> Vector:
    """An upload's vector ``(d,)``, read-only, however it travelled."""
    if encoding == PACKED:
        return read_only(_packed(record, layout))
    if encoding != TOP_K:
        return from_arrays(record, layout)
    named = {name: _numpy(name, array) for name, array in record.items()}
    buffers = {entry.name: entry.shape for entry in layout.entries if not entry.trainable}
    if named.keys() != {PLACES, ENTRIES, *buffers}:
        raise ValueError(f"a {TOP_K} upload must hold {PLACES}, {ENTRIES} and the model's buffers")
    places, entries = named.pop(PLACES), named.pop(ENTRIES)
    _check_places(places, entries, layout)
    for name, shape in buffers.items():
        if named[name].shape != shape:
            raise ValueError(f"array {name!r} has shape {named[name].shape}, the model's {shape}")
    vector = np.zeros(layout.size, np.float32)
    vector[places] = entries
    for name, array in named.items():
        vector[layout.slices[name]] = array.reshape(-1)
    vector.flags.writeable = False
    return vector


def _check_places(
    places: NDArray[np.generic], entries: NDArray[np.generic], layout: Layout
) -> None:
    one_each = places.ndim == 1 and places.shape == entries.shape
    if not (one_each and places.dtype == np.uint32 and entries.dtype.kind == "f"):
        raise ValueError(f"a {TOP_K} upload must hold one floating entry for every uint32 place")
    # In order: so none is there twice, and the last one is the largest.
    ends = np.diff(places.astype(np.int64), append=layout.num_trainable)
    if (ends <= 0).any():
        raise ValueError(f"{PLACES} must increase and be below {layout.num_trainable}")


def _packed(record: ArrayRecord, layout: Layout) -> Vector:
    """The one array of a record, float32 and ``(d,)``."""
    arrays = {name: _numpy(name, array) for name, array in record.items()}
    vector = arrays.get(PACKED)
    fits = vector is not None and vector.dtype == np.float32 and vector.shape == (layout.size,)
    if vector is None or not fits or len(arrays) > 1:
        found = [f"{name} {array.dtype}{list(array.shape)}" for name, array in arrays.items()]
        raise ValueError(
            f"arrays do not fit the model: expected {PACKED} float32[{layout.size}], "
            f"got {names_of(found) or 'none'}"
        )
    return vector.astype(np.float32, copy=False)


def _packable(dtypes: Iterable[np.typing.DTypeLike]) -> bool:
    """Whether a float32 vector takes no more bytes than the arrays themselves."""
    return all(np.dtype(dtype).itemsize >= 4 for dtype in dtypes)


def _sparse(
    named: Mapping[str, NDArray[np.generic]], layout: Layout
) -> dict[str, NDArray[np.generic]]:
    """The inverse of `_vector` for arrays of which most entries are 0."""
    vector = layout.flatten(list(named.values()))[: layout.num_trainable]
    places = np.flatnonzero(vector).astype(np.uint32)
    dtype = next(named[entry.name].dtype for entry in layout.entries if entry.trainable)
    buffers = {entry.name: named[entry.name] for entry in layout.entries if not entry.trainable}
    return {PLACES: places, ENTRIES: vector[places].astype(dtype), **buffers}


def _numpy(name: str, array: Array) -> NDArray[np.generic]:
    try:
        read = array.numpy()
        if not isinstance(read, np.ndarray):
            raise TypeError(f"it holds a {type(read).__name__}")
    except Exception as error:  # whatever the bytes of a stranger may provoke
        raise ValueError(
            f"array {name!r} cannot be read: {type(error).__name__}: {error}"
        ) from error
    return read


# -- vectors beside the model ---------------------------------------------------------------------


def extra_record(
    extra: Extra, layout: Layout, dtype: np.typing.DTypeLike = np.float32, *, sparse: bool = False
) -> ArrayRecord:
    """Vectors beside the model, made as small as the model's own upload is.

    Args:
        extra: by name, shape ``(d,)``.
        layout: of the model.
        dtype: of trainable entries.
        sparse: most trainable entries are 0.
    """
    arrays: dict[str, NDArray[np.generic]] = {}
    for name, vector in extra.items():
        entries, buffers = np.split(vector, [layout.num_trainable])
        if np.dtype(dtype) == np.float32 and not sparse:
            arrays[f"{VECTOR}:{name}"] = vector
            continue
        if sparse:
            places = np.flatnonzero(entries).astype(np.uint32)
            entries, arrays[f"{EXTRA_PLACES}:{name}"] = entries[places], places
        with np.errstate(over="ignore"):  # what becomes infinite is refused where it arrives
            arrays[f"{EXTRA_ENTRIES}:{name}"] = entries.astype(dtype)
        arrays[f"{BUFFERS}:{name}"] = buffers
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})


def extra_of(message: Message, layout: Layout) -> Extra:
    """The inverse of `extra_record`, of what a message brings; read-only vectors.

    Raises:
        ValueError: an array cannot be read, or does not fit the model.
    """
    records = message.content.array_records
    if EXTRA not in records or len(records) == 1:
        return NO_EXTRA
    parts: dict[str, dict[str, NDArray[np.generic]]] = {}
    for key, array in records[EXTRA].items():
        part, _, name = key.partition(":")
        parts.setdefault(name, {})[part] = _numpy(key, array)
    return {name: _extra_vector(name, found, layout) for name, found in parts.items()}


def _extra_vector(name: str, found: dict[str, NDArray[np.generic]], layout: Layout) -> Vector:
    if found.keys() == {VECTOR}:
        vector = found[VECTOR]
        if vector.dtype != np.float32 or vector.shape != (layout.size,):
            raise ValueError(
                f"extra vector {name!r} is {vector.dtype}{list(vector.shape)}, "
                f"expected float32[{layout.size}]"
            )
        return read_only(vector.astype(np.float32, copy=False))
    if found.keys() - {EXTRA_PLACES} != {EXTRA_ENTRIES, BUFFERS}:
        raise ValueError(f"extra vector {name!r} holds {names_of(found)}")
    split, entries, buffers = layout.num_trainable, found[EXTRA_ENTRIES], found[BUFFERS]
    made = np.zeros(layout.size, np.float32)
    whole = made[:split]
    if EXTRA_PLACES in found:
        _check_places(found[EXTRA_PLACES], entries, layout)
        whole[found[EXTRA_PLACES]] = entries
    elif entries.dtype.kind == "f" and entries.shape == whole.shape:
        whole[:] = entries
    else:
        raise ValueError(f"extra vector {name!r} must have {split} floating trainable entries")
    if buffers.dtype != np.float32 or buffers.shape != (layout.size - split,):
        raise ValueError(f"extra vector {name!r} must have {layout.size - split} float32 buffers")
    made[split:] = buffers
    made.flags.writeable = False
    return made


# -- server ---------------------------------------------------------------------------------------


def train_record(arrays: ArrayRecord, config: ConfigRecord) -> RecordDict:
    """Content of a `train` message."""
    return RecordDict({ARRAYS: arrays, CONFIG: config})


class OrderPacker:
    """Packs orders; may be called from several threads.

    An ArrayRecord serialises its arrays when it is made, so the last few records are kept and
    shared by all orders that carry the same vector.

    Args:
        layout: of the vectors.
        config: sent with every order, under whatever the strategy adds.
    """

    def __init__(self, layout: Layout, config: Mapping[str, object]) -> None:
        self._layout = layout
        self._config = dict(config)
        self._lock = threading.Lock()
        self._packable = _packable(entry.dtype for entry in layout.entries)
        self._extras: deque[tuple[dict[str, weakref.ref[Vector]], ArrayRecord]] = deque(
            maxlen=RECENT_RECORDS
        )
        self._records: deque[tuple[weakref.ref[Vector], bool, ArrayRecord]] = deque(
            maxlen=RECENT_RECORDS
        )

    def pack(self, order: Order, *, packed: bool = False) -> RecordDict:
        """Content of an order's `train` message; the arrays are shared and not to be changed.

        Args:
            order: what to pack.
            packed: the client understands it if the model is one array.
        """
        packed = packed and self._packable and order.vector.size > 0
        config = {
            **({PACKED: True} if packed else {}),
            **self._config,
            **order.config,
            SERVER_ROUND: order.base_version + 1,
            VERSION: order.base_version,
            CLIENT_ID: order.client_id,
            SEQUENCE: order.sequence,
        }
        record = train_record(self._record(order.vector, packed), ConfigRecord(config))  # type: ignore[arg-type]
        if order.state:
            record[STATE] = state_record(order.state)
        if order.extra:
            record[EXTRA] = self._extra_record(order.extra)
        return record

    def _extra_record(self, extra: Extra) -> ArrayRecord:
        with self._lock:
            for known, record in self._extras:
                if known.keys() == extra.keys() and all(known[n]() is extra[n] for n in known):
                    return record
            record = extra_record(extra, self._layout)
            self._extras.append(({n: weakref.ref(v) for n, v in extra.items()}, record))
            return record

    def _record(self, vector: Vector, packed: bool) -> ArrayRecord:
        with self._lock:
            if not vector.size:  # to go on with what the client has
                return ArrayRecord({})
            for known, as_one, record in self._records:
                if known() is vector and as_one is packed:
                    return record
            if packed:
                record = ArrayRecord({PACKED: Array(vector)})
            else:
                record = to_arrays(vector, self._layout)
            self._records.append((weakref.ref(vector), packed, record))
            return record


def unpack_reply(
    message: Message, layout: Layout, version: int | None = None, needs: str = ""
) -> Upload:
    """What a client's reply holds.

    Clients that never heard of this project return ``arrays``, ``metrics`` with ``num-examples``
    and perhaps a loss: kind "model", rate sum 1.

    Args:
        message: a reply with content.
        layout: of the model that was sent.
        version: of the model that was sent, as the server knows it.
        needs: full name of the class that must have trained; "" = any will do.

    Raises:
        ValueError: the reply is malformed, or tagged with another version.
        RunError: the client did not train as `needs` says; all run the same app, so no other did.
    """
    content = message.content
    arrays = _model(message)
    numbers = {
        name: value
        for name, value in _only(content.metric_records, "MetricRecord").items()
        if isinstance(value, int | float)
    }
    if not math.isfinite(numbers.get(NUM_EXAMPLES, math.nan)):
        raise ValueError(
            f"metrics hold {NUM_EXAMPLES}={numbers.get(NUM_EXAMPLES)}, expected a finite number"
        )
    tag = numbers.pop(VERSION, version)
    if version is not None and tag != version:
        raise ValueError(f"reply is tagged with version {tag}, its order carried {version}")
    texts = order_config(message)
    kind = texts.get(KIND)
    if needs and needs.rpartition(".")[2] not in str(texts.get(TRAINER, "")).split():
        raise RunError(
            f"the ClientApp must train with {needs}: the algorithm is one of client and server, "
            "and without its half the run would be one of another algorithm"
        )
    done = bool(numbers.pop(DONE, 1))
    base_version = numbers.pop(BASE_VERSION, None)
    return Upload(
        vector=_vector(arrays, layout, texts.get(ENCODING)) if done else np.empty(0, np.float32),
        kind="model" if kind is None else str(kind),
        num_examples=int(numbers.pop(NUM_EXAMPLES)),
        loss=float(next((numbers[name] for name in LOSS_NAMES if name in numbers), math.nan)),
        rate_sum=float(numbers.pop(RATE_SUM, 1.0)),
        done=done,
        progress=float(numbers.pop(PROGRESS, 1.0)),
        base_version=None if base_version is None else int(base_version),
        metrics={name: float(v) for name, v in numbers.items() if name not in LOSS_NAMES},
        state=state_of(message),
        records=_records(content) if kind is None else {},
        extra=extra_of(message, layout),
    )


def _records(content: RecordDict) -> dict[str, dict[str, dict[str, object]]]:
    """What a reply holds beside its arrays, by kind and name, as it came."""
    arrays = [name for name in content.array_records if name not in (STATE, EXTRA)]
    return {
        ARRAYS: {name: {} for name in arrays or content.array_records},
        METRICS: {name: dict(record) for name, record in content.metric_records.items()},
        CONFIG: {name: dict(record) for name, record in content.config_records.items()},
    }


def error_of(message: Message) -> str:
    """What went wrong, of a reply without content."""
    return message.error.reason or f"Flower's error {message.error.code}"


def unheard(message: Message) -> bool:
    """Whether a reply without content says that nobody heard the message to its end."""
    return message.error.code in UNHEARD


def query_record() -> RecordDict:
    """Content of the `query` message that asks a node who it is."""
    return RecordDict({CONFIG: ConfigRecord()})


def partition_of(reply: Message) -> int | None:
    """The partition id in a node's introduction; None if it told none."""
    for record in reply.content.metric_records.values():
        partition = record.get(PARTITION_ID)
        if isinstance(partition, int) and partition >= 0:
            return partition
    return None


def takes_packed(reply: Message) -> bool:
    """Whether a node's introduction says that it understands packed models."""
    return any(record.get(PACKED) == 1 for record in reply.content.metric_records.values())


def state_record(state: State) -> ArrayRecord:
    """What a client keeps between its orders, as arrays by name."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in state.items()})


def state_of(message: Message) -> dict[str, NDArray[np.generic]]:
    """What a message brings of what its client keeps between its orders.

    Raises:
        ValueError: an array cannot be read.
    """
    records = message.content.array_records
    if STATE not in records or len(records) == 1:
        return {}
    return {name: _numpy(name, array) for name, array in records[STATE].items()}


def _model(message: Message) -> ArrayRecord:
    records = dict(message.content.array_records.items())
    if len(records) > 1:  # an only one is a model, whatever its name
        for name in (STATE, EXTRA):
            records.pop(name, None)
    return _only(records, "ArrayRecord")


def _only(records: Mapping[str, T] | TypedDict[str, T], kind: str) -> T:
    if len(records) != 1:
        raise ValueError(f"reply holds {len(records)} {kind}s, expected exactly one")
    return next(iter(records.values()))


# -- client ---------------------------------------------------------------------------------------


def order_config(message: Message) -> dict[str, Scalar]:
    """Settings that came with an order."""
    records = message.content.config_records
    return dict(records[CONFIG]) if CONFIG in records else {}  # type: ignore[arg-type]


def order_arrays(message: Message, layout: Layout) -> list[NDArray[np.generic]]:
    """The model that came with an order, in the layout's order; nothing to go on after a pause.

    Raises:
        ValueError: names or dtypes are not those of the layout.
    """
    record = _model(message)
    if order_config(message).get(PACKED):
        return layout.unflatten(_packed(record, layout))
    return _read(record, layout) if len(record) else []


def pack_upload(
    message: Message,
    layout: Layout,
    arrays: list[NDArray[np.generic]],
    num_examples: int,
    metrics: Mapping[str, Scalar],
    state: State | None = None,
    extra: Extra = NO_EXTRA,
) -> Message:
    """The reply to an order, tagged with the model version that came with it.

    Args:
        message: the order.
        layout: names for `arrays`.
        arrays: as `fl_app.client.LocalTrainer.fit` returns them; so are the other two.
        num_examples: size of the client's training set.
        metrics: numbers, and texts such as ``kind``.
        state: what the client keeps, where the server keeps it.
        extra: vectors that travel with the upload.
    """
    numbers, texts = _split(metrics)
    config = order_config(message)
    if VERSION in config:
        numbers[VERSION] = int(config[VERSION])
    numbers[NUM_EXAMPLES] = num_examples
    named = dict(zip(layout.names, arrays, strict=True)) if arrays else {}
    if named and metrics.get(ENCODING) == TOP_K:
        named = _sparse(named, layout)
    elif named and config.get(PACKED) and _packable(array.dtype for array in arrays):
        with np.errstate(over="ignore"):  # what becomes infinite is refused where it arrives
            named = {PACKED: layout.flatten(arrays)}
        texts[ENCODING] = PACKED
    content = RecordDict(
        {
            ARRAYS: ArrayRecord({name: Array(array) for name, array in named.items()}),
            METRICS: MetricRecord(numbers),  # type: ignore[arg-type]
            CONFIG: ConfigRecord(texts),  # type: ignore[arg-type]
        }
    )
    if state:
        content[STATE] = state_record(state)
    if extra and arrays:  # upon a pause nothing but its progress is wanted
        dtype = next(a.dtype for a, e in zip(arrays, layout.entries, strict=True) if e.trainable)
        content[EXTRA] = extra_record(extra, layout, dtype, sparse=metrics.get(ENCODING) == TOP_K)
    return Message(content, reply_to=message)


def pack_error(message: Message, error: Exception) -> Message:
    """The reply to an order that failed, in the words of the other runtimes."""
    reason = f"{type(error).__name__}: {error}"
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def pack_metrics(message: Message, num_examples: int, metrics: Mapping[str, Scalar]) -> Message:
    """The reply to an evaluation."""
    numbers, _ = _split(metrics)
    numbers[NUM_EXAMPLES] = num_examples
    return Message(RecordDict({METRICS: MetricRecord(numbers)}), reply_to=message)  # type: ignore[arg-type]


def pack_introduction(message: Message, context: Context) -> Message:
    """The reply to a `query`: which partition the node's own configuration gives it, if any."""
    partition = context.node_config.get(PARTITION_ID)
    numbers = {PACKED: 1} if partition is None else {PACKED: 1, PARTITION_ID: int(partition)}
    return Message(RecordDict({METRICS: MetricRecord(numbers)}), reply_to=message)  # type: ignore[arg-type]


def to_bytes(message: Message) -> bytes:
    """A message as Flower sends it to other processes; at most 2 GiB."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def from_bytes(data: bytes) -> Message:
    """The inverse of `to_bytes`."""
    return message_from_proto(ProtoMessage.FromString(data))


def context_to_bytes(context: Context) -> bytes:
    """As `to_bytes`, of what a ClientApp is told of its node and run."""
    data: bytes = context_to_proto(context).SerializeToString()
    return data


def context_from_bytes(data: bytes) -> Context:
    """The inverse of `context_to_bytes`."""
    return context_from_proto(ProtoContext.FromString(data))


def _split(metrics: Mapping[str, Scalar]) -> tuple[dict[str, int | float], dict[str, Scalar]]:
    """What a MetricRecord takes, and the rest."""
    numbers: dict[str, int | float] = {}
    rest: dict[str, Scalar] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = value
        else:
            rest[name] = value
    return numbers, rest
