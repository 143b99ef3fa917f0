"""Registers the nodes of a new kit in the database that its SuperLink will use."""

import shutil
import sqlite3
import subprocess
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from fl_app.core.errors import RunError
from fl_app.field.control import SuperLink
from fl_app.field.health import healthy
from fl_app.field.kit import Kit
from fl_app.field.loopback import HOST, free_ports
from fl_app.field.supervise import end

LIMIT = 60.0  # seconds for the SuperLink to start


def enrol(server: Path) -> None:
    """Start the server's SuperLink on loopback, register all keys in ``keys/``, and end it.

    Args:
        server: the server's folder; receives ``state.db``.

    Raises:
        RunError: the SuperLink does not start.
    """
    kit = Kit.read(server)
    (port,) = free_ports(1)
    settings = {**kit.settings, "SUPERLINK": f"{HOST}:{port}"}
    kit = replace(kit, settings=settings)
    log = server / "superlink.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", str(server / "start.sh")],
            env=kit.environment,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until = time.monotonic() + LIMIT
        while not healthy(kit):
            if process.poll() is not None or time.monotonic() > until:
                output = log.read_text(errors="replace").strip()
                raise RunError(
                    f"the SuperLink that should register the nodes did not start\n{output}"
                )
            time.sleep(0.2)
        link = SuperLink(kit)
        for key in sorted((server / "keys").glob("*.pub")):
            link.register(key)
    finally:
        end(process)
    with closing(sqlite3.connect(server / "state.db")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # one file to copy instead of three
    log.unlink()
    shutil.rmtree(server / "flower")
