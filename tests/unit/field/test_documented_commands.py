"""Every command of ours that documents, units and compose files name is one that exists."""

import re
import shlex
from pathlib import Path

import pytest

from fl_app.field.__main__ import _parser
from fl_app.field.make import FILES

ROOT = Path(__file__).resolve().parents[3]
EDGE = [ROOT / "docs" / "edge.md", ROOT / "docs" / "edge-operations.md"]
YOUR_DATA = ROOT / "docs" / "your-data.md"
KIT = [FILES / role / "README.md" for role in ("node", "server")]
PLACES = [*EDGE, YOUR_DATA, *KIT, FILES / "server" / "fl-run.service"]
COMMAND = re.compile(r"python -m fl_app\.field ([^#`\n]+)")


@pytest.mark.parametrize("place", PLACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_commands_exist(place):
    commands = COMMAND.findall(place.read_text())
    assert commands
    for command in commands:
        try:
            _parser().parse_args(shlex.split(command))
        except SystemExit:
            pytest.fail(f"python -m fl_app.field {command}")


def test_the_guide_shows_every_command_a_person_uses():
    texts = [page.read_text() for page in EDGE]
    documented = {command.split()[0] for text in texts for command in COMMAND.findall(text)}
    assert documented == {
        "init",
        "certificate",
        "register",
        "keep",
        "run",
        "doctor",
        "status",
    }
