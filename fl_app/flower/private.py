"""The private parts of Flower that this project replaces; the only file that names them.

They are: how `start_client_internal` and `run_superexec` sleep, how the former and
`subprocess_executor` start a command, how long the two functions of `inflatable_utils` wait that
pull the parts of a message, and `install_from_fab` of `run_clientapp`.

What decides is what these modules contain, not Flower's version. Where they differ from what is
described here, nothing is replaced.
"""

import ast
import hashlib
import inspect
import logging
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

log = logging.getLogger("flwr")

LEAST = 0.03  # seconds
PULL_CAP = 0.5  # seconds between two looks at a part of a message

NODE = "flwr.supernode.start_client_internal"
SUPEREXEC = "flwr.supercore.superexec.run_superexec"
LAUNCHER = "flwr.supercore.superexec.executor.subprocess_executor"
CLIENT_APP = "flwr.supernode.runtime.run_clientapp"
INFLATABLE = "flwr.supercore.inflatable.inflatable_utils"
PULLS = "pull_objects", "pull_and_inflate_object_from_tree"
# As many tries as fit into Flower's own limit of two hours: 500 would be over in 4 minutes.
SOON = {"initial_backoff": LEAST, "backoff_cap": PULL_CAP, "max_tries_per_object": None}


class _Differs(Exception):
    """A private part of Flower is not as it is described here."""


def known(part: str) -> bool:
    """Whether Flower is as described in a part, as `difference` says; warns if it is not."""
    found = difference(part)
    if found:
        log.warning("Flower %s, %s: it waits as it always does", version("flwr"), found)
    return not found


def difference(part: str) -> str:
    """What keeps a part of Flower from being replaced; "" = nothing does.

    Args:
        part: "waits" (of a SuperNode), "starts" (of its executor), "executor" (all that replaces
            the executor's inside) or "pulls" (of messages, on the server, too).
    """
    try:
        for check in _CHECKS[part]:
            check()
    except (ImportError, AttributeError, LookupError, OSError, SyntaxError, _Differs) as error:
        return str(error)
    return ""


def pull_sooner() -> None:
    """Let this process ask sooner again for what is still being uploaded."""
    for function in _pulls():
        function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **SOON}


def replace(module: str, name: str, **functions: Callable[..., Any]) -> None:
    """Let a module find other functions in a module that it imported under a name."""
    where = import_module(module)
    setattr(where, name, SimpleNamespace(**{**vars(getattr(where, name)), **functions}))


def awaited_part(frame: FrameType) -> str | None:
    """The part of a reply that a SuperNode waits for in a frame, or None if there is none.

    Args:
        frame: of a function that sleeps.
    """
    if frame.f_code.co_name != "yield_object_contents":
        return None
    part = getattr(frame.f_locals.get("tree"), "object_id", None)
    return part if isinstance(part, str) else None


def install_once(fab: bytes, **options: Any) -> None:
    """Install an app that is not installed: Flower unpacks it every time, to find that it is.

    Args:
        fab: the app as the server sends it.
        options: for Flower's own function.
    """
    from flwr.cli.install import install_from_fab
    from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
    from flwr.supercore.utils import get_flwr_home

    digest = hashlib.sha256(fab).hexdigest()[:FAB_HASH_TRUNCATION]
    if not list((get_flwr_home() / APP_DIR).glob(f"*.{digest}")):
        install_from_fab(fab, **options)


def replace_installation() -> None:
    """Let ClientApps of this process and of its forks install an app once."""
    import_module(CLIENT_APP).install_from_fab = install_once  # type: ignore[attr-defined]


# -- what must be there ---------------------------------------------------------------------------


def _sleeps(module: str) -> None:
    """A module sleeps with `time.sleep(seconds)` and nothing else."""
    where = import_module(module)
    if getattr(where, "time", None) is not time:
        raise _Differs(f"{module} does not import time")
    _called_with_one_argument(where, "time.sleep")


def _spawns(module: str) -> None:
    """A module starts commands with `subprocess.Popen(command)`, and does not use what it gets."""
    where = import_module(module)
    if getattr(where, "subprocess", None) is not subprocess:
        raise _Differs(f"{module} does not import subprocess")
    _called_with_one_argument(where, "subprocess.Popen")


def _installs() -> None:
    """A ClientApp installs its app with `install_from_fab`, and does not use what it gets."""
    from flwr.cli.install import install_from_fab
    from flwr.common.constant import APP_DIR, FAB_HASH_TRUNCATION
    from flwr.supercore.utils import get_flwr_home

    del APP_DIR, FAB_HASH_TRUNCATION, get_flwr_home  # all that `install_once` needs
    where = import_module(CLIENT_APP)
    if getattr(where, "install_from_fab", None) is not install_from_fab:
        raise _Differs(f"{CLIENT_APP} does not import install_from_fab")
    _called_with_one_argument(where, "install_from_fab")


def _forkable() -> None:
    """An executor starts a ClientApp by a command that this project knows how to run."""
    from flwr.supercore.cli import flower_superexec
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
    from flwr.supernode.cli import flwr_clientapp

    del flower_superexec, flwr_clientapp
    if "flwr-clientapp" not in TASK_TYPE_TO_COMMAND.values():
        raise _Differs("no task is carried out by flwr-clientapp")


def _pulls() -> list[Any]:
    """The functions that pull the parts of a message, with the waits that they accept."""
    functions = [getattr(import_module(INFLATABLE), name) for name in PULLS]
    for function in functions:
        accepted = inspect.signature(function).parameters
        for name in SOON:
            found = accepted.get(name)
            if found is None or found.kind is not inspect.Parameter.KEYWORD_ONLY:
                raise _Differs(f"{function.__name__} has no keyword {name}")
    return functions


def _called_with_one_argument(module: ModuleType, function: str) -> None:
    """A module calls a function, each time with one positional argument, and ignores the result."""
    tree = ast.parse(inspect.getsource(module))
    ignored = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    calls = list(_calls(tree, function))
    if not calls:
        raise _Differs(f"{module.__name__} does not call {function}")
    for call in calls:
        starred = any(isinstance(argument, ast.Starred) for argument in call.args)
        if len(call.args) != 1 or starred or id(call) not in ignored:
            raise _Differs(f"{module.__name__} calls {ast.unparse(call)} in another way")


def _calls(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == function:
            yield node


_CHECKS: dict[str, list[Callable[[], object]]] = {
    "waits": [lambda: _sleeps(NODE), _pulls],
    "starts": [lambda: _spawns(NODE)],
    "executor": [
        lambda: _sleeps(SUPEREXEC), lambda: _spawns(LAUNCHER), _forkable, _installs, _pulls
    ],
    "pulls": [_pulls],
}  # fmt: skip
