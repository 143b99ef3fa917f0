"""FedAsync: each arrival is mixed into the global model, with a weight that falls with its age.

Xie, Koyejo, Gupta: "Asynchronous Federated Optimization", OPT 2020, arXiv:1903.03934, Algorithm 1
and section 5.2.

Server, on every upload w_i of a client that started from version o, at version t:

    alpha_t = alpha s(t - o),    w_{t+1} = (1 - alpha_t) w_t + alpha_t w_i
    s(u) = 1                                            constant
    s(u) = (u + 1)^(-a)                                 polynomial
    s(u) = 1 if u <= b, else 1 / (a (u - b) + 1)        hinge

Client: SGD on f_i(w) + (rho / 2) ||w - w_o||^2 (`fl_app.client.LocalTrainer`, proximal = rho).

Symbols: alpha = mixing, a = exponent or hinge_slope, b = hinge_age, rho = client.proximal.

Deviations: alpha is not halved late in training. Updates that are too stale can be refused
(`max_staleness`), as in FedASMU's comparison.
"""

from dataclasses import dataclass

from fl_app.core.hyper import NON_NEGATIVE, SHARE, at_least, bounded, one_of
from fl_app.core.types import TRAINED, GlobalModel, Updates, Vector
from fl_app.core.weighting import Weighting
from fl_app.schedule import fully_async
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class FedAsync(AsyncStrategy):
    """Mixes each arrival into the global model with a weight that falls with its age.

    Args:
        mixing: alpha, the weight of a fresh update.
        staleness_function: ``"constant"``, ``"polynomial"`` or ``"hinge"``.
        exponent: a of the polynomial.
        hinge_slope: a of the hinge.
        hinge_age: b of the hinge, versions.
        max_staleness: largest accepted age + 1 (1 = only fresh updates); None = any.

    Examples:
        >>> start = np.zeros(2, np.float32)
        >>> model = GlobalModel(np.ones(2, np.float32), version=3, history={0: start})
        >>> stale = Update(1, 0, np.array([3, 5], np.float32), "model", 10, 0.5)
        >>> # age 3, so alpha_t = 0.5 (3 + 1)^-0.5 = 0.25
        >>> FedAsync(mixing=0.5).aggregate(model, [stale]).tolist()
        [1.5, 2.0]
    """

    schedule = fully_async(10)
    takes = TRAINED
    linear_in = ("delta",)

    mixing: float = bounded(0.6, SHARE, "it is a mixing weight")
    staleness_function: str = bounded(
        "polynomial", one_of("constant", "polynomial", "hinge"), "no other function is known"
    )
    exponent: float = bounded(0.5, NON_NEGATIVE, "staler updates would count more")
    hinge_slope: float = bounded(10.0, NON_NEGATIVE, "staler updates would count more")
    hinge_age: float = bounded(4.0, NON_NEGATIVE, "ages start at 0")
    max_staleness: int | None = bounded(None, at_least(1), "every update would be refused")

    def weight(self, age: int) -> float:
        """alpha_t = alpha s(age)."""
        return self.mixing * self.public_weights().of_age(age)

    @property
    def oldest_admitted(self) -> float:
        return super().oldest_admitted - 1

    def public_weights(self) -> Weighting:
        return Weighting(
            self.staleness_function,
            exponent=self.exponent,
            slope=self.hinge_slope,
            hinge_age=self.hinge_age,
            mixing=self.mixing,
        )

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        # What is mixed in later shrinks what was mixed in before.
        self.report = {"weight": self.public_weights().of(model, updates).tolist()}
        return self.mix(model, [self.weight(model.age(update)) for update in updates], updates)
