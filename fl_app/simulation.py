"""Run a configuration of the command line in Flower's simulation engine."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from omegaconf import DictConfig

from fl_app.client_app import app as client_app
from fl_app.core.errors import RunError
from fl_app.core.extras import require_installed
from fl_app.runner.run import run


def run_in_flower(
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """Do what `fl_app.runner.run` does, with clients on Flower's simulated nodes.

    Raises:
        ValueError: the configuration is refused, or Ray is not installed.
        RunError: the run could not continue, or Flower's simulation engine ended without a result.
    """
    require_installed("ray")
    flower = logging.getLogger("flwr")
    flower.propagate = False  # Flower prints its lines; Hydra's handler would repeat them
    # Flower warns that `run_simulation` is deprecated.
    flower.addFilter(lambda record: "run_simulation" not in record.getMessage())
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns
    server_app = ServerApp()
    summaries: list[dict[str, Any]] = []
    problems: list[Exception] = []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        try:
            summaries.extend(run(config, overrides, folder, grid, cells=cells))
        except (ValueError, RunError) as problem:  # Flower would wrap it in its own error
            problems.append(problem)

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=config.runtime.num_nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    if problems:
        raise problems[0]
    if not summaries:
        raise RunError("Flower's simulation engine ended before the run did: see its messages")
    return summaries
