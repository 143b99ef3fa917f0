"""Checks of clients' uploads and of what a strategy or schedule returns. They change no state."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from functools import cache
from numbers import Real
from reprlib import repr as short
from typing import Any

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import Diverged, RunError, is_number
from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE
from fl_app.core.layout import check_extra, check_returned, check_shape, names_of
from fl_app.core.snapshot import Remembers, dumps
from fl_app.core.types import (
    KINDS,
    MAX_RATE,
    MIN_RATE,
    NO_EXTRA,
    RESIDUAL,
    Config,
    Extra,
    GlobalModel,
    Order,
    Update,
    Updates,
    Upload,
    Vector,
)
from fl_app.core.vector import all_finite, read_only
from fl_app.schedule import Schedule

RATE = "local_lr_factor"  # the values of strategy and schedule are multiplied
# Keys of an order that change a client's training.
ORDERED = {
    "local_epochs": COUNT,
    "local_steps": COUNT,
    "proximal-mu": NON_NEGATIVE,
    RATE: POSITIVE,
}
LIKELY_CAUSE = ", most likely since a learning rate is too large: try a tenth of it"


def require_keepable(strategy: Algorithm, schedule: Remembers) -> None:
    """Refuse a strategy or schedule whose state cannot be saved or restored, before the run.

    Raises:
        ValueError: naming the attribute or the method.
    """
    state = copy(strategy).state_dict()  # of a copy, as it may change the strategy
    dumps({"strategy": state, "schedule": schedule.state_dict()})
    if "state" not in state and type(strategy).load_state_dict is Remembers.load_state_dict:
        bound = "return attributes, `state` among them: `return super().state_dict() | {...}`, and "
        bound += "an `__init__` of its own must call super().__init__()"
        raise ValueError(f"state_dict of {type(strategy).__name__} must {bound}")


def malformed(strategy: Algorithm, model: GlobalModel, order: Order, upload: Upload) -> str:
    """Why the upload for an order cannot become an update; "" if it can."""
    if not upload.done:
        return f"progress={upload.progress!r} of a paused client must be between 0 and 1"
    if not (upload.base_version is None or 0 <= upload.base_version <= order.base_version):
        return (
            f"base_version={upload.base_version} must be between 0 and {order.base_version}, "
            "the version of its order"
        )
    forgotten = upload.base_version not in (None, *model.history)
    if forgotten and (upload.kind == "model" or not strategy.cites_forgotten):
        return f"base_version={upload.base_version} is one that no order under way cites"
    kinds = dict.fromkeys((*KINDS, *getattr(strategy, "takes", ())))  # AREA takes residuals, too
    if upload.kind not in kinds:
        return f"kind {upload.kind!r} is none of {', '.join(kinds)}"
    if not (is_number(upload.num_examples) and upload.num_examples > 0):
        return f"num_examples={upload.num_examples!r} must be at least 1"
    if not (is_number(upload.rate_sum) and MIN_RATE <= upload.rate_sum <= MAX_RATE):
        return f"rate_sum={upload.rate_sum!r} must be between {MIN_RATE} and {MAX_RATE}"
    for name, array in upload.state.items():
        kind = getattr(array, "dtype", None) or type(array).__name__
        if not isinstance(array, np.ndarray | np.generic) or array.dtype.kind not in "biufc":
            return f"state {name!r} is of {kind}, and a checkpoint holds arrays of numbers"
    if not isinstance(upload.loss, Real):
        return f"loss={upload.loss!r} must be a number"
    size = model.params.size
    return check_shape(upload.vector, size) or check_extra(
        upload.extra, strategy.upload_extra, size
    )


def overflow(model: GlobalModel, update: Update) -> str:
    """Why an update, or its gradient or displacement, is not finite; "" if they are."""
    for name, vector in update.extra.items():
        if not all_finite([vector]):
            return f"extra vector {name!r} has non-finite entries"
    # A finite length bounds the entries, and with the bounds on `rate_sum` also those of the
    # gradient and the displacement. So one pass is enough for nearly all updates.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.dot(update.vector, update.vector)):
            return ""
        if not all_finite([update.vector]):
            return "payload has non-finite entries"
        if update.kind == RESIDUAL:
            return "payload overflows: its length is not finite"
        if not all_finite([model.delta(update), model.gradient(update)]):
            return (
                f"payload overflows as a gradient or a displacement: rate_sum={update.rate_sum:g}"
            )
    return ""


def require_vector(strategy: Algorithm, method: str, vector: object, size: int) -> None:
    """Refuse a faulty vector that a method of the strategy returned.

    Raises:
        RunError: it is not a float32 array of shape ``(size,)``.
    """
    if problem := check_returned(f"{type(strategy).__name__}.{method}", vector, size):
        raise RunError(problem)


def _require(owner: object, method: str, result: object, valid: bool, bound: str) -> None:
    """Refuse what a method of a strategy or schedule returned.

    Raises:
        RunError: it is not valid; the message names the method and the bound.
    """
    if not valid:
        name = f"{type(owner).__name__}.{method}"
        raise RunError(f"{name} returned {short(result)}, and must return {bound}")


def started(schedule: Schedule, result: Any) -> Iterable[int]:
    """The clients that the schedule's `start` returned; RunError if it is not iterable."""
    valid = isinstance(result, Iterable)
    _require(schedule, "start", result, valid, "clients of `idle`, or none of them")
    return result


