"""The command line: ``python -m fl_app [overrides]``; ``-m`` sweeps."""

import os
import sys
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig

from fl_app.cli import CONF, explain, refuse_dots, refuse_surplus
from fl_app.core.errors import Interrupted, RunError

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def app(config: DictConfig) -> float | None:
    """One job: a run, or the cells of an experiment. Returns the last accuracy, for sweepers."""
    refuse_surplus(config)
    if config.runtime.name == "deployment":
        raise ValueError(
            "runtime=deployment needs Flower's nodes: start it with `flwr run`, "
            "or use runtime=inprocess"
        )
    from fl_app.validate import checked_cells  # after what needs less was found good

    job = HydraConfig.get()
    folder = Path(job.runtime.output_dir)
    overrides = list(job.overrides.task)
    cells = checked_cells(config, overrides)
    # The pages of a sweep's jobs share one plotting library: 24 of them would take 124 MB.
    shared = Path(job.sweep.dir) if job.mode == RunMode.MULTIRUN else None
    if config.runtime.name == "flower":
        from fl_app.simulation import run_in_flower

        summaries = run_in_flower(config, overrides, folder, shared, cells)
    else:
        from fl_app.run import run  # only now, for torch takes seconds

        summaries = run(config, overrides, folder, shared=shared, cells=cells)
    accuracy: float | None = summaries[-1]["final_accuracy"]
    return accuracy


def main() -> int:
    """Run the command line; 0 if all went well, 2 if it was refused, 1 if a run failed."""
    # Hydra prints errors of its own as it likes; with this it raises them.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        refuse_dots(sys.argv[1:])
        app()
    except HydraException as error:
        print(f"error: {explain(error, sys.argv[1:])}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except Interrupted as error:
        print(f"\n{error}", file=sys.stderr)
        return INTERRUPTED
    except RunError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    if status == INTERRUPTED:
        # All is written, and taking apart what torch and Flower loaded would take seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
