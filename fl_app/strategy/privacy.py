"""What Gaussian noise in every version spends of clients' differential privacy.

Neighbouring data sets differ in all data of one client. Flower's accountant composes versions by
Renyi accounting. It does so without amplification by sampling, because the order of arrival is not
a random sample.
"""

from flwr.serverapp import (
    GaussianPrivacyEvent,
    NeighboringRelation,
    PrivacyConfig,
    RdpAccountant,
    SamplingMethod,
)


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
