"""The training process that stays on a device while Flower's ClientApps come and go.

Flower starts a ClientApp process for every message. On its own it would have to import torch and
load the data each time, and could not train while models travel. So it hands the message to the
resident over a Unix socket and waits for the reply (P_com and P_pro of Overlap-FedAvg):

    SuperNode -- SuperExec -- ClientApp 7 ... socket ... resident: torch, data, model, memory

The first ClientApp starts it, if there is memory for it (`fl_app.node.room`); there is one per
SuperNode. It ends with the SuperExec that started that ClientApp (and so with the SuperNode), on
SIGTERM, after a while without work, or when memory runs short. If it crashes, the waiting ClientApp
starts another one and sends it the order again. If that one is killed, too, the ClientApp carries
out the order itself, and no resident is started for a while.

``resident=true`` or ``false`` in the node's own configuration takes precedence over WARM.

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
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from flwr.app import Context, Message

from fl_app.core.errors import require, require_positive
from fl_app.flower import wire
from fl_app.node import forks, room
from fl_app.node.handler import MessageHandler

log = logging.getLogger("flwr")

RESIDENT = "resident"  # of the node's own configuration
RESIDENT_IDLE = "resident-idle"  # likewise: seconds without an order after which it ends
IDLE = 600.0
LOOK = 10.0  # seconds between two looks at the free memory
SHORTAGE, LONGEST_SHORTAGE = 600.0, 6 * 3600.0  # seconds without a resident, if memory ran short
CLIENT_APP = "flwr-clientapp"  # Flower's process for one message
VICTIM = 500  # of 1000: the kernel should rather end this process than the device's own work
CODE = Path(__file__).resolve().parents[2]  # has the package: Flower keeps apps by version


def wanted(context: Context) -> bool:
    """Whether orders are for a resident process: as the node's configuration says, or WARM.

    Only a process that Flower started for one message takes one by itself. Others stay, too.

    Raises:
        ValueError: the configuration's value is neither true nor false, or WARM has no meaning.
    """
    value = context.node_config.get(RESIDENT)
    if value is None:
        return Path(sys.argv[0]).name == CLIENT_APP and room.setting() != room.OFF
    require(
        isinstance(value, bool), RESIDENT, value, "true or false", "it decides which process trains"
    )
    return bool(value)


# -- in the ClientApp -----------------------------------------------------------------------------


class _Found(NamedTuple):
    """A connection to a resident, which may be busy.

    Attributes:
        connection: to it.
        started: whether it was started for this connection.
        pid: of a process that was started for this connection, else 0.
    """

    connection: Connection
    started: bool = False
    pid: int = 0


def ask(message: Message, context: Context) -> Message | None:
    """The resident's reply to a message; starts the resident if it is not running.

    Returns:
        The reply; None if there is no resident, as when memory is too short to start one.
    """
    try:
        request = wire.context_to_bytes(context), wire.to_bytes(message)
        crashes = 0
        while found := _resident(context):
            welcome = b""
            with found.connection as connection, suppress(EOFError, OSError):
                connection.send_bytes(os.fsencode(CODE))
                welcome = connection.recv_bytes()
                for part in request:
                    connection.send_bytes(part)
                return wire.from_bytes(connection.recv_bytes())
            # No welcome from an older resident: it was ending and never read the order. No crash.
            crashes += bool(found.started or welcome)
            ending = _ending(found.pid)
            log.warning("the resident process ended before it answered%s", ending and f": {ending}")
            if ending == KILLED or (crashes == 2 and not ending):
                _note_shortage(_address(context))
                break
            if crashes == 2:
                raise RuntimeError(f"the resident process ended twice before it answered: {ending}")
    except Exception as error:
        log.exception("the order could not be carried out")
        return wire.pack_error(message, error)
    return None


def _resident(context: Context) -> _Found | None:
    """As `_connect`; also None if this machine lets no process listen."""
    try:
        return _connect(context)
    except OSError as error:
        log.warning("no resident process carries out this order: %s", error)
        return None


def _connect(context: Context) -> _Found | None:
    """A connection to the node's resident; None if there is none, and none can be started."""
    idle: Any = context.node_config.get(RESIDENT_IDLE, IDLE)
    require_positive(RESIDENT_IDLE, idle, "it would end between two orders")
    address = _address(context)
    client = socket.socket(socket.AF_UNIX)
    with ExitStack() as stack:
        stack.callback(client.close)
        # Two ClientApps may find none: one starts it.
        fcntl.flock(stack.enter_context((address.parent / "lock").open("w")), fcntl.LOCK_EX)
        started, pid = False, 0
        try:
            client.connect(str(address))
        except (FileNotFoundError, ConnectionRefusedError):
            if not _may_start(address, context):
                return None
            with socket.socket(socket.AF_UNIX) as listener:
                with suppress(FileNotFoundError):
                    address.unlink()
                listener.bind(str(address))
                os.chmod(address, 0o600)
                listener.listen()
                client.connect(str(address))
                started, pid = True, _start(listener, idle)
        return _Found(Connection(client.detach()), started, pid)


