"""The leaves can be taken off: a run works where their folders are not."""

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import runpy, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == LEAF or name.startswith(LEAF + "."):
            raise ModuleNotFoundError(f"{name} is taken off", name=name)

LEAF = sys.argv.pop(1)
sys.meta_path.insert(0, Refuse())
runpy.run_module("fl_app", run_name="__main__")
"""


@pytest.mark.parametrize("leaf", ["cluster", "field", "node", "search", "secure"])
def test_a_run_needs_no_leaf(leaf: str, tmp_path: Path) -> None:
    words = ["num_versions=2", "num_clients=4", "runtime.workers=0"]
    code = [sys.executable, "-c", WITHOUT, f"fl_app.{leaf}", *words]
    subprocess.run([*code, f"hydra.run.dir={tmp_path}"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "model.npz").is_file()
