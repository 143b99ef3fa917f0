"""Bases of algorithms that weight gradients or models, and of those that average versions."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, SHARE, Bound, bounded, one_of
from fl_app.core.rates import LinearDecay
from fl_app.core.types import TRAINED, GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import combine, cosines, weighted_sum
from fl_app.core.weighting import Weighting, by_examples
from fl_app.schedule import Schedule, k_async, synchronous
from fl_app.strategy.strategy import AsyncStrategy

FALLS = Bound(
    "null or a schedule with keys of its own, such as algorithm.strategy.lr_schedule.to",
    lambda value: value is None or isinstance(value, LinearDecay),
)


@dataclass(kw_only=True)
class Stepped(AsyncStrategy):
    """A server that makes steps along uploads at its own learning rate.

    Args:
        server_lr: the server's learning rate.
        clip_norm: largest norm of an upload's trainable part, > 0; None = any length.
        lr_schedule: how the server's learning rate falls; None = constant.
    """

    server_lr: float = bounded(1.0, POSITIVE, "the model would not move")
    clip_norm: float | None = bounded(None, POSITIVE, "nothing would be left of an upload")
    lr_schedule: LinearDecay | None = bounded(  # noqa: RUF009  # a field
        None, FALLS, "the factor of the rate would be unknown"
    )


class WeightedGradients(Stepped):
    """One step along a weighted sum of K gradients: w_{t+1} = w_t - eta sum_i p_i g_i."""

    schedule: ClassVar[Schedule] = k_async(10)

    @abstractmethod
    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        """p_i of K >= 1 updates, shape ``(K,)``, finite."""

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        weights = self.weights(model, updates)
        direction = self.average(model, weights, self.gradients(model, updates))
        return self.step(model, direction, self.server_lr)


class PubliclyWeighted(WeightedGradients):
    """A weighted sum of K gradients with weights that depend on no upload's content.

    Attributes:
        normalise: whether `public_weights` are divided by their sum, or by K.
    """

    linear_in = ("pseudo", "gradient")
    normalise = True

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        weights = self.public_weights().of(model, updates)
        return weights / (weights.sum() if self.normalise else len(updates))


@dataclass(kw_only=True)
class AveragedModels(AsyncStrategy):
    """The mean of K local models by examples, in rounds: w_{t+1} = sum_i (n_i / n) w_i."""

    schedule: ClassVar[Schedule] = synchronous(10)
    takes = TRAINED
    linear_in = ("delta",)

    def public_weights(self) -> Weighting:
        return Weighting(by_examples=True)

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        """p_i of K >= 1 updates, shape ``(K,)``, of sum 1."""
        return by_examples(updates)

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        weights = self.weights(model, updates)
        self.report = {"weight": weights.tolist()}
        return weighted_sum(weights, [model.local(update) for update in updates])


@dataclass(kw_only=True)
class WeightedGradientsOrModels(WeightedGradients):
    """A weighted sum of K gradients, or the same weights on models.

    With ``form="model"``: w_{t+1} = (1 - alpha) w_t + alpha sum_i p_i w_i / sum_i p_i.

    Args:
        form: ``"gradient"``, or ``"model"``: models are mixed, and `server_lr` is not used.
        mixing: alpha of the model form.
        clip_norm: largest norm of an upload's trainable part in the gradient form; None = any.

    Attributes:
        weighting: p_i of the gradient form, up to a common factor: by examples and age.
    """

    linear_in = ("pseudo", "gradient")
    weighting: ClassVar[Weighting]

    form: str = bounded("gradient", one_of("gradient", "model"), "no other form is known")
    mixing: float = bounded(0.6, SHARE, "it is a mixing weight")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.form == "model":
            self.takes = TRAINED  # type: ignore[misc]  # a gradient is no model

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        ages = [model.age(update) for update in updates]
        return by_examples(updates) * [self.weighting.of_age(age) for age in ages]

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        if self.form == "gradient":
            return super().aggregate(model, updates)
        weights = self.weights(model, updates)
        weights = self.mixing * weights / weights.sum()
        self.report["weight"] = weights.tolist()
        local = [model.local(update) for update in updates]
        return weighted_sum([1 - self.mixing, *weights], [model.params, *local])

    def public_weights(self) -> Weighting:
        bound = "gradient with secure_aggregation=helper"
        reason = "clients' rate sums differ, so a mixture of models is no weighted sum of uploads"
        self._require(self.form == "gradient", "form", bound, reason)
        return self.weighting


@dataclass(kw_only=True)
class AveragesVersions(Stepped):
    """A server that can test and save a mean of its versions; clients still receive w_t.

        m_{t+1} = m_t + (e + 1) / (t + e + 1) (w_{t+1} - m_t),    m_1 = w_1

    Version t has a weight of about t^e in the mean. Source: Shamir, Zhang: "Stochastic
    Gradient Descent for Non-smooth Optimization: Convergence Results and Optimal Averaging
    Schemes", ICML 2013. The server keeps one more vector: 4 d bytes.
    Buffers such as BatchNorm's are averaged as well; they are not recomputed.

    Args:
        averaging: e; None = the last version is tested and saved.
    """

    averaging: float | None = bounded(
        None, NON_NEGATIVE, "early versions would count more than late ones"
    )

    def step(self, model: GlobalModel, direction: Vector, server_lr: float) -> Vector:
        """The next version, as `Algorithm.step` computes it; the mean is updated by it."""
        params = super().step(model, direction, server_lr)
        if self.averaging is not None:
            mean = self.state.get("mean", params)
            share = np.float32((self.averaging + 1) / (model.version + self.averaging + 1))
            self.state["mean"] = mean + share * (params - mean)
        return params

    def to_evaluate(self, model: GlobalModel) -> Vector:
        return self.state.get("mean", model.params)


def keep_step(state: dict[str, Any], step: Vector, length: float, size: int) -> None:
    """Put a step in place of the oldest of the last ones.

    Args:
        state: of the algorithm; the steps are in ``past``, shape ``(size, d)``, their lengths in
            ``past_lengths``, and how many were kept so far in ``num_past``.
        step: shape ``(d,)``.
        length: ||step||.
        size: greatest number of steps.
    """
    if "past" not in state:
        state["past"] = np.zeros((size, step.size), np.float32)
        state["past_lengths"] = [0.0] * size
    place = state["num_past"] % size
    state["past"][place], state["past_lengths"][place] = step, length
    state["num_past"] += 1


def opposed(
    state: Mapping[str, Any], weights: Numbers, gradients: Sequence[Vector], fusion: float
) -> tuple[Vector, Vector, Numbers, Numbers]:
    """What K gradients become with the most opposite past step, the oldest of equals, added.

    Args:
        state: as of `keep_step`, with at least one step.
        weights: p_i, shape ``(K,)``.
        gradients: g_i, K of them.
        fusion: alpha.

    Returns:
        sum_i p_i g_i and alpha sum_i p_i G_k(i), shape ``(d,)``; ||g_i|| and
        ||g_i + alpha G_k(i)||, shape ``(K,)``.
    """
    number, past = state["num_past"], state["past"][: state["num_past"]]
    direction, lengths, products = combine(weights, gradients, past)
    past_lengths = np.array(state["past_lengths"][: len(past)])
    oldest_first = (number + np.arange(len(past))) % len(past)
    cosine = cosines(products, lengths, past_lengths)
    chosen = oldest_first[cosine[:, oldest_first].argmin(axis=1)]
    shares = fusion * np.bincount(chosen, weights, minlength=len(past))
    mixed = products[np.arange(len(chosen)), chosen]
    squares = lengths**2 + 2 * fusion * mixed + (fusion * past_lengths[chosen]) ** 2
    fused_lengths = np.sqrt(np.maximum(squares, 0.0))
    return direction, shares.astype(np.float32) @ past, lengths, fused_lengths
