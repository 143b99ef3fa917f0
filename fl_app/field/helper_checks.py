"""Checks of secure aggregation's helper: in its own folder, from the server, and on a device."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import asks_for_masks
from fl_app.field import checks
from fl_app.field.certificates import load_certificate
from fl_app.field.checks import Finding
from fl_app.field.health import ask
from fl_app.field.kit import Kit
from fl_app.secure.folder import (
    CLIENT,
    PUBLIC_KEY,
    RECORD,
    RegisteredDevices,
    fingerprint,
    load_helper_key,
    server_context,
)
from fl_app.secure.ledger import Ledger
from fl_app.secure.remote import HEALTH

CLOCK = 3600.0  # seconds between the clocks of server and helper: both check certificates [A]
ANEW = "`python -m fl_app.field helper --new` writes it, in a kit without a helper"


def of_helper(kit: Kit) -> Iterator[Finding]:
    """Check the helper's folder, on its machine.

    Args:
        kit: the folder.
    """
    folder, now = kit.folder, datetime.now(UTC)
    yield checks.check_private(folder / "helper.key")
    yield checks.check_private(folder / RECORD)
    yield from _of_record(folder)
    yield _of_devices(folder / "keys", kit.settings.get("MIN_CLIENTS", ""))
    try:
        authority = load_certificate(folder / "ca.crt")
        certificate = load_certificate(folder / "helper.crt")
    except (OSError, ValueError) as error:
        yield checks.wrong("certificate", f"{error}", "copy the helper's folder of the kit again")
    else:
        yield checks.check_dates("authority", authority, now)
        yield checks.check_dates("certificate", certificate, now)
        yield checks.check_issuer(certificate, authority)
    made = kit.settings.get("MADE", "")
    if made.isdecimal() and now.timestamp() < int(made):
        mend = "`sudo timedatectl set-ntp true`, or set the clock by hand"
        yield checks.wrong("clock", f"{now:%Y-%m-%d %H:%M}, before this kit was made", mend)


def of_servers_helper(kit: Kit, run: DictConfig) -> Iterator[Finding]:
    """Check from the server whether the run's helper can do its part.

    Args:
        kit: the server's folder.
        run: its configuration.
    """
    address = run.secure_aggregation.address if asks_for_masks(run) else None
    if address is None:
        return
    yield checks.check_private(kit.folder / f"{CLIENT}.key")
    try:
        context = server_context(kit.folder)
        before = datetime.now(UTC)
        response = ask(address, HEALTH, context)
        after = datetime.now(UTC)
        told = response.json()
        key, devices = str(told["key"]), int(told["devices"])
        least, noise = int(told["min_clients"]), float(told["noise_multiplier"])
    except OSError as error:
        yield checks.wrong("helper", f"the server's certificate for it: {error}", ANEW)
        return
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        mend = "start it (fl-helper), or correct secure_aggregation.address in OVERRIDES"
        yield checks.wrong("helper", f"{address} does not answer as a helper: {error!r}", mend)
        return
    yield checks.good("helper", f"answers at {address}")
    if "Date" in response.headers:
        middle = before + (after - before) / 2
        yield check_helper_clock(
            (middle - parsedate_to_datetime(response.headers["Date"])).total_seconds()
        )
    yield _of_key(kit.folder / PUBLIC_KEY, key)
    yield check_helper_devices(
        devices, least, OmegaConf.select(run, "algorithm.schedule.buffer_size")
    )
    yield check_helper_noise(noise, run.secure_aggregation.noise_multiplier or 0.0)


def of_helpers_key(kit: Kit) -> Iterator[Finding]:
    """Check the helper's public key on a device; a kit without a helper has none.

    Args:
        kit: the device's folder.
    """
    path = kit.folder / PUBLIC_KEY
    if path.exists():
        try:
            load_helper_key(path)
        except ValueError as error:
            yield checks.wrong("helper's key", str(error), f"copy {PUBLIC_KEY} from the kit again")
        else:
            yield checks.good("helper's key", f"in {PUBLIC_KEY}")


def check_helper_clock(ahead: float) -> Finding:
    """Check that the clocks of server and helper agree.

    Args:
        ahead: seconds by which this clock is ahead of the helper's.
    """
    text = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'} the helper's"
    if abs(ahead) > CLOCK:
        mend = "set both clocks: with a wrong one certificates seem to have expired"
        return checks.wrong("helper's clock", text, mend)
    return checks.good("helper's clock", text)


def check_helper_devices(devices: int, least: int, members: int | None) -> Finding:
    """Check that the helper can tell sums of as many devices as the run aggregates.

    Args:
        devices: number that the helper knows.
        least: T of the helper.
        members: K of the run; None if its schedule has none.
    """
    text = f"it knows {devices}, and tells sums over {least} or more"
    if devices < least:
        return checks.wrong("helper's devices", text, "put the devices' public keys into its keys/")
    if members is not None and members < least:
        mend = f"algorithm.schedule.buffer_size={least} or more in OVERRIDES"
        text = f"{text}, and the run aggregates {members}: it would refuse every sum"
        return checks.wrong("helper's devices", text, mend)
    return checks.good("helper's devices", text)


def check_helper_noise(least: float, asked: float) -> Finding:
    """Check that the run asks for the noise that the helper requires.

    Args:
        least: smallest noise multiplier that the helper accepts.
        asked: that of the run; 0 = none.
    """
    if asked < least:
        mend = f"secure_aggregation.noise_multiplier={least:g} in OVERRIDES"
        text = f"it requires {least:g}, and the run asks for {asked:g}: it would refuse every sum"
        return checks.wrong("helper's noise", text, mend)
    return checks.good("helper's noise", f"noise multiplier {asked:g}" if asked else "none")


def _of_record(folder: Path) -> Iterator[Finding]:
    try:
        ledger = Ledger(folder / RECORD)
        with closing(ledger):
            key, number = ledger.private_key.public_key(), ledger.count()
            ledger.check_writable()
    except (ValueError, sqlite3.Error) as error:
        mend = "free the disk, or make it writable for the service's user; without it no key exists"
        yield checks.wrong("record of seeds", f"{folder / RECORD}: {error}", mend)
        return
    yield checks.good("record of seeds", f"writable; {number} seeds were used")
    yield _of_key(folder / PUBLIC_KEY, fingerprint(key))


def _of_key(path: Path, expected: str) -> Finding:
    """Check that a copy of the helper's public key is that of its private key."""
    try:
        key: X25519PublicKey = load_helper_key(path)
    except ValueError as error:
        return checks.wrong("helper's key", str(error), f"copy {PUBLIC_KEY} from the kit again")
    if fingerprint(key) != expected:
        text = f"{path.name} is another helper's: no seal of the devices would open"
        return checks.wrong("helper's key", text, "give all machines folders of the same kit")
    return checks.good("helper's key", f"as in {path.name}")


def _of_devices(folder: Path, least: str) -> Finding:
    devices = RegisteredDevices(folder)
    number, faults = len(devices), devices.faults
    if faults:
        text = "; ".join(f"{path.name}: {why}" for path, why in faults.items())
        return checks.wrong("devices", text, "copy node.key.pub of the device again")
    bound = int(least) if least.isdecimal() else 2
    return check_helper_devices(number, bound, None)
