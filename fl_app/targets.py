"""The keys of a class or function: what ``/target@KEY: package.module.Class`` means in conf/.

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

GROUP = "target/"
# Arguments that a run passes: no keys, but where a file names them.
FACTS = {
    *("num_clients", "num_versions", "seed", "noise_seed", "partition"),
    *("num_bytes", "download_share", "upload_share", "num_examples", "mean_seconds"),
}


def keys(target: str) -> dict[str, Any]:
    """``_target_``, and the parameters with their defaults.

    Args:
        target: dotted path of a class or function.

    Raises:
        ValueError: there is none.
    """
    parameters = signature_of(locate(target)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.name not in FACTS}
    return {"_target_": target} | {k: v for k, v in defaults.items() if v is not Parameter.empty}


def explained(target: str) -> dict[str, str]:
    """What the docstrings of a target and of its bases say of each parameter."""
    found: dict[str, str] = {}
    function = locate(target)
    for each in reversed(getattr(function, "__mro__", (function,))):
        text = cleandoc(each.__doc__ or "") + "\n"
        for section in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n|\n)+)", text, re.MULTILINE):
            for name, words in re.findall(
                r"^    (\w+): (.*\n(?:     .*\n)*)", section, re.MULTILINE
            ):
                found[name] = " ".join(words.split())
    return found


def named(defaults: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The targets of a file's ``defaults``, each behind its place: ``strategy.``, or nothing."""
    for entry in defaults:
        for word, target in entry.items() if isinstance(entry, Mapping) else ():
            if word.startswith(f"/{GROUP[:-1]}@"):
                place = word.partition("@")[2]
                yield "" if place == "_here_" else f"{place}.", target


class Targets(ConfigSource):
    """Where Hydra finds them."""

    @staticmethod
    def scheme() -> str:
        return "target"

    def load_config(self, config_path: str) -> ConfigResult:
        node = OmegaConf.create(keys(config_path.removeprefix(GROUP)))
        return ConfigResult(self.provider, self.full_path(), node, header={"package": None})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == GROUP.rstrip("/")

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith(GROUP)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return []


class TargetsPath(SearchPathPlugin):
    """Lets Hydra look there."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("fl_app", "target://")


Plugins.instance().register(Targets)
Plugins.instance().register(TargetsPath)