def taken(schedule: Schedule, buffer: Updates) -> Updates:
    """The updates that the schedule takes out of the buffer; RunError if they are others."""
    result: Any = schedule.take(buffer)
    valid = isinstance(result, Sequence)
    if valid and result:  # mostly there are none, and then the buffer is not read
        ids = {id(each) for each in result}.intersection(map(id, buffer))
        valid = len(result) == len(ids)
    _require(schedule, "take", result, valid, "updates of the buffer, each once, or none of them")
    return result


def admitted(strategy: Algorithm, model: GlobalModel, update: Update) -> str | None:
    """Why the strategy refuses an update, None = it does not; RunError if it says neither."""
    reason: Any = strategy.admit(model, update)
    _require(strategy, "admit", reason, isinstance(reason, str | None), "a reason or None")
    return reason


def totals(strategy: Algorithm) -> dict[str, float]:
    """The strategy's numbers on the whole run; RunError if they are no dict of numbers."""
    result: Any = strategy.totals()
    valid = isinstance(result, Mapping) and all(isinstance(n, Real) for n in result.values())
    _require(strategy, "totals", result, valid, "a dict of numbers")
    return {str(name): float(number) for name, number in result.items()}


def evaluated(strategy: Algorithm, model: GlobalModel) -> Vector:
    """The vector that is tested and saved; RunError if it is none of the model's shape."""
    vector = strategy.to_evaluate(model)
    require_vector(strategy, "to_evaluate", vector, model.params.size)
    return vector


def dispatched(strategy: Algorithm, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
    """What the strategy sends with an order; RunError if it is no vector and config."""
    result: Any = strategy.dispatch(model, client_id)
    valid = isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], Mapping)
    _require(strategy, "dispatch", result, valid, "a vector and a dict, the client's config")
    vector, config = result
    require_vector(strategy, "dispatch", vector, model.params.size)
    return vector, config


def work(schedule: Schedule, client_id: int) -> Config:
    """The schedule's config for an order; RunError if it is no dict."""
    result: Any = schedule.work(client_id)
    _require(schedule, "work", result, isinstance(result, Mapping), "a dict, the client's config")
    return result


def order_config(strategy: Algorithm, config: Config) -> None:
    """Refuse what `dispatch` or the schedule's `work` tells a client about its training.

    Raises:
        ValueError: naming the key, the value and the bound.
    """
    for key in config.keys() - ORDERED.keys():
        _doubt(key)
    for key in ORDERED.keys() & config.keys():
        name = f"{type(strategy).__name__}.dispatch, or work of its schedule: {key}"
        ORDERED[key].check(name, config[key], "no client could train so")


@cache
def _doubt(key: str) -> None:
    if close := get_close_matches(key, ORDERED, 1, 0.9):
        warnings.warn(f"{key} in the config of an order: did you mean {close[0]}?", stacklevel=2)


def order_extra(strategy: Algorithm, model: GlobalModel, client_id: int) -> Extra:
    """The read-only extra vectors of an order.

    Raises:
        ValueError: the strategy returns other vectors than `Algorithm.order_extra` names.
        Diverged: they are not finite.
    """
    names = strategy.order_extra
    if not names:
        return NO_EXTRA
    extra = strategy.dispatch_extra(model, client_id)
    if problem := check_extra(extra, names, model.params.size):
        raise ValueError(f"dispatch_extra() for client {client_id}: {problem}")
    if not all_finite(extra.values()):
        raise Diverged(
            f"what travels with version {model.version}: "
            f"{names_of(extra)} must be finite, or no client could use it"
        )
    return {name: read_only(extra[name]) for name in names}


def diverged(reason: str) -> bool:
    """Whether an upload was refused because its numbers grew without bound."""
    return any(text in reason for text in ("non-finite", "overflows", "rate_sum="))


def require_version(
    strategy: Algorithm, params: Vector, model: GlobalModel, num_updates: int
) -> None:
    """Refuse a faulty result of an aggregation.

    Raises:
        Diverged: the vector is not finite.
        RunError: it has another shape or type, or the report has not one weight for each update.
    """
    require_vector(strategy, "aggregate", params, model.params.size)
    version = model.version + 1
    weights = strategy.report.get("weight")
    if weights is not None:
        weights = strategy.report["weight"] = np.asarray(weights, float).tolist()
    bad = weights is not None and not np.isfinite(weights).all()
    if not all_finite([params]):
        cause = f": its updates have the weights {weights}" if bad else LIKELY_CAUSE
        if np.isnan(params).any() and not bad and np.abs(model.params).max() < 1e6:
            cause = (
                f": {type(strategy).__name__}.aggregate made NaN of finite numbers, as 0 / 0 does"
            )
        raise Diverged(f"version {version} is not finite{cause}")
    if weights is not None and (bad or np.shape(weights) != (num_updates,)):
        raise RunError(
            f"aggregation of version {version}: report['weight']={weights} must be "
            f"{num_updates} finite numbers, one for each update"
        )
