"""Examines a folder of the edge kit on its machine: what no process says of itself in its log."""

import csv
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig

from fl_app.cli import CONF, explain, refuse_dots
from fl_app.core.errors import RunError
from fl_app.field.certificates import load_certificate
from fl_app.field.control import AHEAD, BEHIND, OFFLINE_AFTER, SuperLink, public_bytes
from fl_app.field.data import of_data, of_server
from fl_app.field.findings import Finding, good, unknown, wrong
from fl_app.field.health import request, trusting
from fl_app.field.helper_checks import of_helper, of_helpers_key, of_servers_helper
from fl_app.field.kit import Kit

PROBE = "import torch; (torch.ones(8, 8) @ torch.ones(8, 8)).sum(); print(torch.__version__)"
DISK = 2**30  # bytes that are free after the installation, for data, Flower's files and runs [A]
EXPIRES_SOON = timedelta(days=30)
FLEET, CONTROL = "/v1/fleet/", "/v1/control/list-runs"
# Part of an error of a connection, and what to do.
REMEDIES = {
    "certificate verify failed": "set the clocks; copy ca.crt of the kit that the server's folder "
    "comes from; `python -m fl_app.field certificate` writes one with other names or days",
    "refused": "start it (fl-superlink, and fl-caddy before it), or correct the port",
    "timed out": "let the port through every firewall on the way, or correct the address",
    "name": "use an IP address as SUPERLINK, or add the name to /etc/hosts",
}
ELSE = "correct the address or the network; both sides of a kit use TLS, or neither"


def examine(kit: Kit, overrides: Sequence[str] = ()) -> list[Finding]:
    """Carry out every check that is possible on this machine.

    Args:
        kit: the folder.
        overrides: of the run, as after ``python -m fl_app``; () = OVERRIDES of the folder.
    """
    free = shutil.disk_usage(kit.folder).free
    text = f"{free / DISK:.1f} GiB free at {kit.folder}"
    mend = "free 1 GiB, or move the folder: Flower and runs write to it"
    disk = good("disk", text) if free >= DISK else wrong("disk", text, mend)
    if kit.role == "helper":
        return [disk, *of_files(kit), *of_helper(kit)]
    probe = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True)
    return [
        check_torch(probe.returncode, probe.stdout or probe.stderr),
        disk,
        *of_settings(kit, overrides),
        *of_files(kit),
        *of_network(kit),
    ]


def check_torch(status: int, output: str) -> Finding:
    """Check that torch can compute: a build for newer processors dies when it loads or computes.

    Args:
        status: exit status of the process that tried; negative for the signal that ended it.
        output: of that process: torch's version, or an error.
    """
    last = output.strip().splitlines()[-1] if output.strip() else "no output"
    if status < 0:
        last = f"{signal.strsignal(-status)}: every order would fail"
    if status:
        mend = "install another version of torch, with its torchvision, and ask doctor again"
        return wrong("torch", last, mend)
    return good("torch", last)


def of_settings(kit: Kit, overrides: Sequence[str] = ()) -> Iterator[Finding]:
    """Check the settings of a folder, the run in OVERRIDES, and a device's own data."""
    overrides = overrides or kit.overrides
    node = kit.role == "node"
    if node:
        yield _partition(kit)
    run = None
    if overrides or not node:
        try:
            run = _composed(overrides)
        except ValueError as error:
            mend = "correct OVERRIDES: they are the words after `python -m fl_app`"
            yield wrong("run", str(error), mend)
    if kit.data is not None:
        yield from of_data(kit.data, run)
    if node or run is None:
        return
    yield from of_server(run)
    if run.checkpoint_every is None:
        mend = "add checkpoint_every=10 to OVERRIDES"
        yield wrong("checkpoints", "none: a run that dies starts anew", mend)
    yield check_deadline(run.deadline, order_time(kit.folder / "run"))
    yield from of_servers_helper(kit, run)


def _partition(kit: Kit) -> Finding:
    """Check that a node has a valid partition, which is also its client's id."""
    words = kit.settings.get("NODE_CONFIG", "")
    if kit.data is not None and "partition-id=" not in words:
        return good("partition", "none: the server knows this device by its node id")
    pairs = dict(pair.partition("=")[::2] for pair in words.split())
    try:
        mine, all_ = int(pairs["partition-id"]), int(pairs["num-partitions"])
    except (KeyError, ValueError):
        mine, all_ = -1, 0
    if 0 <= mine < all_:
        return good("partition", f"{mine} of {all_}")
    mend = 'NODE_CONFIG="partition-id=0 num-partitions=3": another number on every device, from 0'
    return wrong("partition", f"NODE_CONFIG={words} names none", mend)


def check_deadline(deadline: float | None, order: float | None) -> Finding:
    """Check that the deadline ends lost orders, but not those of the slowest device.

    Args:
        deadline: the run's, in seconds; None if it has none.
        order: seconds from an order to its update on the slowest device; None if unknown.
    """
    if deadline is None:
        text = "none: a device that hangs occupies its place in the run for up to 12 hours"
        mend = "add deadline=600 to OVERRIDES, or a value that suits your devices"
        return wrong("deadline", text, mend)
    if order is not None and deadline < order:
        text = f"{deadline:g} s, but an order takes {order:.0f} s on the slowest device"
        mend = f"deadline={2 * order:.0f} or more: else its updates are discarded"
        return wrong("deadline", text, mend)
    if deadline < OFFLINE_AFTER:
        text = f"{deadline:g} s, and a dead node counts as online for {OFFLINE_AFTER:g} s"
        mend = f"deadline={OFFLINE_AFTER:g} or more: else the dead node gets the next order, too"
        return wrong("deadline", text, mend)
    known = (
        "the time of an order is not known" if order is None else f"an order takes {order:.0f} s"
    )
    return good("deadline", f"{deadline:g} s; {known}")


