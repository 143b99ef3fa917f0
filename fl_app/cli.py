"""Helpers of all entry points: the folder of the configuration, and readable errors."""

import difflib
import re
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
from fl_app.tasks.partition import USUAL_CLIENTS
from fl_app.tasks.partition.flwr import DECIDING

_PACKAGE = Path(__file__).resolve().parent
# Where the package is installed, it holds the configuration; in a clone and in the bundle that
# Flower sends around, that lies beside it.
CONF = _PACKAGE / "conf" if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent / "conf"


# Defaults in conf/ such as ten clients at work, or all where there are fewer. None = no bound.
OmegaConf.register_new_resolver("at_most", lambda v, most: min(v, most or v), replace=True)
# A limit that holds where none of the others is given.
OmegaConf.register_new_resolver("alone", lambda v, *o: v if {*o} == {None} else None, replace=True)


def _usual_clients(
    owner: str | bool | None, partitioner: str | None = None, usual: int = USUAL_CLIENTS
) -> int | None:
    return None if owner or partitioner in DECIDING else usual


# The default of num_clients. None = the data say how many there are (`fl_app.runner.validate`).
OmegaConf.register_new_resolver("usual_clients", _usual_clients, replace=True)

# Folders of options, in words that NUL separates.
OWN = re.compile(r"(?:--config-dir|-cd)[=\0]([^\0]+)|file://([^'\",\]\0]+)")

_one_at_a_time = threading.Lock()  # Hydra's state belongs to the process


def compose(overrides: Sequence[str]) -> DictConfig:
    """The configuration that these words of a command line describe.

    It may be called in any thread, and also by a program that uses Hydra itself.

    Raises:
        ValueError: an override is refused.
    """
    refuse_dots(overrides)
    with _one_at_a_time:
        before = GlobalHydra.instance().hydra
        GlobalHydra.instance().clear()
        try:
            with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
                config = hydra.compose("config", overrides=list(overrides))
        except (HydraException, YAMLError) as error:
            raise ValueError(explain(error, overrides)) from None
        finally:
            GlobalHydra.instance().hydra = before
    refuse_surplus(config, overrides)
    refuse_epochs(config, overrides)
    return config


# Keys of earlier versions, and what to give in their place.
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
        overrides: all words of the command; they decide which keys exist.
    """
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        if group:
            known = options(group, overrides)
            return (
                f"{group}={name} does not exist{nearest(name, known)}\n"
                f"{group} is one of: {', '.join(known)}"
            )
    if isinstance(error, OverrideParseException) and not re.search(
        r"[][{}()]", re.sub(r"=\[(.*)\]$", r"=\1", error.override)
    ):
        if "=" not in error.override or re.search(r"\s\S+=", error.override):
            return f"{error.override!r} must be one KEY=VALUE without spaces, and each a word apart"
        word = re.sub("=[\"']*(.*?)[\"']*$", r"='\1'", error.override)
        if word.endswith("]'"):  # a list, each of whose names is quoted
            names = (name.strip(" \"'") for name in word.partition("=")[2][2:-2].split(","))
            word = f"{word.partition('=')[0]}=[{','.join(map(repr, names))}]"
        return f'{error.override} cannot be read: quote it for Hydra and for the shell, "{word}"'
    cause, text = error.__cause__, str(error)
    if match := re.match("(?:Ambiguous value for argument|Sweep parameters) '((.*)=(.*))'", text):
        return (
            f"{match[1]} has several values: --multirun on the command line, or fl_app.compare, "
            f"runs with each; 'search.space={match[1]}' searches them; a list is "
            f"{match[2]}=[{match[3]}]"
        )
    if isinstance(cause, ConfigAttributeError | ConfigKeyError) and cause.full_key:
        return _unknown(cause.full_key, overrides)
    # A group that is not in the defaults: only the text names it.
    if match := re.search(
        r"Could not (?:override|append to config|delete from config) '([^']*)'", text
    ):
        return _unknown(match[1].split("=")[0], overrides)
    return text


def _unknown(key: str, overrides: Sequence[str]) -> str:
    typed = [override.lstrip("+~").partition("=")[0] for override in overrides]
    key = next((each for each in typed if each.startswith(f"{key}.")), key)  # Hydra's may be a part
    if key in REPLACED:
        return f"{key} is no key any more: {REPLACED[key]}"
    known = known_keys(overrides)
    if key in groups():
        return f"unknown key {key!r}: the file of an option chooses it, in its `defaults`"
    if key in known:
        return f"unknown key {key!r} with one of the options that are swept: sweep that one apart"
    if ends := [each for each in known if each.endswith(f".{key}")]:
        return f"unknown key {key!r}; did you mean {' or '.join(ends)}?"
    return f"unknown key {key!r}{_options_with(key) or nearest(key, known)}"


def _options_with(key: str) -> str:
    """Which options have a key, or one that ends so, as the end of an error message."""
    found: dict[str, list[str]] = {}
    for path in sorted(CONF.glob("*/**/*.yaml")):
        group = path.parent.relative_to(CONF).as_posix()
        if group == "experiment":
            continue
        for name in _keys_in(path):
            full = f"{group.replace('/', '.')}.{name}"
            if f".{full}".endswith(f".{key}"):
                found.setdefault(f"{full} is a key of {group}=", []).append(path.stem)
    return "".join(f"; {start}{', '.join(names)}" for start, names in found.items())


def _keys_in(path: Path) -> list[str]:
    """The dotted keys of a file of options, and of the classes that it names."""
    node: Any = OmegaConf.to_container(OmegaConf.load(path))
    names = dotted(node)
    for place, word in targets.named(node.get("defaults") or ()):
        names += [f"{place}{key}" for key in targets.keys(word)]
    return list(dict.fromkeys(names))


def refuse_surplus(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse keys that nothing reads, of the run and of an experiment.

    Refuse an algorithm whose file gives it another name than its own, and a choice of clients that
    the algorithm's own trainer takes the place of, too.

    Raises:
        ValueError: naming the keys.
    """
    known = _keys_in(CONF / "config.yaml")
    top = {key.partition(".")[0] for key in known} | {path.name for path in CONF.iterdir()}
    surplus = sorted(str(key) for key in config if key not in top)
    below = [str(key) for key in config.experiment if f"experiment.{key}" not in known]
    surplus += [f"experiment.{key}" for key in below]
    if surplus:
        told = ", ".join(surplus) + nearest(surplus[0], known)
        if not top.isdisjoint(below):
            told += "; the first line of an experiment's file is `# @package _global_`"
        raise ValueError(f"unknown keys: {told}")
    given = dict(override.partition("=")[::2] for override in overrides)
    file = given.get("algorithm", "").strip("'\"").rpartition("/")[2]
    name = str(config.algorithm.get("name"))
    # A remark may follow, as in "fedsa (re-interpreted)".
    if file and "algorithm.name" not in given and name.partition(" ")[0] != file:
        raise ValueError(
            f"{file}.yaml says name: {name}, and must say name: {file}: files and reports would "
            "tell of another algorithm"
        )
    choice = given.get("algorithm/client", "")
    trainer = OmegaConf.select(config, "algorithm.client._target_")
    path = options("algorithm/client", overrides).get(choice)
    named = OmegaConf.select(OmegaConf.load(path), "_target_") if path else None
    if named not in (None, trainer) and "algorithm.client._target_" not in given:
        raise ValueError(
            f"algorithm/client={choice} would change nothing: the algorithm's own trainer, "
            f"{trainer}, takes its place; algorithm.client._target_={named} chooses the other one"
        )


