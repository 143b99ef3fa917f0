"""Examines a folder of the edge kit on its machine: what no process says of itself in its log."""

import csv
import getpass
import os
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import httpx
import psutil
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from rich import box
from rich.console import Console
from rich.table import Table

from fl_app.cli import CONF, explain, refuse_dots
from fl_app.client.build import asks_for_masks
from fl_app.core.errors import RunError
from fl_app.field.certificates import load_certificate
from fl_app.field.control import AHEAD, BEHIND, OFFLINE_AFTER, SuperLink, public_bytes
from fl_app.field.health import request, trusting
from fl_app.field.kit import Kit
from fl_app.secure.folder import (
    PUBLIC_KEY,
    RECORD,
    RegisteredDevices,
    fingerprint,
    load_helper_key,
    server_context,
)
from fl_app.secure.ledger import Ledger
from fl_app.secure.remote import HEALTH

if TYPE_CHECKING:
    from fl_app.tasks.task import Task

GOOD, WRONG, UNKNOWN = "[green]ok[/]", "[red]WRONG[/]", "?"  # verdicts, as the table shows them
PROBE = "import torch; (torch.ones(8, 8) @ torch.ones(8, 8)).sum(); print(torch.__version__)"
DISK = 2**30  # bytes that are free after the installation, for data, Flower's files and runs [A]
EXPIRES_SOON = timedelta(days=30)
HIDDEN = (Path("/tmp"), Path("/var/tmp"))  # by PrivateTmp of fl-supernode.service
FLEET, CONTROL = "/v1/fleet/", "/v1/control/list-runs"
UNREACHED = (OSError, httpx.HTTPError, httpx.InvalidURL)
# Part of an error of a connection, and what to do.
REMEDIES = {
    "certificate verify failed": "set the clocks; copy ca.crt of the kit that the server's folder "
    "comes from; `python -m fl_app.field certificate` writes one with other names or days",
    "refused": "start it (fl-superlink, and fl-caddy before it), or correct the port",
    "timed out": "let the port through every firewall on the way, or correct the address",
    "name": "use an IP address as SUPERLINK, or add the name to /etc/hosts",
    "": "correct the address or the network; both sides of a kit use TLS, or neither",
}


class Finding(NamedTuple):
    """The result of one check, and how to mend what is wrong."""

    subject: str
    verdict: str
    text: str
    mend: str = ""


def _judged(subject: str, good: bool, text: str, mend: str) -> Finding:
    return Finding(subject, GOOD, text) if good else Finding(subject, WRONG, text, mend)


Check: TypeAlias = Callable[[Kit, Sequence[str]], Iterator[Finding]]


def examine(kit: Kit, overrides: Sequence[str] = ()) -> list[Finding]:
    """Carry out every check that is possible on this machine.

    Args:
        kit: the folder.
        overrides: of the run, as after ``python -m fl_app``; () = OVERRIDES of the folder.
    """
    words = overrides or kit.overrides
    return [finding for check in CHECKS[kit.role] for finding in check(kit, words)]