def _may_start(address: Path, context: Context) -> bool:
    """Whether a resident may be started: no earlier one ran out of memory, and there is enough."""
    if _was_short(address):
        log.info("memory ran short: Flower's own process carries out this order")
        return False
    if room.setting() == room.ON or RESIDENT in context.node_config:
        return True
    free, needed = room.free(), room.needed()
    if free < needed:
        log.info(
            "%d MiB of memory are free, and a training process that stays needs %d: Flower's own "
            "process carries out this order",
            free // room.MIB,
            needed // room.MIB,
        )
    return free >= needed


KILLED = "it was killed, perhaps because memory ran short"


def _ending(pid: int) -> str:
    """How a child has ended, in words; "" if that is unknown."""
    if not pid:
        return ""
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return KILLED
    if code == -signal.SIGILL:
        return "Illegal instruction: torch or another package is built for another processor"
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"


def _was_short(address: Path) -> bool:
    """Whether no resident is started at present, because memory ran short."""
    note = address.with_suffix(".short")
    try:
        return 0 <= time.time() - note.stat().st_mtime < float(note.read_text())
    except (OSError, ValueError):
        return False


def _note_shortage(address: Path) -> None:
    """Start no resident for a while, and for twice as long each time on the same day."""
    note, seconds = address.with_suffix(".short"), SHORTAGE
    with suppress(OSError, ValueError):
        if 0 <= time.time() - note.stat().st_mtime < 86400.0:
            seconds = min(2 * float(note.read_text()), LONGEST_SHORTAGE)
    with suppress(OSError):  # a full disk
        note.write_text(str(seconds))
    log.warning("memory ran short: no resident process is started for %g s", seconds)


def _address(context: Context) -> Path:
    """The socket of a node's resident."""
    return _folder() / f"{context.node_id}.sock"


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
    process's log goes. A ClientApp that was forked has forked it already (`fl_app.node.forks`).
    """
    reserve = forks.taken()
    if reserve is not None:
        with suppress(OSError), ExitStack() as stack:  # it may have ended
            stack.callback(reserve[0].close)
            parent = os.pidfd_open(os.getppid())
            stack.callback(os.close, parent)
            words = [str(CODE), "-m", "fl_app.node.resident", str(idle)]
            forks.tell(reserve[0], words, [listener.fileno(), parent])
            return reserve[1]
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

    Ends after `idle` seconds without a connection, when memory runs short, or when a ClientApp runs
    another version.
    """

    def somebody_waits(seconds: float = 0.0) -> bool:
        return bool(select.select([listener], [], [], seconds)[0])

    path = Path(listener.getsockname())
    own = path.stat().st_ino
    left = idle
    try:
        while left > 0:
            if not somebody_waits(min(LOOK, left)):
                left -= LOOK
            else:
                left = idle
                accepted, _ = listener.accept()
                with Connection(accepted.detach()) as connection, suppress(EOFError, OSError):
                    if os.fsdecode(connection.recv_bytes()) != str(CODE):
                        log.info("a ClientApp of another version has connected")
                        return  # its ClientApp starts another: memory may not be enough for two
                    connection.send_bytes(b"welcome")
                    context = wire.context_from_bytes(connection.recv_bytes())
                    message = wire.from_bytes(connection.recv_bytes())
                    with _interrupted_by_end_of(connection):
                        reply = wire.to_bytes(handler.handle(message, context))
                    connection.send_bytes(reply)
                forks.trim()
                handler.work_ahead(somebody_waits)
            if room.free() < room.SPARE * room.MIB and not somebody_waits():
                _note_shortage(path)
                return
    finally:
        with suppress(FileNotFoundError):
            if path.stat().st_ino == own:  # else ours was removed, and this is another's
                path.unlink()  # before closing: a ClientApp replaces a closed socket
        listener.close()


class Gone(ConnectionResetError):
    """The ClientApp that waits for a reply has ended: nobody wants the order any more."""


_interruptible = threading.Event()  # set while an order is carried out


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    if _interruptible.is_set():
        _interruptible.clear()
        raise Gone("its ClientApp has ended: the order is given up")


@contextmanager
def _interrupted_by_end_of(connection: Connection) -> Iterator[None]:
    """Raise `Gone` in this thread if the other end of a connection closes meanwhile.

    A ClientApp sends nothing while it waits, so its connection becomes readable when it ends. Only
    the main thread can be interrupted; in another one, orders are carried out to their end.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    main = threading.get_ident()
    told, done = socket.socketpair()

    def look() -> None:
        if done.fileno() not in select.select([connection.fileno(), done.fileno()], [], [])[0]:
            signal.pthread_kill(main, signal.SIGUSR1)

    watcher = threading.Thread(target=look, daemon=True)
    before = signal.signal(signal.SIGUSR1, _interrupt)
    watcher.start()
    _interruptible.set()
    try:
        yield
    finally:
        _interruptible.clear()  # a signal that comes from now on changes nothing
        told.close()
        watcher.join()
        done.close()
        signal.signal(signal.SIGUSR1, before)


def main() -> None:
    """The resident process: ``python -m fl_app.node.resident SOCKET IDLE [PARENT]``.

    SOCKET and PARENT are inherited descriptors: the listening socket, and a pidfd of the process
    whose end ends this one.
    """
    listener = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, _leave)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(VICTIM))
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
