"""DP-FedBuff: buffered asynchronous aggregation with client-level differential privacy.

FedBuff (Nguyen et al. 2022, arXiv:2106.06639, whose section 4 proposes it) with the Gaussian
mechanism of McMahan, Ramage, Talwar, Zhang: "Learning Differentially Private Recurrent Language
Models", ICLR 2018, arXiv:1710.06963.

Server, once K updates have arrived, of clients i in B with n_i updates each:

    u_i     = (1/n_i) sum_{k of i} s(t - o_k) Delta_k min(1, C / ||Delta_k||)
    s(u)    = (1 + u)^(-1/2)
    w_{t+1} = w_t + eta_g [ (1/K) sum_{i in B} u_i + N(0, (z C / K)^2 I) ]

As s <= 1, a client moves the sum by at most C, even if the buffer holds two of its updates. So z is
the noise multiplier of every version. The accountant composes versions without amplification by
sampling, because the order of arrival is not a random sample.

Symbols: eta_g server_lr, K schedule.buffer_size, C clip_norm, z noise_multiplier.

It does not hide which clients take part and when, nor the clients' mean losses in the event log.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)

from fl_app.core.errors import RunError
from fl_app.core.extras import require_installed
from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, bounded, within
from fl_app.core.staleness import polynomials
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.core.weighting import Weighting
from fl_app.schedule import Buffered, Schedule
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class DPFedBuff(Stepped):
    """FedBuff's step along clipped displacements and noise; reports the epsilon that was spent.

    Args:
        clip_norm: C, the longest displacement that counts in full.
        noise_multiplier: z, standard deviation of the noise over C.
        delta: of (epsilon, delta); well below 1 / number of clients.
        max_epsilon: a run that would spend more is refused; None = any.
        noise_seed: seed of the noise; None = from the operating system, as privacy requires, and
            new after a restart. Whoever knows the seed can remove the noise.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> long = Update(1, 3, np.array([3, 4], np.float32), "delta", 10, 0.5)
        >>> strategy = DPFedBuff(clip_norm=1.0, noise_multiplier=1e-6, noise_seed=0)
        >>> strategy.aggregate(model, [long]).round(3)
        array([0.6, 0.8], dtype=float32)
        >>> strategy.totals()["epsilon"] > 1000
        True
    """

    schedule = Buffered(concurrency=10, buffer_size=10)
    linear_in = ("delta",)
    first_state = {"versions": 0, "participation": Counter()}  # client -> versions that it moved

    clip_norm: float = bounded(1.0, POSITIVE, "the noise that privacy needs would be unknown")
    noise_multiplier: float = bounded(1.0, POSITIVE, "nothing would be private")
    delta: float = bounded(1e-5, within("(0, 1)"), "it is a probability")
    max_epsilon: float | None = bounded(None, POSITIVE, "no version would be paid for")
    noise_seed: int | None = bounded(None, NON_NEGATIVE, "no noise could be drawn")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_installed("dp_accounting")
        if self.noise_seed is not None:  # a checkpoint holds no generator of secret noise
            self.state["noise"] = np.random.default_rng(self.noise_seed)

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        if self.max_epsilon is None:
            return
        bound = "null with num_versions=null and max_updates=null"
        reason = "the epsilon that the run will spend would be unknown"
        self._require(math.isfinite(num_versions), "max_epsilon", bound, reason)
        spent = self.epsilon(int(num_versions))
        bound = (
            f"at least {spent:.4g} for num_versions={num_versions} with "
            f"noise_multiplier={self.noise_multiplier:g} and delta={self.delta:g}"
        )
        self._require(spent <= self.max_epsilon, "max_epsilon", bound, "the run would spend more")

    def public_weights(self) -> Weighting:
        return Weighting("polynomial", exponent=0.5, capped=True)

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        if model.num_trainable < model.params.size:
            raise RunError(
                "DP-FedBuff needs a model without buffers such as BatchNorm's statistics: clients "
                "would upload them without clip and noise"
            )
        share = Counter(update.client_id for update in updates)
        counts = [share[update.client_id] for update in updates]
        weights = (polynomials(model, updates, 0.5) / counts).tolist()
        deltas = self.deltas(model, updates)
        generator = self.state.get("noise") or np.random.default_rng()
        noise = generator.standard_normal(model.params.size, np.float32)
        noise *= np.float32(self.noise_multiplier * self.clip_norm)
        total = weighted_sum([*weights, 1.0], [*deltas, noise])
        self.state["versions"] += 1
        self.state["participation"].update(share.keys())
        self.report["weight"] = [weight / len(updates) for weight in weights]
        return self.step(model, -total / np.float32(len(updates)), self.server_lr)

    def epsilon(self, versions: int) -> float:
        """Epsilon of (epsilon, delta)-differential privacy after `versions` versions, >= 0.

        Neighbouring data sets differ in all data of one client. Flower's accountant composes
        versions by Renyi accounting, without amplification by sampling, because the order of
        arrival is not a random sample.
        """
        if versions == 0:
            return 0.0
        # Without amplification the size of the population has no effect.
        config = PrivacyConfig(
            target_delta=self.delta,
            population_size=1,
            neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE,
            sampling_method=SamplingMethod.NO_AMPLIFICATION,
        )
        accountant = RdpAccountant(config)
        accountant.compose(GaussianPrivacyEvent(self.noise_multiplier, 1, 1), versions)
        return accountant.get_epsilon(self.delta)

    def totals(self) -> dict[str, float]:
        """Epsilon of all versions, and of the client that moved most, at `delta`.

        The second holds if the data have no influence on which clients take part when.
        """
        greatest = max(self.state["participation"].values(), default=0)
        return {
            "epsilon": self.epsilon(self.state["versions"]),
            "epsilon_of_most_frequent_client": self.epsilon(greatest),
            "delta": self.delta,
        }
