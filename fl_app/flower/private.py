"""The private parts of Flower that this project replaces; the only file that names them.

They are: how `start_client_internal` and `run_superexec` sleep, which order the former has under
way, how the former and
`subprocess_executor` start a command, how long the two functions of `inflatable_utils` wait that
pull the parts of a message, and `install_from_fab` of `run_clientapp`. A SuperLink's gate needs
`get_middleware` of its extensions and the one call of `uvicorn.run` in its command, its bound of
memory the `SQLITE_PRAGMAS` of `sql_mixin`, and the bound on replies the one call of `pull_objects`
in `http_grid`.

What decides is what these modules contain, not Flower's version. Where they differ from what is
described here, nothing is replaced.
"""

import ast
import hashlib
import inspect
import logging
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
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
HTTP_GRID = "flwr.superlink.grid.http_grid"
PUSH_ERROR = "ObjectPushError"  # the class of the error of a grid that cannot bring an object
SIMULATION_GRID = "InMemoryGrid"  # the class of the grid of Flower's simulation engine
TOO_LARGE = "the reply is larger than"
INSTEAD = {"replies": "replies have no bound", "database": "it holds much of its database"}
RUN_HAS_ENDED = "the run has ended"  # the error of an order that was dropped
COMMAND, SUPERLINK = "flwr.superlink.cli.flower_superlink", "flwr.superlink.main"
EXTENSIONS = "flwr.superlink.extensions"
DATABASE = "flwr.supercore.sql_mixin"
# Of every connection of a SuperLink to its database, of which there may be fifteen. Flower allows
# each 64 MB, and a map of 256 MB: with large replies that is more than a gigabyte.
PRAGMAS = {"cache_size": "-8000", "mmap_size": "0"}  # KB, bytes
PULLS = "pull_objects", "pull_and_inflate_object_from_tree"
# Of `start_client_internal`: what it knows of the order under way.
VARIABLES = frozenset({"state", "store", "run_id", "get_run"})
# As many tries as fit into Flower's own limit of two hours: 500 would be over in 4 minutes.
SOON = {"initial_backoff": LEAST, "backoff_cap": PULL_CAP, "max_tries_per_object": None}


class _Differs(Exception):
    """A private part of Flower is not as it is described here."""


def known(part: str) -> bool:
    """Whether Flower is as described in a part, as `difference` says; warns if it is not."""
    found = difference(part)
    if found:
        instead = INSTEAD.get(part, "it waits as it always does")
        log.warning("Flower %s, %s: %s", version("flwr"), found, instead)
    return not found


def difference(part: str) -> str:
    """What keeps a part of Flower from being replaced; "" = nothing does.

    Args:
        part: "waits" (of a SuperNode), "orders" (that it has under way), "sent" (of its
            replies), "starts" (of its executor), "executor" (all that replaces the executor's
            inside), "pulls" (of messages, on the server, too), "replies" (on the server),
            "gate" or "database" (of a SuperLink).
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


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a SuperNode has in hand while it sleeps.

    Args:
        state: its messages and tasks.
        store: the parts of its messages.
        run_id: of the order under way; None = there is none.
        get_run: asks the server for a run.
    """

    state: Any
    store: Any
    run_id: int | None
    get_run: Callable[[int], object]

    def clear(self) -> bool:
        """Forget what other runs have left; without an order under way, all that is left.

        Flower forgets it itself, but not if a run ends while the parts of its order are pulled.

        Returns:
            Whether a task was left.
        """
        others = [task for task in self._tasks() if task.run_id != self.run_id]
        self._end_tasks(others, "the order was given up")
        if self.run_id is None and len(self.store):
            self.state.delete_messages(message_ids=None)
            self.store.clear()
        return bool(others)

    def drop(self) -> None:
        """Let an error be the reply to the order under way, and end its task."""
        from flwr.app import Error
        from flwr.common.constant import ErrorCode

        assert self.run_id is not None
        # What no ClientApp has taken yet gets no error: it counts as taken from now on.
        self.state.get_messages_legacy(run_ids=[self.run_id], is_reply=False)
        error = Error(code=ErrorCode.UNKNOWN, reason=RUN_HAS_ENDED)
        self.state._store_error_replies({self.run_id}, error)
        self._end_tasks(self._tasks(), RUN_HAS_ENDED)

    def _tasks(self) -> list[Any]:
        return [task for task in self.state.get_tasks() if not task.finished_at]

    def _end_tasks(self, tasks: list[Any], why: str) -> None:
        from flwr.common.constant import SubStatus

        for task in tasks:
            self.state.finish_task(task.task_id, sub_status=SubStatus.FAILED, details=why)


