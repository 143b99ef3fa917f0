"""The keys of a class or function: what ``/target@KEY: package.module.Class`` means in conf/.

``/keys@KEY: package.module.Class`` stands for the same keys without ``_target_``.

In the ``defaults`` of a file of options, such a line stands for ``_target_`` and all parameters of
the class that have a default, so the file itself holds only what differs. To add a hyper-parameter,
add a field to its class. The class is imported when an option is chosen that names it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from inspect import Parameter, cleandoc
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from fl_app.client.build import locate, signature_of

GROUPS = ("target", "keys")
# Arguments that a run passes to targets. They are keys only where a file names them.
FACTS = {
    *("num_clients", "num_versions", "seed", "noise_seed", "partition", "device"),
    *("num_bytes", "download_share", "upload_share", "num_examples", "mean_seconds"),
}


def keys(reference: str) -> dict[str, Any]:
    """The parameters with their defaults.

    Args:
        reference: ``target/`` or ``keys/``, and the dotted path of a class or function.

    Raises:
        ValueError: it does not exist.
    """
    group, _, target = reference.partition("/")
    parameters: dict[str, Any] = {"_target_": target} if group == "target" else {}
    for name, parameter in signature_of(locate(target)).parameters.items():
        if parameter.default is not Parameter.empty and (group == "keys" or name not in FACTS):
            parameters[name] = parameter.default
    return parameters


def parameter_docs(reference: str) -> dict[str, str]:
    """The descriptions of parameters in the docstrings of a class and its bases, or a function."""
    docs: dict[str, str] = {}
    function = locate(reference.partition("/")[2])
    for owner in reversed(getattr(function, "__mro__", (function,))):
        text = cleandoc(owner.__doc__ or "") + "\n"
        for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", text, re.MULTILINE):
            for name, description in re.findall(
                r"^    (\w+): (.*\n(?:     .*\n)*)", section, re.MULTILINE
            ):
                docs[name] = " ".join(description.split())
    return docs


def references(defaults: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The place, such as ``strategy.``, and the reference of every target in ``defaults``."""
    for entry in defaults:
        for key, target in entry.items() if isinstance(entry, Mapping) else ():
            group, _, place = key.removeprefix("/").partition("@")
            if group in GROUPS:
                yield "" if place in ("_here_", "_global_") else f"{place}.", f"{group}/{target}"


class Targets(ConfigSource):
    """The source from which Hydra reads them."""

    @staticmethod
    def scheme() -> str:
        return "target"

    def load_config(self, config_path: str) -> ConfigResult:
        node = OmegaConf.create(keys(config_path))
        return ConfigResult(self.provider, self.full_path(), node, header={"package": None})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in GROUPS

    def is_config(self, config_path: str) -> bool:
        return config_path.partition("/")[0] in GROUPS

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


class TargetsPath(SearchPathPlugin):
    """Adds that source to Hydra's search path."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fl_app", "target://")


Plugins.instance().register(Targets)
Plugins.instance().register(TargetsPath)
