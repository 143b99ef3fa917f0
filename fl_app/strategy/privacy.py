"""What Gaussian noise in every version spends of clients' differential privacy.

Neighbouring data sets differ in all data of one client. Flower's accountant composes versions by
Renyi accounting. It does so without amplification by sampling, because the order of arrival is not
a random sample. Discrete Gaussian noise has the Renyi divergences of Gaussian noise or smaller ones
(Canonne, Kamath, Steinke, NeurIPS 2020, arXiv:2004.00010), so its account is the same.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
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


def totals(noise_multiplier: float, delta: float, state: Mapping[str, Any]) -> dict[str, float]:
    """Epsilon of all versions, and of the client that moved most, at `delta`.

    The second holds if the data have no influence on which clients take part when.

    Args:
        noise_multiplier: z.
        delta: in (0, 1).
        state: ``versions``, and ``participation``: client -> versions that it moved.
    """
    most = max(state["participation"].values(), default=0)
    return {
        "epsilon": epsilon(noise_multiplier, state["versions"], delta),
        "epsilon_of_most_frequent_client": epsilon(noise_multiplier, most, delta),
        "delta": delta,
    }


def refuse_overspending(
    keys: str, noise_multiplier: float, delta: float, max_epsilon: float | None, versions: float
) -> None:
    """Refuse a run that would spend more than it may.

    Args:
        keys: where the values are configured, such as ``"strategy"``.
        noise_multiplier: z.
        delta: in (0, 1).
        max_epsilon: that the run may spend; None = any.
        versions: of the run; inf = unknown.

    Raises:
        ValueError: the run would spend more, or what it will spend is unknown.
    """
    if max_epsilon is None:
        return
    require(
        math.isfinite(versions),
        f"{keys}.max_epsilon",
        max_epsilon,
        "null with num_versions=null and max_updates=null",
        "what the run will spend would be unknown",
    )
    spent = epsilon(noise_multiplier, int(versions), delta)
    require(
        spent <= max_epsilon,
        f"{keys}.max_epsilon",
        max_epsilon,
        f"at least {spent:.4g} for num_versions={versions} with "
        f"noise_multiplier={noise_multiplier:g} and delta={delta:g}",
        "the run would spend more",
    )


class Account:
    """Counts versions with noise, and the clients that moved them.

    Args:
        keys: where the values are configured.
        noise_multiplier: z, > 0.
        delta: in (0, 1).
        max_epsilon: that a run may spend; None = any.

    Attributes:
        state: counts, for checkpoints.

    Raises:
        ValueError: a value is out of its bounds, or dp-accounting is not installed.
    """

    def __init__(
        self, keys: str, noise_multiplier: float, delta: float, max_epsilon: float | None
    ) -> None:
        require_positive(f"{keys}.noise_multiplier", noise_multiplier, "nothing would be private")
        require(
            is_number(delta) and 0 < delta < 1,
            f"{keys}.delta",
            delta,
            "in (0, 1)",
            "it is a probability",
        )
        if max_epsilon is not None:
            require_positive(f"{keys}.max_epsilon", max_epsilon, "no version would be paid for")
        require_installed("dp_accounting")
        self._keys = keys
        self._noise_multiplier = noise_multiplier
        self._delta = delta
        self._max_epsilon = max_epsilon
        self.state: dict[str, Any] = {"versions": 0, "participation": Counter()}

    def validate_run(self, versions: float) -> None:
        """See `refuse_overspending`."""
        refuse_overspending(
            self._keys, self._noise_multiplier, self._delta, self._max_epsilon, versions
        )

    def spend(self, clients: Iterable[int]) -> None:
        """Count a version that these clients moved."""
        self.state["versions"] += 1
        self.state["participation"].update(set(clients))

    def totals(self) -> dict[str, float]:
        """Numbers for the run's summary, see `totals`."""
        return totals(self._noise_multiplier, self._delta, self.state)
