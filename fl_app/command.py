"""Runs a command: one run, an experiment or a sweep. Prints its errors and sets its exit status."""

import os
import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from signal import SIGINT
from traceback import walk_tb
from types import FrameType
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from yaml import YAMLError

from fl_app.cli import CONF, failure, refuse_dots, refuse_surplus, refuse_twins
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import unwritable
from fl_app.help import help_on
from fl_app.record.provenance import installed_version
from fl_app.runner import signals

_new_folders: list[Path] = []  # folders that the command makes, each before its parent
_failures: list[int] = []  # exit status of each job of a sweep that failed
_hydra: Any = None  # Hydra's own configuration, of the sweep or of the latest job; None = none ran


class Ended(BaseException):
    """A job has ended the command; the reason is the cause of this exception.

    It is no `Exception`, because Hydra would print it and start the next job of a sweep.
    """


class Hooks(Callback):
    """Callbacks for Hydra: they note which folders the command makes."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note which folders the run makes."""
        _refuse_folder(config, "sweep", "run")
        _note_new_folders(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the sweep and the folders it makes; refuse plugins that hide failed jobs."""
        global _hydra
        for part in ("launcher", "sweeper"):
            target = config.hydra[part]._target_
            if not target.startswith("hydra._internal.core_plugins."):
                error = f"hydra/{part} must be basic and not {target}"  # Hydra only warns of errors
                raise Ended from ValueError(f"{error}: experiment.parallel runs side by side")
        _refuse_folder(config, "run", "sweep")
        _hydra = config.hydra
        _note_new_folders(Path(_hydra.sweep.dir))


def _refuse_folder(config: DictConfig, other: str, kind: str) -> None:
    """Refuse the folder of the other kind of command, and one below a folder named ~."""
    if (folder := str(config.hydra[kind].dir)).startswith("~"):
        raise Ended from ValueError(f"hydra.{kind}.dir={folder} makes a folder named ~: use $HOME")
    for word in config.hydra.overrides.hydra:
        if word.startswith(f"hydra.{other}.dir="):
            raise Ended from ValueError(f"{word} has no effect here: give hydra.{kind}.dir=")


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def app(config: DictConfig) -> None:
    """Run one job: a run, or the cells of an experiment.

    If a job of a sweep fails, its error is printed at once, and the other jobs run.
    """
    global _hydra
    _hydra = job = HydraConfig.get()
    try:
        _run(config)
        if signals.received and job.mode == RunMode.MULTIRUN:
            raise Interrupted  # too late to end the job
    except (ValueError, RunError) as error:
        if isinstance(error, Interrupted) or job.mode != RunMode.MULTIRUN:
            raise Ended from error
        with suppress(OSError):  # it holds files
            Path(job.runtime.output_dir).rmdir()
        overrides = " ".join(job.overrides.task)
        _failures.append(failure(error, (), f"error: job {job.job.num} ({overrides})"))


def _note_new_folders(folder: Path) -> None:
    _new_folders[:] = [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_new_folders() -> None:
    """Remove the folders that the command has made, if it ran nothing."""
    with suppress(OSError):  # they hold files of runs
        for folder in _new_folders:
            if {path.name for path in folder.iterdir()} <= {"multirun.yaml"}:
                for path in folder.iterdir():
                    path.unlink()
            folder.rmdir()


def _run(config: DictConfig) -> None:
    overrides = list(_hydra.overrides.task)
    refuse_surplus(config, overrides)
    if config.runtime.name in ("flower", "deployment"):
        raise ValueError(
            f"runtime={config.runtime.name} needs Flower's nodes: start it with `flwr run`, "
            "or use runtime=inprocess"
        )
    from fl_app.runner.validate import checked_cells  # a slow import, after the quick checks

    folder = Path(_hydra.runtime.output_dir)
    cells = checked_cells(config, overrides)
    from fl_app.runner.run import run

    run(cells, overrides, folder)


def command(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; return its exit status."""
    global _hydra
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    _hydra = None
    _new_folders.clear()
    _failures.clear()
    if "--version" in arguments:
        print(f"fl-app {installed_version('fl-app')}")
        return 0
    signal.signal(SIGINT, partial(_end, arguments))  # outside of a run, which has its own handler
    try:
        if "--help" in arguments or "-h" in arguments:
            print(help_on(arguments))
            return 0
        refuse_dots(arguments)
        refuse_twins(arguments)
        app()
    except Ended as ended:
        return _report_failure(ended.__cause__, arguments)
    except BrokenPipeError:
        raise
    # Some errors of Hydra are OSErrors, too. YAML's come from a user's own files of options.
    except (HydraException, YAMLError, ValueError, RunError) as error:
        return _report_failure(error, arguments)
    except OSError as error:
        if any(frame.f_code is _run.__code__ for frame, _ in walk_tb(error.__traceback__)):
            raise
        # Outside of `_run`, the error comes from Hydra, which makes the folder of a job.
        return _report_failure(ValueError(unwritable(error.filename, error)), arguments)
    if _failures:
        _remove_new_folders()
    if _hydra is not None and _hydra.mode == RunMode.MULTIRUN and Path(_hydra.sweep.dir).exists():
        folder = shlex.quote(_hydra.sweep.dir)  # each job reports only itself
        print(f"All jobs in one report: python -m fl_app.report {folder}")
    if _failures:
        print(f"error: {len(_failures)} of the sweep's jobs failed", file=sys.stderr)
    return max(_failures, default=0)


def _end(arguments: Sequence[str], number: int, frame: FrameType | None) -> None:
    """End the process at once: libraries swallow KeyboardInterrupt, or print it."""
    if _hydra is None:
        os._exit(128 + number)
    os._exit(_report_failure(Interrupted(), arguments))


def _report_failure(error: BaseException | None, arguments: Sequence[str]) -> int:
    if isinstance(error, Interrupted):
        print(f"interrupted; to go on: {_resume_command(arguments)}", file=sys.stderr)
        return 128 + (signals.received or SIGINT)
    _remove_new_folders()
    return failure(error, arguments)


def _resume_command(arguments: Sequence[str]) -> str:
    """Build the command that resumes the interrupted run or sweep."""
    sweeps = _hydra.mode == RunMode.MULTIRUN
    key = "sweep" if sweeps else "run"
    folder = Path(_hydra.sweep.dir if sweeps else _hydra.runtime.output_dir).resolve()
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    replaced = ("hydra.run.dir=", "hydra.sweep.dir=", "resume=")
    overrides = [word for word in arguments if not word.startswith(replaced)]
    program = ["fl-app"] if Path(sys.argv[0]).name == "fl-app" else ["python", "-m", "fl_app"]
    return shlex.join([*program, *overrides, f"hydra.{key}.dir={folder}", "resume=auto"])
