"""The ServerApp of ``flwr run .``, in simulation and deployment.

The run config's key ``overrides`` holds the overrides of the command line, as in
``flwr run . --run-config "overrides='algorithm=fedasync num_versions=500'"``. Each of the keys
`KEYS` sets the configuration's key of the same name.
"""

import logging
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fl_app.core.extras import explaining_app_imports

with explaining_app_imports():
    from hydra import initialize_config_dir
    from hydra.errors import HydraException

    from fl_app.cli import CONF, compose, explain
    from fl_app.core.errors import require
    from fl_app.record.folder import REFUSED
    from fl_app.runner.run import run
    from fl_app.runner.validate import checked_cells

KEYS = ("algorithm", "task", "num-clients", "num-versions", "seed")
# The length of a run without overrides and num-versions: 15 seconds on the two nodes that Flower
# simulates, each of which carries out at most ten orders per second.
SHORT = ("num_versions=null", "max_updates=250")

log = logging.getLogger("flwr")

app = ServerApp()
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray, started later, warns


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the configuration of the run config on the nodes of the grid.

    Raises:
        ValueError: a key or an override is refused.
        RunError: the run could not continue.
    """
    overrides = overrides_of(context.run_config)
    # Without `output` the folder depends on where the SuperLink was started, so it is logged.
    output = str(context.run_config.get("output", "")) or f"outputs/flower-{context.run_id}"
    folder = Path(output).expanduser().resolve()
    log.info("python -m fl_app %s", shlex.join(overrides))
    log.info("Files go to %s", folder)
    try:
        ignored = " ".join(word for word in overrides if word.startswith("hydra."))
        require(not ignored, "overrides", ignored, "free of hydra.*", "output= names the folder")
        config = compose(overrides)
        with initialize_config_dir(str(CONF), version_base="1.3"):
            run(checked_cells(config, overrides), overrides, folder, grid)
    except (HydraException, ValueError) as error:
        refusal = error
        if isinstance(error, HydraException):  # of a cell; its own traceback would hide the reason
            refusal = ValueError(explain(error, overrides))
        if "runtime=deployment" in overrides:  # a supervisor does not submit it again
            folder.mkdir(parents=True, exist_ok=True)
            (folder / REFUSED).write_text(str(refusal), encoding="utf-8")
        raise refusal from None
    log.info("The run has ended: its files are in %s", folder)


def overrides_of(run_config: Mapping[str, object]) -> list[str]:
    """The overrides, as after ``python -m fl_app``, that a run config stands for.

    Args:
        run_config: of Flower; empty values mean this project's defaults.
    """
    user_overrides = shlex.split(str(run_config.get("overrides", "")))
    values = {key.replace("-", "_"): str(run_config.get(key, "")) for key in KEYS}
    overrides = [f"{key}={value}" for key, value in values.items() if value]
    if not user_overrides and not values["num_versions"]:
        overrides += SHORT
    overrides += user_overrides
    if not any(word.startswith("runtime=") for word in overrides):
        overrides.append("runtime=flower")
    return overrides
