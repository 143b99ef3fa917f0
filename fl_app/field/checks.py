"""Checks for the usual faults of federations in the field, one function each.

A check takes values and returns a `Finding`: good, wrong (with a remedy), or unknown.
"""

import signal
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from packaging.specifiers import SpecifierSet

from fl_app.node.warm import VARIABLE, wanted

PYTHON = (3, 11)
EXPIRES_SOON = timedelta(days=30)
# Seconds that Flower adds to an order, mostly to start the ClientApp's process. Measured: 5 to 8 on
# a desktop's core. Assumed: a board's core is four times slower.
EXCHANGE = 30.0
MIB = 2**20
MEMORY = 450  # MiB for a node's processes [A]
DISK = 1.0  # GiB free after the installation, for data, Flower's files and those of runs [A]
NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"


class Verdict(StrEnum):
    """The verdict of one check."""

    GOOD = "good"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and how to mend what is wrong."""

    subject: str
    verdict: Verdict
    text: str
    mend: str = ""


def good(subject: str, text: str) -> Finding:
    """Return a finding that needs no action."""
    return Finding(subject, Verdict.GOOD, text)


def wrong(subject: str, text: str, mend: str) -> Finding:
    """Return a finding that keeps the federation from working, with its remedy."""
    return Finding(subject, Verdict.WRONG, text, mend)


def unknown(subject: str, text: str, mend: str = "") -> Finding:
    """Return a finding of something that could not be determined."""
    return Finding(subject, Verdict.UNKNOWN, text, mend)


# -- the machine ----------------------------------------------------------------------------------


def check_python(version: tuple[int, ...], bits: int) -> Finding:
    """Check version and word length of the interpreter."""
    text = f"{'.'.join(map(str, version))}, {bits} bit"
    if bits < 64:
        return wrong("Python", text, "install a 64-bit system: torch has no 32-bit packages")
    if version[:2] < PYTHON:
        needed = ".".join(map(str, PYTHON))
        return wrong("Python", text, f"install Python {needed} or newer, and make .venv with it")
    return good("Python", text)


def check_flower(installed: str | None, wanted: SpecifierSet | None) -> Finding:
    """Check that this project supports the installed version of Flower."""
    if installed is None:
        return wrong("Flower", "not installed", "`make setup`, or install this project")
    if wanted is None:
        return unknown("Flower", f"{installed}; this project is not installed, only copied")
    if installed not in wanted:
        mend = f"pip install 'flwr{wanted}', the same on the server and all devices"
        return wrong("Flower", f"{installed}, but this project needs {wanted}", mend)
    return good("Flower", installed)


def check_server_version(mine: str | None, servers: str | None) -> Finding:
    """Check that SuperLink and device have the same version of Flower; None if unknown."""
    if servers is None:
        return unknown("Flower, server", "the SuperLink does not report it")
    if mine != servers:
        mend = "install the same version on both: no other combination is tested"
        return wrong("Flower, server", f"{servers}, but {mine} here", mend)
    return good("Flower, server", servers)


def check_torch(status: int, output: str) -> Finding:
    """Check that torch can compute: a build for newer processors dies when it loads or computes.

    Args:
        status: exit status of the process that tried; negative for the signal that ended it.
        output: output of that process: torch's version, or an error.
    """
    last = output.strip().splitlines()[-1] if output.strip() else "no output"
    if status == -signal.SIGILL:
        text = "Illegal instruction: it has instructions that this processor lacks"
        mend = "install another version of torch, with its torchvision, and ask doctor again"
        return wrong("torch", f"{text}; every order would fail", mend)
    if status < 0:
        name = signal.strsignal(-status) or "unknown"
        mend = "reinstall torch, or install another version of it"
        return wrong("torch", f"dies of signal {-status} ({name}) when it computes", mend)
    if status:
        return wrong("torch", last, "`make setup`, or reinstall torch as docs/edge.md shows")
    return good("torch", last)


def check_memory(available: int) -> Finding:
    """Check the bytes of memory that are available to a node's processes."""
    text = f"{available // MIB} MiB available"
    if available < MEMORY * MIB:
        mend = f"free {MEMORY} MiB: end other programs and the desktop, or add swap (zram)"
        return wrong("memory", text, f"{mend}; else the system kills the app while it trains")
    return good("memory", text)


