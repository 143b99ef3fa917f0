"""Runs a command: one run, an experiment or a sweep. Prints its errors and sets its exit status."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGINT
from traceback import walk_tb
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import RunMode
from omegaconf import DictConfig
from yaml import YAMLError

from fl_app.cli import CONF, explain, refuse_dots, refuse_surplus, refuse_twins
from fl_app.core.errors import Interrupted, RunError
from fl_app.core.files import unwritable
from fl_app.help import help_on
from fl_app.record.provenance import installed
from fl_app.runner import signals

_made: list[Path] = []  # folders that the command makes, each before its parent
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
        _note_missing(Path(config.hydra.run.dir))

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Note the sweep, and which folders it makes; refuse one whose failures none would see."""
        global _hydra
        for part in ("launcher", "sweeper"):
            target = config.hydra[part]._target_
            if not target.startswith("hydra._internal.core_plugins."):
                told = f"hydra/{part} must be basic and not {target}"  # Hydra only warns of errors
                raise Ended from ValueError(f"{told}: experiment.parallel runs side by side")
        _hydra = config.hydra
        _note_missing(Path(_hydra.sweep.dir))


@hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")
def app(config: DictConfig) -> None:
    """Run one job: a run, or the cells of an experiment.

    A job of a sweep that fails is reported at once, and the other jobs run.
    """
    global _hydra
    _hydra = job = HydraConfig.get()
    try:
        _run(config)
    except (ValueError, RunError) as error:
        if isinstance(error, Interrupted) or job.mode != RunMode.MULTIRUN:
            raise Ended from error
        with suppress(OSError):  # it holds files
            Path(job.runtime.output_dir).rmdir()
        words = " ".join(job.overrides.task)
        print(f"error: job {job.job.num} ({words}): {_sentence(error)}", file=sys.stderr)
        _failures.append(_status(error))


def _note_missing(folder: Path) -> None:
    _made[:] = [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_made() -> None:
    """Remove the folders that the command has made, if it ran nothing."""
    with suppress(OSError):  # they hold files of runs
        for folder in _made:
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


def command(words: Sequence[str]) -> int:
    """Run the command that consists of these words; return its exit status."""
    global _hydra
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra raises its errors instead of printing them
    _hydra = None
    _made.clear()
    _failures.clear()
    if "--version" in words:
        print(f"fl-app {installed('fl-app')}")
        return 0
    try:
        if "--help" in words or "-h" in words:
            print(help_on(words))
            return 0
        refuse_dots(words)
        refuse_twins(words)
        app()
    except Ended as ended:
        return _failed(ended.__cause__, words)
    except BrokenPipeError:
        raise
    # Some of Hydra's are also OSErrors. YAML is that of a user's own files of options.
    except (HydraException, YAMLError, ValueError, RunError) as error:
        return _failed(error, words)
    except OSError as error:
        if any(frame.f_code is _run.__code__ for frame, _ in walk_tb(error.__traceback__)):
            raise
        # Outside of `_run`, the error comes from Hydra, which makes the folder of a job.
        return _failed(ValueError(unwritable(error.filename, error)), words)
    if _failures:
        _remove_made()
    if _hydra is not None and _hydra.mode == RunMode.MULTIRUN and Path(_hydra.sweep.dir).exists():
        folder = shlex.quote(_hydra.sweep.dir)  # each job reports only itself
        print(f"All jobs in one report: python -m fl_app.report {folder}")
    if _failures:
        print(f"error: {len(_failures)} of the sweep's jobs failed", file=sys.stderr)
    return max(_failures, default=0)


def _failed(error: BaseException | None, words: Sequence[str]) -> int:
    if isinstance(error, Interrupted):
        print(f"interrupted; to go on: {_again(words)}", file=sys.stderr)
        return 128 + (signals.received or SIGINT)
    _remove_made()
    text = explain(error, words) if isinstance(error, HydraException) else _sentence(error)
    print(f"error: {text}", file=sys.stderr)
    return _status(error)


def _sentence(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, RunError) else str(error)


def _status(error: BaseException | None) -> int:
    return 1 if isinstance(error, RunError) else 2


def _again(words: Sequence[str]) -> str:
    """Build the command that resumes the interrupted run or sweep."""
    sweeps = _hydra.mode == RunMode.MULTIRUN
    key = "sweep" if sweeps else "run"
    folder = Path(_hydra.sweep.dir if sweeps else _hydra.runtime.output_dir).resolve()
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    anew = ("hydra.run.dir=", "hydra.sweep.dir=", "resume=")
    kept = [word for word in words if not word.startswith(anew)]
    program = ["fl-app"] if Path(sys.argv[0]).name == "fl-app" else ["python", "-m", "fl_app"]
    return shlex.join([*program, *kept, f"hydra.{key}.dir={folder}", "resume=auto"])
