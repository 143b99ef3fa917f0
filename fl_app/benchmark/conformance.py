"""Properties of every aggregation, tested on a strategy with constructed updates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import error_text
from fl_app.core.layout import check_returned
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update, Vector
from fl_app.strategy import AsyncStrategy

VERSIONS = 4  # in which an update may count again
SIZE = 128  # entries of the model, at least the updates of these versions
ALIKE = 1e-3  # relative difference between float32 results in another order
RANDOM = "two equal runs of it differ, as with noise without a seed"


class Verdict(NamedTuple):
    """The verdict of a trial: whether the property `holds`; None = it does not apply."""

    name: str
    holds: bool | None
    detail: str


class Subject(NamedTuple):
    """The strategy under test.

    Attributes:
        make: makes a new strategy.
        upload: kind of its uploads: "delta", "model", or "pseudo" or "gradient" of one step.
        size: K, updates of an aggregation.
        rated: whether the search tunes a server rate.
    """

    make: Callable[[], AsyncStrategy]
    upload: str
    size: int
    rated: bool

    def _new_strategy(self) -> AsyncStrategy:
        strategy = self.make()
        strategy.prepare(lambda params, *_: np.ones_like(params))
        return strategy

    def draw(self, versions: int) -> tuple[Any, Any]:
        """Draw displacements ``(versions, K, d)``, and examples ``(versions, K)``."""
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
            stop: version at which a new object resumes from a checkpoint.
        """
        strategy, versions = self._new_strategy(), [np.linspace(-1, 1, SIZE, dtype=np.float32)]
        for version, batch in enumerate(deltas):
            if version == stop:
                state, strategy = loads(dumps(strategy.state_dict())), self._new_strategy()
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


def conformance(subject: Subject) -> list[Verdict]:
    """Try four properties; one that raises an error fails, with the error as its text."""
    subject, verdicts = subject._replace(size=min(subject.size, SIZE // VERSIONS)), []
    for name, trial in TRIALS.items():
        try:
            one, other = (subject.models(*subject.draw(2)) for _ in range(2))
            same = np.array_equal(one, other, equal_nan=True)
            verdicts.append(Verdict(name, *(trial(subject) if same else (None, RANDOM))))
        except Exception as error:  # whatever a foreign class raises
            verdicts.append(Verdict(name, False, error_text(error)))
    return verdicts


def _reduces(subject: Subject) -> tuple[bool | None, str]:
    deltas, examples = subject.draw(1)
    before, after = subject.models(deltas, examples)
    step = (after - before).astype(float)
    for weighting, weights in (("by examples", examples[0]), ("equally", None)):
        mean = np.average(deltas[0].astype(float), 0, weights)
        factor = step @ mean / (mean @ mean)
        if np.linalg.norm(step - factor * mean) <= ALIKE * np.linalg.norm(step):
            text = f"{factor:.3g} of FedAvg's step, clients weighted {weighting}"
            if not subject.rated and 0 < factor < 1 - ALIKE:
                return None, f"{text}: shorter, as with a rate that is not searched"
            return bool(factor > 0 and (subject.rated or factor <= 1 + ALIKE)), text
    return None, "no multiple of FedAvg's step, as of a method that adapts or selects"


def _counts_once(subject: Subject) -> tuple[bool | None, str]:
    """Every client moves along its own axis, on which the model shows the effect of its update."""
    size, shape = subject.size, (VERSIONS, subject.size)
    axes = np.eye(VERSIONS * size, SIZE, dtype=np.float32).reshape(*shape, SIZE)
    runs = (subject.models(axes, np.full(shape, 10), stale=stale) for stale in (False, True))
    steps, aged = (np.abs(np.diff(models, axis=0)) for models in runs)
    weights, again = steps[0, :size], steps[1:, :size]
    fresh, old = (each[1, size : 2 * size] for each in (steps, aged))
    if weights.max() < ALIKE**2:  # nothing, or what rounding leaves
        return None, "no update moves the model by itself, as with a median"
    used = weights[weights > ALIKE * weights.max()]
    later = again.max() / (fresh.max() or weights.max())
    if used.max() > (1 + ALIKE) * used.min():
        return False, f"equal updates have weights from {used.min():.3g} to {used.max():.3g}"
    if old.sum() > (1 + ALIKE) * fresh.sum():
        text = f"older updates move the model by {old.sum():.3g}, fresh ones by {fresh.sum():.3g}"
        return False, text
    remembers = type(subject.make()).memory_cost is not Algorithm.memory_cost
    text = f"an update acts {later:.2g} times as much as a new one in a later version, too"
    return bool(remembers or later < 1 - ALIKE), text if later > ALIKE else "equal weights, once"


def _ignores_order(subject: Subject) -> tuple[bool | None, str]:
    if subject.size == 1:
        return None, "one update a version was tried"
    one, other = (subject.models(*subject.draw(2), turn=turn) for turn in (1, -1))
    distance = np.linalg.norm(one[-1] - one[0])
    if not distance:
        return None, "the model stands still"
    difference = np.linalg.norm(one[-1] - other[-1]) / distance
    return bool(difference <= ALIKE), f"models differ by {difference:.1g} of the way"


def _resumes(subject: Subject) -> tuple[bool, str]:
    whole, parts = (subject.models(*subject.draw(4), stale=True, stop=stop) for stop in (-1, 2))
    same = np.array_equal(whole[-1], parts[-1])
    return same, "the same bytes" if same else "its checkpoint lacks what it had learned"


TRIALS: dict[str, Callable[[Subject], tuple[bool | None, str]]] = {
    "with age 0 it equals FedAvg, up to a rate": _reduces,
    "no update is counted twice": _counts_once,
    "the order of equal arrivals has no effect": _ignores_order,
    "a resumed run equals the uninterrupted one": _resumes,
}
