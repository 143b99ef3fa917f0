"""Packs orders, uploads and introductions into Flower messages, and unpacks them."""

import math
import threading
import weakref
from collections import deque
from collections.abc import Mapping
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

from fl_app.core import bugs
from fl_app.core.errors import RunError
from fl_app.core.layout import Layout
from fl_app.core.types import NO_EXTRA, Extra, Order, Scores, State, Upload, Vector
from fl_app.flower.encoding import (
    extra_record,
    from_extra_record,
    packable,
    packed_vector,
    read,
    to_arrays,
    to_numpy,
    to_sparse,
    vector_of,
)
from fl_app.flower.names import (
    ARRAYS,
    BASE_VERSION,
    CLIENT_ID,
    CONFIG,
    DATA,
    DONE,
    ENCODING,
    EXTRA,
    FIXED,
    KIND,
    LOSS_NAMES,
    MASKED,
    METRICS,
    NUM_EXAMPLES,
    OWN_DATA,
    PACKED,
    PARTITION_ID,
    PROGRESS,
    RATE_SUM,
    SEAL,
    SEQUENCE,
    SERVER_ROUND,
    STATE,
    STATE_COUNT,
    STATE_OLDER,
    TOP_K,
    TRAINER,
    VERSION,
)

# Transport errors, and that of a process that was killed; no ClientApp has raised them.
TRANSPORT_ERRORS = (
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)

# What a ClientApp with `client_fn` looks for: records that only Flower's old servers send.
OLD_RECORDS = ("fitins.parameters", "evaluateins.parameters")

RECENT_RECORDS = 4  # serialised model versions kept

T = TypeVar("T")


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
        config: sent with every training order; the strategy's settings override it.
        fixed: bytes of the model's fixed part by name (`fl_app.client.flat.FlatModel`), for clients
            that ask for it.
        evaluate_config: sent with every evaluate order; None = `config`.
    """

    def __init__(
        self,
        layout: Layout,
        config: Mapping[str, object],
        fixed: Mapping[str, NDArray[np.generic]] | None = None,
        evaluate_config: Mapping[str, object] | None = None,
    ) -> None:
        self._layout = layout
        self._config = dict(config)
        self._fixed = fixed or {}
        self._fixed_record: ArrayRecord | None = None
        self._evaluate_config = dict(config if evaluate_config is None else evaluate_config)
        self._lock = threading.Lock()
        self._packable = packable(entry.dtype for entry in layout.entries)
        self._extras: deque[tuple[dict[str, weakref.ref[Vector]], ArrayRecord]] = deque(
            maxlen=RECENT_RECORDS
        )
        self._records: deque[tuple[weakref.ref[Vector], bool, ArrayRecord]] = deque(
            maxlen=RECENT_RECORDS
        )

    @property
    def num_fixed_bytes(self) -> int:
        """Size of the fixed part."""
        return sum(array.nbytes for array in self._fixed.values())

    def pack(
        self, order: Order, *, packed: bool = False, fixed: bool = False, state_count: int = 0
    ) -> RecordDict:
        """Content of an order's message; its arrays are shared and must not be changed.

        Args:
            order: what to pack.
            packed: whether the client understands a model that is one array.
            fixed: whether to send the fixed part as well.
            state_count: how often the client had saved its state, at least; 0 = unknown.
        """
        packed = packed and self._packable and order.vector.size > 0
        config = {
            **({PACKED: True} if packed else {}),
            **({STATE_COUNT: state_count} if state_count else {}),
            **(self._evaluate_config if order.evaluates else self._config),
            **order.config,
            # The model of version t is that of Flower's round t; round t + 1 trains from it.
            SERVER_ROUND: order.base_version + (0 if order.evaluates else 1),
            VERSION: order.base_version,
            CLIENT_ID: order.client_id,
            SEQUENCE: order.sequence,
        }
        record = train_record(self._record(order.vector, packed), ConfigRecord(config))  # type: ignore[arg-type]
        if order.state:
            record[STATE] = state_record(order.state)
        if order.extra:
            record[EXTRA] = self._extra_record(order.extra)
        if fixed:
            with self._lock:
                if self._fixed_record is None:
                    self._fixed_record = state_record(self._fixed)
                record[FIXED] = self._fixed_record
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
            if not vector.size:  # the client continues with what it has
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
    """The upload in a client's reply.

    Clients that do not know this project return ``arrays``, ``metrics`` with ``num-examples`` and
    perhaps a loss: kind "model", rate sum 1.

    Args:
        message: a reply with content.
        layout: of the model that was sent.
        version: of the model that was sent, as the server knows it.
        needs: full name of the class that must have trained; "" = any class.

    Raises:
        ValueError: the reply is malformed, or tagged with another version.
        RunError: the client did not train with `needs`. All clients run the same app.
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
    for name in (STATE_COUNT, STATE_OLDER):  # of the node's client state, not of its training
        numbers.pop(name, None)
    return Upload(
        vector=vector_of(arrays, layout, texts.get(ENCODING)) if done else np.empty(0, np.float32),
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
        seal=_seal(texts),
    )


