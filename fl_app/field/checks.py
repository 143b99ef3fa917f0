"""What trips federations up in the field, one function a check; all they need is handed to them.

Each returns what it found: something good, something wrong with the way to mend it, or that it
could not tell.
"""

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

PYTHON = (3, 11)
EXPIRES_SOON = timedelta(days=30)
# Seconds that Flower adds to an order, mostly to start the ClientApp's process: measured are 5 to 8
# on a desktop's core, and a board's is taken to be four times slower.
EXCHANGE = 30.0
# GiB available: a SuperNode, its SuperExec and a ClientApp that trains LeNet take 0.9, measured on
# x86-64 (docs/edge.md, "Memory and disk").
MEMORY = 1.0
DISK = 1.0  # GiB free once all is installed, for data, Flower's files and the runs' [A]
NO_INSTALLATION = "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"


class Verdict(StrEnum):
    """Of one check."""

    GOOD = "good"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found, and how to mend it."""

    subject: str
    verdict: Verdict
    text: str
    mend: str = ""


def good(subject: str, text: str) -> Finding:
    """Nothing to mend."""
    return Finding(subject, Verdict.GOOD, text)


def wrong(subject: str, text: str, mend: str) -> Finding:
    """Something that keeps the federation from working."""
    return Finding(subject, Verdict.WRONG, text, mend)


def unknown(subject: str, text: str, mend: str = "") -> Finding:
    """Something that could not be found out."""
    return Finding(subject, Verdict.UNKNOWN, text, mend)


# -- the machine ----------------------------------------------------------------------------------


def check_python(version: tuple[int, ...], bits: int) -> Finding:
    """Version and word length of the interpreter."""
    text = f"{'.'.join(map(str, version))}, {bits} bit"
    if bits < 64:
        return wrong("Python", text, "install a 64-bit system: torch has no 32-bit packages")
    if version[:2] < PYTHON:
        needed = ".".join(map(str, PYTHON))
        return wrong("Python", text, f"install Python {needed} or newer, and make .venv with it")
    return good("Python", text)


def check_flower(installed: str | None, wanted: SpecifierSet | None) -> Finding:
    """Whether the installed Flower is the one this project was written for."""
    if installed is None:
        return wrong("Flower", "not installed", "`make setup`, or install this project")
    if wanted is None:
        return unknown("Flower", f"{installed}; this project is not installed, only copied")
    if installed not in wanted:
        mend = f"pip install 'flwr{wanted}', the same on the server and all devices"
        return wrong("Flower", f"{installed}, but this project needs {wanted}", mend)
    return good("Flower", installed)


def check_server_version(mine: str | None, servers: str | None) -> Finding:
    """Whether SuperLink and device have the same Flower; None if it does not tell."""
    if servers is None:
        return unknown("Flower, server", "the SuperLink does not tell")
    if mine != servers:
        mend = "install the same version on both: they are only known to work together so"
        return wrong("Flower, server", f"{servers}, but {mine} here", mend)
    return good("Flower, server", servers)


def check_torch(status: int, said: str) -> Finding:
    """Whether torch computes something; a build for another processor may not even load.

    Args:
        status: of the process that tried; below 0 it died of that signal.
        said: by it; its version, or an error.
    """
    last = said.strip().splitlines()[-1] if said.strip() else "no output"
    if status < 0:
        mend = "install another build of torch: this one is made for another processor"
        return wrong("torch", f"dies of signal {-status} when it computes", mend)
    if status:
        return wrong("torch", last, "`make setup`, or reinstall torch as docs/edge.md shows")
    return good("torch", last)


def check_memory(available: float) -> Finding:
    """Memory in GiB that new processes can have."""
    text = f"{available:.1f} GiB available"
    if available < MEMORY:
        mend = f"free {MEMORY:g} GiB: end other programs, no desktop, or add swap (zram)"
        return wrong("memory", text, f"{mend}; else the app is killed while it trains")
    return good("memory", text)


def check_disk(free: float, where: Path) -> Finding:
    """Disk space in GiB."""
    text = f"{free:.1f} GiB free at {where}"
    if free < DISK:
        mend = f"free {DISK:g} GiB, or move the folder: Flower's files and the runs' go there"
        return wrong("disk", text, mend)
    return good("disk", text)


# -- the network ----------------------------------------------------------------------------------


def check_reachable(address: str, problem: OSError | None) -> Finding:
    """Whether somebody listens at the SuperLink's address."""
    subject = "SuperLink"
    if problem is None:
        return good(subject, f"{address} is listening")
    host = address.rpartition(":")[0]
    if isinstance(problem, ConnectionRefusedError):
        mend = "start the SuperLink (start.sh), with BIND=0.0.0.0, or correct the port"
        return wrong(subject, f"{address} refuses: nobody listens there", mend)
    if isinstance(problem, TimeoutError):
        mend = "let the port through every firewall on the way, or correct the address"
        return wrong(subject, f"{address} does not answer in time", mend)
    if "known" in str(problem) or "address associated" in str(problem):
        mend = f"use an IP address as SUPERLINK, or make the name known (/etc/hosts): {host}"
        return wrong(subject, f"nobody knows the name {host}", mend)
    return wrong(subject, f"{address}: {problem}", "correct the address or the network")


