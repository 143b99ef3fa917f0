"""Examines a machine, a folder of the edge kit, and the SuperLink that they connect to."""

import csv
import shutil
import socket
import ssl
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import httpx
import psutil
from cryptography import x509
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from rich import box
from rich.console import Console
from rich.table import Table

from fl_app.cli import CONF, explain, refuse_dots
from fl_app.core.errors import RunError
from fl_app.core.events import Benched
from fl_app.core.files import try_to_write
from fl_app.field import checks
from fl_app.field.certificates import load_certificate
from fl_app.field.checks import Finding, Verdict
from fl_app.field.control import AHEAD, BEHIND, OFFLINE_AFTER, SuperLink, public_bytes
from fl_app.field.data import of_data, of_server
from fl_app.field.gate import REFUSED, is_loopback
from fl_app.field.health import PATIENCE, any_server, ask, healthy, request, split, trusting
from fl_app.field.helper_checks import of_helper, of_helpers_key, of_servers_helper
from fl_app.field.identity import known_to_server
from fl_app.field.kit import Kit
from fl_app.flower.private import difference
from fl_app.node.warm import VARIABLE
from fl_app.record.log import Log

GIB = 2**30
PROBE = "import torch; (torch.ones(8, 8) @ torch.ones(8, 8)).sum(); print(torch.__version__)"
LIST_RUNS = "/v1/control/list-runs"
SIGNS = {Verdict.GOOD: "[green]ok[/]", Verdict.WRONG: "[red]WRONG[/]", Verdict.UNKNOWN: "?"}


def examine(
    kit: Kit | None,
    superlink: str | None,
    training_time: float | None,
    overrides: Sequence[str] = (),
) -> list[Finding]:
    """Carry out every check that is possible on this machine.

    Args:
        kit: the folder of a server or a device; None examines the machine alone.
        superlink: host:port, if it differs from the kit's.
        training_time: seconds that the slowest device trains for one order; None if unknown.
        overrides: of the run, as after ``python -m fl_app``; () = OVERRIDES of the folder.
    """
    if kit is not None and kit.role == "helper":
        answers = healthy(kit)
        port = split(kit.address)[1]
        listens = checks.check_port(port, _free(port), answers)
        return [*_of_system(kit), listens, *of_helper(kit)]
    findings = [*of_machine(kit)]
    address = superlink or (kit.address if kit else None)
    if kit is not None:
        findings += of_settings(kit, training_time, overrides)
        findings += of_files(kit)
    if address is not None:
        findings += of_network(address, kit)
    return findings


def show(findings: Sequence[Finding]) -> int:
    """Print a table of findings; return 1 if one of them is wrong, else 0."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "checked", "found", "how to mend it"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(SIGNS[finding.verdict], finding.subject, finding.text, finding.mend)
    Console().print(table)
    count = sum(finding.verdict is Verdict.WRONG for finding in findings)
    print(f"{count or 'nothing'} wrong")
    return 1 if count else 0


def of_machine(kit: Kit | None) -> Iterator[Finding]:
    """Check the machine, without any server."""
    yield from _of_system(kit)
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    yield checks.check_torch(probe.returncode, probe.stdout or probe.stderr)
    yield checks.check_memory(psutil.virtual_memory().available + (_held(kit) if kit else 0))


def _of_system(kit: Kit | None) -> Iterator[Finding]:
    yield checks.check_python(tuple(sys.version_info[:3]), 8 * struct.calcsize("P"))
    yield checks.check_flower(_version("flwr"), _wanted("flwr"))
    where = kit.folder if kit else Path.cwd()
    yield checks.check_disk(shutil.disk_usage(where).free / GIB, where)


def of_settings(
    kit: Kit, training_time: float | None, overrides: Sequence[str] = ()
) -> Iterator[Finding]:
    """Check the settings of a folder, the run in OVERRIDES, and a device's own data."""
    overrides = overrides or kit.overrides
    yield checks.check_installation(kit.settings)
    node = kit.role == "node"
    if node:
        yield checks.check_partition(kit.settings.get("NODE_CONFIG", ""), kit.data is not None)
        yield checks.check_warm(kit.settings.get(VARIABLE, ""), difference("node"))
    port = int(kit.settings["PORT"]) if node else split(kit.address)[1]
    other = _other(kit, port) if node else ""  # a server shows who it is by its certificate
    yield checks.check_port(port, _free(port), healthy(kit), other)
    if kit.state_dir is not None:
        yield checks.check_state_dir(kit.state_dir, _writing(kit.state_dir))
    run = None
    if overrides or not node:
        try:
            run = _composed(overrides)
        except ValueError as error:
            mend = "correct OVERRIDES: they are the words after `python -m fl_app`"
            yield checks.wrong("run", str(error), mend)
    if kit.data is not None:
        yield from of_data(kit.data, run)
    if node or run is None:
        return
    yield from of_server(run)
    if run.runtime.get("warm") and (found := difference("pulls")):
        yield checks.unknown("fast way", f"the server's part is off: {found}")
    yield checks.check_checkpoints(run.checkpoint_every)
    yield checks.check_deadline(run.deadline, order_time(kit.folder / "run", training_time))
    yield checks.check_heartbeat(run.deadline, OFFLINE_AFTER)
    if run.guard.bench_after is not None:
        yield checks.check_bench(_benched(kit.folder / "run"))
    yield from of_servers_helper(kit, run)


