"""Public data sets: files below the folder ``FL_APP_DATA``, downloaded when they are first needed.

The data are unpacked once into plain arrays in a cache folder. Every process maps these arrays into
memory, so that processes and runs share them.
"""

import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fl_app.core.errors import require
from fl_app.core.files import cache_folder
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.files import loaded, said
from fl_app.tasks.kind import TaskKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet(ABC):
    """Where a public data set is.

    Attributes:
        name: for messages and the cache.
        folder: below the root.
    """

    name: str
    folder: str

    @abstractmethod
    def fetch(self, root: Path) -> None:
        """Download the folder into a root; raises errors of any type."""


@dataclass(frozen=True)
class HubSet(DataSet):
    """A set on the Hugging Face hub, saved as `datasets` does.

    Attributes:
        hub: its repository.
        subset: name of the repository's configuration, if it has several.
    """

    hub: str
    subset: str | None = None

    def fetch(self, root: Path) -> None:
        with loaded(self.hub, self.subset, self.name) as parts:
            parts.save_to_disk(root / self.folder)


@dataclass(kw_only=True)
class PublicTask(TaskKind):
    """A task on a public data set.

    Args:
        made_up: random data of the same shapes, to try a run without the data.
    """

    made_up: bool = False

    @property
    @abstractmethod
    def data_set(self) -> DataSet:
        """Where the data are."""

    @abstractmethod
    def random(self, rng: np.random.Generator) -> Arrays:
        """Made-up arrays of the same shapes."""

    @abstractmethod
    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root; raises errors of any type."""

    def load(self) -> Arrays:
        """The arrays of the files below ``FL_APP_DATA``, or else below the cache folder.

        Raises:
            ValueError: the root is no folder, or files cannot be read or downloaded.
        """
        data, where = self.data_set, os.environ.get("FL_APP_DATA")
        if self.made_up:
            log.warning("%s: NOT THE REAL DATA but random ones of their shape", data.name)
            return self.random(np.random.default_rng(0))
        root = Path(where).expanduser() if where else cache_folder() / "data"
        fits = not where or root.is_dir()
        require(fits, "FL_APP_DATA", root, "a folder", "there is nothing to read")
        folder = root / data.folder
        if not folder.is_dir():
            _fetch(data, root)
        # Files of the folder alone: CelebA's has 200,000 images below it.
        return cached(data.name, file_facts(folder.iterdir()), lambda: self._read(root))

    def _read(self, root: Path) -> Arrays:
        data = self.data_set
        try:
            return self.read(root)
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(
                f"{data.name} in FL_APP_DATA={root} cannot be read: {said(error)}: a file is "
                f"missing, damaged or not what its name says; remove {root / data.folder}, and the "
                "same command downloads it anew where there is network"
            ) from error


def _fetch(data: DataSet, root: Path) -> None:
    """Download a set, which appears whole or not at all."""
    log.warning("%s: to be downloaded into %s", data.name, root)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=root) as made:
            data.fetch(Path(made))
            (root / data.folder).parent.mkdir(parents=True, exist_ok=True)
            (Path(made) / data.folder).rename(root / data.folder)
    except Exception as error:  # libraries raise errors of any type
        if (root / data.folder).is_dir():  # by another process
            return
        raise ValueError(
            f"no data for {data.name}: {root} (FL_APP_DATA) has no folder {data.folder}, and they "
            f"cannot be downloaded ({said(error)}). Where there is network, the same command "
            "downloads them: copy that folder here, or try task.made_up=true"
        ) from error