def check_disk(free: float, where: Path) -> Finding:
    """Check the free disk space in GiB."""
    text = f"{free:.1f} GiB free at {where}"
    if free < DISK:
        mend = f"free {DISK:g} GiB, or move the folder: Flower and runs write to it"
        return wrong("disk", text, mend)
    return good("disk", text)


# -- the network ----------------------------------------------------------------------------------


def check_reachable(address: str, problem: OSError | None) -> Finding:
    """Check that a program listens at the SuperLink's address."""
    subject = "SuperLink"
    if problem is None:
        return good(subject, f"{address} is listening")
    host = address.rpartition(":")[0]
    if isinstance(problem, ConnectionRefusedError):
        mend = "start the SuperLink (start.sh), with BIND=0.0.0.0, or correct the port"
        return wrong(subject, f"{address} refuses: no program listens there", mend)
    if isinstance(problem, TimeoutError):
        mend = "let the port through every firewall on the way, or correct the address"
        return wrong(subject, f"{address} does not answer in time", mend)
    if "known" in str(problem) or "address associated" in str(problem):
        mend = f"use an IP address as SUPERLINK, or add the name to /etc/hosts: {host}"
        return wrong(subject, f"the name {host} is unknown", mend)
    return wrong(subject, f"{address}: {problem}", "correct the address or the network")


def check_port(port: int, free: bool, answers: bool, other: str | None = "") -> Finding:
    """Check that the port to listen on is free, or that this folder's process listens on it.

    Args:
        port: to listen on.
        free: whether nobody listens there.
        answers: whether it answers as this folder's process would.
        other: who else listens there, in words; "" = nobody; None = unknown.
    """
    subject = f"port {port}"
    if free:
        return good(subject, "free")
    mend = f"`ss -ltnp 'sport = :{port}'` names the process; end it or choose another port"
    if other or not answers:
        return wrong(subject, f"{other or 'another program'} listens there", mend)
    if other is None:
        mend = "run doctor as root, or as the user whose process it is"
        return unknown(
            subject, "Flower is running there; whether from this folder is unknown", mend
        )
    return good(subject, "Flower is running there")


def check_state_dir(folder: Path, problem: OSError | None) -> Finding:
    """Check that a device can keep its client's state in the folder that its settings name.

    Args:
        folder: that they name.
        problem: error on writing a file there; None if there was none.
    """
    if problem is None:
        return good("state-dir", str(folder))
    mend = "make it, for the user of the SuperNode, or mount its disk; under systemd also name it "
    mend += "in ReadWritePaths of fl-supernode.service"
    text = (
        f"{folder} cannot be written to ({problem.strerror}): orders would fail, or state be lost"
    )
    return wrong("state-dir", text, mend)


def check_clock(ahead: float | None, may_lead: float, may_lag: float) -> Finding:
    """Check that this clock is close enough to the server's for Flower to accept signatures.

    Args:
        ahead: seconds by which this clock is ahead of the server's; None if unknown.
        may_lead: seconds by which this clock may be ahead.
        may_lag: seconds by which this clock may be behind.
    """
    if ahead is None:
        return unknown("clock", "the SuperLink does not report its time")
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if not -may_lag < ahead < may_lead:
        mend = "`sudo timedatectl set-ntp true` on both, or set the clock by hand"
        allowed = f"Flower refuses a node more than {may_lead:g} s ahead or {may_lag:g} s behind"
        return wrong("clock", f"{text}; {allowed}", mend)
    return good("clock", text if abs(ahead) >= 2 else "as the server's")


def check_closed(address: str, status: int | None, opened: bool) -> Finding:
    """Check that a stranger at the port cannot submit a run.

    Args:
        address: host:port at which a control call was tried, as a stranger would.
        status: of the answer; None if nobody listens there.
        opened: whether the server's settings open the port to everybody.
    """
    subject = "strangers"
    if status is None:
        return good(subject, f"nobody listens at {address}")
    if status in (401, 403):
        return good(subject, f"{address} is closed to them: it refuses control calls")
    text = f"{address} is open: whoever reaches it can run code on the server and on all devices"
    if opened:
        return unknown(
            subject, f"{text}, as CONTROL says", 'CONTROL="local" in server.env closes it'
        )
    mend = 'CONTROL="local" in server.env'
    return wrong(subject, text, f"{mend}; then restart the SuperLink")


