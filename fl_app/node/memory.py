"""What a device keeps between its orders: a file that outlives ClientApp and SuperNode."""

import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from flwr.app import Context

from fl_app.core.errors import require
from fl_app.core.files import atomic_write
from fl_app.core.types import State

log = logging.getLogger("flwr")

STATE_DIR = "state-dir"  # of the node's own configuration
VARIABLE = "FL_APP_STATE_DIR"
KEPT_FOR = 7 * 86400.0  # seconds after a run's last order


class Memory:
    """One client's state in one run, as a file that is replaced as a whole.

    Args:
        path: the file, in NumPy's npz format; pickles are not read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saved: State | None = None  # spares a process that stays reading its own file

    @classmethod
    def of(cls, context: Context, run: str, client_id: int) -> "Memory":
        """That of a node's client in a run.

        It lies in the folder that ``state-dir`` of the node's configuration names, else the
        environment variable FL_APP_STATE_DIR, else the user's state folder.

        Args:
            context: of the node.
            run: letters and digits. Not Flower's id, which is another one where a run goes on.
            client_id: of the client.

        Raises:
            ValueError: `run` is something else.
        """
        require(run.isalnum(), "run", run, "letters and digits", "it names a folder")
        home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = context.node_config.get(STATE_DIR) or os.environ.get(VARIABLE)
        root = Path(str(folder)) if folder else Path(home) / "fl_app"
        return cls(root / f"run-{run}" / f"client-{client_id}.npz")

    def load(self) -> dict[str, np.ndarray]:
        """What was saved last; nothing if there is no such file, or none that can be read.

        A file that cannot be read is set aside and told of: the client goes on as a new one, for
        it is one of many, and would otherwise fail for the rest of the run.
        """
        # Given away once: an order that fails may have changed it, and the file is as it was.
        saved, self._saved = self._saved, None
        if saved is not None:
            return dict(saved)
        try:
            with self.path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
                return dict(arrays)
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, OSError, EOFError, KeyError, BadZipFile) as error:
            aside = self.path.with_suffix(".unreadable")
            log.warning(
                "%s cannot be read (%s) and is kept as %s: this client starts without memory",
                self.path,
                error,
                aside.name,
            )
            self.path.replace(aside)
            return {}

    def save(self, state: State) -> None:
        """Replace what was saved before, at once and as a whole; an empty state leaves no file."""
        if state:
            self._write(state)
        else:
            self.path.unlink(missing_ok=True)
        self._saved = dict(state)

    def _write(self, state: State) -> None:
        folder = self.path.parent
        if not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _forget(folder.parent)
        # Two processes may write at once: the last order of a server that died may be under way.
        with atomic_write(self.path, aside=f".{os.getpid()}") as file:
            np.savez(file, allow_pickle=False, **state)


def _forget(root: Path) -> None:
    """Remove what was kept of runs that no order came of for a while."""
    for folder in root.glob("run-*"):
        if folder.stat().st_mtime < time.time() - KEPT_FOR:
            for path in folder.glob("client-*"):
                path.unlink(missing_ok=True)
            with suppress(OSError):  # somebody else's file lies there
                folder.rmdir()
