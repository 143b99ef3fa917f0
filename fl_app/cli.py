"""Helpers of all entry points: the folder of the configuration, and readable errors."""

import difflib
import re
import sys
import threading
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError
from yaml import YAMLError

from fl_app import targets
from fl_app.client.build import locate, signature_of
from fl_app.core.errors import RunError
from fl_app.tasks.partition import USUAL_CLIENTS
from fl_app.tasks.partition.flwr import DECIDING

_PACKAGE = Path(__file__).resolve().parent
# Where the package is installed, it holds the configuration; in a clone and in the bundle that
# Flower sends around, that lies beside it.
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"


# For defaults in conf/, such as ten clients at work, or all if there are fewer. None = no bound.
OmegaConf.register_new_resolver("at_most", lambda v, bound: min(v, bound or v), replace=True)
# A limit that applies only if none of the other limits is set.
OmegaConf.register_new_resolver("alone", lambda v, *o: v if {*o} == {None} else None, replace=True)


def _usual_clients(
    owner: str | bool | None, partitioner: str | None = None, usual: int = USUAL_CLIENTS
) -> int | None:
    return None if owner or partitioner in DECIDING else usual


# The default of num_clients. None = the data decide (`fl_app.runner.validate`).
OmegaConf.register_new_resolver("usual_clients", _usual_clients, replace=True)

# Finds folders of options in the arguments of a command, joined by NUL.
OWN = re.compile(r"(?:--config-dir|-cd)[=\0]([^\0]+)|file://([^'\",\]\0]+)")

_hydra_lock = threading.Lock()  # Hydra's state belongs to the process


def compose(overrides: Sequence[str]) -> DictConfig:
    """Compose the configuration that these overrides describe.

    It may be called in any thread, and by a program that uses Hydra itself.

    Raises:
        ValueError: an override is refused.
    """
    refuse_dots(overrides)
    with _hydra_lock:
        previous = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                config = hydra.compose("config", overrides=list(overrides))
        except (HydraException, YAMLError) as error:
            raise ValueError(explain(error, overrides)) from None
        finally:
            GlobalHydra.instance().hydra = previous
    refuse_surplus(config, overrides)
    refuse_epochs(config, overrides)
    return config


# Keys of earlier versions, and their replacements.
REPLACED = {
    "algorithm.strategy.squares": "give algorithm.strategy.compensation_form=gradient, scaled or "
    "code, three readings of the compensation"
}