def waiting(frame: FrameType) -> Waiting | None:
    """What a SuperNode waits for in a frame: an order or its reply; None = something else.

    Args:
        frame: of a function that sleeps.
    """
    name = frame.f_code.co_name
    if name not in ("_push_messages", "start_client_internal"):
        return None
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_name == "_push_messages":  # and of `watch_replies`
        outer = outer.f_back
    if outer is None or outer.f_code.co_name != "start_client_internal":
        return None
    found = outer.f_locals
    try:
        return Waiting(found["state"], found["store"], found["run_id"], found["get_run"])
    except KeyError:
        return None


def watch_replies(told: Callable[[str, str], None]) -> None:
    """Let this process tell of every reply that a SuperNode has sent.

    Args:
        told: is given the type of the message, such as "train", and the reason of its error; "" =
            it has none.
    """
    where = import_module(NODE)
    push = where._push_messages

    def _push_messages(send: Callable[..., Any], **others: Any) -> None:  # as `waiting` knows it
        def sending(message: Any, *more: Any) -> Any:
            answer = send(message, *more)
            told(message.metadata.message_type, message.error.reason if message.has_error() else "")
            return answer

        push(send=sending, **others)

    where._push_messages = _push_messages  # type: ignore[attr-defined]


def has_ended(order: Waiting) -> bool:
    """Whether the run of an order has ended, or the server has forgotten it.

    A server that does not answer is waited for, as Flower does.
    """
    from flwr.supercore.run import RunNotRunningException
    from httpx import HTTPStatusError

    assert order.run_id is not None
    try:
        order.get_run(order.run_id)
    except RunNotRunningException:
        return True
    except HTTPStatusError as error:
        return error.response.is_client_error
    except Exception as error:
        log.debug("the server was asked for run %d: %r", order.run_id, error)
    return False


def bound_replies(most: int, grid: Any) -> None:
    """Let this process refuse a reply before it holds more than `most` bytes of it.

    A grid pulls a reply part by part. Without a bound a node could fill the server's memory. What
    is refused is also removed from the SuperLink's database. Flower removes only what was pulled
    whole, and the rest when the run ends, so a node could fill the server's disk.

    Args:
        most: bytes of the parts of one reply.
        grid: pulls the replies.
    """
    inflatable = import_module(INFLATABLE)
    pull_all, refused = inflatable.pull_objects, inflatable.ObjectPullError

    @wraps(pull_all)
    def pull_objects(
        object_ids: list[str], pull_object_fn: Callable[[str], bytes], **options: Any
    ) -> dict[str, bytes]:
        lock, held = threading.Lock(), 0

        def pull(object_id: str) -> bytes:
            nonlocal held
            content = pull_object_fn(object_id)
            with lock:
                held += len(content)
                if held > most:
                    raise refused(object_id, f"{TOO_LARGE} {most} bytes")
            return content

        try:
            found: dict[str, bytes] = pull_all(object_ids, pull, **options)
        except refused:
            _remove(grid, object_ids[-1])  # the message itself: children go before their parents
            raise
        return found

    import_module(HTTP_GRID).pull_objects = pull_objects  # type: ignore[attr-defined]


def _remove(grid: Any, message_id: str) -> None:
    """Let the SuperLink forget the parts of a reply; those that are still pushed are refused."""
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest

    request = ConfirmMessageReceivedRequest(
        node=grid.node, run_id=grid.run.run_id, message_object_id=message_id
    )
    try:
        grid._runtime_client.ConfirmMessageReceived(request)
    except Exception as error:  # the parts stay until the run ends
        log.warning("a refused reply was not removed from the SuperLink: %r", error)


