"""The leaves can be taken off: a run works where their folders are not."""

import subprocess
import sys
from pathlib import Path

WITHOUT = """
import runpy, sys

LEAVES = sys.argv.pop(1).split(",")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition("fl_app.")[2].partition(".")[0] in LEAVES:
            raise ModuleNotFoundError(f"{name} is taken off", name=name)

sys.meta_path.insert(0, Refuse())
runpy.run_module("fl_app", run_name="__main__")
"""


def test_a_run_needs_no_leaf(tmp_path: Path) -> None:
    words = ["num_versions=2", "num_clients=4", "runtime.workers=0"]
    code = [sys.executable, "-c", WITHOUT, "cluster,field,node,search,secure", *words]
    subprocess.run([*code, f"hydra.run.dir={tmp_path}"], check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "report.html").is_file()
    assert (tmp_path / "model.npz").is_file()
