"""The nouns that engine, strategies and clients share (NumPy only).

A model is one flat float32 vector of shape ``(d,)``: trainable parameters first, then buffers such
as BatchNorm statistics (`fl_app.core.layout`). Time is in seconds, sizes are in bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]
Vector: TypeAlias = NDArray[np.float32]
Numbers: TypeAlias = NDArray[np.float64]
Indices: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]
Rng: TypeAlias = np.random.Generator
Scalar: TypeAlias = bool | int | float | str
Config: TypeAlias = Mapping[str, Scalar]
State: TypeAlias = Mapping[str, Array]
Records: TypeAlias = Mapping[str, Mapping[str, Mapping[str, Any]]]
Extra: TypeAlias = Mapping[str, Vector]

# Kind of an upload that is relative to the client's last one (`fl_app.algorithms.area`). It cannot
# be converted to another kind, so only a strategy with this kind in `takes` can use it.
RESIDUAL = "residual"

KINDS = ("gradient", "pseudo", "delta", "model")
TRAINED: tuple[str, ...] = ("model", "delta", "pseudo")  # of a client that took steps
# Bounds on `Upload.rate_sum`. The entries of a vector whose length is a float32 are below 2e19, so
# they stay finite when they are multiplied or divided by these.
MIN_RATE, MAX_RATE = 1e-18, 1e18
NO_VECTOR: Vector = np.empty(0, np.float32)
NO_EXTRA: Extra = {}  # shared by all orders and uploads without extra vectors; never written to


def _no_extra() -> Extra:
    return NO_EXTRA


class _CompactPickle:
    """Pickled as its class and its fields; the default for slots takes twice as long."""

    __slots__: tuple[str, ...] = ()

    def __reduce__(self) -> Any:
        return type(self), tuple([getattr(self, name) for name in self.__slots__])


@dataclass(frozen=True, slots=True)
class Order(_CompactPickle):
    """One piece of work for one client: start from `vector`, train or evaluate, report.

    Attributes:
        number: unique in the run, increasing with the time of dispatch.
        client_id: the client that does it: its partition id; of a real node without one, its node
            id.
        sequence: how many training orders this client had before; with the run's seed and
            `client_id` it decides the client's randomness, so that execution order never does.
        base_version: version of the global model when the order was given.
        vector: what the client receives, shape ``(d,)``; `NO_VECTOR` if a client that paused goes
            on without a fresh model.
        config: settings for the client: the strategy's, those of `Schedule.work`, which win, and
            the engine's ``version``, ``width``, ``window``, ``continues`` and ``fresh_version``.
        sent_at: time of dispatch on the engine's clock, seconds.
        state: what the client kept from its previous order, by name; a number is an array of shape
            ``()``. Messages to real nodes have none: a node adds it from its own file.
        extra: vectors of shape ``(d,)`` that travel with the model, by name; read-only.
        evaluates: whether the client measures the model on its own data instead of training.
    """

    number: int
    client_id: int
    sequence: int
    base_version: int
    vector: Vector
    config: Config
    sent_at: float
    state: State = field(default_factory=dict)
    extra: Extra = field(default_factory=_no_extra)
    evaluates: bool = False


@dataclass(frozen=True, slots=True)
class Upload(_CompactPickle):
    """What a client's training returns; the server adds client and version (`Update`).

    Attributes:
        vector: shape ``(d,)``, meaning given by `kind`; `NO_VECTOR` in a pause.
        kind: ``"gradient"`` (one mini-batch), ``"pseudo"`` ((w_o - w_end) / rate_sum), ``"delta"``
            (w_end - w_o), ``"model"`` (w_end) or ``"residual"`` (w_end minus the
            model of the client's last accepted upload; w_end - w_o before there is one).
            The buffers of a gradient or pseudo upload hold b_o - b_end, since no learning rate
            applies to them.
        num_examples: size of the client's training set, > 0.
        loss: mean training loss of the order.
        rate_sum: sum of the local learning rates of the steps taken; 1.0 if unknown. Values
            outside 1e-18 to 1e18 are refused.
        metrics: whatever else the client measured.
        done: False if the client paused and waits for an answer.
        progress: share of the order's training that is done, in (0, 1]; below 1 if paused.
        base_version: the version that the client started from; None = that of its order.
        state: what the client keeps for its next order, see `Order`.
        records: of a reply by a ClientApp that is not this project's, as it came: ``"arrays"``,
            ``"metrics"`` or ``"config"`` -> record -> key -> value; without the arrays themselves.
        extra: vectors of shape ``(d,)`` that travel with `vector`, by name; none in a pause.
        seal: of a masked upload (`fl_app.secure.seals`), whose `vector` holds the bits of integers;
            empty = it is not masked.
    """

    vector: Vector
    kind: str
    num_examples: int
    loss: float
    rate_sum: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    done: bool = True
    progress: float = 1.0
    base_version: int | None = None
    state: State = field(default_factory=dict)
    records: Records = field(default_factory=dict)
    extra: Extra = field(default_factory=_no_extra)
    seal: bytes = b""


@dataclass(frozen=True, slots=True)
class Update:
    """One upload as the strategy sees it: an `Upload` with its origin.

    `vector`, `kind`, `num_examples`, `loss`, `rate_sum`, `metrics`, `done`, `records`, `extra` and
    `seal` are those of the `Upload`.

    Attributes:
        client_id: the client that sent it.
        base_version: version of the global model that the client started from.
        order: number of the order that it answers; -1 for an update made by hand.
        seconds: from the dispatch of its order until it arrived, on the run's clock, including a
            pause; 0.0 for an update made by hand, and in Flower's own rounds.
        steps: local steps that its order asked for; 0 = as many as the client takes by itself.
    """

    client_id: int
    base_version: int
    vector: Vector
    kind: str
    num_examples: int
    loss: float
    rate_sum: float = 1.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    done: bool = True
    records: Records = field(default_factory=dict)
    extra: Extra = field(default_factory=_no_extra)
    order: int = -1
    seal: bytes = b""
    seconds: float = 0.0
    steps: int = 0

    @classmethod
    def of(
        cls,
        upload: Upload,
        client_id: int,
        base_version: int,
        order: int = -1,
        seconds: float = 0,
        steps: int = 0,
    ) -> "Update":
        """An update from an upload; the server gives the other values."""
        values: dict[str, Any] = {name: getattr(upload, name) for name in UPLOAD_FIELDS}
        return cls(client_id, base_version, order=order, seconds=seconds, steps=steps, **values)


Updates: TypeAlias = Sequence[Update]

# Fields that an update copies from its upload.
UPLOAD_FIELDS = [each.name for each in fields(Update) if each.name in Upload.__slots__]
UPLOAD_FIELDS.remove("base_version")


@dataclass(frozen=True, slots=True)
class Scores:
    """A client's measurements of a model on its own data.

    Attributes:
        metrics: by name, such as ``"accuracy"`` and ``"loss"``.
        num_examples: that they were measured on.
    """

    metrics: Mapping[str, float]
    num_examples: int


@dataclass(frozen=True, slots=True)
class Reply(_CompactPickle):
    """The result of an order: an upload, scores, or the reason why there is neither.

    Attributes:
        number: of the order.
        upload: of a client that trained.
        error: why there is neither.
        traceback: of an error in the client's code (`fl_app.core.bugs`); "" = of no such error.
        scores: of a client that evaluated.
    """

    number: int
    upload: Upload | None = None
    error: str = ""
    traceback: str = ""
    scores: Scores | None = None


class Trainer(Protocol):
    """Carries out a client's orders (`fl_app.client.LocalTrainer`)."""

    def train(self, order: Order) -> Upload:
        """The upload of an order to train."""

    def score(self, order: Order) -> Scores:
        """What the client measures of an order's model."""


@dataclass(frozen=True, slots=True)
class GlobalModel:
    """The server's model w_t and the older versions that orders or updates still cite.

    Attributes:
        params: w_t, shape ``(d,)``, read-only.
        version: t, starting at 0.
        history: version -> vector for every version cited by an order or an update, and t itself.
        num_trainable: how many leading entries are trainable; norms and cosines use only these.
            Below 0 = all.
    """

    params: Vector
    version: int
    history: Mapping[int, Vector] = field(default_factory=dict)
    num_trainable: int = -1

    def __post_init__(self) -> None:
        if self.num_trainable < 0:
            object.__setattr__(self, "num_trainable", self.params.size)

    def age(self, update: Update) -> int:
        """Versions published since the one that the client started from, >= 0."""
        return self.version - update.base_version

    def base(self, update: Update) -> Vector:
        """w_o, the version the client started from.

        Raises:
            KeyError: the version is no longer kept.
        """
        if update.base_version == self.version:
            return self.params
        try:
            return self.history[update.base_version]
        except KeyError:
            raise KeyError(
                f"update of client {update.client_id} cites version {update.base_version}, which "
                f"is not in the history {sorted(self.history)[:5]}...{self.version}"
            ) from None

    def displacement(self, update: Update) -> Vector:
        """w_i - w_o, of an upload of any of `KINDS`, shape ``(d,)``.

        Raises:
            ValueError: the upload is of kind "residual".
            KeyError: it is of kind "model", and its base version is no longer kept.
        """
        if update.kind == RESIDUAL:
            raise ValueError(
                f"update of client {update.client_id} is of kind {update.kind!r}, of which "
                "neither a displacement nor a gradient can be made"
            )
        if update.kind == "delta":
            return update.vector
        if update.kind == "model":
            return update.vector - self.base(update)
        return self._scaled(update.vector, -update.rate_sum)

    def delta(self, update: Update) -> Vector:
        """The displacement w_i - w_o, but of buffers b_i - b_t, shape ``(d,)``.

        So buffers move towards the clients' mean. With displacements from older versions, variances
        could become negative. If the base version is no longer kept, they are b_i - b_o. Raises as
        `displacement`.
        """
        return self._shift_buffers(self.displacement(update), update, 1)

    def gradient(self, update: Update) -> Vector:
        """Descent direction (w_o - w_i) / rate_sum, but of buffers b_t - b_i, ``(d,)``."""
        if update.kind in ("gradient", "pseudo"):
            return self._shift_buffers(update.vector, update, -1)
        return self._scaled(self.delta(update), -1.0 / update.rate_sum)

    def _shift_buffers(self, vector: Vector, update: Update, sign: int) -> Vector:
        # NOTE: papers leave out buffers. A mean of displacements would overshoot.
        split, base = self.num_trainable, self.history.get(update.base_version)
        if split == vector.size or base is None or self.age(update) == 0:
            return vector
        older = base[split:] - self.params[split:]
        return np.concatenate([vector[:split], vector[split:] + sign * older])

    def local(self, update: Update) -> Vector:
        """The client's model w_i, shape ``(d,)``; raises as `base` and `displacement`."""
        if update.kind == "model":
            return update.vector
        return self.base(update) + self.displacement(update)

    def step(self, direction: Vector, learning_rate: float) -> Vector:
        """w_t - learning_rate * direction; buffers move by the whole direction (rate 1)."""
        params = self._scaled(direction, -learning_rate)
        params += self.params
        return params

    def _scaled(self, vector: Vector, factor: float) -> Vector:
        """The vector times a factor; buffers, to which no learning rate applies, times -1."""
        scaled = vector * np.float32(factor)
        scaled[self.num_trainable :] = -vector[self.num_trainable :]
        return scaled


class Parts(NamedTuple):
    """Seconds of the three parts of an order: `download`, `training` and `upload`.

    Attributes:
        work: the three parts of a client that trains while it transfers; `training` is then the
            whole time. None = the parts above follow one after the other.
        metered: whether the device's power is known, so that the log needs the parts.
        start: seconds of `training` before its first step, which do not grow with the work.
    """

    download: float
    training: float
    upload: float
    work: tuple[float, float, float] | None = None
    metered: bool = False
    start: float = 0.0

    @property
    def seconds(self) -> float:
        """Seconds from the dispatch of the order until its update arrives; inf = never."""
        return self.training + (self.download + self.upload)

    @property
    def logged(self) -> tuple[list[float] | None, bool | None]:
        """`parts` and `beside` of `fl_app.core.events.Dispatched`."""
        download, _, upload = work = self.work or self[:3]
        if download == upload == 0 and not self.metered:
            return None, None
        beside = sum(work) > self.seconds + 1e-6
        return [round(each, 6) for each in work], beside or None


class Devices(Protocol):
    """How long every client's orders take, in virtual time (`fl_app.devices`)."""

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        """Parts of the client's order `sequence`, given at `now`; called once per order."""
