"""What every aggregation must do, tried on a strategy with hand-made updates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import error_text
from fl_app.core.layout import check_returned
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.strategy import AsyncStrategy

SIZE = 64  # entries of the model, at least twice the updates of a version
ALIKE = 1e-3  # relative difference of what float32 computes in another order
RANDOM = "two equal runs of it differ, as with noise without a seed"


class Verdict(NamedTuple):
    """What a trial came to: whether the property `holds`; None = it says nothing of the method."""

    name: str
    holds: bool | None
    told: str


class Tried(NamedTuple):
    """What is tried.

    Attributes:
        make: makes the strategy anew.
        upload: kind of its uploads: "delta", "model", or "pseudo" or "gradient" of one step.
        size: K, updates of an aggregation.
        rated: whether it has a rate of the server.
    """

    make: Callable[[], AsyncStrategy]
    upload: str
    size: int
    rated: bool

    def _made(self) -> AsyncStrategy:
        strategy = self.make()
        strategy.prepare(lambda params, *_: np.ones_like(params))
        return strategy

    def drawn(self, versions: int) -> tuple[Any, Any]:
        """Displacements ``(versions, K, d)``, and examples ``(versions, K)``."""
        rng, shape = np.random.default_rng(0), (versions, self.size)
        return rng.normal(size=(*shape, SIZE)).astype(np.float32), rng.integers(10, 90, shape)

    def models(
        self, deltas: Any, examples: Any, *, turn: int = 1, stale: bool = False, stop: int = -1
    ) -> list[Vector]:
        """The versions that follow from displacements, each of another client.

        Args:
            deltas: shape ``(versions, K, d)``.
            examples: of the clients, shape ``(versions, K)``.
            turn: -1 = updates arrive in the opposite order.
            stale: whether every second update is one version old.
            stop: version from which another object goes on, from a checkpoint.
        """
        strategy, versions = self._made(), [np.linspace(-1, 1, SIZE, dtype=np.float32)]
        for version, batch in enumerate(deltas):
            if version == stop:
                state, strategy = loads(dumps(strategy.state_dict())), self._made()
                strategy.load_state_dict(state)
            model = GlobalModel(versions[-1], version, dict(enumerate(versions)))
            updates = []
            for i, delta in enumerate(batch):
                client, base = version * self.size + i, version - (stale and version > 0 == i % 2)
                strategy.dispatch(model, client)
                vector = versions[base] + delta if self.upload == "model" else delta
                vector = -vector if self.upload in ("pseudo", "gradient") else vector
                number = int(examples[version][i])
                extra = dict.fromkeys(strategy.upload_extra, np.zeros_like(delta))
                updates.append(Update(client, base, vector, self.upload, number, 1.0, extra=extra))
            strategy.report = {}
            versions.append(params := strategy.aggregate(model, updates[::turn]))
            name = f"{type(strategy).__name__}.aggregate"
            problem = check_returned(name, params, SIZE)
            if problem or not np.isfinite(params).all():
                raise ValueError(problem or f"{name} returned numbers that are not finite")
        return versions


def conformance(tried: Tried) -> list[Verdict]:
    """Try four properties; what raises an error fails, and tells it."""
    tried, verdicts = tried._replace(size=min(tried.size, SIZE // 2)), []
    for name, trial in TRIALS.items():
        try:
            one, other = (tried.models(*tried.drawn(2)) for _ in range(2))
            same = np.array_equal(one, other, equal_nan=True)
            verdicts.append(Verdict(name, *(trial(tried) if same else (None, RANDOM))))
        except Exception as error:  # whatever a foreign class raises
            verdicts.append(Verdict(name, False, error_text(error)))
    return verdicts


def _reduces(tried: Tried) -> tuple[bool | None, str]:
    deltas, examples = tried.drawn(1)
    before, after = tried.models(deltas, examples)
    step = (after - before).astype(float)
    for how, weights in (("by examples", examples[0]), ("equally", None)):
        mean = np.average(deltas[0].astype(float), 0, weights)
        factor = step @ mean / (mean @ mean)
        if np.linalg.norm(step - factor * mean) <= ALIKE * np.linalg.norm(step):
            told = f"{factor:.3g} of FedAvg's step, clients weighted {how}"
            if not tried.rated and 0 < factor < 1 - ALIKE:
                return None, f"{told}: shorter, as with a rate that is not searched"
            return bool(factor > 0 and (tried.rated or factor <= 1 + ALIKE)), told
    return None, "no multiple of FedAvg's step, as of a method that adapts or selects"


def _counts_once(tried: Tried) -> tuple[bool | None, str]:
    """Every client moves along an axis of its own, where the model shows what became of it."""
    axes = np.eye(2 * tried.size, SIZE, dtype=np.float32).reshape(2, tried.size, SIZE)
    examples, size = np.full((2, tried.size), 10), tried.size
    models = *tried.models(axes, examples), tried.models(axes, examples, stale=True)[-1]
    before, between, after, aged = (model[: 2 * size] for model in models)
    first, second, other = (np.abs(d) for d in (between - before, after - between, aged - between))
    weights, again, fresh, old = first[:size], second[:size], second[size:], other[size:]
    if weights.max() < ALIKE**2:  # nothing, or what rounding leaves
        return None, "no update moves the model by itself, as with a median"
    used = weights[weights > ALIKE * weights.max()]
    later = again.max() / (fresh.max() or weights.max())
    if used.max() > (1 + ALIKE) * used.min():
        return False, f"equal updates have weights from {used.min():.3g} to {used.max():.3g}"
    if old.sum() > (1 + ALIKE) * fresh.sum():
        told = f"older updates move the model by {old.sum():.3g}, fresh ones by {fresh.sum():.3g}"
        return False, told
    remembers = type(tried.make()).memory_cost is not Algorithm.memory_cost
    told = f"an update acts {later:.2g} times as much as a new one in the next version, too"
    return bool(remembers or later < 1 - ALIKE), told if later > ALIKE else "equal weights, once"


def _ignores_order(tried: Tried) -> tuple[bool | None, str]:
    if tried.size == 1:
        return None, "one update a version was tried"
    one, other = (tried.models(*tried.drawn(2), turn=turn) for turn in (1, -1))
    way = np.linalg.norm(one[-1] - one[0])
    if not way:
        return None, "the model stands still"
    differ = np.linalg.norm(one[-1] - other[-1]) / way
    return bool(differ <= ALIKE), f"models differ by {differ:.1g} of the way"


def _resumes(tried: Tried) -> tuple[bool, str]:
    whole, parts = (tried.models(*tried.drawn(4), stale=True, stop=stop) for stop in (-1, 2))
    same = np.array_equal(whole[-1], parts[-1])
    return same, "the same bytes" if same else "its checkpoint lacks what it had learned"


TRIALS: dict[str, Callable[[Tried], tuple[bool | None, str]]] = {
    "with age 0 it equals FedAvg, up to a rate": _reduces,
    "no update is counted twice": _counts_once,
    "the order of equal arrivals has no effect": _ignores_order,
    "a resumed run equals the uninterrupted one": _resumes,
}