def refuse_epochs(config: DictConfig, overrides: Sequence[str]) -> None:
    """Refuse a number of local epochs where a number of local steps takes its place.

    Raises:
        ValueError: naming both.
    """
    steps = OmegaConf.select(config, "algorithm.client.local_steps")
    typed = {override.lstrip("+").partition("=")[0] for override in overrides}
    key = "algorithm.client.local_epochs"
    if steps is not None and key in typed and "algorithm.client.local_steps" not in typed:
        raise ValueError(
            f"{key} would change nothing: algorithm.client.local_steps={steps} takes its "
            "place; give that, or local_steps=null, too"
        )


def refuse_dots(overrides: Sequence[str]) -> None:
    """Refuse ``group.option=name``: Hydra would replace the keys of the option by the name.

    Refuse ``group=true``, too, which Hydra does without naming the group.

    Raises:
        ValueError: naming the override to use instead.
    """
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        group = key.replace(".", "/")
        if group in groups() and value.lower() in ("true", "false"):
            known = ", ".join(options(group, overrides))
            raise ValueError(f"{override} must be {group}= one of: {known}")
        if group != key and group in groups() and not value.startswith("{"):
            raise ValueError(
                f"{override} must be {group}={value}: a slash chooses a group, and with a dot the "
                f"word would take the place of all keys below {key}"
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
        except HydraException:  # a choice is at fault, too
            config = hydra.compose("config")
    return sorted({*dotted(OmegaConf.to_container(config)), *names})


def folders(words: Sequence[str]) -> list[Path]:
    """Where options are: in this project, and in the folders that the words of a command name."""
    return [CONF, *(Path(a or b) for a, b in OWN.findall("\0".join(words)))]


def refuse_twins(words: Sequence[str]) -> None:
    """Refuse an option of the user's that this project has, too: Hydra would take this project's.

    Raises:
        ValueError: naming its file.
    """
    for folder in folders(words)[1:]:
        for path in folder.rglob("*.yaml"):
            own = CONF / path.relative_to(folder)
            if own.exists() and not own.samefile(path):
                raise ValueError(f"{path} has the name of an option of this project: rename it")


def options(group: str, words: Sequence[str] = ()) -> dict[str, Path]:
    """The options of a group in alphabetical order, also those of the user's own folders."""
    found = [path for folder in folders(words) for path in (folder / group).glob("*.yaml")]
    return {path.stem: path for path in sorted(found, key=lambda path: path.stem)}


def search_path(folders: Sequence[str | Path]) -> str:
    """The word by which Hydra also finds options in these folders."""
    quoted = [f"'file://{Path(each).resolve()}'" for each in folders]
    return f"hydra.searchpath=[{','.join(quoted)}]"


@cache
def groups() -> frozenset[str]:
    """List the groups of options, such as ``algorithm`` and ``algorithm/schedule``."""
    return frozenset(p.relative_to(CONF).as_posix() for p in CONF.rglob("*") if p.is_dir())


def dotted(node: Any, prefix: str = "") -> list[str]:
    """The dotted keys of nested dictionaries, also of those between, behind a prefix."""
    if not isinstance(node, dict):
        return [prefix]
    keys = [prefix] if prefix else []
    for name, child in node.items():
        keys += dotted(child, f"{prefix}.{name}" if prefix else str(name))
    return keys