# -- certificates and keys ------------------------------------------------------------------------


def check_dates(subject: str, certificate: x509.Certificate, now: datetime) -> Finding:
    """Check that a certificate is valid now and for at least 30 days."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        mend = "set this machine's clock: by it, the certificate is not valid yet"
        return wrong(subject, f"valid from {begins:%Y-%m-%d}, and today is {now:%Y-%m-%d}", mend)
    if now > ends - EXPIRES_SOON:
        mend = "`python -m fl_app.field certificate`; for the authority, a new kit (`init`)"
        return wrong(subject, f"expires on {ends:%Y-%m-%d}", mend)
    return good(subject, f"until {ends:%Y-%m-%d}")


def check_names(certificate: x509.Certificate, host: str) -> Finding:
    """Check that the server's certificate holds the name that devices use."""
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    names = extension.get_values_for_type(x509.DNSName)
    addresses = extension.get_values_for_type(x509.IPAddress)
    try:
        known = ip_address(host) in addresses
    except ValueError:
        known = host.lower() in (name.lower() for name in names)
    if not known:
        listed = ", ".join([*names, *map(str, addresses)])
        mend = f"`python -m fl_app.field certificate --host {host} ca/ new/`, or one of its names"
        return wrong("certificate's names", f"it is for {listed}, not for {host}", mend)
    return good("certificate's names", f"it is for {host}")


def check_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> Finding:
    """Check that the authority that this folder trusts signed the server's certificate."""
    subject = "certificate's issuer"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        mend = "copy ca.crt of the kit that the server's folder comes from"
        return wrong(subject, "not the authority in ca.crt", mend)
    return good(subject, "the authority in ca.crt")


def check_tls(problem: str | None, insecure: bool) -> Finding:
    """Check that both sides use TLS, or that neither does.

    Args:
        problem: error on reading the server's certificate; None if there was none.
        insecure: whether this folder's settings turn TLS off.
    """
    if insecure and problem is None:
        mend = "take INSECURE out of the settings and add ca.crt and node.key of the kit"
        return wrong("TLS", "the SuperLink uses it, this folder does not", mend)
    if insecure:
        return good("TLS", "off, as the settings say: anybody can read all messages and join")
    if problem is not None:
        mend = "start the SuperLink with its certificate (start.sh of the kit)"
        return wrong("TLS", f"the SuperLink does not use it ({problem})", mend)
    return good("TLS", "on")


def check_private(path: Path) -> Finding:
    """Check that a private key exists and that only its owner can read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        mend = "copy it from the kit again: the folder is not complete"
        return wrong(path.name, error.strerror or "cannot be read", mend)
    if mode & 0o077:
        return wrong(path.name, f"others may read it (mode {mode:o})", f"chmod 600 {path}")
    return good(path.name, "only its owner can read it")


def check_node_key(path: Path) -> Finding:
    """Check that Flower can use a node's private key."""
    mend = "ssh-keygen -t ecdsa -b 384 -N '' -f node.key, and `register` node.key.pub"
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, OSError) as error:
        return wrong("node's key", f"no key in OpenSSH's format without passphrase: {error}", mend)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return wrong("node's key", "not on a NIST curve, and Flower takes no other", mend)
    return good("node's key", f"on curve {key.curve.name}")


def check_registered(name: str, key: bytes, registered: Mapping[bytes, str] | None) -> Finding:
    """Check that the SuperLink lets the node with this key join.

    Args:
        name: name of the node.
        key: the public key's bytes as Flower stores them.
        registered: status of each registered node by its public key; None if unknown.
    """
    subject = f"{name} registered"
    if registered is None:
        return unknown(subject, "the SuperLink does not report it")
    if key not in registered:
        mend = "`python -m fl_app.field register SERVER_FOLDER KEY.pub` on the server"
        return wrong(subject, "no: the SuperLink would refuse it with code 2004", mend)
    return good(subject, f"yes, and {registered[key]}")


# -- settings -------------------------------------------------------------------------------------


