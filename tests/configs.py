"""Configurations, composed from `conf/` as the command line does."""

import hydra
from omegaconf import DictConfig

from fl_app.cli import CONF

# Of every algorithm, the name of its file.
ALGORITHMS = sorted(path.stem for path in (CONF / "algorithm").glob("*.yaml"))


def composed(*overrides: str) -> DictConfig:
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=list(overrides))
