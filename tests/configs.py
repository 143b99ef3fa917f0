"""Configurations, composed from `conf/` as the command line does."""

from copy import deepcopy
from functools import lru_cache

import hydra

from fl_app.cli import CONF

# Of every algorithm, the name of its file.
ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))


# Flower's own strategies are not ours to prove (tests/contract/test_flower_strategies.py).
NAMES = sorted(
    path.stem
    for path in (CONF / "algorithm").glob("*.yaml")
    if "/target@strategy: fl_app.algorithms." in path.read_text()
)

# A client as most have it, a server that learns, clients that pause, work ahead, look at their last
# model or correct gradients, and uploads of another kind.
REPRESENTATIVES = ("fedbuff", "wkafl", "fedasmu", "overlap_fedavg", "moon", "scaffold", "area")

# Of those that add noise, so little that the rest can be seen.
QUIET = {
    "dp_fedbuff": ["algorithm.strategy.noise_multiplier=0.01", "algorithm.strategy.clip_norm=9"]
}


@lru_cache(256)
def _composed(overrides):
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))


def composed(*overrides):
    """What these words describe; many tests ask for the same, and a copy takes a tenth."""
    return deepcopy(_composed(overrides))
