"""Runs a configuration inside Flower's simulation engine, from the command line."""

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
from fl_app.run.run import run


def run_in_flower(
    config: DictConfig,
    overrides: Sequence[str],
    folder: Path,
    shared: Path | None = None,
    cells: Mapping[str, DictConfig] | None = None,
) -> list[dict[str, Any]]:
    """As `fl_app.run.run`, with the clients' work done by Flower's simulated nodes.

    Raises:
        ValueError: the configuration is refused.
        RunError: the run could not go on, or Flower's simulation engine ended without a result.
    """
    flower = logging.getLogger("flwr")
    flower.propagate = False  # it prints itself; through Hydra's handler all would come twice
    flower.addFilter(lambda record: "run_simulation" not in record.getMessage())  # is deprecated
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or Ray warns of a change
    server_app = ServerApp()
    summaries: list[dict[str, Any]] = []
    problems: list[Exception] = []

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        try:
            summaries.extend(run(config, overrides, folder, grid, shared, cells))
        except (ValueError, RunError) as problem:  # Flower would wrap it in its own
            problems.append(problem)

    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=config.runtime.num_nodes,
        backend_config={
            "client_resources": {"num_cpus": config.runtime.cpus_per_node, "num_gpus": 0.0}
        },
    )
    if problems:
        raise problems[0]
    if not summaries:
        raise RunError("Flower's simulation engine ended before the run did: see its messages")
    return summaries