def check_port(port: int, free: bool, answers: bool) -> Finding:
    """Whether the port that is to be listened on is free, or ours already."""
    subject = f"port {port}"
    if free:
        return good(subject, "free")
    if answers:
        return good(subject, "Flower is running there")
    mend = f"`ss -ltnp 'sport = :{port}'` names the process; end it or choose another port"
    return wrong(subject, "another program listens there", mend)


def check_clock(ahead: float | None, may_lead: float, may_lag: float) -> Finding:
    """Whether Flower accepts what this machine signs.

    Args:
        ahead: seconds by which this clock is ahead of the server's; None if it does not tell.
        may_lead: seconds that it may be ahead.
        may_lag: seconds that it may be behind.
    """
    if ahead is None:
        return unknown("clock", "the SuperLink does not tell its time")
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the server's"
    if not -may_lag < ahead < may_lead:
        mend = "`sudo timedatectl set-ntp true` on both, or set the clock by hand"
        allowed = f"Flower refuses a node more than {may_lead:g} s ahead or {may_lag:g} s behind"
        return wrong("clock", f"{text}; {allowed}", mend)
    return good("clock", text if abs(ahead) >= 2 else "as the server's")


# -- certificates and keys ------------------------------------------------------------------------


def check_dates(subject: str, certificate: x509.Certificate, now: datetime) -> Finding:
    """Whether a certificate is valid today, and for some time."""
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begins:
        mend = "set this machine's clock: certificates do not come from the future"
        return wrong(subject, f"valid from {begins:%Y-%m-%d}, and today is {now:%Y-%m-%d}", mend)
    if now > ends - EXPIRES_SOON:
        mend = "`python -m fl_app.field certificate`, or for the authority, a new kit (`init`)"
        return wrong(subject, f"expires on {ends:%Y-%m-%d}", mend)
    return good(subject, f"until {ends:%Y-%m-%d}")


def check_names(certificate: x509.Certificate, host: str) -> Finding:
    """Whether the server's certificate is for the name that devices use."""
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
    """Whether the server's certificate comes from the authority that this folder trusts."""
    subject = "certificate's issuer"
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        mend = "copy ca.crt of the kit that the server's folder comes from"
        return wrong(subject, "not the authority in ca.crt", mend)
    return good(subject, "the authority in ca.crt")


def check_tls(problem: str | None, insecure: bool) -> Finding:
    """Whether both sides want TLS, or both do not.

    Args:
        problem: of looking at the server's certificate; None if there is one.
        insecure: what this folder says.
    """
    if insecure and problem is None:
        mend = "take INSECURE out of the settings and add ca.crt and node.key of the kit"
        return wrong("TLS", "the SuperLink wants it, this folder does not", mend)
    if insecure:
        return good("TLS", "off, as asked for by name: anybody can read and join in")
    if problem is not None:
        mend = "start the SuperLink with its certificate (start.sh of the kit)"
        return wrong("TLS", f"the SuperLink does not speak it ({problem})", mend)
    return good("TLS", "on")


