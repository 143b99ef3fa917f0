"""What a device keeps of a run between its orders, in files that outlive the SuperNode."""

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
KEPT_FOR = 7 * 86400.0  # seconds after a run's last order


def folder_of(context: Context, run: str) -> Path:
    """The folder of a run's files; it need not exist.

    It is below ``state-dir`` of the node's configuration, else below the environment variable
    FL_APP_STATE_DIR, else below the user's state folder.

    Args:
        context: of the node.
        run: letters and digits; not Flower's run id, which changes when a run is resumed.

    Raises:
        ValueError: `run` has other characters.
    """
    require(run.isalnum(), "run", run, "letters and digits", "it names a folder")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    folder = context.node_config.get(STATE_DIR) or os.environ.get(VARIABLE)
    root = Path(str(folder)) if folder else Path(home) / "fl_app"
    return root / f"run-{run}"


def load(path: Path) -> State:
    """The arrays in a file by name; none, with a warning, if it cannot be read or holds pickles."""
    try:
        with path.open("rb") as file, reading, np.load(file, allow_pickle=False) as arrays:
            return dict(arrays)
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, AttributeError, OSError, EOFError, KeyError, BadZipFile) as bad:
        log.warning("%s cannot be read (%s): this client starts without it", path, bad)
        return {}


def save(path: Path, state: State) -> None:
    """Replace a file atomically."""
    if not state and not path.exists():
        return
    if not path.parent.exists():
        make_folder(path.parent)
        _forget(path.parent.parent)
    with atomic_write(path) as file:
        np.savez(file, allow_pickle=False, **state)


def _forget(root: Path) -> None:
    """Remove the files of runs whose last order is older than `KEPT_FOR`."""
    for folder in root.glob("run-*"):
        with suppress(OSError):  # it holds other files, or another node of this machine removes it
            if folder.stat().st_mtime < time.time() - KEPT_FOR:
                for path in folder.glob("client-*"):
                    path.unlink(missing_ok=True)
                folder.rmdir()