def check_installation(settings: Mapping[str, str]) -> Finding:
    """Check that Flower does not install the app's dependencies again for every run."""
    if settings.get(NO_INSTALLATION) != "1":
        mend = f"add {NO_INSTALLATION}=1 to the settings"
        text = "on: without a network every run fails (exit 608), with one it starts late"
        return wrong("Flower's installations", text, mend)
    return good("Flower's installations", "off: the dependencies are installed already")


def check_warm(value: str, differs: str) -> Finding:
    """Check that a node keeps a process between two orders.

    Args:
        value: of WARM in its settings.
        differs: how this Flower differs from one with which that was tried; "" = it does not.
    """
    subject = "warm node"
    try:
        if not wanted({VARIABLE: value}):
            return good(subject, "WARM=0: a process starts for each order, as in Flower")
    except ValueError as error:
        return wrong(subject, str(error), 'WARM="1" in node.env: the node does not start')
    if differs:
        return unknown(subject, f"off: {differs}", "orders take seconds longer")
    return good(subject, "a process stays between two orders")


def check_partition(node_config: str, owns_data: bool) -> Finding:
    """Check that a node has a valid partition of the data.

    Args:
        node_config: NODE_CONFIG of its settings.
        owns_data: whether it has data of its own; its partition then is only its client id.
    """
    if owns_data and "partition-id=" not in node_config:
        return good("partition", "none: the server knows this device by its node id")
    pairs = dict(pair.partition("=")[::2] for pair in node_config.split())
    mend = 'NODE_CONFIG="partition-id=0 num-partitions=3": another number on every device, from 0'
    try:
        mine, all_ = int(pairs["partition-id"]), int(pairs["num-partitions"])
    except (KeyError, ValueError):
        return wrong("partition", f"NODE_CONFIG={node_config} does not name it", mend)
    if not 0 <= mine < all_:
        return wrong("partition", f"partition {mine} of {all_} does not exist", mend)
    return good("partition", f"{mine} of {all_}")


def check_checkpoints(every: int | None) -> Finding:
    """Check that a run that dies can be resumed from a checkpoint.

    Args:
        every: versions between checkpoints; None if the run writes none.
    """
    if every is None:
        mend = "add checkpoint_every=10 to OVERRIDES"
        return wrong("checkpoints", "none: a run that dies starts anew", mend)
    return good("checkpoints", f"every {every} versions")


def check_bench(benched: Mapping[int, str]) -> Finding:
    """Tell which clients of the server's run get no order any more.

    Args:
        benched: client -> why.
    """
    if not benched:
        return good("bench", "no client is benched")
    told = "; ".join(f"client {client}: {reason}" for client, reason in sorted(benched.items()))
    mend = "look at these devices; guard.bench_after bounds what one may send in vain"
    return unknown("bench", f"{len(benched)} clients get no order any more: {told}", mend)


def check_deadline(deadline: float | None, order_time: float | None) -> Finding:
    """Check that the deadline ends lost orders, but not those of the slowest device.

    Args:
        deadline: the run's, in seconds; None if it has none.
        order_time: seconds from an order to its update on the slowest device; None if unknown.
    """
    if deadline is None:
        text = "none: a device that hangs occupies its place in the run for up to 12 hours"
        mend = "add deadline=600 to OVERRIDES, or a value that suits your devices"
        return wrong("deadline", text, mend)
    if order_time is None:
        mend = "--training-time SECONDS, of the slowest device"
        return unknown("deadline", f"{deadline:g} s, but the training time is unknown", mend)
    if deadline < order_time:
        text = f"{deadline:g} s, but an order takes {order_time:.0f} s on the slowest device"
        mend = f"deadline={2 * order_time:.0f} or more: else its updates are discarded"
        return wrong("deadline", text, mend)
    return good("deadline", f"{deadline:g} s; an order takes up to {order_time:.0f} s")


def check_heartbeat(deadline: float | None, offline_after: float) -> Finding:
    """Check that a node that died counts as offline before the deadline of its order.

    Args:
        deadline: the run's, in seconds; None if it has none.
        offline_after: seconds without heartbeat after which a node counts as offline.
    """
    text = f"a dead node counts as online for {offline_after:g} s"
    if deadline is not None and deadline < offline_after:
        mend = f"deadline={offline_after:g} or more: else the dead node gets the next order, too"
        return wrong("heartbeat", f"{text}, longer than deadline={deadline:g}", mend)
    return good("heartbeat", text)
