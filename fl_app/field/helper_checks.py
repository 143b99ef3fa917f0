"""Checks of secure aggregation's helper: in its own folder, from the server, and on a device."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
from omegaconf import DictConfig, OmegaConf

from fl_app.client.build import asks_for_masks
from fl_app.field.findings import Finding, good, wrong
from fl_app.field.health import request
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


def of_helper(kit: Kit) -> Iterator[Finding]:
    """Check the record and the devices of a helper, on its machine.

    Args:
        kit: the helper's folder.
    """
    record = kit.folder / RECORD
    try:
        with closing(Ledger(record)) as ledger:
            key, number = ledger.private_key.public_key(), ledger.count()
            ledger.check_writable()
    except (ValueError, sqlite3.Error) as error:
        mend = "free the disk, or make it writable for the service's user; without it no key exists"
        yield wrong("record of seeds", f"{record}: {error}", mend)
    else:
        yield good("record of seeds", f"writable; {number} seeds were used")
        yield _of_key(kit.folder / PUBLIC_KEY, fingerprint(key))
    devices = RegisteredDevices(kit.folder / "keys")
    number = len(devices)  # reads them
    for path, why in devices.faults.items():
        yield wrong("devices", f"{path.name}: {why}", "copy node.key.pub of the device again")
    yield check_devices(number, int(kit.settings.get("MIN_CLIENTS") or 2), None)


def of_servers_helper(kit: Kit, run: DictConfig) -> Iterator[Finding]:
    """Check from the server whether the run's helper can do its part.

    Args:
        kit: the server's folder.
        run: its configuration.
    """
    address = run.secure_aggregation.address if asks_for_masks(run) else None
    if address is None:
        return
    try:
        told = request(address, HEALTH, server_context(kit.folder)).raise_for_status().json()
        key, devices, least = str(told["key"]), int(told["devices"]), int(told["min_clients"])
        noise = float(told["noise_multiplier"])
    except (OSError, httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        mend = "start it (fl-helper), or correct secure_aggregation.address in OVERRIDES"
        yield wrong("helper", f"{address} does not answer as a helper: {error!r}", mend)
        return
    yield good("helper", f"answers at {address}")
    yield _of_key(kit.folder / PUBLIC_KEY, key)
    yield check_devices(devices, least, OmegaConf.select(run, "algorithm.schedule.buffer_size"))
    asked = run.secure_aggregation.noise_multiplier or 0.0
    if asked < noise:
        mend = f"secure_aggregation.noise_multiplier={noise:g} in OVERRIDES"
        text = f"it requires {noise:g}, and the run asks for {asked:g}: it would refuse every sum"
        yield wrong("helper's noise", text, mend)


def of_helpers_key(kit: Kit) -> Iterator[Finding]:
    """Check the helper's public key on a device; a kit without a helper has none.

    Args:
        kit: the device's folder.
    """
    if (kit.folder / PUBLIC_KEY).exists():
        yield _of_key(kit.folder / PUBLIC_KEY, None)


def check_devices(devices: int, least: int, members: int | None) -> Finding:
    """Check that the helper can tell sums of as many devices as the run aggregates.

    Args:
        devices: number that the helper knows.
        least: T of the helper.
        members: K of the run; None if it is unknown.
    """
    text = f"it knows {devices}, and tells sums over {least} or more"
    if devices < least:
        return wrong("helper's devices", text, "put the devices' public keys into its keys/")
    if members is not None and members < least:
        mend = f"algorithm.schedule.buffer_size={least} or more in OVERRIDES"
        text = f"{text}, and the run aggregates {members}: it would refuse every sum"
        return wrong("helper's devices", text, mend)
    return good("helper's devices", text)


def _of_key(path: Path, expected: str | None) -> Finding:
    """Check a copy of the helper's public key; None expects any."""
    try:
        found = fingerprint(load_helper_key(path))
    except ValueError as error:
        return wrong("helper's key", str(error), f"copy {PUBLIC_KEY} from the kit again")
    if expected not in (None, found):
        text = f"{path.name} is another helper's: no seal of the devices would open"
        return wrong("helper's key", text, "give all machines folders of the same kit")
    return good("helper's key", f"in {path.name}")