def state_counts(message: Message) -> tuple[int, int | None]:
    """How often a client has saved its state, 0 if that is unknown; and what it gave up, if so.

    Returns:
        The count, and the smaller count of a state that was an old copy; None if it was not.
    """
    told: dict[str, object] = {}
    if message.has_content():
        for record in message.content.metric_records.values():
            told.update(record)
    count, older = told.get(STATE_COUNT), told.get(STATE_OLDER)
    return (
        count if isinstance(count, int) and count > 0 else 0,
        older if isinstance(older, int) else None,
    )


def _seal(config: Mapping[str, object]) -> bytes:
    seal = config.get(SEAL, b"")
    if not isinstance(seal, bytes):
        raise ValueError(f"{SEAL} is a {type(seal).__name__}, expected bytes")
    return seal


def unpack_scores(message: Message) -> Scores:
    """The scores in a client's reply to an evaluate order: ``metrics`` with ``num-examples``.

    Raises:
        ValueError: the reply is malformed.
    """
    numbers = {
        name: value
        for name, value in _only(message.content.metric_records, "MetricRecord").items()
        if isinstance(value, int | float)
    }
    num_examples = numbers.pop(NUM_EXAMPLES, math.nan)
    if not math.isfinite(num_examples):
        raise ValueError(f"metrics hold {NUM_EXAMPLES}={num_examples}, expected a finite number")
    return Scores({name: float(value) for name, value in numbers.items()}, int(num_examples))


def _records(content: RecordDict) -> dict[str, dict[str, dict[str, object]]]:
    """The records of a reply by kind and name, unchanged, without the arrays themselves."""
    arrays = [name for name in content.array_records if name not in (STATE, EXTRA)]
    return {
        ARRAYS: {name: {} for name in arrays or content.array_records},
        METRICS: {name: dict(record) for name, record in content.metric_records.items()},
        CONFIG: {name: dict(record) for name, record in content.config_records.items()},
    }


def error_of(message: Message) -> str:
    """The error of a reply without content, in words.

    Raises:
        RunError: the ClientApp has a `client_fn`. All clients run the same app.
    """
    if any(f"'{name}'" in (message.error.reason or "") for name in OLD_RECORDS):
        raise RunError(
            "the ClientApp has a client_fn, which reads only the messages of Flower's old servers "
            "and fails with Flower's own FedAvg, too: register a function with @app.train() and "
            "call your NumPyClient in it (docs/flower.md, Your ClientApp)"
        )
    return _error(message)[0] or f"Flower's error {message.error.code}"


def traceback_of(message: Message) -> str:
    """The traceback of a reply without content, if an error in the client's code is its reason."""
    _, header, lines = _error(message)
    return (header + lines).strip()


