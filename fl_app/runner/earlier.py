"""The run that a folder holds already: resume or refuse it."""

import inspect
import json
import re
import sysconfig
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any

from omegaconf import DictConfig, OmegaConf

from fl_app.core.layout import names_of
from fl_app.record.folder import EVENTS
from fl_app.report.cells import ENDS, is_cell, label_of

FILES = (EVENTS, "summary.json", "config.yaml", "metrics.csv", "model.npz", "checkpoints")
PACKAGE = Path(__file__).parents[1]
STANDARD = sysconfig.get_path("stdlib")
ADDRESS = re.compile(" at 0x[0-9a-f]+")  # of an object, another one in each process
# A run may be resumed with other values of these; those of compare= are in the algorithm.
CARRYING_OUT = ("resume", "runtime", "failures", "compare")


def own_code(*objects: Any) -> dict[str, int]:
    """Checksums of the source of a user's classes and functions, and of their bases, by name.

    Args:
        objects: classes, functions, partial ones, or instances; what is installed is left out.
    """
    found: dict[str, int] = {}
    for each in objects:
        values = ""
        while isinstance(each, partial):
            given = ADDRESS.sub("", f"{each.args}{each.keywords}")
            values, each = values + given, each.func
        kind = each if inspect.isclass(each) or inspect.isroutine(each) else type(each)
        for part in getattr(kind, "__mro__", (kind,)):
            file = Path(getattr(inspect.getmodule(part), "__file__", None) or "")
            installed = "site-packages" in file.parts or part.__module__ == "builtins"
            if not (installed or file.is_relative_to(PACKAGE) or file.is_relative_to(STANDARD)):
                found[f"{part.__module__}.{part.__qualname__}"] = zlib.crc32(_code(part, values))
    return found


def _code(part: Any, values: str) -> bytes:
    """The source of a class or function; of a lambda, whose lines hold more, what it does."""
    if part.__name__ == "<lambda>":
        code = part.__code__
        constants = [each for each in code.co_consts if not isinstance(each, CodeType | frozenset)]
        return repr((code.co_code, code.co_names, constants, values)).encode()
    try:
        return f"{inspect.getsource(part)}{values}".encode()
    except (OSError, TypeError):  # typed at a prompt
        return values.encode()


def settings(config: DictConfig) -> dict[str, Any]:
    """The settings that must be the same to resume a run."""
    plain = OmegaConf.to_container(config, resolve=True)
    assert isinstance(plain, dict)
    same = {"code": {}, **{str(k): v for k, v in plain.items() if k not in CARRYING_OUT}}
    for key, usual in (("batch", 1), ("train", True)):  # keys of one runtime
        same[f"runtime.{key}"] = config.runtime.get(key, usual)
    # A cell is the same run whatever other cells there are.
    same["experiment"] = {"report_accuracy": config.experiment.report_accuracy}
    return {**same, "virtual": config.runtime.name != "deployment"}


def enter(folder: Path, cells: Mapping[str, DictConfig]) -> dict[str, dict[str, Any]]:
    """What the runs that a folder holds have come to, and are not to be run again.

    Args:
        folder: of the run, or of the experiment.
        cells: configurations by the names of their folders in it; "" is the folder itself.

    Returns:
        The summaries of runs that have ended.

    Raises:
        ValueError: the folder holds another run, or cannot be gone on with; it names alternatives.
    """
    config = next(iter(cells.values()))
    below = sorted(folder.iterdir()) if folder.is_dir() else []
    runs = [path for path in below if is_cell(path)]
    labels = {label_of(name) for name in cells}
    mixed = [path for path in runs if label_of(path.name) in labels and path.name not in cells]
    own = "" in cells
    held = folder if any((folder / name).exists() for name in FILES) else None
    if held is None and runs:
        own, held = not own, runs[0]
    if held and not (own and config.resume == "auto"):
        raise ValueError(
            f"{held} holds a run, whose files would be lost: give "
            + ("resume=auto to go on with it, " if own else "")
            + "another folder (hydra.run.dir=..., of a sweep hydra.sweep.dir=..., in Python "
            "output=...), or remove it"
        )
    done = {name: finished(each, folder / name) for name, each in cells.items()}
    if mixed:
        raise ValueError(
            f"{mixed[0]} is a run of a cell that is not to run now: it would be in the cell's "
            "means; give all of its seeds (resume=auto runs those that lack; one alone is not in "
            "the folder's name) or another folder, or remove it"
        )
    return {name: summary for name, summary in done.items() if summary is not None}


def finished(config: DictConfig, folder: Path) -> dict[str, Any] | None:
    """The summary of a run that has ended already; None = there is something to run.

    Raises:
        ValueError: the folder's run had another configuration.
    """
    if config.resume != "auto" or not (folder / "config.yaml").exists():
        return None
    before = OmegaConf.load(folder / "config.yaml")
    assert isinstance(before, DictConfig)
    if differences := different(settings(before), settings(config)):
        raise ValueError(
            f"resume=auto: {folder} holds a run of another configuration "
            f"({', '.join(differences[:5])}): give them as before, or another folder"
        )
    path = folder / "summary.json"
    summary: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return summary if summary.get("stopped") in ENDS else None


def different(there: Any, here: Any, key: str = "") -> list[str]:
    """Keys with different values, as ``key=there instead of here``."""
    if isinstance(there, dict) and isinstance(here, dict):
        return [
            text
            for name in there | here
            for text in different(there.get(name), here.get(name), f"{key}.{name}".strip("."))
        ]
    return [] if there == here else [f"{key}={there} instead of {here}"]


def refuse_other_frozen(differing: Sequence[str], folder: Path) -> None:
    """Refuse to resume a run whose frozen or first private parameters are others now.

    Args:
        differing: their names (`FlatModel.differing`).
        folder: of the run.

    Raises:
        ValueError: there are some.
    """
    if differing:
        raise ValueError(
            f"{folder} holds a run of another model: its frozen or private parameters "
            f"{names_of(differing)} "
            "differ, so what was trained does not fit them; restore the model's code and weights, "
            "give another folder, or remove the run"
        )
