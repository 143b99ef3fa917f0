"""How many bytes a device downloads, from a lock file (``pylock.toml``) that uv has written."""

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename


def download_bytes(lock: str, tags: Mapping[Tag, int]) -> dict[str, int]:
    """Return the bytes of the file that is downloaded for each package.

    Args:
        lock: text of the lock file.
        tags: the platform's, as `tags_of` gives them.

    Raises:
        ValueError: a package has no file for the platform.
    """
    return {
        package["name"]: _size(package, tags)
        for package in tomllib.loads(lock)["packages"]
        if "directory" not in package and "path" not in package.get("archive", {})
    }


def tags_of(python: str, machine: str, glibc: tuple[int, int]) -> dict[Tag, int]:
    """Return the tags of wheels that a platform can use, each with its rank; 0 is the best.

    Args:
        python: version of CPython, such as "3.11".
        machine: such as "aarch64".
        glibc: version of the C library.
    """
    version = [int(part) for part in python.split(".")]
    major, newest = glibc
    platforms = [f"manylinux_{major}_{minor}_{machine}" for minor in range(newest, 16, -1)]
    platforms += [f"manylinux2014_{machine}", f"linux_{machine}"]
    return {tag: rank for rank, tag in enumerate(_tags(version, platforms))}


def _tags(version: list[int], platforms: list[str]) -> Iterator[Tag]:
    yield from cpython_tags(version, platforms=platforms)
    yield from compatible_tags(version, f"cp{version[0]}{version[1]}", platforms)


def _size(package: Mapping[str, Any], tags: Mapping[Tag, int]) -> int:
    """The size of the best wheel, or of the source."""
    fitting = []
    for wheel in package.get("wheels", ()):
        name = wheel.get("name") or unquote(Path(urlsplit(wheel["url"]).path).name)
        ranks = [tags[tag] for tag in parse_wheel_filename(name)[3] if tag in tags]
        if ranks:
            fitting.append((min(ranks), int(wheel["size"])))
    if fitting:
        return min(fitting)[1]
    if "sdist" in package:
        return int(package["sdist"]["size"])
    raise ValueError(f"{package['name']} {package.get('version')} has no file for this platform")
