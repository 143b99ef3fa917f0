"""The ServerApp of ``flwr run .``, in simulation and deployment.

The run config's key ``overrides`` holds the overrides of the command line, as in
``flwr run . --run-config "overrides='algorithm=fedasync num_versions=500'"``.
"""

import logging
import shlex
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from fl_app.cli import CONF, explain, refuse_dots, refuse_surplus
from fl_app.core import json_log
from fl_app.runner.run import run

log = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of ``overrides`` on the nodes of the grid.

    Raises:
        ValueError: an override is refused.
        RunError: the run could not continue.
    """
    json_log.install()
    overrides = shlex.split(str(context.run_config.get("overrides", "")))
    if not any(override.startswith("runtime=") for override in overrides):
        overrides.append("runtime=flower")
    # Without `output` the folder depends on where the SuperLink was started, so it is logged.
    output = str(context.run_config.get("output", "")) or f"outputs/flower-{context.run_id}"
    folder = Path(output).resolve()
    log.info("Files go to %s", folder)
    refuse_dots(overrides)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", overrides=overrides)
            refuse_surplus(config)
            run(config, overrides, folder, grid)
    except HydraException as error:
        # Hydra's own traceback would hide the reason.
        raise ValueError(explain(error, overrides)) from None
