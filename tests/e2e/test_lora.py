"""The example of adapters: what it trains, what it sends, what it saves."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora.py"
WHOLE, ADAPTERS = 344_838, 8_454  # parameters that are trained
BASE = 344_256  # parameters of the transformer without its head


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_adapters_send_a_fortieth(tmp_path: Path) -> None:
    for package in ("peft", "transformers"):
        pytest.importorskip(package)
    short = ("num_versions=2", "algorithm.client.local_steps=1")
    words = [sys.executable, str(EXAMPLE), *short, "runtime.workers=2"]
    run = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert "Adapters send 41 times fewer bytes to the server." in run.stdout

    def found(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        folder = tmp_path / "outputs" / "lora" / name
        with np.load(folder / "model.npz") as file:
            return json.loads((folder / "summary.json").read_text()), dict(file)

    for name, trained in (("everything", WHOLE), ("adapters", ADAPTERS)):
        summary, arrays = found(name)
        assert summary["bytes_up"] == 4 * trained * summary["client_updates"]
        assert summary["failures"] == 0
        assert sum(array.size for array in arrays.values()) >= BASE
        assert 0 < summary["final_accuracy"] < 1
    whole, adapters = found("everything")[0], found("adapters")[0]
    assert whole["virtual_seconds"] > 5 * adapters["virtual_seconds"]
