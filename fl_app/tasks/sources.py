"""Sources of a public data set: files below a local root, the Hugging Face hub, or a stand-in.

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
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.options import check_options

STAND_IN = "stand-in"  # `Task.source` of made-up data instead of the real ones

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A public data set and its sources.

    Attributes:
        name: for messages and the cache.
        folder: below the root; the source ``local`` needs it.
        hub: its repository on the hub; "" = the hub has none in a readable form.
        subset: name of the repository's configuration, if it has several.
        convert: computes the arrays from the splits by name, as `datasets` has them.
        read: reads the arrays from a root that has the folder; None = `datasets` loads the folder.
        fetch: a command that downloads the files, ``DIR`` stands for the root; "" = `datasets`
            saves the hub's data there.
        stand_in: makes up arrays of the same shapes.
    """

    name: str
    folder: str
    hub: str
    subset: str | None = None
    convert: Callable[[Any], Arrays]
    read: Callable[[Path], Arrays] | None = None
    fetch: str = ""
    stand_in: Callable[[], Arrays]

    @property
    def command(self) -> str:
        """A command that downloads the files."""
        words = f"'{self.hub}'" + (f", '{self.subset}'" if self.subset else "")
        saved = f"load({words}).save_to_disk('DIR/{self.folder}')"
        return self.fetch or f'python -c "from datasets import load_dataset as load; {saved}"'


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
        "task.sources=[synthetic] runs on a made-up stand-in instead"
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
    folder = base / data.folder
    if not folder.is_dir():
        raise LookupError(f"{base} has no folder {data.folder}")

    def read() -> Arrays:
        try:
            return data.read(base) if data.read else _loaded(data, str(folder))
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(
                f"{data.name} in {key}={base} cannot be read: {said(error)}: a file is missing, "
                f"damaged or not what its name says; fetch it again with\n  {data.command}"
            ) from error

    # Files of the folder alone: CelebA's has 200,000 images below it.
    return cached(f"{data.name}-local", file_facts(folder.iterdir()), read)


def _hub(data: DataSet) -> Arrays:
    """The arrays of a data set on the hub, or in its cache.

    Raises:
        LookupError: there is none, or it cannot be reached.
    """
    if not data.hub:
        raise LookupError("the hub is not known to have this set in a form that can be read")

    def read() -> Arrays:
        try:
            return _loaded(data, data.hub)
        except ValueError as error:
            raise LookupError(f"{data.hub}: {said(error.__cause__ or error)}") from error

    return cached(f"{data.name}-hub", (data.hub, data.subset), read)


def _loaded(data: DataSet, path: str) -> Arrays:
    """The arrays of a folder or repository that `datasets` reads.

    Raises:
        ValueError: it cannot.
    """
    from fl_app.tasks.huggingface import loaded

    subset = data.subset if path == data.hub else None
    with loaded(path, subset, data.name) as splits:
        return data.convert(splits)
