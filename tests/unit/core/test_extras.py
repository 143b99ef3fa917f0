"""Commands name the extra that installs what they lack."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from hydra.errors import MissingConfigException

from fl_app.algorithms.eafl import EAFL
from fl_app.cli import PLUGINS, explain
from fl_app.core.extras import (
    EXTRAS,
    MissingExtra,
    lacking,
    require_installed,
    told_if_missing,
)

ROOT = Path(__file__).resolve().parents[3]


def test_each_extra_installs_what_the_messages_say() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    by_flower = {
        "dp_accounting": "flwr[dp]",
        "ray": "flwr[simulation]",
        "datasets": "flwr-datasets",
        "prometheus_client": "prometheus-client",
    }
    distributions = packages_distributions()
    for package, extra in EXTRAS.items():
        wanted = by_flower.get(package) or distributions[package][0].lower()
        names = [re.split("[<>=]", line)[0] for line in extras[extra]]
        assert wanted in names, package
    assert {*PLUGINS.values()} <= extras.keys()


def test_a_missing_package_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)  # as if it were not installed
    told = r"^tensorboard is not installed: pip install 'fl-app\[server\]'$"
    with pytest.raises(MissingExtra, match=told), told_if_missing():
        import tensorboard  # noqa: F401
    with pytest.raises(MissingExtra, match=told):
        require_installed("ray", "tensorboard")
    assert lacking("ray") is None


def test_an_algorithm_that_lacks_a_package_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    told = r"^sklearn is not installed: pip install 'fl-app\[server\]'$"
    with pytest.raises(ValueError, match=told):
        EAFL()


@pytest.mark.parametrize("option", PLUGINS)
def test_an_option_of_a_missing_plugin_names_the_extra(option: str) -> None:
    missing = MissingConfigException("", missing_cfg_file=option.replace("=", "/"))
    told = f"{option} is not installed: pip install 'fl-app[{PLUGINS[option]}]'"
    assert explain(missing, [option]) == told
