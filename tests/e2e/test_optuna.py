"""A search with Optuna, as docs/runs.md has it, where its plugin is installed."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from omegaconf import OmegaConf


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(
    find_spec("hydra_plugins.hydra_optuna_sweeper") is None, reason="needs the extra optuna"
)
def test_optuna_maximises_the_accuracy(tmp_path: Path) -> None:
    words = [
        "-m",
        "hydra/sweeper=optuna",
        "hydra.sweeper.direction=maximize",
        "hydra.sweeper.n_trials=2",
        "algorithm.client.local_lr=tag(log,interval(0.01,1.0))",
        "num_versions=2",
        "runtime.workers=0",
        f"hydra.sweep.dir={tmp_path}",
    ]
    subprocess.run([sys.executable, "-m", "fl_app", *words], check=True)
    best = OmegaConf.load(tmp_path / "optimization_results.yaml")
    accuracies = [
        OmegaConf.load(tmp_path / str(job) / "summary.json").final_accuracy for job in range(2)
    ]
    assert best.best_value == max(accuracies)
    assert 0.01 <= best.best_params["algorithm.client.local_lr"] <= 1.0
