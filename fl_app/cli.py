"""What the front doors share: where the configuration lies, and errors that say what was meant."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

_PACKAGE = Path(__file__).resolve().parent
# Where the package is installed, it holds the configuration; in a clone and in the bundle that
# Flower sends around, that lies beside it.
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"


def nearest(key: str, known: Sequence[str]) -> str:
    """What a mistyped key may have meant, as the end of an error text."""
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def explain(error: HydraException, overrides: Sequence[str]) -> str:
    """Hydra's complaint in one or two lines, with the nearest valid names.

    Args:
        error: what composing the overrides raised.
        overrides: all of the user's words: they decide which keys there are.
    """
    text = str(error)
    cause = str(error.__cause__ or "")
    if match := re.search(
        r"Could not (?:override|append to config|delete from config) '([^']*)'", text
    ):
        key = match[1].split("=")[0]
        return f"unknown key {key!r}{nearest(key, known_keys(overrides))}"
    if match := re.search(r"full_key: (\S+)", cause):
        return f"unknown key {match[1]!r}{nearest(match[1], known_keys(overrides))}"
    if match := re.search(r"Could not find '([^']+)/([^'/]+)'", text):
        options = sorted(p.stem for p in (CONF / match[1]).glob("*.yaml"))
        return (
            f"{match[1]}={match[2]} does not exist{nearest(match[2], options)}\n"
            f"{match[1]} is one of: {', '.join(options)}"
        )
    return text


def refuse_surplus(config: DictConfig) -> None:
    """Refuse keys that nothing reads, which only ``+key=value`` can bring in.

    Raises:
        ValueError: naming the keys.
    """
    known = {*OmegaConf.load(CONF / "config.yaml"), *(p.name for p in CONF.iterdir())}
    if surplus := {str(key) for key in config} - known:
        raise ValueError(f"unknown keys: {', '.join(sorted(surplus))}")


def refuse_dots(overrides: Sequence[str]) -> None:
    """Refuse a dot where a slash chooses a group: Hydra would put the word in place of its keys.

    Raises:
        ValueError: naming what was meant.
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.replace(".", "/")
        if group != key and group in groups() and not value.startswith("{"):
            raise ValueError(
                f"{override} must be {group}={value}: a slash chooses a group, and with a dot the "
                f"word would take the place of all keys below {key}"
            )


def known_keys(overrides: Sequence[str]) -> list[str]:
    """Every key, dotted, of the groups that the overrides choose, and the groups."""
    names = groups()
    pairs = [override.lstrip("+").partition("=") for override in overrides]
    chosen = [f"{key}={value.split(',')[0]}" for key, _, value in pairs if key in names]
    own = re.findall(r"(?:--config-dir|-cd)[= ](\S+)", " ".join(overrides))
    path = [f"hydra.searchpath=[{','.join(f'file://{Path(d).resolve()}' for d in own)}]"]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            config = hydra.compose("config", overrides=[*path, *chosen])
        except HydraException:  # a choice is at fault, too
            config = hydra.compose("config")
    return sorted({*_dotted(OmegaConf.to_container(config)), *names})


def groups() -> set[str]:
    """Names of the groups of options, such as ``algorithm`` and ``algorithm/schedule``."""
    return {p.relative_to(CONF).as_posix() for p in CONF.rglob("*") if p.is_dir()}


def _dotted(node: Any, prefix: str = "") -> list[str]:
    if not isinstance(node, dict):
        return [prefix]
    keys = [prefix] if prefix else []
    for name, child in node.items():
        keys += _dotted(child, f"{prefix}.{name}" if prefix else str(name))
    return keys