def show(findings: Sequence[Finding]) -> int:
    """Print a table of findings; return 1 if one of them is wrong, else 0."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "checked", "found", "how to mend it"):
        table.add_column(column, overflow="fold")
    for subject, verdict, text, mend in findings:
        table.add_row(verdict, subject, text, mend)
    Console().print(table)
    count = sum(finding.verdict == WRONG for finding in findings)
    print(f"{count or 'nothing'} wrong")
    return 1 if count else 0


# -- this machine ----------------------------------------------------------------------------------


def of_torch(kit: Kit, overrides: Sequence[str], probe: str = PROBE) -> Iterator[Finding]:
    """Whether torch can compute: a build for newer processors dies when it loads or computes."""
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    text = ["no output", *(done.stdout or done.stderr).splitlines()][-1]
    if done.returncode < 0:
        text = f"{signal.strsignal(-done.returncode)}: every order would fail"
    mend = "install another version of torch, with its torchvision, and ask doctor again"
    yield _judged("torch", done.returncode == 0, text, mend)


def of_disk(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """Whether there is room for what Flower and runs write."""
    free = shutil.disk_usage(kit.folder).free
    text = f"{free / DISK:.1f} GiB free at {kit.folder}"
    mend = "free 1 GiB, or move the folder: Flower and runs write to it"
    yield _judged("disk", free >= DISK, text, mend)


def of_files(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """The certificates and keys of a folder."""
    if kit.insecure:
        return
    now = datetime.now(UTC)
    for name in ("ca.crt", *([] if kit.role == "node" else [f"{kit.role}.crt"])):
        try:
            certificate = load_certificate(kit.folder / name)
        except (OSError, ValueError) as error:
            yield Finding(name, WRONG, str(error), "copy it from the kit again")
            continue
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        text = f"valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, and today is {now:%Y-%m-%d}"
        mend = "set the clock; `python -m fl_app.field certificate` writes another one, and a new "
        mend += "kit (`init`) another authority"
        yield _judged(name, begins <= now < ends - EXPIRES_SOON, text, mend)
    path = kit.folder / f"{kit.role}.key"
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        mend = "copy it from the kit again: the folder is not complete"
        yield Finding(path.name, WRONG, str(error), mend)
    else:
        yield _judged(path.name, not mode & 0o077, f"its mode is {mode:o}", f"chmod 600 {path}")
    if kit.role == "node" and (kit.folder / PUBLIC_KEY).exists():
        yield _helpers_key(kit, None)


# -- the run ---------------------------------------------------------------------------------------


def composed(overrides: Sequence[str]) -> DictConfig:
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


def _refused(error: ValueError) -> Finding:
    return Finding("run", WRONG, str(error), "correct OVERRIDES: words after `python -m fl_app`")


def of_run(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """The run of a server: what would make it start anew, lose orders, or find no data."""
    try:
        run = composed(overrides)
    except ValueError as error:
        yield _refused(error)
        return
    if "schema" in run.task and run.task.path is None:
        yield _schema(run)
    if run.checkpoint_every is None:
        mend = "add checkpoint_every=10 to OVERRIDES"
        yield Finding("checkpoints", WRONG, "none: a run that dies starts anew", mend)
    yield _deadline(run.deadline, kit.folder / "run" / "devices.csv")
    if asks_for_masks(run) and run.secure_aggregation.address is not None:
        yield from _servers_helper(kit, run)


def _schema(run: DictConfig) -> Finding:
    """The schema of a run whose devices have data of their own."""
    from fl_app.tasks.schema import read_schema

    try:
        schema = read_schema(run.task.schema)
    except ValueError as error:
        return Finding("data", WRONG, str(error), "correct task.schema: the server has no data")
    if schema is None:
        mend = "add task.schema=FILE (absolute path), or task.path"
        return Finding("data", WRONG, "the server has neither data nor a schema", mend)
    shape = "x".join(map(str, schema.input_shape))
    text = f"the devices' own: {schema.kind}, inputs {shape}, {schema.num_outputs} outputs"
    return Finding("data", GOOD, text)


def _deadline(deadline: float | None, earlier: Path) -> Finding:
    """Whether the deadline ends lost orders, but not those of the slowest device.

    Args:
        deadline: the run's, in seconds; None if it has none.
        earlier: ``devices.csv`` of an earlier run, with the seconds of its orders; it may be none.
    """
    if deadline is None:
        text = "none: a device that hangs occupies its place in the run for up to 12 hours"
        mend = "add deadline=600 to OVERRIDES, or a value that suits your devices"
        return Finding("deadline", WRONG, text, mend)
    rows = csv.DictReader(earlier.read_text("utf-8").splitlines() if earlier.exists() else [])
    order = max((float(row["seconds"]) for row in rows), default=0.0)
    least = max(2 * order if deadline < order else 0.0, OFFLINE_AFTER)
    takes = f"takes {order:.0f} s on the slowest device" if order else "takes an unknown time"
    text = f"{deadline:g} s; an order {takes}, and a dead node is online for {OFFLINE_AFTER:g} s"
    mend = f"deadline={least:.0f} or more: else updates are discarded, or dead nodes get orders"
    return _judged("deadline", deadline >= least, text, mend)


# -- a device and its data -------------------------------------------------------------------------


def of_node(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """The partition of a device, which is also its client's id, and its own data."""
    words = kit.settings.get("NODE_CONFIG", "")
    pairs = dict(pair.partition("=")[::2] for pair in words.split())
    if kit.data is not None and "partition-id" not in pairs:
        yield Finding("partition", GOOD, "none: the server knows this device by its node id")
    else:
        mine, all_ = (pairs.get(key, "") for key in ("partition-id", "num-partitions"))
        good = mine.isdecimal() and all_.isdecimal() and int(mine) < int(all_)
        mend = 'NODE_CONFIG="partition-id=0 num-partitions=3": another number on every device, '
        yield _judged("partition", good, f"NODE_CONFIG={words}", f"{mend}from 0")
    yield from _of_port(kit)
    if folder := pairs.get("state-dir", "").strip("'\""):
        good = os.access(folder, os.W_OK | os.X_OK)
        text = folder if good else f"{folder} does not exist, or may not be written"
        mend = "make it for the user of the SuperNode: state would be lost, or orders fail"
        yield _judged("state-dir", good, text, mend)
    run = None
    if overrides:
        try:
            run = composed(overrides)
        except ValueError as error:
            yield _refused(error)
    if kit.data is not None:
        yield from of_data(kit.data, run)