def order_time(run: Path) -> float | None:
    """Seconds from an order to its update on the slowest device; None if unknown.

    Args:
        run: folder of an earlier run, whose ``devices.csv`` has the times of orders.
    """
    try:
        with (run / "devices.csv").open(newline="", encoding="utf-8") as file:
            return max((float(row["seconds"]) for row in csv.DictReader(file)), default=None)
    except FileNotFoundError:
        return None


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


def of_files(kit: Kit) -> Iterator[Finding]:
    """Check the certificates and keys of a folder."""
    if kit.insecure:
        return
    now = datetime.now(UTC)
    own = {"server": ["server.crt"], "helper": ["helper.crt"]}.get(kit.role, [])
    for name in ("ca.crt", *own):
        try:
            certificate = load_certificate(kit.folder / name)
        except (OSError, ValueError) as error:
            yield wrong(name, str(error), "copy it from the kit again")
            continue
        begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if begins <= now < ends - EXPIRES_SOON:
            yield good(name, f"until {ends:%Y-%m-%d}")
        else:
            mend = "set the clock; `python -m fl_app.field certificate` writes another one, and a "
            mend += "new kit (`init`) another authority"
            text = f"valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, and today is {now:%Y-%m-%d}"
            yield wrong(name, text, mend)
    yield check_private(kit.folder / f"{kit.role}.key")
    if kit.role == "node":
        yield from of_helpers_key(kit)


def check_private(path: Path) -> Finding:
    """Check that a private file exists and that only its owner can read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        mend = "copy it from the kit again: the folder is not complete"
        return wrong(path.name, error.strerror or "cannot be read", mend)
    if mode & 0o077:
        return wrong(path.name, f"others may read it (mode {mode:o})", f"chmod 600 {path}")
    return good(path.name, "only its owner can read it")


def of_network(kit: Kit) -> Iterator[Finding]:
    """Check the SuperLink as this machine reaches it, and that strangers do not."""
    try:
        before = datetime.now(UTC)
        response = request(kit.address, FLEET, trusting(kit))
        after = datetime.now(UTC)
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        mend = next((mend for part, mend in REMEDIES.items() if part in str(error).lower()), ELSE)
        yield wrong("server", f"{kit.address}: {error}", mend)
        return
    if response.status_code == httpx.codes.BAD_GATEWAY:
        text = f"{kit.address} answers, and the SuperLink behind it does not"
        yield wrong("server", text, "on the server: start fl-superlink")
        return
    yield good("server", f"{kit.address} answers")
    if "Date" in response.headers:
        date = parsedate_to_datetime(response.headers["Date"])
        yield check_clock(seconds_ahead(before, after, date))
    if kit.role == "node":
        yield from of_strangers(kit, kit.address)
        return
    yield from of_strangers(kit, f"127.0.0.1:{kit.settings.get('PORT', '')}")
    try:
        known = SuperLink(kit).registered()
    except (OSError, RunError) as error:
        yield unknown("nodes", str(error))
        return
    for key in sorted((kit.folder / "keys").glob("*.pub")):
        status = known.get(public_bytes(key))
        mend = f"`python -m fl_app.field register {kit.folder} {key}`"
        yield (
            good(key.stem, f"may join; its status is {status}")
            if status
            else wrong(key.stem, "not registered: it would be refused with code 2004", mend)
        )


def of_strangers(kit: Kit, address: str) -> Iterator[Finding]:
    """Make a control call as a stranger would: with one a stranger could run code everywhere.

    Args:
        kit: the folder.
        address: host:port to which devices connect.
    """
    try:
        status = request(address, CONTROL, trusting(kit), "POST").status_code
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        yield wrong("strangers", f"{address}: {error}", "start fl-caddy: no device reaches it")
        return
    if status == httpx.codes.FORBIDDEN:
        yield good("strangers", f"{address} refuses their calls")
    elif address.startswith(("127.", "localhost:")):
        yield unknown("strangers", f"{address} is the SuperLink itself, which others do not reach")
    else:
        mend = "let it listen on loopback only, with Caddy before it (start.sh of the kit)"
        yield wrong("strangers", f"whoever reaches {address} can run code everywhere", mend)


def seconds_ahead(before: datetime, after: datetime, date: datetime) -> float:
    """The seconds by which this clock is ahead of another one, to about one second.

    Args:
        before: this machine's time before the request.
        after: this machine's time after the response.
        date: the other's time in its response, in whole seconds.
    """
    return (before - date).total_seconds() + (after - before).total_seconds() / 2 - 0.5


def check_clock(ahead: float) -> Finding:
    """Check that this clock is close enough to the server's for Flower to accept signatures.

    Args:
        ahead: seconds by which this clock is ahead of the server's.
    """
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if -BEHIND < ahead < AHEAD:
        return good("clock", text)
    mend = "`sudo timedatectl set-ntp true` on both, or set the clock by hand"
    return wrong("clock", f"{text}; Flower refuses more than {AHEAD:g} and {BEHIND:g} s", mend)
