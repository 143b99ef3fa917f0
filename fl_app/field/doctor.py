"""Examines a folder of the edge kit on its machine, for problems that no process logs."""

import getpass
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple, TypeAlias

import httpx
import psutil
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from omegaconf import DictConfig
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fl_app.cli import compose
from fl_app.core.errors import RunError
from fl_app.field.control import (
    AHEAD,
    BEHIND,
    FOREIGN,
    NO_TLS,
    OFFLINE_AFTER,
    SuperLink,
    public_bytes,
)
from fl_app.field.kit import UNREACHED, Kit, request
from fl_app.field.packages import PROBE
from fl_app.runner.validate import check_settings, validate_config

SHOWN = {True: "[green]ok[/]", False: "[red]WRONG[/]", None: "?"}
DISK = 2**30  # bytes that are free after the installation, for data, Flower's files and runs [A]
EXPIRES_SOON = timedelta(days=30)
HIDDEN = (Path("/tmp"), Path("/var/tmp"))  # by PrivateTmp of fl-supernode.service
NODE_KEYS = ("partition-id", "num-partitions", "state-dir", "data")  # of NODE_CONFIG
FLEET, CONTROL = "/v1/fleet/", "/v1/control/list-runs"
# Part of an error of a connection, and what to do.
REMEDIES = {
    NO_TLS.lower(): FOREIGN,
    "certificate verify failed": "set the clocks; copy ca.crt of the kit that the server's folder "
    "comes from; `python -m fl_app.field certificate` writes one with other names",
    "refused": "start it (fl-superlink, and fl-caddy before it), or correct the port",
    "timed out": "let the port through every firewall on the way, or correct the address",
    "name": "use an IP address as SUPERLINK, or add the name to /etc/hosts",
    "": "correct the address or the network; both sides of a kit use TLS, or neither",
}


class Finding(NamedTuple):
    """The result of one check.

    Attributes:
        subject: what was checked.
        good: the verdict; None = unknown.
        text: what was found.
        mend: how to mend it, if it is not good.
    """

    subject: str
    good: bool | None
    text: str
    mend: str = ""


Check: TypeAlias = Callable[[Kit, DictConfig | None], Iterator[Finding]]


def examine(kit: Kit, overrides: Sequence[str] = ()) -> list[Finding]:
    """Carry out every check that is possible on this machine.

    Args:
        kit: the folder.
        overrides: of the run, as after ``python -m fl_app``; () = OVERRIDES of the folder.
    """
    words, run, findings = [*(overrides or kit.overrides)], None, []
    if words or kit.role == "server":
        if not any(word.startswith("runtime=") for word in words):
            words.append("runtime=deployment")
        check = validate_config if kit.role == "server" else check_settings
        try:
            config = compose(words)
            with chdir(kit.folder):  # where the SuperLink looks for files
                check(config)
            run = config
        except ValueError as error:
            mend = "correct OVERRIDES: words after `python -m fl_app`"
            findings.append(Finding("run", False, str(error), mend))
    return findings + [finding for check in CHECKS[kit.role] for finding in check(kit, run)]


