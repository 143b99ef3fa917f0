"""The state that a device keeps between its orders, in a file that outlives the SuperNode."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from flwr.app import Context

from fl_app.core.errors import require
from fl_app.core.files import atomic_write, make_folder
from fl_app.core.npy import reading
from fl_app.core.types import State

log = logging.getLogger("flwr")

STATE_DIR = "state-dir"  # of the node's own configuration
VARIABLE = "FL_APP_STATE_DIR"
DRAFT = ".draft-"  # suffix of a file that is being written, followed by the process id
COUNT = "fl_app:count"  # of the arrays in the file: how often the state was saved
KEPT_FOR = 7 * 86400.0  # seconds after a run's last order


class Memory:
    """Arrays that a node keeps during a run, in a file that is replaced atomically.

    Args:
        path: the file, in NumPy's npz format; pickles are not read.

    Attributes:
        count: how often the state was saved, in the file, too. A device that was restored from an
            old copy has a smaller count than the server has seen.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    @classmethod
    def of(cls, context: Context, run: str, client_id: int) -> "Memory":
        """The memory of a node's client in a run.

        Its folder is ``state-dir`` of the node's configuration, else the environment variable
        FL_APP_STATE_DIR, else the user's state folder.

        Args:
            context: of the node.
            run: letters and digits; not Flower's run id, which changes when a run is resumed.
            client_id: of the client.

        Raises:
            ValueError: `run` has other characters.
        """
        return cls(_folder(context, run) / f"client-{client_id}.npz")

    @classmethod
    def of_fixed(cls, context: Context, run: str, digest: str) -> "Memory":
        """The fixed part of a run's model, which all clients of a node share.

        Args:
            context: of the node.
            run: as of `of`.
            digest: of the fixed part.

        Raises:
            ValueError: as `of`.
        """
        require(digest.isalnum(), "digest", digest, "letters and digits", "it names a file")
        return cls(_folder(context, run) / f"fixed-{digest[:16]}.npz")

    def load(self) -> dict[str, np.ndarray]:
        """The state that was saved last; empty if there is no readable file.

        An unreadable file is renamed, with a warning, and the client starts without state.
        Otherwise it would fail for the rest of the run.
        """
        _remove_drafts(self.path)
        try:
            with (
                self.path.open("rb") as file,
                reading,
                np.load(file, allow_pickle=False) as arrays,
            ):
                state = dict(arrays)
            self.count = int(state.pop(COUNT, 0))
            return state
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, OSError, EOFError, KeyError, BadZipFile) as error:
            aside = self.path.with_suffix(".unreadable")
            log.warning(
                "%s cannot be read (%s) and is kept as %s: this client starts without it",
                self.path,
                error,
                aside.name,
            )
            self.path.replace(aside)
            return {}

    def save(self, state: State) -> None:
        """Replace the saved state atomically; of an empty state only the count is kept."""
        if state or self.path.exists():
            self._write({**state, COUNT: np.array(self.count + 1)})
            self.count += 1

    def begin_anew(self, least: int) -> None:
        """Put a state aside that is older than one that the server has seen.

        Args:
            least: the count that the server has seen; the next one is larger.
        """
        log.warning(
            "%s was saved %d times, and the server has seen %d: this is an old copy of the device. "
            "The client begins anew; the old state is kept as %s",
            self.path,
            self.count,
            least,
            self.path.with_suffix(".older").name,
        )
        with suppress(FileNotFoundError):
            self.path.replace(self.path.with_suffix(".older"))
        self.count = least

    def _write(self, state: State) -> None:
        folder = self.path.parent
        if not folder.exists():
            make_folder(folder)
            _forget(folder.parent)
        # Two processes may write at once: an order of a server that died may still be in progress.
        with atomic_write(self.path, aside=f"{DRAFT}{os.getpid()}") as file:
            np.savez(file, allow_pickle=False, **state)


def _folder(context: Context, run: str) -> Path:
    """A folder of a run's files, as `Memory.of` says."""
    require(run.isalnum(), "run", run, "letters and digits", "it names a folder")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = context.node_config.get(STATE_DIR) or os.environ.get(VARIABLE)
    root = Path(str(folder)) if folder else Path(home) / "fl_app"
    return root / f"run-{run}"


def _remove_drafts(path: Path) -> None:
    """Remove what processes left behind that were killed while they wrote a file."""
    for draft in path.parent.glob(f"{path.name}{DRAFT}*"):
        if not Path("/proc", draft.name.rpartition("-")[2]).exists():
            draft.unlink(missing_ok=True)


def _forget(root: Path) -> None:
    """Remove the states of runs whose last order is older than `KEPT_FOR`."""
    for folder in root.glob("run-*"):
        if folder.stat().st_mtime < time.time() - KEPT_FOR:
            for path in (*folder.glob("client-*"), *folder.glob("fixed-*")):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # the folder holds other files
                folder.rmdir()
