"""Writes the folder that is published on Flower Hub.

    python -m lab.hub ACCOUNT [FOLDER]

Publishing itself is left to a person, since it cannot be taken back (CONTRIBUTING.md).
"""

import argparse
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

from fl_app.field.project import write_sources

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "hub.md"


def main() -> None:
    """Write the folder, and print the commands that publish it."""
    parser = argparse.ArgumentParser(prog="python -m lab.hub")
    parser.add_argument("account", help="that publishes on Flower Hub")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("dist/fl-app"), help="a new one (dist/fl-app)"
    )
    arguments = parser.parse_args()
    if arguments.folder.exists():
        parser.error(f"{arguments.folder} exists: remove it, or name another folder")
    write_app(arguments.folder, arguments.account)
    print(f"To publish {arguments.folder}, which cannot be taken back:")
    print(f"    flwr login supergrid\n    flwr app publish {arguments.folder}")


def write_app(folder: Path, account: str) -> None:
    """Write the app as it is published: the whole package, with settings and a page of its own."""
    folder.mkdir(parents=True)
    write_sources(folder)
    settings = folder / "pyproject.toml"
    settings.write_text(tomli_w.dumps(app_settings(tomllib.loads(settings.read_text()), account)))
    (folder / "README.md").write_text(PAGE.read_text().replace("ACCOUNT", account))


def app_settings(settings: dict[str, Any], account: str) -> dict[str, Any]:
    """Turn ``pyproject.toml`` into that of the published app.

    The packages of the machines that will run it are unknown, so the app requires all that a run
    uses, and Flower installs it. Flower allows one requirement of itself.
    """
    project = settings["project"]
    extras = project["optional-dependencies"]
    project["dependencies"] = [
        *(line.replace("flwr>", "flwr[dp,simulation]>") for line in project["dependencies"]),
        *(line for line in extras["server"] if not line.startswith(("fl-app[", "flwr["))),
        *extras["report"],
    ]
    del extras["dev"], extras["docs"], settings["tool"]["uv"]
    settings["tool"]["flwr"]["app"]["publisher"] = account
    return settings


if __name__ == "__main__":
    main()
