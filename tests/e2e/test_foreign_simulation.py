"""Flower's simulation engine (Ray) with a ClientApp that never heard of this project."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import foreign_simulation
import pytest
from fake_grid import FakeGrid


def results(output: str) -> dict[str, Any]:
    (line,) = [line for line in output.splitlines() if line.startswith("RESULTS ")]
    parsed: dict[str, Any] = json.loads(line.removeprefix("RESULTS "))
    return parsed


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.federation
def test_simulation_engine_and_any_other_grid_tell_the_same_story(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, foreign_simulation.__file__, "3"]
    simulation = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert simulation.returncode == 0, simulation.stderr
    simulated = results(simulation.stdout)

    foreign_simulation.main(FakeGrid(foreign_simulation.client_app, 1), None)
    expected = results(capsys.readouterr().out)["virtual"]

    virtual = simulated["virtual"]
    assert (virtual["stopped"], virtual["failures"]) == ("num_versions", 1)
    assert virtual["events"] == expected["events"]
    assert virtual["params"] == expected["params"]
    (failure,) = [event for event in virtual["events"] if event["kind"] == "failure"]
    assert failure["reason"] == "RuntimeError: out of memory"
    weight, bias, _ = virtual["params"]
    assert weight == pytest.approx(2.0, abs=0.1)
    assert bias == pytest.approx(1.0, abs=0.2)

    wall = simulated["wall"]
    assert (wall["stopped"], wall["failures"]) == ("num_versions", 0)
    assert [e["version"] for e in wall["events"] if e["kind"] == "aggregate"] == [1, 2, 3, 4, 5]
