"""Commands name the extra that installs what they lack."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from fl_app.cli import PLUGINS
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
