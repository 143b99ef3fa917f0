"""What Gaussian noise in every version spends of clients' differential privacy.

Neighbouring data sets differ in all data of one client. Flower's accountant composes versions by
Renyi accounting. It does so without amplification by sampling, because the order of arrival is not
a random sample. Discrete Gaussian noise has the Renyi divergences of Gaussian noise or smaller ones
(Canonne, Kamath, Steinke, NeurIPS 2020, arXiv:2004.00010), so its account is the same.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)

from fl_app.core.errors import is_number, require, require_positive
from fl_app.core.extras import require_installed


def epsilon(noise_multiplier: float, versions: int, delta: float) -> float:
    """Epsilon of (epsilon, delta)-differential privacy after `versions` versions, >= 0.

    Args:
        noise_multiplier: z > 0, standard deviation of the noise over what one client can change.
        versions: >= 0.
        delta: in (0, 1).
    """
    if versions == 0:
        return 0.0
    # Without amplification the size of the population has no effect.
    config = PrivacyConfig(
        target_delta=delta,
        population_size=1,
        neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
        sampling_method=SamplingMethod.NO_AMPLIFICATION,
    )
    accountant = RdpAccountant(config)
    accountant.compose(GaussianPrivacyEvent(noise_multiplier, 1, 1), versions)
    return accountant.get_epsilon(delta)


@dataclass
class Account:
    """Counts versions with noise, and the clients that moved them.

    Attributes:
        keys: where the values are configured, such as ``"strategy"``.
        noise_multiplier: z, > 0.
        delta: in (0, 1).
        max_epsilon: that a run may spend; None = any.
        state: ``versions``, and ``participation``: client -> versions that it moved.

    Raises:
        ValueError: a value is out of its bounds, or dp-accounting is not installed.
    """

    keys: str
    noise_multiplier: float
    delta: float
    max_epsilon: float | None
    state: dict[str, Any] = field(
        default_factory=lambda: {"versions": 0, "participation": Counter()}
    )

    def __post_init__(self) -> None:
        z, delta, most = self.noise_multiplier, self.delta, self.max_epsilon
        require_positive(f"{self.keys}.noise_multiplier", z, "nothing would be private")
        fits = is_number(delta) and 0 < delta < 1
        require(fits, f"{self.keys}.delta", delta, "in (0, 1)", "it is a probability")
        if most is not None:
            require_positive(f"{self.keys}.max_epsilon", most, "no version would be paid for")
        require_installed("dp_accounting")

    def validate_run(self, versions: float) -> None:
        """Refuse a run that would spend more than it may.

        Args:
            versions: of the run; inf = unknown.

        Raises:
            ValueError: the run would spend more, or what it will spend is unknown.
        """
        if self.max_epsilon is None:
            return
        key, why = f"{self.keys}.max_epsilon", "what the run will spend would be unknown"
        bound = "null with num_versions=null and max_updates=null"
        require(math.isfinite(versions), key, self.max_epsilon, bound, why)
        spent = epsilon(self.noise_multiplier, int(versions), self.delta)
        bound = (
            f"at least {spent:.4g} for num_versions={versions} with "
            f"noise_multiplier={self.noise_multiplier:g} and delta={self.delta:g}"
        )
        fits = spent <= self.max_epsilon
        require(fits, key, self.max_epsilon, bound, "the run would spend more")

    def spend(self, clients: Iterable[int]) -> None:
        """Count a version that these clients moved."""
        self.state["versions"] += 1
        self.state["participation"].update(set(clients))

    def totals(self) -> dict[str, float]:
        """Epsilon of all versions, and of the client that moved most, at `delta`.

        The second holds if the data have no influence on which clients take part when.
        """
        most = max(self.state["participation"].values(), default=0)
        return {
            "epsilon": epsilon(self.noise_multiplier, self.state["versions"], self.delta),
            "epsilon_of_most_frequent_client": epsilon(self.noise_multiplier, most, self.delta),
            "delta": self.delta,
        }