def bound_database() -> None:
    """Let the connections of this process to a SuperLink's database hold little of it."""
    where = import_module(DATABASE)
    found = tuple((name, PRAGMAS.get(name, value)) for name, value in where.SQLITE_PRAGMAS)
    where.SQLITE_PRAGMAS = found  # type: ignore[attr-defined]


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


def _watched() -> None:
    """A SuperNode has the order under way in variables that this project knows."""
    where = import_module(NODE)
    function = where.start_client_internal
    names = {*function.__code__.co_varnames, *function.__code__.co_cellvars}
    if missing := VARIABLES - names:
        raise _Differs(f"{NODE}.start_client_internal has no {min(missing)}")
    if not callable(getattr(where, "_push_messages", None)):
        raise _Differs(f"{NODE} has no _push_messages")
    from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

    for method in ("get_messages_legacy", "get_tasks", "finish_task", "_store_error_replies"):
        if not hasattr(InMemoryNodeState, method):
            raise _Differs(f"a SuperNode's state has no {method}")


def _sends() -> None:
    """A SuperNode hands over its replies with `_push_messages(..., send=...)`."""
    tree = ast.parse(inspect.getsource(import_module(NODE).start_client_internal))
    calls = list(_calls(tree, "_push_messages"))
    if not calls or any(
        call.args or "send" not in {keyword.arg for keyword in call.keywords} for call in calls
    ):
        raise _Differs(f"{NODE} does not call _push_messages with send=")


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


def _gated() -> None:
    """A SuperLink has the middleware of its extensions, and serves its app with one call."""
    command, main = import_module(COMMAND), import_module(SUPERLINK)
    if getattr(main, "extensions", None) is not import_module(EXTENSIONS):
        raise _Differs(f"{SUPERLINK} does not import its extensions")
    if not list(_calls(ast.parse(inspect.getsource(main)), "extensions.get_middleware")):
        raise _Differs(f"{SUPERLINK} does not call extensions.get_middleware")
    calls = list(_calls(ast.parse(inspect.getsource(command)), "uvicorn.run"))
    named = {keyword.arg for call in calls for keyword in call.keywords}
    if len(calls) != 1 or calls[0].args or not {"app", "port"} <= named:
        raise _Differs(f"{COMMAND} does not serve its app with one uvicorn.run(app=..., port=...)")


def _replies() -> None:
    """A grid pulls the parts of a reply with `pull_objects`, whose errors become a message."""
    where = import_module(HTTP_GRID)
    used = getattr(where, "pull_objects", None)
    used = getattr(used, "__wrapped__", used)  # of a run of this process that has a bound
    if used is not import_module(INFLATABLE).pull_objects:
        raise _Differs(f"{HTTP_GRID} does not import pull_objects")
    tree = ast.parse(inspect.getsource(where))
    named = [{keyword.arg for keyword in call.keywords} for call in _calls(tree, "pull_objects")]
    if named != [{"object_ids", "pull_object_fn"}]:
        raise _Differs(f"{HTTP_GRID} calls pull_objects in another way")
    if not list(_calls(tree, "self._runtime_client.ConfirmMessageReceived")):
        raise _Differs(f"{HTTP_GRID} does not confirm messages")


def _database() -> None:
    """A SuperLink's database has settings for each connection, in pairs."""
    names = {name for name, _ in getattr(import_module(DATABASE), "SQLITE_PRAGMAS", ())}
    if missing := PRAGMAS.keys() - names:
        raise _Differs(f"{DATABASE} does not set {min(missing)}")


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
    "orders": [lambda: _sleeps(NODE), _watched],
    "sent": [_sends],
    "starts": [lambda: _spawns(NODE)],
    "executor": [
        lambda: _sleeps(SUPEREXEC), lambda: _spawns(LAUNCHER), _forkable, _installs, _pulls
    ],
    "pulls": [_pulls],
    "replies": [_replies],
    "database": [_database],
    "gate": [_gated],
}  # fmt: skip
