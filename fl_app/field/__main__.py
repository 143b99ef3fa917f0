"""Set up, run and examine a federation of real nodes: ``python -m fl_app.field``."""

import argparse
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fl_app.core.errors import RunError
from fl_app.field.kit import PORT, Kit, new_kit

INTERRUPTED = 130  # what a shell reports for a command ended by Ctrl-C


def main() -> int:
    """Run the command line; return 0 on success, 1 after a failure, 2 for refused arguments."""
    arguments = _parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    try:
        status: int = arguments.command(arguments)
    except (ValueError, FileExistsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (RunError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fl_app.field", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(carry_out: Callable[..., int], text: str) -> argparse.ArgumentParser:
        found = commands.add_parser(carry_out.__name__.removeprefix("_"), help=text)
        found.set_defaults(command=carry_out)
        return found

    init = command(_init, "write a ready folder for the server and every device")
    init.add_argument("--nodes", type=int, default=3, help="number of devices (3)")
    text = "name or address of the server; devices use the first (this machine's name)"
    init.add_argument("--host", "-H", action="append", default=[], help=text)
    text = f"port to which devices connect ({PORT})"
    init.add_argument("--port", type=int, default=PORT, help=text)
    text = "days until certificates expire (3650)"
    init.add_argument("--days", type=int, default=3650, help=text)
    text = "no certificates and keys: anybody who reaches the port can read and join"
    init.add_argument("--insecure", action="store_true", help=text)
    init.add_argument("out", type=Path, help="new folder")

    certificate = command(
        _certificate, "write a new certificate for the server, with other names or days"
    )
    certificate.add_argument("--host", "-H", action="append", required=True)
    certificate.add_argument("--days", type=int, default=3650)
    certificate.add_argument("ca", type=Path, help="folder with ca.key and ca.crt")
    certificate.add_argument("out", type=Path, help="new folder for server.crt and server.key")

    register = command(_register, "allow nodes to join, once the SuperLink answers")
    register.add_argument("server", type=Path, help="the server's folder")
    register.add_argument("keys", type=Path, nargs="*", help="public keys (all in keys/)")

    text = "keep a folder's SuperLink, SuperNode or helper running, without systemd or Docker"
    command(_keep, text).add_argument("folder", type=Path)

    run = command(_run, "submit a run, and resume it whenever it died, until it is complete")
    run.add_argument("server", type=Path, help="the server's folder")
    run.add_argument("--output", type=Path, help="the run's folder (run, in the server's)")
    text = "serve figures for Prometheus there (HOST: 127.0.0.1)"
    run.add_argument("--metrics", metavar="[HOST:]PORT", type=_address, help=text)
    run.add_argument("overrides", nargs="*", help="as after `python -m fl_app` (OVERRIDES)")

    status = command(_status, "show the server's nodes and what they do")
    status.add_argument("server", type=Path, help="the server's folder")
    status.add_argument("--output", type=Path, help="the run's folder (that of the newest run)")

    doctor = command(_doctor, "report what is wrong and how to mend it")
    doctor.add_argument("folder", type=Path, help="folder of the server, a device or the helper")
    text = "as after `python -m fl_app` (OVERRIDES); a device's own data are read as they say"
    doctor.add_argument("overrides", nargs="*", help=text)

    text = "serve a folder's helper of secure aggregation, or add one to a kit (--new)"
    helper = command(_helper, text)
    helper.add_argument("folder", type=Path, help="the helper's folder; with --new a kit")
    helper.add_argument("--new", action="store_true", help="add the folder helper to a kit")
    text = "to listen on; with --new, names of its machine"
    helper.add_argument("--host", "-H", action="append", help=text)
    helper.add_argument("--port", type=int, default=8101, help="(8101)")
    text = "fewest different devices of a sum (half of them)"
    helper.add_argument("--min-clients", type=int, help=text)
    text = "smallest one of a sum (0: no noise)"
    helper.add_argument("--noise-multiplier", type=float, default=0.0, help=text)

    text = "exit with 0 if a folder's process answers, else with 1"
    command(_healthy, text).add_argument("folder", type=Path)
    return parser


def _address(text: str) -> tuple[str, int]:
    """HOST and PORT of ``[HOST:]PORT``."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text} must be [HOST:]PORT: nobody could scrape it")
    return host.strip("[]") or "127.0.0.1", int(port)


# Each command imports what it needs: a health check on a small board must not load Flower.


def _init(arguments: argparse.Namespace) -> int:
    from fl_app.field.project import build_wheel

    hosts = arguments.host or [socket.gethostname()]
    with tempfile.TemporaryDirectory() as folder:
        new_kit(
            arguments.out,
            nodes=arguments.nodes,
            hosts=hosts,
            port=arguments.port,
            days=arguments.days,
            insecure=arguments.insecure,
            wheel=build_wheel(Path(folder)),
        )
    print(f"Copy {arguments.out}/server to the server, and each node-<i> to its device.")
    print("Then run there, in the folder: sudo sh install.sh")
    print(f"Devices reach the server as {hosts[0]}:{arguments.port}; --host chooses another name.")
    if arguments.insecure:
        print("INSECURE: anybody who reaches that port can read all messages and join.")
    else:
        print(f"Keep {arguments.out}/ca to yourself: with it anybody can pose as the server.")
    return 0


def _certificate(arguments: argparse.Namespace) -> int:
    from fl_app.field.certificates import new_certificate
    from fl_app.field.kit import ALWAYS

    arguments.out.mkdir(parents=True, exist_ok=True)
    hosts = [*arguments.host, *ALWAYS]
    new_certificate(arguments.ca, arguments.out, "server", hosts, arguments.days)
    print(
        f"Copy both files in {arguments.out} to the server's folder, and restart fl-superlink "
        "and fl-caddy."
    )
    return 0


def _register(arguments: argparse.Namespace) -> int:
    from fl_app.field.control import SuperLink

    kit = Kit.read(arguments.server)
    link = SuperLink(kit)
    link.wait()
    for key in arguments.keys or sorted((kit.folder / "keys").glob("*.pub")):
        print(f"{key.stem} {'may join' if link.register(key) else 'could join already'}")
    return 0


def _keep(arguments: argparse.Namespace) -> NoReturn:
    from fl_app.field.processes import attend, keep

    kit = Kit.read(arguments.folder)
    start = ["sh", str(kit.folder / "start.sh")]
    commands = [start]
    if kit.role == "server" and shutil.which("caddy"):
        commands.append([*start, "caddy"])
    elif kit.role == "server":
        print("caddy is not installed: devices on other machines cannot reach the server")
    name = {"server": "SuperLink", "node": "SuperNode", "helper": "helper"}[kit.role]
    keep(
        lambda: attend(
            *(
                subprocess.Popen(command, env=kit.environment, start_new_session=True)
                for command in commands
            )
        ),
        tell=lambda text: print(f"{name} {text}", flush=True),
    )


def _run(arguments: argparse.Namespace) -> int:
    from fl_app.field.control import SuperLink
    from fl_app.field.runs import Supervisor

    kit = Kit.read(arguments.server)
    output = (arguments.output or kit.folder / "run").resolve()
    link = SuperLink(kit)
    supervisor = Supervisor(link, tell=lambda text: print(text, flush=True))
    if arguments.metrics:
        from fl_app.field.metrics import RunCollector, serve

        serve(RunCollector(output / "events.jsonl", link.statuses), *arguments.metrics)
    try:
        supervisor.complete(arguments.overrides or kit.overrides, output)
    except KeyboardInterrupt:
        print("The run goes on: the same command supervises it again, `flwr stop` ends it.")
        raise
    print(f"Files: {output}")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from fl_app.field.status import show

    kit = Kit.read(arguments.server)
    show(kit, arguments.output and arguments.output.resolve())
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    from fl_app.field.doctor import examine, show

    return show(examine(Kit.read(arguments.folder), arguments.overrides))


def _helper(arguments: argparse.Namespace) -> int:
    if arguments.new:
        from fl_app.field.helper import add_helper

        hosts = arguments.host or [socket.gethostname()]
        folder = add_helper(
            arguments.folder,
            hosts,
            port=arguments.port,
            least=arguments.min_clients,
            noise_multiplier=arguments.noise_multiplier,
        )
        _tell_of_helper(folder, hosts[0], arguments.port)
        return 0
    from fl_app.secure.service import serve

    least = 2 if arguments.min_clients is None else arguments.min_clients
    host = (arguments.host or ["0.0.0.0"])[0]
    serve(arguments.folder.resolve(), host, arguments.port, least, arguments.noise_multiplier)
    return 0


def _tell_of_helper(folder: Path, host: str, port: int) -> None:
    print(f"Give {folder} to the party that runs the helper, before devices get their folders.")
    print("Add to OVERRIDES of server.env, with about the largest norm of an upload:")
    address = f"secure_aggregation.address={host}:{port}"
    print(f"  secure_aggregation=helper {address} secure_aggregation.clip_norm=5")


def _healthy(arguments: argparse.Namespace) -> int:
    from fl_app.field.health import healthy

    return 0 if healthy(Kit.read(arguments.folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