def nearest(key: str, known: Iterable[str]) -> str:
    """Suggest up to three known keys for a mistyped one, as the end of an error message."""
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def explain(error: Exception, overrides: Sequence[str]) -> str:
    """Explain an error of Hydra or YAML in one or two lines, with the nearest valid names.

    Args:
        error: raised while composing the overrides.
        overrides: all overrides of the command; they decide which keys exist.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if group:
            choices = options(group, overrides)
            return (
                f"{group}={name} does not exist{nearest(name, choices)}\n"
                f"{group} is one of: {', '.join(choices)}"
            )
    if isinstance(error, OverrideParseException) and not re.search(
        r"[][{}()]", re.sub(r"^task\.\w+=(\[.*\]|[^[{].*)$|=\[(.*)\]$", r"=\2", error.override)
    ):
        if "=" not in error.override or re.search(r"\s\S+=", error.override):
            return f"{error.override!r} must be one KEY=VALUE without spaces, each in its own word"
        key, _, value = error.override.partition("=")
        value = value.strip("\"'").replace("'", r"\'")
        word = f"{key}='{value}'"
        if value[:1] + value[-1:] == "[]":  # a list; quote each of its names
            names = "','".join(name.strip(" \\\"'") for name in value[1:-1].split(","))
            word = f"{key}=['{names}']"
        return f'{error.override} cannot be read: quote it for Hydra and for the shell, "{word}"'
    cause, text = error.__cause__, str(error)
    if match := re.match("(?:Ambiguous value for argument|Sweep parameters) '((.*)=(.*))'", text):
        return (
            f"{match[1]} has several values: --multirun on the command line, or fl_app.compare, "
            f"runs with each; 'search.space={match[1]}' searches them; a list is "
            f"{match[2]}=[{match[3]}]"
        )
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return _unknown_key(cause.full_key, overrides)
    # A group that is not in the defaults: only the text names it.
    if match := re.search(
        r"Could not (?:override|append to config|delete from config) '([^']*)'", text
    ):
        return _unknown_key(match[1].split("=")[0], overrides)
    return text


def failure(error: BaseException | None, arguments: Sequence[str], what: str = "error") -> int:
    """Print why a command ends; returns its exit status: 1 for an error of a run, else 2."""
    ran = isinstance(error, RunError)
    text = explain(error, arguments) if isinstance(error, HydraException) else error
    print(f"{what}: {type(error).__name__ + ': ' if ran else ''}{text}", file=sys.stderr)
    return 1 if ran else 2


def _unknown_key(key: str, overrides: Sequence[str]) -> str:
    keys = [override.lstrip("+~").partition("=")[0] for override in overrides]
    key = next((name for name in keys if name.startswith(f"{key}.")), key)  # Hydra's may be a part
    if key in REPLACED:
        return f"{key} is no key any more: {REPLACED[key]}"
    valid_keys = known_keys(overrides)
    if key in groups():
        return f"unknown key {key!r}: the file of an option chooses it, in its `defaults`"
    if key in valid_keys:
        return f"unknown key {key!r} with one of the swept options: sweep that option separately"
    if matches := [name for name in valid_keys if name.endswith(f".{key}")]:
        return f"unknown key {key!r}; did you mean {' or '.join(matches)}?"
    place, _, name = key.rpartition(".")
    target = dict(word.partition("=")[::2] for word in overrides).get(f"{place}._target_")
    if target and name in signature_of(locate(target)).parameters:
        return f"unknown key {key!r}: an argument of {target} is given as +{key}=VALUE"
    return f"unknown key {key!r}{_options_with_key(key) or nearest(key, valid_keys)}"


def _options_with_key(key: str) -> str:
    """Name the options with a key that ends with `key`, as the end of an error message."""
    matches: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        group = path.parent.relative_to(CONF).as_posix()
        if group == "experiment":
            continue
        for name in _keys_in(path):
            full_key = f"{group.replace('/', '.')}.{name}"
            if f".{full_key}".endswith(f".{key}"):
                matches.setdefault(f"{full_key} is a key of {group}=", []).append(path.stem)
    return "".join(f"; {start}{', '.join(names)}" for start, names in matches.items())


def _keys_in(path: Path) -> list[str]:
    """The dotted keys of a file of options, and of the classes that it names."""
    node: Any = OmegaConf.to_container(OmegaConf.load(path))
    names = dotted(node)
    for place, reference in targets.references(node.get("defaults") or ()):
        names += [f"{place}{key}" for key in targets.keys(reference)]
    return list(dict.fromkeys(names))


def refuse_surplus(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse keys of the run and of an experiment that nothing reads.

    Also refuse an algorithm whose name is not that of its file, and an algorithm/client that the
    algorithm's own trainer replaces.

    Raises:
        ValueError: naming the keys.
    """
    valid = _keys_in(CONF / "config.yaml")
    top = {key.partition(".")[0] for key in valid} | {path.name for path in CONF.iterdir()}
    surplus = sorted(str(key) for key in config if key not in top)
    below = [str(key) for key in config.experiment if f"experiment.{key}" not in valid]
    surplus += [f"experiment.{key}" for key in below]
    if surplus:
        message = ", ".join(surplus) + nearest(surplus[0], valid)
        if not top.isdisjoint(below):
            message += "; the first line of an experiment's file is `# @package _global_`"
        raise ValueError(f"unknown keys: {message}")
    values = dict(override.partition("=")[::2] for override in overrides)
    file = values.get("algorithm", "").strip("'\"").rpartition("/")[2]
    name = str(config.algorithm.get("name"))
    # A remark may follow, as in "fedsa (re-interpreted)".
    if file and "algorithm.name" not in values and name.partition(" ")[0] != file:
        raise ValueError(
            f"{file}.yaml says name: {name}, and must say name: {file}: files and reports would "
            "name another algorithm"
        )
    choice = values.get("algorithm/client", "")
    trainer = OmegaConf.select(config, "algorithm.client._target_")
    path = options("algorithm/client", overrides).get(choice)
    target = OmegaConf.select(OmegaConf.load(path), "_target_") if path else None
    if target not in (None, trainer) and "algorithm.client._target_" not in values:
        raise ValueError(
            f"algorithm/client={choice} would change nothing: the algorithm's own trainer, "
            f"{trainer}, takes its place; algorithm.client._target_={target} chooses the other one"
        )


