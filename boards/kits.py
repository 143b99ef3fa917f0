"""Kits that the parts try: made, changed as a person edits them, and what a run came to."""

import json
import sys
from pathlib import Path

from boards.commands import ask
from boards.podman import PROJECT, Container
from boards.row import Disappointed
from fl_app.core.events import Arrived, Event
from fl_app.record.log import read_events

UID = 1000  # the images' user, who owns the folders
HOME = "/opt/fl-app"  # where install.sh puts folders and environment
PYTHON = f"{HOME}/.venv/bin/python"
# How many nodes are online; the SuperLink may not listen yet.
ONLINE = """
import sys
from pathlib import Path
from fl_app.field.control import SuperLink, Unreachable
from fl_app.field.kit import Kit
try:
    print(SuperLink(Kit.read(Path(sys.argv[1]))).online())
except Unreachable:
    print(0)
"""


def make_kit(out: Path, host: str, *words: str, nodes: int) -> None:
    """Write a kit with the project's command.

    Args:
        out: new folder.
        host: name of the server.
        words: further options of ``init``.
        nodes: number of devices.
    """
    command = [sys.executable, "-m", "fl_app.field", "init", f"--nodes={nodes}"]
    ask([*command, f"--host={host}", *words, str(out)], cwd=PROJECT, seconds=300)


def own(folder: Path) -> None:
    """Give a folder to the images' user."""
    ask(["chown", "-R", f"{UID}:{UID}", str(folder)])


def change(settings: Path, old: str, new: str) -> None:
    """Replace words of a kit's settings, as a person edits them."""
    text = settings.read_text()
    if old not in text:
        raise Disappointed(f"{settings} must hold {old}")
    settings.write_text(text.replace(old, new))


def online(container: Container, folder: str, python: str = "python") -> int:
    """How many devices are online.

    Args:
        container: with the server.
        folder: of the server's part of the kit, in the container.
        python: of the container, with this project.
    """
    return int(container.ask(python, "-c", ONLINE, folder).split()[-1])


def told(run: Path) -> str:
    """What a run came to.

    Raises:
        Disappointed: it did not end as it should.
    """
    summary = json.loads((run / "summary.json").read_text())
    if summary["stopped"] not in ("num_versions", "seconds"):
        raise Disappointed(f"{run} stopped with {summary['stopped']}")
    events: list[Event] = list(read_events(run / "events.jsonl"))
    arrived = [event for event in events if isinstance(event, Arrived)]
    if not arrived:
        raise Disappointed(f"no update arrived in {run}")
    return (
        f"{summary['num_versions']} versions from {len(arrived)} updates in "
        f"{events[-1].t:.0f} s, {summary['failures']} failures"
    )
