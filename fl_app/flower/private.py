"""The private parts of Flower that this project replaces; the only file that names them.

They are: how `start_client_internal` and `run_superexec` sleep, how the former and
`subprocess_executor` start a command, how long the two functions of `inflatable_utils` wait that
pull the parts of a message, and `install_from_fab` of `run_clientapp`.
"""

import hashlib
import logging
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
from flwr.supercore.inflatable.inflatable_utils import (
    pull_and_inflate_object_from_tree,
    pull_objects,
)
from flwr.supercore.utils import get_flwr_home
from flwr.supercore.version import package_version

log = logging.getLogger("flwr")

KNOWN = "1.41."
LEAST = 0.03  # seconds
PULL_CAP = 0.5  # seconds between two looks at a part of a message

NODE = "flwr.supernode.start_client_internal"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
LAUNCHER = "flwr.supercore.superexec.executor.subprocess_executor"


def known() -> bool:
    """Whether this is the Flower whose inside this file knows; warns if it is not."""
    if package_version.startswith(KNOWN):
        return True
    log.warning("Flower is %s, not %sx: it waits as it always does", package_version, KNOWN)
    return False


def pull_sooner() -> None:
    """Let this process ask sooner again for what is still being uploaded."""
    # As many tries as fit into Flower's own limit of two hours: 500 would be over in 4 minutes.
    soon = {"initial_backoff": LEAST, "backoff_cap": PULL_CAP, "max_tries_per_object": None}
    for function in (pull_objects, pull_and_inflate_object_from_tree):
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **soon}


def replace(module: str, name: str, **functions: Callable[..., Any]) -> None:
    """Let a module find other functions in a module that it imported under a name."""
    where = import_module(module)
    setattr(where, name, SimpleNamespace(**{**vars(getattr(where, name)), **functions}))


def install_once(fab: bytes, **options: Any) -> None:
    """Install an app that is not installed: Flower unpacks it every time, to find that it is.

    Args:
        fab: the app as the server sends it.
        options: for Flower's own function.
    """
    from flwr.cli.install import install_from_fab

    digest = hashlib.sha256(fab).hexdigest()[:FAB_HASH_TRUNCATION]
    if not list((get_flwr_home() / APP_DIR).glob(f"*.{digest}")):
        install_from_fab(fab, **options)
