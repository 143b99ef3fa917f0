"""Public data sets: files below a local root, the Hugging Face hub, or a stand-in.

These sources are tried in the order of ``task.sources``. The data are unpacked once into plain
arrays in a cache folder. Every process maps these arrays into memory, so that processes and runs
share them.
"""

import logging
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fl_app.core.errors import require
from fl_app.core.hyper import Bound, bounded
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.files import loaded, said
from fl_app.tasks.kind import Classes

SOURCES = ("local", "hub", "synthetic")
SOME_SOURCES = Bound(
    f"a list of {', '.join(SOURCES)}",
    lambda value: not isinstance(value, str) and len(value) > 0 and {*value} <= {*SOURCES},
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """Where a public data set is.

    Attributes:
        name: for messages and the cache.
        folder: below the root; the source ``local`` needs it.
        hub: its repository on the hub; "" = the hub has none in a readable form.
        subset: name of the repository's configuration, if it has several.
    """

    name: str
    folder: str
    hub: str = ""
    subset: str | None = None

    @property
    def command(self) -> str:
        """A command that downloads the files; ``DIR`` stands for the root."""
        words = f"'{self.hub}'" + (f", '{self.subset}'" if self.subset else "")
        saved = f"load({words}).save_to_disk('DIR/{self.folder}')"
        return f'python -c "from datasets import load_dataset as load; {saved}"'


@dataclass(kw_only=True)
class PublicTask(Classes):
    """A task on a public data set.

    Args:
        sources: tried in this order: local, hub; [synthetic] is a made-up stand-in.
        root: folder with local files, as for torchvision; None = the environment variable
            FL_APP_DATA.
    """

    sources: Sequence[str] = bounded(
        ("local", "hub"), SOME_SOURCES, "the data would come from nowhere"
    )
    root: str | None = None

    @property
    @abstractmethod
    def data_set(self) -> DataSet:
        """Where the data are."""

    @abstractmethod
    def convert(self, splits: Any) -> Arrays:
        """The arrays of the splits by name, as `datasets` has them."""

    @abstractmethod
    def stand_in(self) -> Arrays:
        """Made-up arrays of the same shapes."""

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        return self._loaded(str(root / self.data_set.folder), None)

    def load(self) -> tuple[Arrays, str]:
        """The arrays from the first source that has them, and `fl_app.tasks.task.Task.source`.

        Raises:
            ValueError: the root is no folder, a file cannot be read, or no source has the data.
        """
        name, tries = self.data_set.name, []
        for source in self.sources:
            if source == "synthetic":
                log.warning("%s: NOT THE REAL DATA but a synthetic stand-in of its shape", name)
                return self.stand_in(), "stand-in"
            try:
                return self._local() if source == "local" else self._hub(), source
            except LookupError as error:
                tries.append(f"  {source}: {error.args[0]}")
        raise ValueError(
            f"no data for {name}. Looked in\n" + "\n".join(tries) + "\nWith network, "
            f"this puts it into a folder DIR:\n  {self.data_set.command}\nthen export "
            "FL_APP_DATA=DIR. task.sources=[synthetic] runs on a made-up stand-in instead"
        )

    def _local(self) -> Arrays:
        """The arrays of local files.

        Raises:
            LookupError: there are none.
            ValueError: the root is no folder, or they cannot be read.
        """
        data, key, where = self.data_set, "task.root", self.root
        if not where:
            key, where = "FL_APP_DATA", os.environ.get("FL_APP_DATA")
        if not where:
            raise LookupError("neither task.root nor the environment variable FL_APP_DATA is set")
        root = Path(where).expanduser()
        require(root.is_dir(), key, root, "a folder", "there is nothing to read")
        folder = root / data.folder
        if not folder.is_dir():
            raise LookupError(f"{root} has no folder {data.folder}")

        def read() -> Arrays:
            try:
                return self.read(root)
            except Exception as error:  # libraries raise errors of any type
                raise ValueError(
                    f"{data.name} in {key}={root} cannot be read: {said(error)}: a file is "
                    "missing, damaged or not what its name says; fetch it again with\n  "
                    f"{data.command}"
                ) from error

        # Files of the folder alone: CelebA's has 200,000 images below it.
        return cached(f"{data.name}-local", file_facts(folder.iterdir()), read)

    def _hub(self) -> Arrays:
        """The arrays of a data set on the hub, or in its cache.

        Raises:
            LookupError: there is none, or it cannot be reached.
        """
        data = self.data_set
        if not data.hub:
            raise LookupError("the hub is not known to have this set in a form that can be read")
        try:
            return cached(
                f"{data.name}-hub",
                (data.hub, data.subset),
                lambda: self._loaded(data.hub, data.subset),
            )
        except ValueError as error:
            raise LookupError(f"{data.hub}: {said(error.__cause__ or error)}") from error

    def _loaded(self, path: str, subset: str | None) -> Arrays:
        with loaded(path, subset, self.data_set.name) as splits:
            return self.convert(splits)
