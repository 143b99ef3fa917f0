"""Resumes or refuses the run that a folder already holds."""

import inspect
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_app.core.bugs import is_users
from fl_app.core.files import ANOTHER
from fl_app.core.layout import names_of
from fl_app.record.folder import EVENTS, read_summary
from fl_app.report.cells import ENDS, is_cell, label_of

FILES = (EVENTS, "summary.json", "config.yaml", "metrics.csv", "model.npz", "checkpoints")
ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of an object, another one in each process
# A run may be resumed with other values of these; those of compare= are in the algorithm.
CHANGEABLE = ("resume", "runtime", "failures", "compare")


def own_code(*objects: Any) -> dict[str, int]:
    """Checksums of the source of a user's classes and functions, and of their bases, by name.

    Args:
        objects: classes, functions, partial ones, or instances; what is installed is left out.
    """
    checksums: dict[str, int] = {}
    for item in objects:
        values = ""
        while isinstance(item, partial):
            arguments = ADDRESS.sub("", f"{item.args}{item.keywords}")
            values, item = values + arguments, item.func
        kind = item if inspect.isclass(item) or inspect.isroutine(item) else type(item)
        for obj in getattr(kind, "__mro__", (kind,)):
            file = getattr(inspect.getmodule(obj), "__file__", None) or ""
            if obj.__module__ != "builtins" and is_users(file):
                checksums[f"{obj.__module__}.{obj.__qualname__}"] = zlib.crc32(_code(obj, values))
    return checksums


def _code(obj: Any, values: str) -> bytes:
    """The source of a class or function; of a lambda, whose lines hold other code, the bytecode."""
    if obj.__name__ == "<lambda>":
        code = obj.__code__
        constants = [item for item in code.co_consts if not isinstance(item, CodeType | frozenset)]
        return repr((code.co_code, code.co_names, constants, values)).encode()
    try:
        return f"{inspect.getsource(obj)}{values}".encode()
    except (OSError, TypeError):  # typed at a prompt
        return values.encode()


def settings(config: DictConfig) -> dict[str, Any]:
    """The settings that must be the same to resume a run."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    values = {"code": {}, **{str(k): v for k, v in plain.items() if k not in CHANGEABLE}}
    for key, default in (("batch", 1), ("train", True)):  # keys of one runtime
        values[f"runtime.{key}"] = config.runtime.get(key, default)
    # A cell is the same run whatever other cells there are.
    values["experiment"] = {"report_accuracy": config.experiment.report_accuracy}
    return {**values, "virtual": config.runtime.name != "deployment"}


def enter(folder: Path, cells: Mapping[str, DictConfig]) -> dict[str, dict[str, Any]]:
    """Refuse a folder with other runs; find its runs that have ended, which do not run again.

    Args:
        folder: of the run, or of the experiment.
        cells: configurations by the names of their folders in it; "" is the folder itself.

    Returns:
        The summaries of runs that have ended.

    Raises:
        ValueError: the folder holds a run that cannot be resumed; the message names alternatives.
    """
    config = next(iter(cells.values()))
    children = sorted(folder.iterdir()) if folder.is_dir() else []
    runs = [path for path in children if is_cell(path)]
    labels = {label_of(name) for name in cells}
    surplus = [path for path in runs if label_of(path.name) in labels and path.name not in cells]
    fits = "" in cells
    holder = folder if any((folder / name).exists() for name in FILES) else None
    if holder is None and runs:
        fits, holder = not fits, runs[0]
    if holder and not (fits and config.resume == "auto"):
        raise ValueError(
            f"{holder} holds a run, whose files would be lost: give "
            + ("resume=auto to go on with it, " if fits else "")
            + f"{ANOTHER}, or remove it"
        )
    summaries = {name: ended_summary(cell, folder / name) for name, cell in cells.items()}
    if surplus:
        raise ValueError(
            f"{surplus[0]} is a run of a cell that is not to run now: it would be in the cell's "
            "means; give all of its seeds (resume=auto runs the missing ones; the folder of a "
            "single seed does not name it) or another folder, or remove it"
        )
    return {name: summary for name, summary in summaries.items() if summary is not None}


def ended_summary(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended already; None = there is something to run.

    Raises:
        ValueError: the folder's run had another configuration.
    """
    if config.resume != "auto" or not (folder / "config.yaml").exists():
        return None
    previous = OmegaConf.load(folder / "config.yaml")
    assert isinstance(previous, DictConfig)
    if differences := different(settings(previous), settings(config)):
        raise ValueError(
            f"resume=auto: {folder} holds a run of another configuration "
            f"({', '.join(differences[:5])}): give them as before, or another folder"
        )
    summary = read_summary(folder)
    return summary if summary.get("stopped") in ENDS else None


def different(before: Any, now: Any, key: str = "") -> list[str]:
    """Keys with different values, as ``key=before instead of now``."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            text
            for name in before | now
            for text in different(before.get(name), now.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if before == now else [f"{key}={before} instead of {now}"]


def refuse_other_frozen(differing: Sequence[str], folder: Path) -> None:
    """Refuse to resume a run whose frozen or first private parameters have changed.

    Args:
        differing: their names (`FlatModel.differing`).
        folder: of the run.

    Raises:
        ValueError: there are some.
    """
    if differing:
        raise ValueError(
            f"{folder} holds a run of another model: its frozen or private parameters "
            f"{names_of(differing)} differ, so what was trained does not fit them; restore the "
            "model's code and weights, give another folder, or remove the run"
        )
