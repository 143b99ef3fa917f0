"""Flower's front door on the server: ``flwr run .`` in simulation and deployment.

The run's configuration is the one of the command line: ``overrides`` of the run config holds the
same words, as in ``flwr run . --run-config "overrides='algorithm=fedasync num_versions=500'"``.
"""

import logging
import shlex
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException

from fl_app.cli import CONF, explain, refuse_dots, refuse_surplus
from fl_app.run.run import run

log = logging.getLogger("flwr")

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what ``overrides`` asks for, on the nodes that the grid reaches.

    Raises:
        ValueError: an override is refused.
        RunError: the run could not go on.
    """
    overrides = shlex.split(str(context.run_config.get("overrides", "")))
    if not any(override.startswith("runtime=") for override in overrides):
        overrides.append("runtime=flower")
    # Without `output` it depends on where the SuperLink was started, so it is said at once.
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
        # Hydra's own traceback would bury the reason.
        raise ValueError(explain(error, overrides)) from None
