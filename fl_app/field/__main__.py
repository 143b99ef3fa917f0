"""Set up, run and examine a federation of real nodes: ``python -m fl_app.field``."""

import argparse
import os
import shlex
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fl_app.core.errors import RunError, require
from fl_app.field.kit import PORT, Kit

FOLDERS = {
    "out": "new folder",
    "ca": "folder with ca.key and ca.crt",
    "server": "the server's folder",
    "folder": "folder of the server, a device or the helper",
}
REAL = "runtime=deployment"
STARTS_WITHIN = 60.0  # seconds, of a SuperLink
INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


def main() -> int:
    """Run the command line; return 0 on success, 1 after a failure, 2 for refused arguments."""
    parser = _parser()
    namespace, extra = parser.parse_known_args()
    arguments = vars(namespace)
    if extra:  # argparse takes no overrides after an option
        if "overrides" not in arguments or any(word.startswith("-") for word in extra):
            parser.error(f"unrecognized arguments: {' '.join(extra)}")
        arguments["overrides"] += extra
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        return arguments.pop("carry_out")(**arguments)
    except (ValueError, FileExistsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fl_app.field", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(carry_out: Callable[..., int], folder: str) -> Callable[..., object]:
        text = (carry_out.__doc__ or "").removesuffix(".")
        subparser = commands.add_parser(carry_out.__name__.removeprefix("_"), help=text)
        subparser.set_defaults(carry_out=carry_out)
        subparser.add_argument(folder, type=Path, help=FOLDERS[folder])
        return subparser.add_argument

    add = command(_init, "out")
    add("--nodes", type=int, default=3, help="number of devices (3)")
    text = "name or address of the server; devices use the first (this machine's name)"
    add("--host", "-H", action="append", help=text)
    add("--port", type=int, default=PORT, help=f"port to which devices connect ({PORT})")

    add = command(_certificate, "ca")
    add("out", type=Path, help="new folder for server.crt and server.key")
    add("--host", "-H", action="append", required=True)

    add = command(_register, "server")
    add("keys", type=Path, nargs="*", default=[], help="public keys (all in keys/)")

    add = command(_run, "server")
    add("--output", type=Path, help="the run's folder (run, in the server's)")
    add("overrides", nargs="*", default=[], help="as after `python -m fl_app` (OVERRIDES)")

    add = command(_status, "server")
    add("--output", type=Path, help="the run's folder (that of the newest run)")

    add = command(_doctor, "folder")
    text = "as after `python -m fl_app` (OVERRIDES); a device's own data are read as they say"
    add("overrides", nargs="*", default=[], help=text)

    add = command(_helper, "folder")
    add("--new", action="store_true", help="add the folder helper to a kit")
    add("--host", "-H", action="append", help="to listen on; with --new, names of its machine")
    add("--port", type=int, help="(8101)")
    add("--min-clients", type=int, help="fewest different devices of a sum (half of them)")

    command(_healthy, "folder")
    return parser


# Each command imports what it needs: a health check on a small board must not load Flower.


def _init(out: Path, host: Sequence[str] | None, port: int, nodes: int) -> int:
    """Write a ready folder for the server and every device."""
    from fl_app.field.make import new_kit
    from fl_app.field.project import build_wheel

    hosts = host or [socket.gethostname()]
    with tempfile.TemporaryDirectory() as folder:
        new_kit(out, hosts=hosts, port=port, wheel=build_wheel(Path(folder)), nodes=nodes)
    print(f"Copy {out}/server to the server, and each node-<i> to its device.")
    print("Then run there, in the folder: sudo sh install.sh")
    print(f"Devices reach the server as {hosts[0]}:{port}; --host chooses another name.")
    print(f"Keep {out}/ca to yourself: with it anybody can pose as the server.")
    return 0


def _certificate(ca: Path, out: Path, host: Sequence[str]) -> int:
    """Write a new certificate for the server, with other names."""
    from fl_app.field.make import ALWAYS, new_certificate

    out.mkdir(parents=True, exist_ok=True)
    new_certificate(ca, out, "server", [*host, *ALWAYS])
    print(f"Copy both files in {out} to the server's folder.")
    print("Restart fl-superlink and fl-caddy there.")
    return 0


def _register(server: Path, keys: Sequence[Path]) -> int:
    """Allow nodes to join, once the SuperLink answers."""
    from fl_app.field.control import SuperLink, Unreachable

    kit = Kit.read(server)
    link, until = SuperLink(kit), time.monotonic() + STARTS_WITHIN
    while True:  # start.sh calls this while the SuperLink starts
        try:
            link.registered()
            break
        except Unreachable:
            if time.monotonic() > until:
                raise
        time.sleep(0.5)
    failed = 0
    for key in keys or sorted((kit.folder / "keys").glob("*.pub")):
        copy = kit.folder / "keys" / key.name  # start.sh registers it again from there
        conflict = copy.exists() and copy.read_bytes() != key.read_bytes()
        require(not conflict, "key", key, "a file of another name", f"{copy} is another device's")
        try:
            print(f"{key.stem} {'may join' if link.register(key) else 'could join already'}")
        except (ValueError, RunError) as error:  # the other keys may be right
            print(f"error: {error}", file=sys.stderr)
            failed = 1
            continue
        if not copy.exists():
            shutil.copy(key, copy)
    return failed


def _run(server: Path, output: Path | None, overrides: Sequence[str]) -> int:
    """Submit a run, and resume it whenever it died, until it is complete."""
    from fl_app.cli import compose
    from fl_app.field.control import COMMANDS, SuperLink
    from fl_app.field.runs import Supervisor

    kit = Kit.read(server)
    words = [_absolute(word) for word in overrides or kit.overrides]
    if not any(word.startswith("runtime=") for word in words):
        words.append(REAL)
    runtime = next(word for word in words if word.startswith("runtime="))
    require(runtime == REAL, "runtime", runtime[8:], "deployment here", "no device would train")
    compose(words)  # refuses a key or an option that does not exist before Flower starts anything
    output = (output or kit.folder / "run").resolve()
    supervisor = Supervisor(SuperLink(kit), tell=partial(print, flush=True))
    try:
        supervisor.complete(words, output)
    except KeyboardInterrupt:
        if supervisor.run_id is not None:
            print("A run that is under way goes on; the same command supervises it. To end it:")
            home = shlex.quote(str(kit.folder / "flower"))
            print(f"  FLWR_HOME={home} {COMMANDS / 'flwr'} stop {supervisor.run_id} field")
        raise
    print(f"Files: {output}")
    return 0


def _absolute(word: str) -> str:
    """An override with an absolute path, which the server also finds from its own folder."""
    key, _, value = word.partition("=")
    if key in ("task.schema", "task.weights") and Path(value).is_file():
        return f"{key}={Path(value).resolve()}"
    return word


def _status(server: Path, output: Path | None) -> int:
    """Show the server's nodes and what they do."""
    from fl_app.field.control import show_status

    show_status(Kit.read(server), output and output.resolve())
    return 0


def _doctor(folder: Path, overrides: Sequence[str]) -> int:
    """Report what is wrong and how to mend it."""
    from fl_app.field.doctor import examine, show

    kit = Kit.read(folder)
    os.environ.setdefault("XDG_CACHE_HOME", str(kit.folder / "cache"))  # that of start.sh
    return show(examine(kit, [_absolute(word) for word in overrides or kit.overrides]))


def _helper(
    folder: Path,
    new: bool,
    host: Sequence[str] | None,
    port: int | None,
    min_clients: int | None,
) -> int:
    """Serve a folder's helper of secure aggregation, or add one to a kit (--new)."""
    if new:
        from fl_app.field.make import HELPER_PORT, add_helper

        hosts, port = host or [socket.gethostname()], port or HELPER_PORT
        path = add_helper(folder, hosts, port=port, min_clients=min_clients)
        print(f"Give {path} to the party that runs the helper, before devices get their folders.")
        print("Add to OVERRIDES of server.env, with about the largest norm of an upload:")
        address = f"secure_aggregation.address={hosts[0]}:{port}"
        print(f"  secure_aggregation=helper {address} secure_aggregation.clip_norm=5")
        return 0
    import uvicorn

    from fl_app.secure.service import configured

    settings = Kit.read(folder, {}).settings
    minimum = int(settings["MIN_CLIENTS"]) if min_clients is None else min_clients
    bind, port = (host or [settings["BIND"]])[0], port or int(settings["PORT"])
    with suppress(KeyboardInterrupt):  # uvicorn raises it again after its shutdown
        uvicorn.Server(configured(folder.resolve(), bind, port, minimum)).run()
    return 0


def _healthy(folder: Path) -> int:
    """Exit with 0 if a folder's process answers, else with 1."""
    return 0 if Kit.read(folder).healthy() else 1


if __name__ == "__main__":
    sys.exit(main())
