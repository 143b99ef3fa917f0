"""The run that a folder holds already: resume, extend, replace or refuse it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import asks_for_masks
from fl_app.core.files import open_log
from fl_app.record.folder import EVENTS
from fl_app.report.cells import ENDS
from fl_app.runner.checkpoint import PATTERN, different

FILES = (EVENTS, "summary.json", "config.yaml", "metrics.csv", "model.npz", "checkpoints")
# Files of a run but for its event log, which is emptied by the process that locks it.
STALE = (
    *("summary.json", "config.yaml", "metrics.csv", "model.npz", "devices.csv"),
    "partition.csv",
    *("table.csv", "report.html", "figures/*.png", "figures/*.pdf", "figures/*.svg"),
    *("checkpoints/version-*", "tensorboard/events.out.tfevents.*"),
)
# A run may be resumed with other values of these.
CARRYING_OUT = (
    *("resume", "overwrite", "runtime", "tensorboard", "checkpoint_final", "failures"),
    "compare",  # its values are in the algorithm
)
LIMITS = ("num_versions", "max_seconds", "max_updates")  # and with larger values of these


def settings(config: DictConfig) -> dict[str, Any]:
    """The settings that must be the same to resume a run."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    same = {str(k): v for k, v in plain.items() if k not in (*CARRYING_OUT, *LIMITS)}
    if config.get("client_eval_every") is None:  # as in runs of versions without these keys
        same.pop("client_eval_every", None)
        same.pop("client_eval_fraction", None)
    if not asks_for_masks(config):  # as in runs of versions without this group
        same["secure_aggregation"] = False
    runtime = config.runtime
    batch = runtime.batch if runtime.name == "inprocess" else 1  # others do not read the key
    if batch != 1:  # else as in runs of versions without this key
        same["runtime.batch"] = batch
    if not runtime.get("train", True):  # likewise
        same["runtime.train"] = False
    # A cell is the same run whatever other cells there are.
    same["experiment"] = {key: config.experiment[key] for key in ("scale", "report_accuracy")}
    decay = config.algorithm.strategy.get("lr_schedule")
    # A constant rate does not depend on the length of the run.
    if isinstance(decay, DictConfig) and decay.get("to") == 1:
        same["algorithm"]["strategy"]["lr_schedule"]["versions"] = None
    return {**same, "virtual": config.runtime.name != "deployment"}


def limits(config: DictConfig) -> dict[str, float | None]:
    """The limits that end a run, by key; None = no limit."""
    return {key: config.get(key) for key in LIMITS}


def refuse_held(folder: Path, cells: Mapping[str, DictConfig]) -> None:
    """Refuse a folder whose run would be lost.

    Args:
        folder: of the run, or of the experiment.
        cells: configurations by the names of their folders in it; "" is the folder itself.

    Raises:
        ValueError: naming the alternatives.
    """
    config = next(iter(cells.values()))
    if config.overwrite:
        return
    goes_on = config.resume == "auto"
    if _holds(folder):
        held, own = folder, "" in cells
    else:
        below = sorted(folder.iterdir()) if folder.is_dir() else []
        found = next((path for path in below if _is_cell(path)), None)
        if found is None:
            return
        held, own = found, "" not in cells
    if own and goes_on:
        return
    raise ValueError(
        f"{held} holds a run, whose files would be lost: give "
        + ("resume=auto to go on with it, " if own else "")
        + "another folder (hydra.run.dir=..., of a sweep hydra.sweep.dir=..., in Python "
        "output=...), or overwrite=true to replace it"
    )


def outdated(folder: Path, cells: Mapping[str, DictConfig]) -> list[Path]:
    """Runs in the folder of an experiment that would be in the means of its cells, wrongly.

    These are runs of a cell, under a name that it has no longer, with another configuration or
    length, or with a seed that it has, too. Further seeds of the same cell are none.

    Args:
        folder: of the experiment.
        cells: configurations by the names of their folders.
    """
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        own = [each for name, each in cells.items() if label(name) == label(path.name)]
        if path.name in cells or not own or not _is_cell(path):
            continue
        if (path / "config.yaml").exists():
            before = OmegaConf.load(path / "config.yaml")
            assert isinstance(before, DictConfig)
            seeds = {each.seed for each in own}
            if before.seed not in seeds and _but_for_seed(before) == _but_for_seed(own[0]):
                continue
        found.append(path)
    return found


