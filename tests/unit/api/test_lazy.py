"""Names of the package: they are there, and importing the package imports nothing for them."""

import subprocess
import sys

import pytest

import fl_app

# Where torchvision lacks its operators, Python imports `fl_app.tasks.vision` at its start (.pth).
SHOW = """
import sys
before = {*sys.modules} - {"fl_app"}
import fl_app
assert {"run", "compare", "Result", "Comparison", "Task"} <= {*dir(fl_app)}
print(*{*sys.modules} - before)
"""
HEAVY = {"altair", "flwr", "hydra", "numpy", "omegaconf", "pandas", "torch"}


def test_importing_the_package_imports_nothing_else() -> None:
    command = [sys.executable, "-c", SHOW]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {*loaded}
    assert [name for name in loaded if name.startswith("fl_app")] == ["fl_app"]


def test_names_come_when_they_are_used() -> None:
    assert callable(fl_app.run)
    assert callable(fl_app.compare)
    assert fl_app.Task.__name__ == "Task"
    with pytest.raises(AttributeError, match=r"module 'fl_app' has no attribute 'nothing'"):
        _ = fl_app.nothing  # type: ignore[attr-defined]
