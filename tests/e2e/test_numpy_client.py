"""The example of a plain NumPyClient: it learns, in a process without torch."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = """
import sys
from fake_grid import FakeGrid, finish
from flwr.app import Context, RecordDict
import numpy_client

numpy_client.server_app(
    FakeGrid(numpy_client.client_app, numpy_client.NUM_CLIENTS), Context(1, 0, {}, RecordDict(), {})
)
finish()
assert "torch" not in sys.modules
"""


def test_it_learns_digits_without_torch() -> None:
    paths = (str(ROOT / "examples"), str(ROOT / "tests"))
    code = f"import sys; sys.path[:0] = {paths!r}\n{RUN}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (accuracy,) = re.findall(r"accuracy: (\S+)", done.stdout)
    assert float(accuracy) > 0.8
