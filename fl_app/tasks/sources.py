"""Sources of a task's data: files below a local root, the Hugging Face hub, or a stand-in.

They are tried in the order of ``task.sources``. The data are unpacked once into plain arrays in a
cache folder. Every process maps these arrays into memory, so that processes and runs share them.
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

STAND_IN = "stand-in"  # `Task.source` of made-up data instead of the real ones

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub, and how its rows become arrays.

    Attributes:
        repository: such as ``"ylecun/mnist"``, or a folder of that form.
        convert: computes the arrays from the splits by name.
        subset: name of its configuration, if it has several.
    """

    repository: str
    convert: Callable[[Any], Arrays]
    subset: str | None = None


@dataclass(frozen=True)
class DataSet:
    """A public data set and its sources.

    Attributes:
        name: for messages and the cache.
        folder: below the root; the source ``local`` needs it.
        read: reads the arrays from a root that has the folder.
        hub: None if the hub is not known to have the data set in a readable form.
        stand_in: makes up arrays of the same shapes.
        command: a command that downloads the files; ``DIR`` stands for the root.
        optional: a further folder below the root that `read` uses if it exists.
        hint: further advice for users without the data, a sentence with a space after it.
    """

    name: str
    folder: str
    read: Callable[[Path], Arrays]
    hub: Hub | None
    stand_in: Callable[[], Arrays]
    command: str
    optional: str | None = None
    hint: str = ""


@contextmanager
def reading(path: Path | str, expected: str) -> Iterator[None]:
    """Turn any error while a file is read into one that names the file and its expected content.

    Args:
        path: the file, or what messages call it.
        expected: its expected content, such as ``"a line of JSON for each review"``.

    Raises:
        ValueError: anything went wrong.
    """
    try:
        yield
    except Exception as error:  # libraries raise errors of any type
        raise ValueError(f"{path} must be {expected}, but {said(error)}") from error


def said(error: BaseException) -> str:
    """An error's message in one line, with its type unless it is a `ValueError`."""
    text = " ".join(str(error).split())
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


def load(data: DataSet, sources: Sequence[str], root: str | None) -> tuple[Arrays, str]:
    """Load the arrays from the first source that has them.

    Args:
        data: the data set.
        sources: some of ``"local"``, ``"hub"`` and ``"synthetic"``, in the order to try them.
        root: folder with local data, as for torchvision; None = the environment variable
            FL_APP_DATA.

    Returns:
        The arrays and their source: ``"local"``, ``"hub"`` or ``"stand-in"``.

    Raises:
        ValueError: `sources` is empty or has an unknown name, the root is no folder, a file cannot
            be read, or no source has the data.
    """
    check_options(sources=sources)
    tries = []
    for source in sources:
        if source == "synthetic":
            log.warning("%s: NOT THE REAL DATA but a synthetic stand-in of its shape", data.name)
            return data.stand_in(), STAND_IN
        try:
            return _local(data, root) if source == "local" else _hub(data), source
        except LookupError as error:
            tries.append(f"  {source}: {error.args[0]}")
    raise ValueError(
        f"no data for {data.name}. Looked in\n" + "\n".join(tries) + "\nWith network, "
        f"this puts it into a folder DIR:\n  {data.command}\nthen export FL_APP_DATA=DIR. "
        f"{data.hint}task.sources=[synthetic] runs on a made-up stand-in instead"
    )


def _local(data: DataSet, root: str | None) -> Arrays:
    """The arrays of local files.

    Raises:
        LookupError: there are none.
        ValueError: the root is no folder, or they cannot be read.
    """
    key, where = ("task.root", root) if root else ("FL_APP_DATA", os.environ.get("FL_APP_DATA"))
    if not where:
        raise LookupError("neither task.root nor the environment variable FL_APP_DATA is set")
    base = Path(where).expanduser()
    require(base.is_dir(), key, base, "a folder", "there is nothing to read")
    if not (base / data.folder).is_dir():
        raise LookupError(f"{base} has no folder {data.folder}")
    folders = [base / name for name in (data.folder, data.optional) if name]
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.iterdir())]
    state = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]

    def read() -> Arrays:
        try:
            return data.read(base)
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(
                f"{data.name} in {key}={base} cannot be read: {said(error)}: a file is missing, "
                f"damaged or not what its name says; fetch it again with\n  {data.command}\n"
                f"{data.hint}".rstrip()
            ) from error

    return cached(f"{data.name}-local", (str(base.resolve()), state), read)


def _hub(data: DataSet) -> Arrays:
    """The arrays of a data set on the hub, or in its cache.

    Raises:
        LookupError: there is none, or it cannot be reached.
    """
    if data.hub is None:
        raise LookupError("the hub is not known to have this set in a form that can be read")
    hub = data.hub

    def read() -> Arrays:
        from fl_app.tasks.huggingface import loaded

        try:
            with loaded(hub.repository, hub.subset, "hub") as splits:
                return hub.convert(splits)
        except ValueError as error:
            cause = error.__cause__ or error
            raise LookupError(f"{hub.repository}: {said(cause)}") from error

    return cached(f"{data.name}-hub", (hub.repository, hub.subset), read)