def of_files(kit: Kit) -> Iterator[Finding]:
    """Check the certificates and keys of a folder."""
    if kit.insecure:
        return
    now = datetime.now(UTC)
    authority = kit.folder / "ca.crt"
    try:
        yield checks.check_dates("authority", load_certificate(authority), now)
    except (OSError, ValueError) as error:
        mend = "copy it from the kit again: without it, no server is trusted"
        yield checks.wrong("authority", f"{authority} cannot be read: {error}", mend)
    if kit.role == "node":
        yield checks.check_private(kit.folder / "node.key")
        yield checks.check_node_key(kit.folder / "node.key")
        yield from of_helpers_key(kit)
    else:
        yield checks.check_private(kit.folder / "server.key")


def of_network(address: str, kit: Kit | None) -> Iterator[Finding]:
    """Check the SuperLink over the network."""
    host, port = split(address)
    try:
        socket.create_connection((host, port), PATIENCE).close()
    except OSError as error:
        yield checks.check_reachable(address, error)
        return
    yield checks.check_reachable(address, None)
    certificate: x509.Certificate | None = None
    problem = None
    try:
        pem = ssl.get_server_certificate((host, port), timeout=PATIENCE)
        certificate = x509.load_pem_x509_certificate(pem.encode())
    except OSError as error:
        problem = str(error)
    if kit is not None:
        yield checks.check_tls(problem, kit.insecure)
        if certificate is not None and not kit.insecure:
            yield from _certificate(certificate, host, kit)
    context = None if certificate is None else any_server()
    try:
        before = datetime.now(UTC)
        response = request(address, "/health", context)
        after = datetime.now(UTC)
        if response.status_code != 403 or REFUSED not in response.text:  # a gate is a SuperLink's
            response.raise_for_status()
        date = response.headers.get("Date")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        mend = "correct the address: another program listens there"
        yield checks.wrong("SuperLink", f"{address} does not answer as a SuperLink: {error}", mend)
        return
    servers = parsedate_to_datetime(date) if date else None
    yield checks.check_clock(seconds_ahead(before, after, servers), AHEAD, BEHIND)
    known: Mapping[str, str] | None = None
    if kit is not None and kit.role == "node" and not kit.insecure:
        with suppress(OSError, ValueError, httpx.HTTPError):  # other checks report it
            known = known_to_server(address, kit.folder / "node.key", trusting(kit))
    servers_flower = known.get("flower") if known else _servers_version(address, context)
    yield checks.check_server_version(_version("flwr"), servers_flower)
    if kit is not None and not kit.insecure and certificate is not None:
        yield from _registered(kit, known)
    if kit is not None:
        yield from _closed(kit, address, context)


def seconds_ahead(before: datetime, after: datetime, date: datetime | None) -> float | None:
    """Return the seconds by which this clock is ahead of the server's, to about one second.

    Args:
        before: this machine's time before the request.
        after: this machine's time after the response.
        date: the server's time in its response, in whole seconds; None if the response has none.
    """
    if date is None:
        return None
    return (before - date).total_seconds() + (after - before).total_seconds() / 2 - 0.5


def _certificate(certificate: x509.Certificate, host: str, kit: Kit) -> Iterator[Finding]:
    yield checks.check_dates("certificate", certificate, datetime.now(UTC))
    yield checks.check_names(certificate, host)
    try:
        authority = load_certificate(kit.folder / "ca.crt")
    except (OSError, ValueError):
        return  # `of_files` reports it
    yield checks.check_issuer(certificate, authority)