def _error(message: Message) -> tuple[str, str, str]:
    return (message.error.reason or "").partition(f"\n{bugs.HEADER}")


def not_delivered(message: Message) -> bool:
    """Whether a reply without content is due to the transport, not to the ClientApp."""
    return message.error.code in TRANSPORT_ERRORS


def query_record(config: Mapping[str, object] | None = None) -> RecordDict:
    """Content of the `query` message that asks a node for its introduction.

    Args:
        config: as of `OrderPacker`, to ask for the node's number of training examples instead.
    """
    return RecordDict({CONFIG: ConfigRecord(dict(config or {}))})  # type: ignore[arg-type]


def partition_of(reply: Message) -> int | None:
    """The partition id in a node's introduction; None if it has none."""
    for record in reply.content.metric_records.values():
        partition = record.get(PARTITION_ID)
        if isinstance(partition, int) and partition >= 0:
            return partition
    return None


def takes_packed(reply: Message) -> bool:
    """Whether a node's introduction says that it understands packed models."""
    return _says(reply, PACKED)


def owns_data(reply: Message) -> bool:
    """Whether a node's introduction says that it has data of its own."""
    return _says(reply, OWN_DATA)


def _says(reply: Message, name: str) -> bool:
    return any(record.get(name) == 1 for record in reply.content.metric_records.values())


def num_examples_of(reply: Message) -> int:
    """The number of examples in a reply without a model.

    Raises:
        ValueError: it holds none.
    """
    number = _only(reply.content.metric_records, "MetricRecord").get(NUM_EXAMPLES)
    if not isinstance(number, int):
        raise ValueError(f"metrics hold {NUM_EXAMPLES}={number}, expected an integer")
    return number


def asks_for_fixed(reply: Message) -> bool:
    """Whether a client asks for the order once more, with the model's fixed part."""
    if not reply.has_content():
        return False
    return any(record.get(FIXED) == 1 for record in reply.content.metric_records.values())


def state_record(state: State) -> ArrayRecord:
    """What a client keeps between its orders, as arrays by name."""
    return ArrayRecord({name: Array(np.asarray(array)) for name, array in state.items()})


def state_of(message: Message) -> dict[str, NDArray[np.generic]]:
    """What the client keeps between its orders, from a message.

    Raises:
        ValueError: an array cannot be read.
    """
    records = message.content.array_records
    if STATE not in records or len(records) == 1:
        return {}
    return {name: to_numpy(name, array) for name, array in records[STATE].items()}


def extra_of(message: Message, layout: Layout) -> Extra:
    """The extra vectors of a message, read-only.

    Raises:
        ValueError: an array cannot be read, or does not fit the model.
    """
    records = message.content.array_records
    if EXTRA not in records or len(records) == 1:
        return NO_EXTRA
    return from_extra_record(records[EXTRA], layout)


def _model(message: Message) -> ArrayRecord:
    records = dict(message.content.array_records.items())
    if len(records) > 1:  # a single record is a model, whatever its name
        for name in (STATE, EXTRA, FIXED):
            records.pop(name, None)
    return _only(records, "ArrayRecord")


def _only(records: Mapping[str, T] | TypedDict[str, T], kind: str) -> T:
    if len(records) != 1:
        raise ValueError(f"reply holds {len(records)} {kind}s, expected exactly one")
    return next(iter(records.values()))


# -- client ---------------------------------------------------------------------------------------


def order_config(message: Message) -> dict[str, Scalar]:
    """The settings of an order."""
    records = message.content.config_records
    return dict(records[CONFIG]) if CONFIG in records else {}  # type: ignore[arg-type]


def order_arrays(message: Message, layout: Layout) -> list[NDArray[np.generic]]:
    """The model of an order, in the layout's order; empty if a paused client is to continue.

    Raises:
        ValueError: names or dtypes are not those of the layout.
    """
    record = _model(message)
    if order_config(message).get(PACKED):
        return layout.unflatten(packed_vector(record, layout))
    return read(record, layout) if len(record) else []


