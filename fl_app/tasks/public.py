"""Public data sets: files below the folder ``FL_APP_DATA``, downloaded when they are first needed.

The data are unpacked once into plain arrays in a cache folder. Every process maps these arrays into
memory, so that processes and runs share them.
"""

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from fl_app.core.errors import error_text, explaining, require
from fl_app.core.files import cache_folder
from fl_app.tasks.cache import Arrays, cached, file_facts
from fl_app.tasks.files import loaded

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DataSet:
    """A public data set's place; it comes from the Hugging Face hub, unless a subclass fetches it.

    Attributes:
        name: for messages and the cache.
        folder: below the root.
        hub: its repository.
        subset: name of the repository's configuration, if it has several.
        beside: optional further files below the root.
    """

    name: str
    folder: str
    hub: str = ""
    subset: str | None = None
    beside: tuple[str, ...] = ()

    def fetch(self, root: Path) -> None:
        """Download the folder into a root; raises errors of any type."""
        with loaded(self.hub, self.subset, self.name) as parts:
            parts.save_to_disk(root / self.folder)

    def load(
        self,
        read: Callable[[Path], Arrays],
        random: Callable[[np.random.Generator], Arrays] | None = None,
    ) -> Arrays:
        """The arrays of the files below ``FL_APP_DATA``, or else below the cache folder.

        Args:
            read: reads the arrays of the files below a root; raises errors of any type.
            random: makes random arrays of the same shapes instead.

        Raises:
            ValueError: the root is no folder, or files cannot be read or downloaded.
        """
        if random is not None:
            log.warning("%s: NOT THE REAL DATA but random ones of their shape", self.name)
            return random(np.random.default_rng(0))
        where = os.environ.get("FL_APP_DATA")
        root = Path(where).expanduser() if where else cache_folder() / "data"
        fits = not where or root.is_dir()
        require(fits, "FL_APP_DATA", root, "a folder", "there is nothing to read")
        folder = root / self.folder
        if not folder.is_dir():
            self._fetch_whole(root)

        # Files of the folder alone: CelebA's has 200,000 images below it.
        files = *folder.iterdir(), *(root / name for name in self.beside)
        remedy = ": a file is missing, damaged or not what its name says; remove "
        remedy += f"{folder}, and the same command downloads it anew where there is network"
        with explaining(f"{self.name} in FL_APP_DATA={root} cannot be read", remedy):
            return cached(self.name, file_facts(files), lambda: read(root))

    def _fetch_whole(self, root: Path) -> None:
        """Download the folder, which appears whole or not at all."""
        log.warning("%s: to be downloaded into %s", self.name, root)
        folder = root / self.folder
        try:
            root.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=root) as scratch:
                self.fetch(Path(scratch))
                folder.parent.mkdir(parents=True, exist_ok=True)
                (Path(scratch) / self.folder).rename(folder)
        except Exception as error:  # libraries raise errors of any type
            if folder.is_dir():  # by another process
                return
            raise ValueError(
                f"no data for {self.name}: {root} (FL_APP_DATA) has no folder {self.folder}, and "
                f"they cannot be downloaded ({error_text(error)}). Where there is network, the "
                "same command downloads them: copy that folder here, or try task.made_up=true"
            ) from error
