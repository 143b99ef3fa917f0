"""Where packages come from on this machine, told to pip and uv in builds and containers.

They read it from settings of the whole machine, as an administrator would write them. ``sudo``
removes environment variables, and not these.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

INDEX = ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS")  # of PIP_ and UV_
CERTIFICATES = Path("/etc/ssl/certs")  # of this machine, which may trust more than a new one


def volumes(folder: Path, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Write the settings; return what to mount, as ``source:target:ro``.

    Args:
        folder: for the files that are written.
        environment: variables of pip and uv, such as PIP_FIND_LINKS.
    """
    words = {name: environment.get(f"PIP_{name}", "").split() for name in INDEX}
    for name in INDEX:
        words[name] += environment.get(f"UV_{name}", "").replace(",", " ").split()
        words[name] = list(dict.fromkeys(words[name]))
    found = {
        folder / "pip.conf": ("/etc/pip.conf", _pip(words)),
        folder / "uv.toml": ("/etc/uv/uv.toml", _uv(words)),
    }
    for path, (_, text) in found.items():
        path.write_text(text)
    local = {Path(word) for word in words["FIND_LINKS"] if os.path.isabs(word)}
    return [
        *(f"{path}:{target}:ro" for path, (target, _) in found.items()),
        *(f"{path}:{path}:ro" for path in sorted({*local, CERTIFICATES}) if path.is_dir()),
    ]


def _pip(words: Mapping[str, list[str]]) -> str:
    lines = ["[global]"]
    for name, values in words.items():
        if values:
            lines.append(f"{name.lower().replace('_', '-')} =")
            lines += [f"    {value}" for value in values]
    return "\n".join(lines) + "\n"


def _uv(words: Mapping[str, list[str]]) -> str:
    lines = ["native-tls = true"]  # else uv trusts only the authorities that it brings
    for name, values in words.items():
        if values:
            value = values[0] if name == "INDEX_URL" else values
            lines.append(f"{name.lower().replace('_', '-')} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"
