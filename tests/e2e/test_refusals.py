"""A value that is refused costs no import of what takes seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "torchvision", "sklearn", "scipy", "pandas", "matplotlib", "plotly", "ray")
# As `python -m fl_app`, which then tells what it imported.
COMMAND = f"""
import sys
from fl_app.__main__ import main

status = main()
print(status, *(name for name in {HEAVY} if name in sys.modules))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["algorith=fedbuff"],
        ["algorithm=fedbuf"],
        ["num_versions=-1"],
        ["runtime.workers=-3"],
        ["guard.max_age=-1"],
        ["algorithm.strategy.server_lr=-1"],
        ["algorithm.schedule.concurrency=51"],
        ["algorithm.client.local_lr=fast"],
        ["partition.alpha=-1"],
        ["devices.ratio=-1"],
        ["experiment=quickstart", "algorithm.client.top_k=2"],
    ],
    ids=" ".join,
)
def test_nothing_heavy_is_imported_for_a_refusal(tmp_path: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, f"hydra.run.dir={tmp_path}/run", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1:] == ["2"], done.stderr
    assert done.stderr.count("error: ") == 1