def fixed_of(message: Message) -> dict[str, NDArray[np.generic]]:
    """The bytes of the model's fixed part by name, from an order; empty if it has none.

    Raises:
        ValueError: an array cannot be read.
    """
    records = message.content.array_records
    if FIXED not in records:
        return {}
    return {name: to_numpy(name, array) for name, array in records[FIXED].items()}


def ask_for_fixed(message: Message) -> Message:
    """The reply to an order whose client has another fixed part than the server."""
    numbers = MetricRecord({NUM_EXAMPLES: 0, FIXED: 1})
    return Message(RecordDict({METRICS: numbers}), reply_to=message)


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
        arrays: as `fl_app.client.LocalTrainer.fit` returns them, with the two arguments after it.
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
    masked = metrics.get(ENCODING) == MASKED
    names = [MASKED] if masked else layout.names
    named = dict(zip(names, arrays, strict=True)) if arrays else {}
    if masked:
        pass  # integers, which no other encoding can hold
    elif named and metrics.get(ENCODING) == TOP_K:
        named = to_sparse(named, layout)
    elif named and config.get(PACKED) and packable(array.dtype for array in arrays):
        with np.errstate(over="ignore"):  # infinite entries are refused by the server
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
    if extra and arrays:  # a paused client sends nothing but its progress
        dtype = next(a.dtype for a, e in zip(arrays, layout.entries, strict=True) if e.trainable)
        content[EXTRA] = extra_record(extra, layout, dtype, sparse=metrics.get(ENCODING) == TOP_K)
    return Message(content, reply_to=message)


def pack_error(message: Message, error: Exception) -> Message:
    """The reply to an order that failed, worded as in the other runtimes.

    The errors that it was raised from stay on the node: they may tell of its data.
    """
    told = [f"{type(error).__name__}: {error}", bugs.traceback_of(error, chain=False)]
    reason = "\n".join(filter(None, told))
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)


def pack_metrics(message: Message, num_examples: int, metrics: Mapping[str, Scalar]) -> Message:
    """The reply to an evaluation."""
    numbers, _ = _split(metrics)
    numbers[NUM_EXAMPLES] = num_examples
    return Message(RecordDict({METRICS: MetricRecord(numbers)}), reply_to=message)  # type: ignore[arg-type]


def pack_introduction(message: Message, context: Context) -> Message:
    """The reply to a `query`: the node's partition, and what it has.

    Args:
        message: the query.
        context: of the node, which may have data of its own.
    """
    partition = context.node_config.get(PARTITION_ID)
    numbers = {PACKED: 1} if partition is None else {PACKED: 1, PARTITION_ID: int(partition)}
    if DATA in context.node_config:
        numbers[OWN_DATA] = 1
    return Message(RecordDict({METRICS: MetricRecord(numbers)}), reply_to=message)  # type: ignore[arg-type]


def to_bytes(message: Message) -> bytes:
    """A message as Flower sends it to other processes; at most 2 GiB."""
    data: bytes = message_to_proto(message).SerializeToString()
    return data


def from_bytes(data: bytes) -> Message:
    """The inverse of `to_bytes`."""
    return message_from_proto(ProtoMessage.FromString(data))


def context_to_bytes(context: Context) -> bytes:
    """As `to_bytes`, of a ClientApp's context."""
    data: bytes = context_to_proto(context).SerializeToString()
    return data


def context_from_bytes(data: bytes) -> Context:
    """The inverse of `context_to_bytes`."""
    return context_from_proto(ProtoContext.FromString(data))


def _split(metrics: Mapping[str, Scalar]) -> tuple[dict[str, int | float], dict[str, Scalar]]:
    """The numbers, which a MetricRecord can hold, and the rest."""
    numbers: dict[str, int | float] = {}
    rest: dict[str, Scalar] = {}
    for name, value in metrics.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            numbers[name] = value
        else:
            rest[name] = value
    return numbers, rest
