"""Faults injected into a federation of real processes, in the short form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from faults.groups import QUICK, UNTESTED

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.federation,
]


def left_behind(folder: Path) -> list[list[str]]:
    """Command lines of the processes whose home for Flower lies in `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FLWR_HOME", "").startswith(str(folder)):
                found.append(process.cmdline())
        except psutil.Error:  # gone meanwhile, or somebody else's
            continue
    return found


def test_a_federation_withstands_faults(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "faults", "--quick"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
        capture_output=True,
        text=True,
    )
    told = result.stdout + result.stderr
    assert result.returncode == 0, told
    (table,) = tmp_path.glob("outputs/faults-*/table.json")
    rows = {row["fault"]: row for row in json.loads(table.read_text())}
    tested = {name for group in QUICK for name in group.faults}
    assert rows.keys() == {*tested, *UNTESTED}
    assert {name for name, row in rows.items() if row["verdict"] == "passed"} == tested
    assert all(rows[name]["untested"] == reason for name, reason in UNTESTED.items())
    assert left_behind(tmp_path) == []
