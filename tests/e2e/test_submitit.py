"""Jobs of a sweep through submitit: `submitit_local` runs what `submitit_slurm` gives to SLURM."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from fl_app.cli import CONF


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_jobs_that_submitit_starts_write_the_usual_files(tmp_path: Path) -> None:
    """Each job runs the cells of an experiment side by side."""
    words = ["-m", "experiment=quickstart", "experiment.only=[fedbuff,wkafl]"]
    words += ["num_versions=20", "seed=0,1", "experiment.parallel=2"]
    words += ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=5"]
    command = [sys.executable, "-m", "fl_app", *words, f"hydra.sweep.dir={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    for job in ("0", "1"):
        for cell in ("fedbuff", "wkafl"):
            summary = json.loads((tmp_path / job / cell / "summary.json").read_text())
            assert summary["stopped"] == "num_versions"
            assert summary["seed"] == int(job)
        assert (tmp_path / job / "report.html").is_file()
    last = done.stdout.splitlines()[-1]
    assert last == f"All jobs in one report: python -m fl_app.report {tmp_path}"


def test_the_options_for_slurm_compose() -> None:
    """As docs/runs.md has them; SLURM itself is on no machine of the tests."""
    words = ["hydra/launcher=submitit_slurm", "hydra.launcher.partition=cpu"]
    words += ["hydra.launcher.cpus_per_task=8", "hydra.launcher.mem_gb=16"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose(
            "config", [*words, "hydra.launcher.timeout_min=240"], return_hydra_config=True
        )
    launcher = OmegaConf.to_container(config.hydra.launcher, resolve=False)
    assert isinstance(launcher, dict)
    assert launcher["_target_"].endswith("submitit_launcher.SlurmLauncher")
    assert (launcher["partition"], launcher["cpus_per_task"]) == ("cpu", 8)