def _of_port(kit: Kit) -> Iterator[Finding]:
    """Whether another program holds the port of a device's SuperNode."""
    port, home = int(kit.settings["PORT"]), str(kit.folder.resolve() / "flower")
    try:
        holders = [
            c.pid
            for c in psutil.net_connections("tcp")
            if c.status == psutil.CONN_LISTEN and c.laddr.port == port
        ]
        homes = [psutil.Process(pid).environ().get("FLWR_HOME") for pid in holders if pid]
    except psutil.Error:  # another user's, or gone meanwhile
        holders, homes = [], []
    others = len(homes) < len(holders) or any(each != home for each in homes)
    mend = f"another PORT in node.env; `ss -ltnp 'sport = :{port}'` names the program"
    text = "another program holds it: the SuperNode cannot start" if others else "nobody else's"
    yield _judged(f"port {port}", not others, text, mend)


def of_data(path: str, run: DictConfig | None) -> Iterator[Finding]:
    """Whether a device's own data can be read, and what a run finds in them.

    Args:
        path: of the data.
        run: configuration of the run that is to read them; None if it is unknown.
    """
    mend = "correct DATA in node.env"
    if not os.path.isabs(path) or "'" in path:
        yield Finding("data", WRONG, f"DATA={path} is no absolute path, or has a quote in it", mend)
        return
    if not os.access(path, os.R_OK):
        mend += f", or let user {getpass.getuser()}, who runs this, read it; in a container, "
        mend += "`docker compose --env-file node.env up -d` mounts it"
        yield Finding("data", WRONG, f"{path} does not exist, or may not be read", mend)
        return
    if any(Path(path).is_relative_to(folder) for folder in HIDDEN):
        mend = "move them, if systemd starts this SuperNode: its service has a /tmp of its own"
        yield Finding("data", UNKNOWN, path, mend)
    else:
        yield Finding("data", GOOD, path)
    if run is None:
        mend = "add the run's words: doctor FOLDER task=csv task.schema=FILE"
        text = "the run that is to read the data is not given"
        yield Finding("examples", UNKNOWN, text, mend)
        return
    # Imported here, because torch takes seconds to import, and may not even be there.
    from fl_app.client.build import build_task
    from fl_app.client.node_data import too_few

    try:
        task = cast("Task", build_task(run, path))
    except Exception as error:  # libraries that read data raise errors of any type
        mend = "correct the data, or the task and its schema: the node's orders would fail"
        yield Finding("examples", WRONG, str(error), mend)
        return
    if problem := too_few(task):
        mend = "collect more, or leave this device out"
        yield Finding("examples", WRONG, f"too few: {problem}", mend)
        return
    num_kept = task.validation[0].size if task.validation else 0
    text = f"{task.partition[0].size} to train on, {num_kept} kept for validation"
    yield Finding("examples", GOOD, text)


