"""Public data sets: files below the folder ``FL_APP_DATA``, else the Hugging Face hub.

The data are unpacked once into plain arrays in a cache folder. Every process maps these arrays into
memory, so that processes and runs share them.
"""

import logging
import os
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fl_app.core.errors import require
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.files import loaded, said
from fl_app.tasks.kind import TaskKind

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """Where a public data set is.

    Attributes:
        name: for messages and the cache.
        folder: below the root.
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
    def convert(self, splits: Any) -> Arrays:
        """The arrays of the splits by name, as `datasets` has them."""

    @abstractmethod
    def random(self, rng: np.random.Generator) -> Arrays:
        """Made-up arrays of the same shapes."""

    def read(self, root: Path) -> Arrays:
        """The arrays of the files below a root."""
        return self._loaded(str(root / self.data_set.folder), None)

    def load(self) -> Arrays:
        """The arrays of the local files, else of the hub.

        Raises:
            ValueError: the root is no folder, a file cannot be read, or no source has the data.
        """
        data, where = self.data_set, os.environ.get("FL_APP_DATA")
        if self.made_up:
            log.warning("%s: NOT THE REAL DATA but random ones of their shape", data.name)
            return self.random(np.random.default_rng(0))
        local = "the environment variable FL_APP_DATA is not set"
        if where:
            root = Path(where).expanduser()
            require(root.is_dir(), "FL_APP_DATA", root, "a folder", "there is nothing to read")
            if (root / data.folder).is_dir():
                # Files of the folder alone: CelebA's has 200,000 images below it.
                facts = file_facts((root / data.folder).iterdir())
                return cached(f"{data.name}-local", facts, lambda: self._local(root))
            local = f"{root} has no folder {data.folder}"
        hub = "it is not known to have this set in a form that can be read"
        if data.hub:
            state = (data.hub, data.subset)
            try:
                return cached(f"{data.name}-hub", state, lambda: self._loaded(*state))
            except ValueError as error:
                hub = f"{data.hub}: {said(error.__cause__ or error)}"
        raise ValueError(
            f"no data for {data.name}. Local files: {local}. The hub: {hub}. With network, this "
            f"puts it into a folder DIR:\n  {data.command}\nthen export FL_APP_DATA=DIR"
        )

    def _local(self, root: Path) -> Arrays:
        data = self.data_set
        try:
            return self.read(root)
        except Exception as error:  # libraries raise errors of any type
            raise ValueError(
                f"{data.name} in FL_APP_DATA={root} cannot be read: {said(error)}: a file is "
                "missing, damaged or not what its name says; fetch it again with\n  "
                f"{data.command}"
            ) from error

    def _loaded(self, path: str, subset: str | None) -> Arrays:
        with loaded(path, subset, self.data_set.name) as splits:
            return self.convert(splits)