def _closed(kit: Kit, address: str, context: ssl.SSLContext | None) -> Iterator[Finding]:
    """Try to make a control call as a stranger would, from this machine's own address."""
    host, port = split(address)
    on_device = "whether the port is closed to strangers shows on a device"
    if kit.role == "server":
        own = own_address(host, kit.settings.get("BIND", ""))
        if own is None:
            yield checks.unknown("strangers", f"this machine is none of them: {on_device}")
            return
        address = f"{own}:{port}"
    elif all(is_loopback(found) for found in _addresses(host, port)):
        yield checks.unknown("strangers", "the server is this machine, which is none of them")
        return
    status: int | None
    try:
        headers = {"content-type": "application/protobuf"}
        status = request(address, LIST_RUNS, context, "POST", headers).status_code
    except httpx.ConnectError:
        status = None
    except httpx.HTTPError as error:
        yield checks.unknown("strangers", f"{address} did not answer a control call: {error}")
        return
    yield checks.check_closed(address, status, kit.settings.get("CONTROL") == "open")


def own_address(host: str, bind: str) -> str | None:
    """This machine's address by which others reach it; None if none is known.

    A SuperLink that listens at one address only takes calls from it as its own.
    """
    if bind not in ("0.0.0.0", "::") or not is_loopback(host):
        return None
    found = (entry for entries in psutil.net_if_addrs().values() for entry in entries)
    addresses = [entry.address for entry in found if entry.family == socket.AF_INET]
    return next((address for address in addresses if not is_loopback(address)), None)


def _addresses(host: str, port: int) -> list[str]:
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(host, port)]
    except OSError:
        return []


def _registered(kit: Kit, told: Mapping[str, str] | None) -> Iterator[Finding]:
    if told is not None:  # by a server with a gate, to this device
        listed = {b"": told["status"]} if told["status"] else {}
        yield checks.check_registered("node", b"", listed)
        return
    known: Mapping[bytes, str] | None
    try:
        known = SuperLink(kit).registered()
    except (OSError, RunError):
        # Another check reports it, or a proxy lets only the requests of SuperNodes through.
        known = None
    keys = [kit.folder / "node.key.pub"]
    if kit.role == "server":
        keys = sorted((kit.folder / "keys").glob("*.pub"))
    for key in keys:
        name = key.stem if kit.role == "server" else "node"
        try:
            yield checks.check_registered(name, public_bytes(key), known)
        except (OSError, ValueError) as error:
            mend = "`ssh-keygen -y -f node.key >node.key.pub` writes it again"
            yield checks.wrong(f"{name} registered", f"{key} cannot be read: {error}", mend)


def order_time(run: Path, training_time: float | None) -> float | None:
    """Return the seconds from an order to its update on the slowest device; None if unknown.

    Args:
        run: folder of an earlier run, whose ``devices.csv`` has the times of orders.
        training_time: seconds of training; takes precedence over `run`.
    """
    if training_time is not None:
        return training_time + checks.EXCHANGE
    try:
        with (run / "devices.csv").open(newline="", encoding="utf-8") as file:
            return max((float(row["seconds"]) for row in csv.DictReader(file)), default=None)
    except FileNotFoundError:
        return None


def _benched(run: Path) -> dict[int, str]:
    """Clients of a run that get no order any more, and why."""
    with suppress(FileNotFoundError):
        return {
            event.client: event.reason
            for event in Log(run / "events.jsonl").read()
            if isinstance(event, Benched)
        }
    return {}


def _held(kit: Kit) -> int:
    """Bytes that the processes of a running node hold, each for itself."""
    home, held = str(kit.folder / "flower"), 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone meanwhile, or somebody else's
            if process.environ().get("FLWR_HOME") == home:
                held += process.memory_full_info().uss
    return held


def _composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration of a run.

    Raises:
        ValueError: an override is refused.
    """
    refuse_dots(overrides)
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose("config", overrides=list(overrides))
    except HydraException as error:
        raise ValueError(explain(error, overrides)) from None


def _servers_version(address: str, context: ssl.SSLContext | None) -> str | None:
    try:
        found: str = ask(address, "/openapi.json", context).json()["info"]["version"]
    except (httpx.HTTPError, ValueError, KeyError):
        return None
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _wanted(package: str) -> SpecifierSet | None:
    try:
        wanted = [Requirement(line) for line in requires("fl-app") or ()]
    except PackageNotFoundError:
        return None
    return next(requirement.specifier for requirement in wanted if requirement.name == package)


def _other(kit: Kit, port: int) -> str | None:
    """Who listens on a port and was started outside a folder; "" = nobody, None = unknown."""
    with suppress(psutil.Error):
        for found in psutil.net_connections("tcp"):
            if found.status == psutil.CONN_LISTEN and found.laddr.port == port:
                if found.pid is None:
                    return None  # another user's
                where = psutil.Process(found.pid).cwd()
                return "" if Path(where) == kit.folder else f"process {found.pid}, of {where},"
        return ""
    return None


def _writing(folder: Path) -> OSError | None:
    """The error on writing a file into a folder; None if there is none."""
    try:
        try_to_write(folder)
    except OSError as error:
        return error
    return None


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