# -- the network -----------------------------------------------------------------------------------


def of_network(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """The SuperLink as this machine reaches it, and that strangers do not."""
    try:
        before = datetime.now(UTC)
        response = request(kit.address, FLEET, trusting(kit))
        after = datetime.now(UTC)
    except UNREACHED as error:
        mend = next(mend for part, mend in REMEDIES.items() if part in str(error).lower())
        yield Finding("server", WRONG, f"{kit.address}: {error}", mend)
        return
    if response.status_code == httpx.codes.BAD_GATEWAY:
        text = f"{kit.address} answers, and the SuperLink behind it does not"
        yield Finding("server", WRONG, text, "on the server: start fl-superlink")
        return
    yield Finding("server", GOOD, f"{kit.address} answers")
    if "Date" in response.headers:
        date = parsedate_to_datetime(response.headers["Date"])
        yield of_clock(seconds_ahead(before, after, date))
    if kit.role == "node":
        yield _strangers(kit, kit.address)
        return
    yield _strangers(kit, f"127.0.0.1:{kit.settings.get('PORT', '')}")
    try:
        known = SuperLink(kit).registered()
    except (OSError, RunError) as error:
        yield Finding("nodes", UNKNOWN, str(error))
        return
    for key in sorted((kit.folder / "keys").glob("*.pub")):
        status = known.get(public_bytes(key))
        mend = f"`python -m fl_app.field register {kit.folder} {key}`"
        text = status or "not registered: it would be refused with code 2004"
        yield _judged(key.stem, status is not None, text, mend)


def _strangers(kit: Kit, address: str) -> Finding:
    """Make a control call as a stranger would: with one a stranger could run code everywhere.

    Args:
        kit: the folder.
        address: host:port to which devices connect.
    """
    try:
        status = request(address, CONTROL, trusting(kit), "POST").status_code
    except UNREACHED as error:
        mend = "start fl-caddy: no device reaches it"
        return Finding("strangers", WRONG, f"{address}: {error}", mend)
    if status == httpx.codes.FORBIDDEN:
        return Finding("strangers", GOOD, f"{address} refuses their calls")
    if address.startswith(("127.", "localhost:")):
        text = f"{address} is the SuperLink itself, which others do not reach"
        return Finding("strangers", UNKNOWN, text)
    mend = "let it listen on loopback only, with Caddy before it (start.sh of the kit)"
    text = f"whoever reaches {address} can run code everywhere"
    return Finding("strangers", WRONG, text, mend)


def seconds_ahead(before: datetime, after: datetime, date: datetime) -> float:
    """The seconds by which this clock is ahead of another one, to about one second.

    Args:
        before: this machine's time before the request.
        after: this machine's time after the response.
        date: the other's time in its response, in whole seconds.
    """
    return (before - date).total_seconds() + (after - before).total_seconds() / 2 - 0.5


def of_clock(ahead: float) -> Finding:
    """Whether this clock is close enough to the server's for Flower to accept signatures.

    Args:
        ahead: seconds by which this clock is ahead of the server's.
    """
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's; "
    text += f"Flower refuses {AHEAD:g} s ahead and {BEHIND:g} s behind"
    mend = "`sudo timedatectl set-ntp true` on both, or set the clock by hand"
    return _judged("clock", -BEHIND < ahead < AHEAD, text, mend)


# -- secure aggregation's helper -------------------------------------------------------------------


def of_helper(kit: Kit, overrides: Sequence[str]) -> Iterator[Finding]:
    """The record and the devices of a helper, on its machine."""
    record = kit.folder / RECORD
    try:
        with closing(Ledger(record)) as ledger:
            key, number = ledger.private_key.public_key(), ledger.count()
            ledger.check_writable()
    except (ValueError, sqlite3.Error) as error:
        mend = "free the disk, or make it writable for the service's user; without it no key exists"
        yield Finding("record of seeds", WRONG, f"{record}: {error}", mend)
    else:
        yield Finding("record of seeds", GOOD, f"writable; {number} seeds were used")
        yield _helpers_key(kit, fingerprint(key))
    devices = RegisteredDevices(kit.folder / "keys")
    number = len(devices)  # reads them
    for path, why in devices.faults.items():
        mend = "copy node.key.pub of the device again"
        yield Finding("devices", WRONG, f"{path.name}: {why}", mend)
    yield of_sums(number, int(kit.settings.get("MIN_CLIENTS") or 2), None)


def _servers_helper(kit: Kit, run: DictConfig) -> Iterator[Finding]:
    """From the server, whether the run's helper can do its part."""
    address = run.secure_aggregation.address
    try:
        told = request(address, HEALTH, server_context(kit.folder)).raise_for_status().json()
        key, devices, least = str(told["key"]), int(told["devices"]), int(told["min_clients"])
        noise = float(told["noise_multiplier"])
    except (*UNREACHED, ValueError, KeyError, TypeError) as error:
        mend = "start it (fl-helper), or correct secure_aggregation.address in OVERRIDES"
        text = f"{address} does not answer as a helper: {error!r}"
        yield Finding("helper", WRONG, text, mend)
        return
    yield Finding("helper", GOOD, f"answers at {address}")
    yield _helpers_key(kit, key)
    yield of_sums(devices, least, OmegaConf.select(run, "algorithm.schedule.buffer_size"))
    asked = run.secure_aggregation.noise_multiplier or 0.0
    mend = f"secure_aggregation.noise_multiplier={noise:g} in OVERRIDES"
    text = f"it requires {noise:g}, and the run asks for {asked:g}; with less it refuses every sum"
    yield _judged("helper's noise", asked >= noise, text, mend)


def of_sums(devices: int, least: int, members: int | None) -> Finding:
    """Whether the helper can tell sums of as many devices as the run aggregates.

    Args:
        devices: number that the helper knows.
        least: T of the helper.
        members: K of the run; None if it is unknown.
    """
    text = f"it knows {devices}, and tells sums over {least} or more"
    mend = "put the devices' public keys into its keys/"
    enough = members is None or members >= least
    if not enough:
        mend = f"algorithm.schedule.buffer_size={least} or more in OVERRIDES"
        text = f"{text}, and the run aggregates {members}: it would refuse every sum"
    return _judged("helper's devices", enough and devices >= least, text, mend)


def _helpers_key(kit: Kit, expected: str | None) -> Finding:
    """A folder's copy of the helper's public key; None expects any."""
    try:
        found = fingerprint(load_helper_key(kit.folder / PUBLIC_KEY))
    except ValueError as error:
        mend = f"copy {PUBLIC_KEY} from the kit again"
        return Finding("helper's key", WRONG, str(error), mend)
    same = expected in (None, found)
    text = "in helper.pub" if same else "is another helper's: no seal of the devices would open"
    return _judged("helper's key", same, text, "give all machines folders of the same kit")


CHECKS: dict[str, tuple[Check, ...]] = {
    "server": (of_torch, of_disk, of_run, of_files, of_network),
    "node": (of_torch, of_disk, of_node, of_files, of_network),
    "helper": (of_disk, of_files, of_helper),
}
