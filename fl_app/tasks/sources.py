"""Where a task's data come from: files below a local root, the Hugging Face hub, or a stand-in.

Sources are tried in the order the user gives, ``task.sources``. What was read is unpacked once,
into plain arrays in a cache folder, and mapped into memory from there: a second process, and a
second run, share the pages and read nothing again.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays, cached
from fl_app.tasks.options import check_options

STAND_IN = "stand-in"  # what `Task.source` says of data made up in place of the real ones

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub and how its rows become arrays.

    Attributes:
        repository: such as ``"ylecun/mnist"``, or a folder of that form.
        subset: the configuration's name, if it has several.
        convert: from the splits by name to arrays.
    """

    repository: str
    convert: Callable[[Any], Arrays]
    subset: str | None = None


@dataclass(frozen=True)
class DataSet:
    """What is known of a public data set, and how to get at it.

    Attributes:
        name: for messages and the cache.
        files: below the root; the source ``local`` has to have all of them.
        read: arrays from a root that has the files.
        hub: None if the hub is not known to have it in a form that can be read.
        stand_in: made-up arrays of the same shapes.
        command: what fetches the files; ``DIR`` stands for the root.
        optional: further files below the root that `read` uses if they are there.
        hint: what else may help who has no data, a sentence with a space after it.
    """

    name: str
    files: tuple[str, ...]
    read: Callable[[Path], Arrays]
    hub: Hub | None
    stand_in: Callable[[], Arrays]
    command: str
    optional: tuple[str, ...] = ()
    hint: str = ""


@contextmanager
def reading(path: Path, expected: str) -> Iterator[None]:
    """Have whatever goes wrong while a file is read name the file and what it should be.

    Args:
        path: of the file.
        expected: what it should be, such as ``"a line of JSON for each review"``.

    Raises:
        ValueError: anything went wrong.
    """
    try:
        yield
    except Exception as error:  # the libraries raise all sorts
        raise ValueError(f"{path} must be {expected}, but {said(error)}") from error


def said(error: Exception) -> str:
    """What an error says, in one line, with its type where that is not one of ours."""
    text = " ".join(str(error).split())
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


def load(data: DataSet, sources: Sequence[str], root: str | None) -> tuple[Arrays, str]:
    """The arrays of the first source that has them.

    Args:
        data: what to load.
        sources: of ``"local"``, ``"hub"`` and ``"synthetic"``, in the order to try them.
        root: folder that torchvision would be given; None means the environment variable
            FL_APP_DATA.

    Returns:
        The arrays, and where they are from: ``"local"``, ``"hub"`` or ``"stand-in"``.

    Raises:
        ValueError: `sources` is empty or names an unknown one, the root is no folder, a file cannot
            be read, or no source has the data.
    """
    check_options(sources=sources)
    tries = []
    for source in sources:
        if source == "synthetic":
            log.warning("%s: NOT THE REAL DATA but a synthetic stand-in of its shape", data.name)
            return data.stand_in(), STAND_IN
        arrays, problem = _local(data, root) if source == "local" else _hub(data)
        if arrays is not None:
            return arrays, source
        tries.append(f"  {source}: {problem}")
    raise ValueError(
        f"no data for {data.name}. Looked in\n" + "\n".join(tries) + "\nWith network, "
        f"this puts it into a folder DIR:\n  {data.command}\nthen export FL_APP_DATA=DIR. "
        f"{data.hint}task.sources=[synthetic] runs on a made-up stand-in instead"
    )


def _local(data: DataSet, root: str | None) -> tuple[Arrays | None, str]:
    key, where = ("task.root", root) if root else ("FL_APP_DATA", os.environ.get("FL_APP_DATA"))
    if not where:
        return None, "neither task.root nor the environment variable FL_APP_DATA names a folder"
    base = Path(where).expanduser()
    require(base.is_dir(), key, base, "a folder", "there is nothing to read")
    absent = [name for name in data.files if not (base / name).exists()]
    if absent:
        return None, f"{base} has no {', '.join(absent)}"
    state = []
    for name in (*data.files, *data.optional):
        if (base / name).exists():
            stat = (base / name).stat()
            state.append((name, stat.st_size, stat.st_mtime_ns))

    def read() -> Arrays:
        try:
            return data.read(base)
        except Exception as error:  # the libraries raise all sorts, from EOFError to RuntimeError
            raise ValueError(
                f"{data.name} in {key}={base} cannot be read: {said(error)}: the file is damaged "
                f"or not what its name says; delete it and fetch it again with\n  {data.command}"
            ) from error

    return cached(f"{data.name}-local", (str(base.resolve()), state), read), ""


def _hub(data: DataSet) -> tuple[Arrays | None, str]:
    hub = data.hub
    if hub is None:
        return None, "the hub is not known to have this set in a form that can be read"
    problem = ""

    def read() -> Arrays:
        nonlocal problem
        try:
            # Imported here: it takes seconds, and most runs do without.
            import datasets

            splits = datasets.load_dataset(hub.repository, hub.subset)
        except (OSError, ValueError, ImportError) as error:
            problem = f"{hub.repository}: {type(error).__name__}: {error}"
            return {}
        return hub.convert(splits)

    arrays = cached(f"{data.name}-hub", (hub.repository, hub.subset), read)
    return (None, problem) if problem else (arrays, "")
