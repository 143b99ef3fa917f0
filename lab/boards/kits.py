"""Kits that the parts try: made, changed as a person edits them, and what a run came to."""

import json
import sys
from pathlib import Path

from fl_app.core.events import Arrived, Event
from fl_app.record.log import read_events
from lab.boards.commands import ask
from lab.boards.podman import PROJECT
from lab.boards.row import Disappointed

UID = 1000  # the images' user, who owns the folders


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
