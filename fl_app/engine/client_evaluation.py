"""Evaluation on clients: which clients measure which version, and the statistics of their scores.

The engine says which version is due, which clients are free, and what they replied. This module
does the rest.

There is no barrier. A version is measured by a share of the clients, each between two of its
training orders, while all others train:

- an idle client gets its evaluate order at once, a client at work when its training order has
  ended;
- a client that is still at work when the next version is due measures that one instead, and is
  left out of the earlier one. So no client has more than one evaluate order waiting, and an
  evaluation waits for nobody but the clients that measure it;
- scores count for their version however late they come.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import numpy as np

from fl_app.core.errors import is_number
from fl_app.core.events import ClientEvaluated, ClientsEvaluated, EvaluationOrdered, Event
from fl_app.core.hyper import COUNT, SHARE, or_none
from fl_app.core.snapshot import Remembers
from fl_app.core.types import NO_VECTOR, Order, Reply, Scores, Vector
from fl_app.core.vector import worst_decile
from fl_app.engine.clock import Clock
from fl_app.engine.federation import Federation

# Parts of the names of metrics of which a lower value is better.
LOWER_IS_BETTER = (
    *("loss", "error", "perplexity", "rmse", "mse", "mae", "entropy", "nll", "brier"),
    *("distance", "divergence", "deviation", "neg_log_likelihood", "negative_log_likelihood"),
)
# Metrics that are a function of a mean over examples, by parts of their names, with its inverse and
# itself. They are pooled: as if one client had all examples.
POOLED = {"rmse": (np.square, np.sqrt), "perplexity": (np.log, np.exp)}


class ClientEvaluation(Remembers):
    """The evaluations of a run on its clients; the engine calls `join` first.

    Args:
        every: versions between evaluations, >= 1; None = never.
        fraction: share of the online clients that measure a version, in (0, 1]; at least one does.
        seed: of the draw of clients, which is independent of all other draws.

    Attributes:
        every: as given; inf = never.
        version: the latest version that was due; -1 before the first.
        waiting: clients that are to measure it as soon as they are free.

    Raises:
        ValueError: an argument is out of its bounds.
    """

    transient = ("_fed", "_clock", "_emit", "_on_result")

    def __init__(self, every: int | None = None, fraction: float = 1.0, seed: int = 0) -> None:
        reason = "versions cannot be evaluated more than once"
        or_none(COUNT).check("client_eval_every", every, reason)
        reason = "it is the share of the clients that evaluate a version"
        SHARE.check("client_eval_fraction", fraction, reason)
        self.every = math.inf if every is None else every
        self._fraction = fraction
        self._rng = np.random.default_rng((seed, 0xE7A1))
        self._vector = NO_VECTOR  # of `version`, while a client waits
        # version that has not ended -> when it was due, client updates until then, scores so far
        self._open: dict[int, tuple[float, int, list[Scores]]] = {}
        self.version = -1
        self.waiting: set[int] = set()

    def join(
        self,
        federation: Federation,
        clock: Clock,
        emit: Callable[[Event], None],
        on_result: Callable[[Mapping[str, float]], None],
        max_examples: int | None = None,
    ) -> None:
        """Take part in a run.

        Args:
            federation: of the run.
            clock: carries orders out.
            emit: receives the events.
            on_result: receives the metrics of a version (`figures`).
            max_examples: that a client may claim; None = any number.
        """
        self._fed, self._clock, self._emit, self._on_result = federation, clock, emit, on_result
        self._max_examples = max_examples or math.inf

    def plan(self, vector: Vector) -> None:
        """Draw the clients that measure the current version.

        Clients that still wait to measure an earlier version no longer do.

        Args:
            vector: what is measured, shape ``(d,)``.
        """
        fed = self._fed
        online = sorted(fed.online)
        count = min(len(online), max(1, round(self._fraction * len(online))))
        self.version = fed.version
        self.waiting = {online[place] for place in self._rng.permutation(len(online))[:count]}
        self._open[fed.version] = (self._clock.now, fed.updates, [])
        self._vector = self._clock.share(vector)
        self.publish()

    def start(self) -> None:
        """Give their orders to those of the chosen clients that are free."""
        fed = self._fed
        for client_id in sorted(client_id for client_id in self.waiting if client_id in fed.idle):
            self._clock.work("dispatch")
            now, version = self._clock.now, self.version
            order = fed.give(client_id, version, self._vector, {}, now, evaluates=True)
            self.waiting.discard(client_id)
            parts = self._clock.dispatch(order)
            logged = () if parts is None else parts.logged
            sent = order.vector.nbytes
            self._emit(EvaluationOrdered(now, client_id, order.number, version, sent, *logged))

    def take(self, order: Order, reply: Reply) -> str:
        """Count the scores of a reply; returns why they cannot be counted, "" if they were."""
        scores = reply.scores
        problem = reply.error or unusable(scores, self._max_examples)
        if problem or scores is None:
            return problem
        metrics = dict(sorted(scores.metrics.items()))  # a message does not keep their order
        if metrics:
            self._open[order.base_version][2].append(Scores(metrics, scores.num_examples))
        self._emit(
            ClientEvaluated(
                self._clock.now,
                order.client_id,
                order.number,
                order.base_version,
                num_examples=scores.num_examples,
                metrics=metrics,
                bytes=8 * (1 + len(metrics)),
            )
        )
        self.publish()
        return ""

    def publish(self) -> None:
        """Publish the results of versions for which no more scores will come, once each."""
        under_way = {order.base_version for order in self._fed.evaluating.values()}
        if self.waiting:
            under_way.add(self.version)
        else:
            self._vector = NO_VECTOR
        for version in [version for version in self._open if version not in under_way]:
            since, client_updates, scores = self._open.pop(version)
            if scores:
                metrics = figures(scores)
                self._emit(
                    ClientsEvaluated(
                        self._clock.now,
                        version,
                        since,
                        client_updates,
                        clients=len(scores),
                        num_examples=sum(each.num_examples for each in scores),
                        metrics=metrics,
                    )
                )
                self._on_result(metrics)


def unusable(scores: Scores | None, max_examples: float = math.inf) -> str:
    """Why scores cannot be counted; "" if they can.

    Args:
        scores: of a client.
        max_examples: most examples that a client may claim: they are its weight in the mean.
    """
    if scores is None:
        return "the client returned no scores"
    number, metrics = scores.num_examples, scores.metrics
    if number == 0 and metrics == {}:
        return ""  # all of the client's few examples are for training
    if not (is_number(number) and number > 0):
        return f"num_examples={number!r} must be at least 1: the client has nothing to evaluate on"
    if number > max_examples:
        return f"num_examples={number} is above guard.max_examples={max_examples}"
    if not isinstance(metrics, Mapping) or not metrics:
        return f"metrics={metrics!r:.80} must be a mapping of names to numbers, and not empty"
    for name, value in metrics.items():
        # A model that diverged has any loss, so the number need not be finite.
        if not isinstance(name, str) or not isinstance(value, Real) or isinstance(value, bool):
            return f"metric {name!r:.80}={value!r:.80} must have a name and be a number"
    return ""


def figures(scores: Sequence[Scores]) -> dict[str, float]:
    """Mean, spread and worst decile of every metric, as in `ClientsEvaluated`.

    A metric that a client did not send counts for the clients that did. So does one that is NaN
    because it is not defined on the client's examples, unless it is NaN for all of them. If the
    client's loss is NaN, its model diverged, and all that it sent counts.

    Args:
        scores: of at least one client.
    """
    names = dict.fromkeys(name for each in scores for name in each.metrics)
    result: dict[str, float] = {}
    for name in names:
        sent = [each for each in scores if name in each.metrics]
        defined = [each for each in sent if not math.isnan(each.metrics[name]) or _diverged(each)]
        counted = defined or sent
        values = np.array([each.metrics[name] for each in counted], float)
        sizes = np.array([each.num_examples for each in counted], float)
        derived = name.startswith(("neg", "log"))
        negated = name.startswith("neg") and "likelihood" not in name
        sign = -1.0 if any(part in name for part in LOWER_IS_BETTER) and not negated else 1.0
        pairs = (pair for part, pair in POOLED.items() if part in name and not derived)
        transform, inverse = next(pairs, (np.positive, np.positive))
        with np.errstate(all="ignore"):  # a model that diverged has any loss
            result[f"{name}_mean"] = float(inverse(sizes @ transform(values) / sizes.sum()))
            result[f"{name}_std"] = float(values.std())
            result[f"{name}_worst_decile"] = sign * worst_decile(sign * values)
    return result


def _diverged(scores: Scores) -> bool:
    return any("loss" in name and math.isnan(value) for name, value in scores.metrics.items())
