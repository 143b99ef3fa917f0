"""The server half of an asynchronous algorithm, which the engine runs (NumPy only)."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import is_dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np

from fl_app.core.bugs import check_names
from fl_app.core.errors import RunError
from fl_app.core.hyper import Checked
from fl_app.core.rates import LinearDecay
from fl_app.core.snapshot import Remembers
from fl_app.core.types import Config, Extra, GlobalModel, Numbers, Update, Updates, Vector
from fl_app.core.vector import clipped, combine, norm, weighted_sum
from fl_app.core.weighting import Weighting
from fl_app.core.width import Widths

Floats: TypeAlias = Sequence[float] | Numbers
# Maps w_t, t, the number of examples that the server holds and that of one mini-batch to a gradient
# of shape (d,). Equal arguments give equal gradients.
ServerGradient: TypeAlias = Callable[[Vector, int, int, int], Vector]


class Algorithm(Remembers, Checked, ABC):
    """The server's equations; one required method, `aggregate`.

    Subclasses are keyword-only dataclasses. Their fields are the hyper-parameters, each declared
    with its bound (`fl_app.core.hyper.bounded`). A subclass may have an `__init__` instead that
    calls this one.

    Attributes:
        clip_norm: largest norm of an upload's trainable part in `clip`, > 0; None = any. It is a
            field of `fl_app.strategy.weighted.Stepped`, as is the next one.
        lr_schedule: how the server's learning rate falls in `step`; None = constant.
        cites_forgotten: whether an update may have a base version that the server no longer keeps.
            Only its displacement can then be used.
        order_extra: names of the vectors, of the model's shape, that every order carries beside the
            model (`dispatch_extra`). They are known before the run, and so are transfer times.
        upload_extra: names of the vectors that every upload carries (`Update.extra`).
        linear_in: kinds of uploads of which `aggregate` uses a weighted sum alone, with weights
            (`public_weights`) that depend on no upload's content. Secure aggregation needs such a
            kind. () = there is none.
        looks_at: if there is none, what `aggregate` looks at in single uploads, as the end of the
            sentence "it needs ...".
        cuts: whether clients may train sub-models: each entry moves by the updates that have it
            alone (`by_entry`).
        chooses_epochs: whether the ``local_epochs`` of orders depend on the training.
        widths: of clients that do, set before a run; None = all train the whole model.
        age_key: name of the field that bounds the age of updates, if there is one.
        first_state: what `state` is before a run.
        state: what the algorithm learns during a run.
        report: numbers about the last aggregation for its event, such as ``weight``, one number
            per update. The engine empties it before every `aggregate`.

    Raises:
        ValueError: a value is out of its bounds.
    """

    _group = "algorithm.strategy"

    # Not in checkpoints: saved elsewhere, or derived from the configuration.
    transient: ClassVar[Collection[str]] = (
        *("report", "schedule", "lr_schedule", "shares", "widths", "_prepared"),
    )
    cites_forgotten: ClassVar[bool] = False
    order_extra: ClassVar[tuple[str, ...]] = ()
    upload_extra: ClassVar[tuple[str, ...]] = ()
    linear_in: ClassVar[Sequence[str]] = ()
    looks_at: ClassVar[str] = "single uploads, as far as its class says (linear_in)"
    cuts: ClassVar[bool] = False
    chooses_epochs: bool = False
    age_key: ClassVar[str] = "max_staleness"
    first_state: ClassVar[Mapping[str, Any]] = {}

    clip_norm: float | None = None
    lr_schedule: LinearDecay | None = None
    widths: Widths | None = None
    _prepared: ServerGradient | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        check_names(cls)

    def __init__(self) -> None:
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the values and reset `state` and `report`; `__init__` of dataclasses calls it."""
        if is_dataclass(self):
            super().__post_init__()
        self.state: dict[str, Any] = deepcopy({**self.first_state})
        self.report: dict[str, Any] = {}
        self.shares: Sequence[float] = ()  # of the schedule (`Schedule.shares`), set before a run

    @abstractmethod
    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        """The next global model.

        Args:
            model: w_t and the older versions that `updates` cite.
            updates: what the schedule released, K >= 1, oldest arrival first.

        Returns:
            w_{t+1}, shape ``(d,)``, float32, finite; arguments are left alone.
        """

    def prepare(self, gradient: ServerGradient) -> None:
        """Receive the gradient function, before a run whose server has training examples."""
        self._prepared = gradient

    def _server_gradient(self, params: Vector, version: int, held: int, batch: int) -> Vector:
        """A gradient computed on the server (`prepare`), which needs training examples."""
        if self._prepared is None:
            name = type(self).__name__
            raise RunError(
                f"algorithm={name.lower()} needs training examples on the server, and there are "
                f"none: use it in simulation, or give {name}.prepare a gradient"
            )
        return self._prepared(params, version, held, batch)

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        """What a client that starts now receives: a vector of shape ``(d,)`` and a config."""
        return model.params, {}

    def dispatch_extra(self, model: GlobalModel, client_id: int) -> Extra:
        """The vectors named in `order_extra`, shape ``(d,)``; the answer to a pause has them, too.

        Read-only vectors are shared with clients; others are copied for every order.
        """
        raise NotImplementedError(f"{type(self).__name__} has order_extra and no dispatch_extra")

    def refresh(self, model: GlobalModel, paused: Update) -> tuple[Vector, Config]:
        """The answer to a client that paused: a vector of shape ``(d,)`` and a config.

        It is called only if there is a newer version than the client's base version.
        """
        return model.params, {}

    @property
    def oldest_admitted(self) -> float:
        """Greatest age of an update that `admit` does not refuse, versions."""
        bound = getattr(self, self.age_key, None)
        return math.inf if bound is None else bound

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        """A reason to refuse an arrival, or None; here that it is older than `oldest_admitted`."""
        age = model.age(update)
        if age <= self.oldest_admitted:
            return None
        return f"age={age} is above {self.oldest_admitted:g}, by strategy.{self.age_key}"

    def cluster(self, model: GlobalModel, updates: Updates) -> Mapping[int, int]:
        """Clusters of clients, for a schedule that asks for them; this makes no version.

        Args:
            model: w_t.
            updates: the latest upload of every present client, as a descent direction.

        Returns:
            client -> cluster, numbered from 0 by falling size. A client that joins later belongs to
            cluster 0, the largest.
        """
        return {update.client_id: 0 for update in updates}

    def public_weights(self) -> Weighting:
        """How `aggregate` weighs updates, of a class with `linear_in`."""
        raise NotImplementedError

    def to_evaluate(self, model: GlobalModel) -> Vector:
        """What is tested and saved, shape ``(d,)``."""
        return model.params

    def totals(self) -> dict[str, float]:
        """Further numbers for ``summary.json``, such as the privacy that the run has spent."""
        return {}

    def memory_cost(self, size: int, num_clients: int) -> str:
        """How much memory the server keeps for its clients, as a sentence for the log; "" = none.

        Args:
            size: number of trainable entries.
            num_clients: of the federation; 0 = not known.

        Raises:
            ValueError: this machine has less memory than the server keeps at least.
        """
        return ""

    # -- pieces of `aggregate` that many algorithms share -----------------------------------------

    def clip(self, model: GlobalModel, uploads: Iterable[Vector]) -> list[Vector]:
        """g min(1, clip_norm / ||g||) over the trainable part of each upload ``(d,)``."""
        if self.clip_norm is None:
            return list(uploads)
        return [clipped(upload, self.clip_norm, model.num_trainable) for upload in uploads]

    def gradients(self, model: GlobalModel, updates: Updates) -> list[Vector]:
        """Clipped descent directions of K updates ``(d,)``; they may be the uploads themselves."""
        return self.clip(model, (model.gradient(update) for update in updates))

    def deltas(self, model: GlobalModel, updates: Updates) -> list[Vector]:
        """Clipped displacements of K updates ``(d,)``; they may be the uploads themselves."""
        return self.clip(model, (model.delta(update) for update in updates))

    def average(self, model: GlobalModel, weights: Floats, uploads: Sequence[Vector]) -> Vector:
        """sum_i p_i g_i, a new vector ``(d,)``; it is reported (`describe`).

        NOTE: papers leave out buffers. Here they move at most to the clients' mean, although the
        weights of some algorithms add up to more than 1.
        """
        split = model.num_trainable
        direction = np.empty_like(uploads[0])
        total, lengths, _ = combine(weights, [u[:split] for u in uploads], out=direction[:split])
        self.describe(weights, lengths, norm(total))
        shares = np.asarray(weights) / max(1.0, float(np.sum(weights)))
        weighted_sum(shares, [u[split:] for u in uploads], out=direction[split:])
        return direction

    def mix(self, model: GlobalModel, weights: Floats, updates: Updates) -> Vector:
        """w <- (1 - p_i) w + p_i w_i of K updates, one after the other, ``(d,)``."""
        params = model.params
        for weight, update in zip(weights, updates, strict=True):
            params = weighted_sum([1 - weight, weight], [params, model.local(update)])
        return params

    def by_entry(self, direction: Vector, weights: Floats, updates: Updates) -> Vector:
        """A direction in which each entry is that of the updates that have it, shape ``(d,)``.

        Args:
            direction: of all updates, shape ``(d,)``; an upload is 0 where its client has no entry.
            weights: p_i > 0, by whose sum it was divided, shape ``(K,)`` (`fl_app.core.width`).
            updates: K of them.
        """
        return direction * self.widths.factor(weights, updates) if self.widths else direction

    def of_updates(self, past: Vector, updates: Updates) -> Vector:
        """What past updates add to a direction ``(d,)``: 0 in entries that no update has."""
        if self.widths is None:
            return past
        return past * (self.widths.factor(np.ones(len(updates)), updates) > 0)

    def part(self, client_id: int) -> float:
        """The share of the model's entries that a client trains, in (0, 1]."""
        return 1.0 if self.widths is None else self.widths.part(client_id)

    def complete(
        self, model: GlobalModel, direction: Vector, weights: Floats, uploads: Sequence[Vector]
    ) -> Vector:
        """A direction ``(num_trainable,)``, extended by the uploads' mean buffers to ``(d,)``."""
        buffers = [upload[model.num_trainable :] for upload in uploads]
        if not buffers[0].size:
            return direction
        return np.concatenate([direction, weighted_sum(weights, buffers)])

    def describe(self, weights: Floats, lengths: Floats, total_length: float) -> None:
        """Report an aggregation: ``weight`` and ``effective_clients``.

        ``effective_clients`` is (mean_i ||g_i|| / ||g||)^2 of the weighted mean g. It is K if all
        gradients have the same weight and are orthogonal, and 1 if one has all the weight or all
        agree. The sum of the weights does not change it.

        Args:
            weights: p_i, shape ``(K,)``.
            lengths: ||g_i|| over the trainable part, shape ``(K,)``.
            total_length: ||sum_i p_i g_i||.
        """
        self.report["weight"] = [float(weight) for weight in weights]
        known = 0 < total_length < np.inf
        self.report["effective_clients"] = (
            float(np.mean(lengths) * np.sum(weights) / total_length) ** 2 if known else None
        )

    def step(self, model: GlobalModel, direction: Vector, server_lr: float) -> Vector:
        """w_t - eta direction, with eta = `server_lr` times the factor of `lr_schedule`."""
        decay = 1.0 if self.lr_schedule is None else self.lr_schedule.factor(model.version)
        return model.step(direction, server_lr * decay)
