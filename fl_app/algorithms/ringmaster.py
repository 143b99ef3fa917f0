"""Ringmaster ASGD: asynchronous SGD that drops gradients older than a bound.

Maranjyan, Tyurin, Richtarik: "Ringmaster ASGD: The First Asynchronous SGD with Optimal Time
Complexity", ICML 2025, arXiv:2501.16168.

Server, on every arrival g of age tau:

    w_{t+1} = w_t - eta g     if tau < R
    nothing                   otherwise; the client starts anew from w_t

    R given, or R = max(1, ceil(sigma^2 / epsilon))

Client: g = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient of
one mini-batch at w_o.

Symbols: eta server_lr, tau = t - o the age, R delay_threshold, sigma^2 noise (the variance of a
gradient), epsilon target (the squared norm of the gradient that is aimed at).

Deviations: the default R = 50 is ours [A]. In the paper all clients are at work; here as many as
the schedule says. The paper's second form, which stops a computation as soon as it is too old, is
left out. Several updates at once (another schedule) make one step along their sum.
"""

import math
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded, or_none
from fl_app.core.types import GlobalModel, Numbers, Updates
from fl_app.core.weighting import Weighting
from fl_app.schedule import fully_async
from fl_app.strategy.weighted import WeightedGradients


@dataclass(kw_only=True)
class Ringmaster(WeightedGradients):
    """A step along each gradient that is young enough; older ones are refused.

    Args:
        delay_threshold: R, versions; None = by `noise` and `target`.
        noise: sigma^2, with `delay_threshold` None.
        target: epsilon, > 0, with `delay_threshold` None.

    Attributes:
        threshold: R.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> young = Update(1, 2, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> strategy = Ringmaster(delay_threshold=2)
        >>> strategy.aggregate(model, [young]).tolist()
        [-2.0, 0.0]
        >>> strategy.admit(model, Update(2, 1, np.zeros(2, np.float32), "pseudo", 10, 0.5))
        'age=2 is above 1, by strategy.delay_threshold'
    """

    schedule = fully_async(10)
    linear_in = ("pseudo", "gradient")
    age_key = "delay_threshold"

    delay_threshold: int | None = bounded(50, or_none(COUNT), "every gradient would be refused")
    noise: float | None = bounded(None, NON_NEGATIVE, "it is a variance")
    target: float | None = bounded(None, POSITIVE, "the threshold is divided by it")

    def __post_init__(self) -> None:
        super().__post_init__()
        derived = self.noise is not None and self.target is not None
        fits = self.delay_threshold is not None or derived
        bound = "an integer >= 1, or algorithm.strategy.noise and algorithm.strategy.target be set"
        self._require(fits, "delay_threshold", bound, "it follows from nothing else")
        fits = self.delay_threshold is None or self.noise is self.target is None
        bound = "null with algorithm.strategy.noise or algorithm.strategy.target"
        reason = "the threshold that follows from them would have no effect"
        self._require(fits, "delay_threshold", bound, reason)
        ratio = (self.noise or 0.0) / (self.target or 1.0)
        bound = f"algorithm.strategy.noise={self.noise} over a finite number, or larger"
        self._require(math.isfinite(ratio), "target", bound, "the threshold would be infinite")
        self.threshold: int = self.delay_threshold or max(1, math.ceil(ratio))

    @property
    def oldest_admitted(self) -> float:
        return self.threshold - 1

    def public_weights(self) -> Weighting:
        return Weighting()

    def weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        return np.ones(len(updates))