def label(name: str) -> str:
    """A cell's name without its seed."""
    return re.sub(r"-seed\d+$", "", name)


def _but_for_seed(config: DictConfig) -> dict[str, Any]:
    return {**settings(config), **limits(config), "seed": None}


def finished(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended already; None = there is something to run.

    Raises:
        ValueError: the folder's run had another configuration, or cannot be extended.
    """
    if config.resume != "auto" or not (folder / "config.yaml").exists():
        return None
    before = OmegaConf.load(folder / "config.yaml")
    assert isinstance(before, DictConfig)
    differences = different(settings(before), settings(config))
    if differences:
        raise ValueError(
            f"resume=auto: {folder} holds a run of another configuration "
            f"({', '.join(differences[:5])}): give another folder, or overwrite=true to replace it"
        )
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if summary.get("stopped") not in ENDS:
        return None
    if limits(before) == limits(config) or summary["stopped"] == "target_accuracy":
        return summary
    reached = {
        "num_versions": summary["num_versions"],
        "max_seconds": summary["virtual_seconds"],
        "max_updates": summary["client_updates"],
    }
    refuse_lower(limits(config), limits(before), reached, folder)
    if not any((folder / "checkpoints").glob(PATTERN)):
        raise ValueError(
            f"resume=auto: the run in {folder} has ended and left no checkpoint from which a later "
            "end could be reached (checkpoint_final): give another folder, or overwrite=true to "
            "replace it"
        )
    return None


def refuse_lower(
    now: Mapping[str, float | None],
    before: Mapping[str, float | None],
    reached: Mapping[str, float],
    folder: Path,
) -> None:
    """Refuse to resume a run that has passed one of its new limits.

    Args:
        now: the new limits.
        before: the limits so far.
        reached: the run's progress, by the same keys.
        folder: of the run.

    Raises:
        ValueError: naming the limit and the progress.
    """
    for key, limit in now.items():
        then = before[key]
        if limit is None or (then is not None and limit >= then):
            continue
        if limit <= reached[key]:
            raise ValueError(
                f"{key}={limit} must be above {reached[key]:g}, which the run in {folder} has "
                "reached: what was done cannot be undone; give another folder, or overwrite=true "
                "to replace it"
            )


def refuse_other_fixed(now: str, before: str, folder: Path) -> None:
    """Refuse to resume a run whose model has another fixed part now.

    Args:
        now: digest of the fixed part (`FlatModel.fixed_digest`).
        before: digest of that of the checkpoint.
        folder: of the run.

    Raises:
        ValueError: the digests differ.
    """
    if now != before:
        raise ValueError(
            f"{folder} holds a run of another model: its frozen parameters, or first values of "
            f"private ones, differ (SHA-256 {now[:8] or 'none'} instead of {before[:8] or 'none'}),"
            " so what was trained does not fit them; restore the model's code and weights, give "
            "another folder, or overwrite=true to replace the run"
        )


def remove_run(folder: Path) -> None:
    """Remove the run in the folder of an experiment: the report would show this run alone."""
    events = folder / EVENTS
    if events.exists():
        with open_log(events, 0):  # refused while another process writes to it
            clear(folder)
            events.unlink()
    else:
        clear(folder)


def clear(folder: Path) -> None:
    """Remove all files of an earlier run except its event log."""
    for pattern in STALE:
        for path in folder.glob(pattern):
            path.unlink()


def _holds(folder: Path) -> bool:
    return any((folder / name).exists() for name in FILES)


def _is_cell(folder: Path) -> bool:
    """Whether the folder holds a run; a ``config.yaml`` alone may belong to something else."""
    return (folder / EVENTS).is_file() or (folder / "summary.json").is_file()