def check_private(path: Path) -> Finding:
    """Whether a private key is there, and only its owner can read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        mend = "copy it from the kit again: the folder is not complete"
        return wrong(path.name, error.strerror or "cannot be read", mend)
    if mode & 0o077:
        return wrong(path.name, f"others may read it (mode {mode:o})", f"chmod 600 {path}")
    return good(path.name, "only its owner can read it")


def check_node_key(path: Path) -> Finding:
    """Whether Flower can use a node's private key."""
    mend = "ssh-keygen -t ecdsa -b 384 -N '' -f node.key, and `register` node.key.pub"
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, OSError) as error:
        return wrong("node's key", f"no key in OpenSSH's format without passphrase: {error}", mend)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        return wrong("node's key", "not on a NIST curve, and Flower takes no other", mend)
    return good("node's key", f"on curve {key.curve.name}")


def check_registered(name: str, key: bytes, registered: Mapping[bytes, str] | None) -> Finding:
    """Whether the SuperLink lets a key's owner join.

    Args:
        name: the node's.
        key: public, as Flower keeps it.
        registered: public keys and their nodes' status; None if the SuperLink does not tell.
    """
    subject = f"{name} registered"
    if registered is None:
        return unknown(subject, "the SuperLink does not tell")
    if key not in registered:
        mend = "`python -m fl_app.field register SERVER_FOLDER KEY.pub` on the server"
        return wrong(subject, "no: it would be refused with code 2004", mend)
    return good(subject, f"yes, and {registered[key]}")


# -- settings -------------------------------------------------------------------------------------


def check_installation(settings: Mapping[str, str]) -> Finding:
    """Whether Flower is kept from installing the app's dependencies anew for every run."""
    if settings.get(NO_INSTALLATION) != "1":
        mend = f"add {NO_INSTALLATION}=1 to the settings"
        text = "on: without a network every run fails (exit 608), with one it starts late"
        return wrong("Flower's installations", text, mend)
    return good("Flower's installations", "off, all is installed already")


def check_partition(node_config: str) -> Finding:
    """Whether a node knows whose data it has."""
    pairs = dict(pair.partition("=")[::2] for pair in node_config.split())
    mend = 'NODE_CONFIG="partition-id=0 num-partitions=3": another number on every device, from 0'
    try:
        mine, all_ = int(pairs["partition-id"]), int(pairs["num-partitions"])
    except (KeyError, ValueError):
        return wrong("partition", f"NODE_CONFIG={node_config} does not tell", mend)
    if not 0 <= mine < all_:
        return wrong("partition", f"partition {mine} of {all_} does not exist", mend)
    return good("partition", f"{mine} of {all_}")


def check_checkpoints(every: int | None) -> Finding:
    """Whether a run that dies goes on where it was.

    Args:
        every: versions between checkpoints; None if there are none.
    """
    if every is None:
        mend = "add checkpoint_every=10 to OVERRIDES"
        return wrong("checkpoints", "none: a run that dies starts anew", mend)
    return good("checkpoints", f"every {every} versions")


def check_deadline(deadline: float | None, order_time: float | None) -> Finding:
    """Whether orders that get lost are given up, and others are not.

    Args:
        deadline: of the run, seconds; None if it has none.
        order_time: seconds from an order to its update on the slowest device; None if unknown.
    """
    if deadline is None:
        text = "none: a device that hangs keeps its place in the run, for up to 12 hours"
        return wrong("deadline", text, "add deadline=600 to OVERRIDES, or what suits your devices")
    if order_time is None:
        mend = "--training-time SECONDS, of the slowest device"
        return unknown("deadline", f"{deadline:g} s, and no training time to compare", mend)
    if deadline < order_time:
        text = f"{deadline:g} s, but an order takes {order_time:.0f} s on the slowest device"
        mend = f"deadline={2 * order_time:.0f} or more: else all its work is thrown away"
        return wrong("deadline", text, mend)
    return good("deadline", f"{deadline:g} s; an order takes up to {order_time:.0f} s")


def check_heartbeat(deadline: float | None, offline_after: float) -> Finding:
    """Whether a node that died counts as offline before its order is given up.

    Args:
        deadline: of the run, seconds; None if it has none.
        offline_after: seconds without heartbeat after which a node counts as offline.
    """
    text = f"a dead node counts as online for {offline_after:g} s"
    if deadline is not None and deadline < offline_after:
        mend = f"deadline={offline_after:g} or more: else it is given the next order, too"
        return wrong("heartbeat", f"{text}, longer than deadline={deadline:g}", mend)
    return good("heartbeat", text)