def show(findings: Sequence[Finding]) -> int:
    """Print a table of findings; return 1 if one of them is wrong, else 0."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("", "checked", "found", "how to mend it"):
        table.add_column(column, overflow="fold")
    for subject, good, text, mend in findings:
        table.add_row(SHOWN[good], *map(escape, (subject, text, "" if good else mend)))
    Console().print(table)
    count = sum(finding.good is False for finding in findings)
    print(f"{count or 'nothing'} wrong")
    return 1 if count else 0


# -- this machine ----------------------------------------------------------------------------------


def of_torch(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """Whether torch can compute: a build for newer processors dies when it loads or computes."""
    process = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    text = ["no output", *(process.stdout or process.stderr).splitlines()][-1]
    if process.returncode < 0:
        text = f"{signal.strsignal(-process.returncode)}: every order would fail"
    mend = "install another version of torch, with its torchvision, and ask doctor again"
    yield Finding("torch", process.returncode == 0, text, mend)


def of_disk(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """Whether there is room for what Flower and runs write."""
    free = shutil.disk_usage(kit.folder).free
    text = f"{free / DISK:.1f} GiB free at {kit.folder}"
    mend = "free 1 GiB, or move the folder: Flower and runs write to it"
    yield Finding("disk", free >= DISK, text, mend)


def of_ports(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """Whether other programs hold the ports of the SuperNode, or of the SuperLink and Caddy."""
    ports = [kit.settings["PORT"]]
    if kit.role == "server":
        ports.append(kit.address.rpartition(":")[2])
    for port in map(int, ports):
        try:
            homes = [
                c.pid and psutil.Process(c.pid).environ().get("FLWR_HOME")
                for c in psutil.net_connections("tcp")
                if c.status == psutil.CONN_LISTEN and c.laddr.port == port
            ]
        except psutil.Error as error:  # the process has ended, or is another user's
            mend = "ask doctor again, as root if need be"
            yield Finding(f"port {port}", None, f"nobody can tell who holds it: {error}", mend)
            continue
        free = {*homes} <= {str(kit.folder / "flower")}
        text = "nobody else's" if free else "another program holds it: ours cannot start"
        mend = (
            f"another port in {kit.role}.env; `sudo ss -ltnp 'sport = :{port}'` names the program"
        )
        yield Finding(f"port {port}", free, text, mend)


def of_files(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """The certificates and keys of a folder."""
    now = datetime.now(UTC)
    copy_again = "copy it from the kit again: the folder is not complete"
    for name in ("ca.crt", *([] if kit.role == "node" else [f"{kit.role}.crt"])):
        try:
            certificate = x509.load_pem_x509_certificate((kit.folder / name).read_bytes())
        except (OSError, ValueError) as error:
            yield Finding(name, False, str(error), copy_again)
            continue
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        text = f"valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, and today is {now:%Y-%m-%d}"
        mend = "set the clock; `python -m fl_app.field certificate` writes another one, and a new "
        mend += "kit (`init`) another authority"
        yield Finding(name, begins <= now < ends - EXPIRES_SOON, text, mend)
    path = kit.folder / f"{kit.role}.key"
    if not path.exists():
        yield Finding(path.name, False, "it is not there", copy_again)
        return
    mode = stat.S_IMODE(path.stat().st_mode)
    yield Finding(path.name, not mode & 0o077, f"its mode is {mode:o}", f"chmod 600 {path}")
    if kit.role == "node" and not _is_key(path):
        mend = "`ssh-keygen -t ecdsa`, and register its public key on the server"
        yield Finding("key", False, f"{path.name} holds none on a NIST curve", mend)


def _is_key(path: Path) -> bool:
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm):
        return False
    return isinstance(key, ec.EllipticCurvePrivateKey)


# -- the run ---------------------------------------------------------------------------------------


def of_run(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """The run of a server: settings that would make it start over, or lose orders."""
    if run is None:
        return
    if run.client_eval_every is None and run.task.get("path", "") is None:
        mend = "add client_eval_every=10 task.holdout=0.1 to OVERRIDES, or task.path=TABLE"
        yield Finding("scores", False, "none: no version is evaluated", mend)
    if run.checkpoint_every is None:
        mend = "add checkpoint_every=10 to OVERRIDES"
        yield Finding("checkpoints", False, "none: a run that dies starts anew", mend)
    if run.deadline is None:
        text = "none: a device that hangs occupies its place in the run for up to 12 hours"
        mend = "add deadline=600 to OVERRIDES, or a value that suits your devices"
        yield Finding("deadline", False, text, mend)
        return
    text = f"{run.deadline:g} s; a dead node is online for {OFFLINE_AFTER:g} s"
    mend = f"deadline={OFFLINE_AFTER:.0f} or more: else dead nodes get orders"
    yield Finding("deadline", run.deadline >= OFFLINE_AFTER, text, mend)


# -- a device and its data -------------------------------------------------------------------------


def of_node(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """The partition of a device, which is its client id, and its own data."""
    words = kit.settings.get("NODE_CONFIG", "")
    try:
        pairs = dict(pair.partition("=")[::2] for pair in shlex.split(words))
    except ValueError as error:  # a quote that is not closed
        yield Finding("partition", False, f"NODE_CONFIG={words}: {error}", "close the quote")
        return
    if unknown := ", ".join(key for key in pairs if key not in NODE_KEYS):
        mend = f"correct NODE_CONFIG: its keys are {', '.join(NODE_KEYS)}"
        yield Finding("settings", False, f"nothing reads {unknown}", mend)
    if (warm := kit.settings.get("WARM") or "1") not in ("1", "0"):
        mend = 'WARM="1" or WARM="0" in node.env'
        yield Finding("settings", False, f"WARM={warm}: the SuperNode cannot start", mend)
    if kit.data is not None and "partition-id" not in pairs:
        yield Finding("partition", True, "none: the server knows this device by its node id")
    else:
        number, total = (pairs.get(key, "") for key in ("partition-id", "num-partitions"))
        good = number.isdecimal() and (
            kit.data is not None or (total.isdecimal() and int(number) < int(total))
        )
        mend = 'NODE_CONFIG="partition-id=0 num-partitions=3": another number on every device, '
        yield Finding("partition", good, f"NODE_CONFIG={words}", f"{mend}from 0")
    if folder := pairs.get("state-dir"):
        good = os.access(folder, os.W_OK | os.X_OK)
        text = folder if good else f"{folder} does not exist, or may not be written"
        mend = "make it for the user of the SuperNode: state would be lost, or orders fail"
        yield Finding("state-dir", good, text, mend)
    if kit.data is not None:
        yield from of_data(kit.data, run)
    elif run is not None and "data" not in pairs and run.task.get("path", "") is None:
        mend = "give DATA in node.env the path of this device's data: its orders would fail"
        yield Finding("data", False, "DATA is empty, and the run reads the devices' own data", mend)


def of_data(path: str, run: DictConfig | None) -> Iterator[Finding]:
    """Whether a device's own data can be read, and fit a run.

    Args:
        path: of the data.
        run: configuration of the run that is to read them; None if it is unknown.
    """
    is_absolute = os.path.isabs(path) and "'" not in path
    if not is_absolute or not os.access(path, os.R_OK):
        reason = "does not exist, or may not be read"
        if not is_absolute:
            reason = "is no absolute path, or has a quote in it"
        user = getpass.getuser()
        mend = f"correct DATA in node.env, or let user {user}, who runs this, read it; "
        mend += "in a container, `docker compose --env-file node.env up -d` mounts it"
        yield Finding("data", False, f"{path} {reason}", mend)
        return
    hidden = any(Path(path).is_relative_to(folder) for folder in HIDDEN)
    mend = "move them, if systemd starts this SuperNode: its service has a /tmp of its own"
    yield Finding("data", None if hidden else True, path, mend)
    if run is None:
        mend = "add the run's words: doctor FOLDER task=csv task.schema=FILE"
        yield Finding("examples", None, "the run that is to read the data is not given", mend)
        return
    # Imported here, because torch takes seconds to import, and may not even be there.
    from fl_app.client.build import build_task
    from fl_app.client.node_data import too_few
    from fl_app.tasks.table import unusual

    mend = "correct the data, or the task and its schema: the node's orders would fail"
    try:
        task = build_task(run, path)
    except Exception as error:  # libraries that read data raise errors of any type
        yield Finding("examples", False, str(error), mend)
        return
    num_kept = task.validation[0].size if task.validation else 0
    text = f"{task.partition[0].size} to train on, {num_kept} kept for validation"
    problem = too_few(task)
    yield Finding("examples", not problem, f"too few: {problem}" if problem else text, mend)
    mend = "convert the column if it has other units here, or correct its values"
    examples = task.inputs.numpy(), task.targets.numpy()
    for note in unusual(task.schema, *examples) if task.schema else ():
        yield Finding("units", None, note, mend)


# -- the network -----------------------------------------------------------------------------------


def of_network(kit: Kit, run: DictConfig | None) -> Iterator[Finding]:
    """Whether this machine reaches the SuperLink, nodes are online, and strangers are refused."""
    try:
        before = datetime.now(UTC)
        response = request(kit.address, FLEET, kit.trusting())
        after = datetime.now(UTC)
    except UNREACHED as error:
        mend = next(mend for part, mend in REMEDIES.items() if part in str(error).lower())
        mend = mend.format(port=kit.address.rpartition(":")[2])
        yield Finding("server", False, f"{kit.address}: {error}", mend)
        return
    if response.status_code == httpx.codes.BAD_GATEWAY:
        text = f"{kit.address} answers, and the SuperLink behind it does not"
        yield Finding("server", False, text, "on the server: start fl-superlink")
        return
    yield Finding("server", True, f"{kit.address} answers")
    if "Date" in response.headers:
        yield of_clock(before, after, parsedate_to_datetime(response.headers["Date"]))
    yield _strangers(kit)
    if kit.role == "server":
        yield from _nodes(kit)


def _nodes(kit: Kit) -> Iterator[Finding]:
    """Whether the nodes whose keys the server has are registered and online."""
    try:
        statuses = SuperLink(kit).registered()
        for key in sorted((kit.folder / "keys").glob("*.pub")):
            status = statuses.get(public_bytes(key))
            text = status or "not registered: it is refused with code 2004"
            mend = "if it should be online: start fl-supernode there, or run its doctor"
            if status is None:
                mend = f"`python -m fl_app.field register {kit.folder} {key}`"
            yield Finding(key.stem, {None: False, "online": True}.get(status), text, mend)
    except (OSError, RunError) as error:
        yield Finding("nodes", None, str(error))
    except ValueError as error:  # a file that holds no key
        yield Finding("nodes", False, str(error))


def _strangers(kit: Kit) -> Finding:
    """Make a control call as a stranger would; if accepted, strangers could run code everywhere."""
    address = kit.address
    if kit.role == "server":  # strangers reach Caddy
        address = f"127.0.0.1:{kit.settings['PORT']}"
    try:
        status = request(address, CONTROL, kit.trusting(), "POST").status_code
    except UNREACHED as error:
        mend = "start fl-caddy: no device reaches it"
        return Finding("strangers", False, f"{address}: {error}", mend)
    if status == httpx.codes.FORBIDDEN:
        return Finding("strangers", True, f"{address} refuses their calls")
    if address.startswith(("127.", "localhost:")):
        text = f"{address} is the SuperLink itself, which others do not reach"
        return Finding("strangers", None, text)
    mend = "let it listen on loopback only, with Caddy before it (start.sh of the kit)"
    text = f"whoever reaches {address} can run code everywhere"
    return Finding("strangers", False, text, mend)


def of_clock(before: datetime, after: datetime, date: datetime) -> Finding:
    """Whether this clock is close enough to the server's for Flower to accept signatures.

    Args:
        before: this machine's time before a request.
        after: this machine's time after the response.
        date: the server's time in its response, in whole seconds.
    """
    ahead = (before - date).total_seconds() + (after - before).total_seconds() / 2 - 0.5
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's; "
    text += f"Flower refuses {AHEAD:g} s ahead and {BEHIND:g} s behind"
    mend = "`sudo timedatectl set-ntp true` on both, or set the clock by hand"
    return Finding("clock", -BEHIND < ahead < AHEAD, text, mend)


CHECKS: dict[str, tuple[Check, ...]] = {
    "server": (of_torch, of_disk, of_ports, of_run, of_files, of_network),
    "node": (of_torch, of_disk, of_ports, of_node, of_files, of_network),
    "helper": (of_disk, of_files),
}