def refuse_epochs(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a number of local epochs where a number of local steps takes its place.

    Raises:
        ValueError: naming both.
    """
    steps = OmegaConf.select(config, "algorithm.client.local_steps")
    keys = {override.lstrip("+").partition("=")[0] for override in overrides}
    key = "algorithm.client.local_epochs"
    if steps is not None and key in keys and "algorithm.client.local_steps" not in keys:
        raise ValueError(
            f"{key} would change nothing: algorithm.client.local_steps={steps} takes its "
            "place; give that, or local_steps=null, too"
        )


def refuse_dots(overrides: Sequence[str]) -> None:
    """Refuse ``group.option=name``: Hydra would replace the keys of the option by the name.

    Also refuse ``group=true``, for which the error of Hydra does not name the group.

    Raises:
        ValueError: naming the override to use instead.
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.replace(".", "/")
        if group in groups() and value.lower() in ("true", "false"):
            choices = ", ".join(options(group, overrides))
            raise ValueError(f"{override} must be {group}= one of: {choices}")
        if group != key and group in groups() and not value.startswith("{"):
            raise ValueError(
                f"{override} must be {group}={value}: a slash chooses an option of a group; with a "
                f"dot, the name would replace all keys below {key}"
            )


def known_keys(overrides: Sequence[str]) -> list[str]:
    """List every dotted key of the options that the overrides choose, and every group."""
    names = groups()
    pairs = [override.lstrip("+").partition("=") for override in overrides]
    chosen = [f"{key}={value.split(',')[0]}" for key, _, value in pairs if key in names]
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            path = search_path(folders(overrides)[1:])
            config = hydra.compose("config", overrides=[path, *chosen])
        except HydraException:  # one of the choices is wrong, too
            config = hydra.compose("config")
    return sorted({*dotted(OmegaConf.to_container(config)), *names})


def folders(arguments: Sequence[str]) -> list[Path]:
    """The folders of options: this project's, and those that the arguments of a command name."""
    return [CONF, *(Path(a or b) for a, b in OWN.findall("\0".join(arguments)))]


def refuse_twins(arguments: Sequence[str]) -> None:
    """Refuse a user's option with the name of one of this project's: Hydra would use the latter.

    Raises:
        ValueError: naming its file.
    """
    for folder in folders(arguments)[1:]:
        for path in folder.rglob("*.yaml"):
            own = CONF / path.relative_to(folder)
            if own.exists() and not own.samefile(path):
                raise ValueError(f"{path} has the name of an option of this project: rename it")


def options(group: str, arguments: Sequence[str] = ()) -> dict[str, Path]:
    """The options of a group in alphabetical order, including those in the user's folders."""
    paths = [path for folder in folders(arguments) for path in (folder / group).glob("*.yaml")]
    return {path.stem: path for path in sorted(paths, key=lambda path: path.stem)}


def search_path(folders: Sequence[str | Path]) -> str:
    """The override by which Hydra also finds options in these folders."""
    urls = [f"'file://{Path(folder).resolve()}'" for folder in folders]
    return f"hydra.searchpath=[{','.join(urls)}]"


@cache
def groups() -> frozenset[str]:
    """List the groups of options, such as ``algorithm`` and ``algorithm/schedule``."""
    return frozenset(p.relative_to(CONF).as_posix() for p in CONF.rglob("*") if p.is_dir())


def dotted(node: Any, prefix: str = "") -> list[str]:
    """The dotted keys of nested dictionaries, with those of inner dictionaries, after a prefix."""
    if not isinstance(node, dict):
        return [prefix]
    keys = [prefix] if prefix else []
    for name, child in node.items():
        keys += dotted(child, f"{prefix}.{name}" if prefix else str(name))
    return keys
