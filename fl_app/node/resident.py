"""The training process that stays on a device while Flower's ClientApps come and go.

Flower starts a ClientApp process for every message. On its own it would have to import torch and
load the data each time, and could not train while models travel. With ``resident=true`` it hands
the message to the resident over a Unix socket and waits for the reply (P_com and P_pro of
Overlap-FedAvg):

    SuperNode -- SuperExec -- ClientApp 7 ... socket ... resident: torch, data, model, memory

The first ClientApp starts it; there is one per SuperNode. It ends with the SuperExec that started
that ClientApp (and so with the SuperNode), on SIGTERM, or after a while without work. If it
crashes, the waiting ClientApp starts another one and sends it the order again. If that one crashes,
too, the order fails.

Only bytes of Flower's own messages cross the socket, never pickles, and only this user can open it.
"""

import fcntl
import logging
import os
import select
import signal
import socket
import stat
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from flwr.app import Context, Message

from fl_app.core.errors import require, require_positive
from fl_app.flower import wire
from fl_app.node.handler import MessageHandler

log = logging.getLogger("flwr")

RESIDENT = "resident"  # of the node's own configuration
RESIDENT_IDLE = "resident-idle"  # likewise: seconds without an order after which it ends
VARIABLE = "FL_APP_RESIDENT"
IDLE = 600.0
CODE = Path(__file__).resolve().parents[2]  # has the package: Flower keeps apps by version


def wanted(context: Context) -> bool:
    """Whether the node's configuration asks for a resident process.

    Raises:
        ValueError: the value is neither true nor false.
    """
    value = context.node_config.get(RESIDENT, os.environ.get(VARIABLE) == "1")
    require(
        isinstance(value, bool), RESIDENT, value, "true or false", "it decides which process trains"
    )
    return bool(value)


# -- in the ClientApp -----------------------------------------------------------------------------


def ask(message: Message, context: Context) -> Message:
    """The resident's reply to a message; starts the resident if it is not running."""
    try:
        request = wire.context_to_bytes(context), wire.to_bytes(message)
        crashes = 0
        while crashes < 2:
            connection, started = _connect(context)
            welcome = b""
            with connection, suppress(EOFError, OSError):
                connection.send_bytes(os.fsencode(CODE))
                welcome = connection.recv_bytes()
                for part in request:
                    connection.send_bytes(part)
                return wire.from_bytes(connection.recv_bytes())
            # No welcome from an older resident: it was ending and never read the order. No crash.
            crashes += bool(started or welcome)
            log.warning("the resident process ended before it answered")
        raise RuntimeError(
            "the resident process ended twice before it answered; perhaps it ran out of memory: "
            "see the SuperNode's log"
        )
    except Exception as error:
        log.exception("the order could not be carried out")
        return wire.pack_error(message, error)


def _connect(context: Context) -> tuple[Connection, bool]:
    """A connection to the node's resident, which may be busy, and whether it was started now."""
    idle: Any = context.node_config.get(RESIDENT_IDLE, IDLE)
    require_positive(RESIDENT_IDLE, idle, "it would end between two orders")
    folder = _folder()
    address = str(folder / f"{context.node_id}.sock")
    client = socket.socket(socket.AF_UNIX)
    started = False
    with (folder / "lock").open("w") as lock:  # two ClientApps may find none: one starts it
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            client.connect(address)
        except (FileNotFoundError, ConnectionRefusedError):
            with socket.socket(socket.AF_UNIX) as listener:
                with suppress(FileNotFoundError):
                    os.unlink(address)
                listener.bind(address)
                os.chmod(address, 0o600)
                listener.listen()
                _start(listener, idle)
            client.connect(address)
            started = True
    return Connection(client.detach()), started


def _folder() -> Path:
    """The folder of the sockets, which only this user can enter.

    Raises:
        PermissionError: other users can enter it.
    """
    folder = Path(tempfile.gettempdir()) / f"fl_app-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    private = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700
    if not private or found.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} is not a folder of mode 0700 that belongs to user {os.getuid()}: somebody "
            "else could give orders to the training process"
        )
    return folder


def _start(listener: socket.socket, idle: float) -> int:
    """Start a resident in a session of its own; its process id.

    It inherits the listening socket, so that ClientApps can connect before it is ready, and a pidfd
    of this process's parent, which becomes readable when the parent ends. Its log goes where this
    process's log goes.
    """
    command = [
        sys.executable,
        "-P",
        "-m",
        "fl_app.node.resident",
        str(listener.fileno()),
        str(idle),
    ]
    listener.set_inheritable(True)
    path = os.pathsep.join(filter(None, [str(CODE), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    with ExitStack() as stack:
        with suppress(AttributeError, OSError):  # before Linux 5.3: it ends when it is idle
            parent = os.pidfd_open(os.getppid())
            stack.callback(os.close, parent)
            os.set_inheritable(parent, True)
            command.append(str(parent))
        return os.posix_spawn(sys.executable, command, environment, setsid=True)


# -- in the resident ------------------------------------------------------------------------------


def serve(listener: socket.socket, handler: MessageHandler, idle: float) -> None:
    """Answer connections one after the other, and train ahead between them.

    Ends after `idle` seconds without a connection, or when a ClientApp runs another version.
    """

    def somebody_waits(seconds: float = 0.0) -> bool:
        return bool(select.select([listener], [], [], seconds)[0])

    path = Path(listener.getsockname())
    own = path.stat().st_ino
    try:
        while somebody_waits(idle):
            accepted, _ = listener.accept()
            with Connection(accepted.detach()) as connection, suppress(EOFError, OSError):
                if os.fsdecode(connection.recv_bytes()) != str(CODE):
                    log.info("a ClientApp of another version has connected")
                    return  # its ClientApp starts another: memory may not be enough for two
                connection.send_bytes(b"welcome")
                context = wire.context_from_bytes(connection.recv_bytes())
                message = wire.from_bytes(connection.recv_bytes())
                connection.send_bytes(wire.to_bytes(handler.handle(message, context)))
            handler.work_ahead(somebody_waits)
    finally:
        with suppress(FileNotFoundError):
            if path.stat().st_ino == own:  # else ours was removed, and this is another's
                path.unlink()  # before closing: a ClientApp replaces a closed socket
        listener.close()


def main() -> None:
    """The resident process: ``python -m fl_app.node.resident SOCKET IDLE [PARENT]``.

    SOCKET and PARENT are inherited descriptors: the listening socket, and a pidfd of the process
    whose end ends this one.
    """
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    for parent in sys.argv[3:]:
        threading.Thread(target=_end_with, args=[int(parent)], daemon=True).start()
    log.info("resident process %d has started", os.getpid())
    try:
        serve(listener, MessageHandler(), float(sys.argv[2]))
    finally:
        log.info("resident process %d ends", os.getpid())


def _end_with(parent: int) -> None:
    select.select([parent], [], [])
    os.kill(os.getpid(), signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    del number, frame
    sys.exit()


if __name__ == "__main__":
    main()
