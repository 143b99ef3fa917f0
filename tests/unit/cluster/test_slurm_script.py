"""The script for SLURM of docs/cluster.md, with stand-ins for SLURM's commands."""

import os
import re
import subprocess
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cluster.md"
# As of SLURM: `srun` carries out the command behind its options, on the machine that they name.
STAND_INS = {
    "scontrol": "printf 'node-1\\nnode-2\\n'",
    "hostname": "echo '10.0.0.7 172.17.0.1'",
    "sleep": 'echo "sleep $*" >> "$LOG"',
    "ray": 'echo "$WHERE, $CPUS CPUs: ray $*" >> "$LOG"; exec /bin/sleep 0.2',
    "python": 'echo "python $*" >> "$LOG"',
    "srun": """
        export WHERE CPUS
        while [ "${1#-}" != "$1" ]; do
            case $1 in
                -w) WHERE=$2; shift ;;
                --exclude=node-1) WHERE=node-2 ;;
                --cpus-per-task=*) CPUS=${1#*=} ;;
            esac
            shift
        done
        exec "$@"
    """,
}


def script():
    (found,) = re.findall(r"```sh\n(#!/bin/bash\n.*?)```", PAGE.read_text(), re.DOTALL)
    return str(found)


def test_the_script_starts_a_cluster_and_then_the_run(tmp_path):
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "activate").write_text(f"PATH={tmp_path}/bin:$PATH\n")
    (tmp_path / "bin").mkdir()
    for name, text in STAND_INS.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "run.sh").write_text(script() + "wait\n")
    assert subprocess.run(["bash", "-n", "run.sh"], cwd=tmp_path).returncode == 0
    slurm = {"SLURM_CPUS_PER_TASK": "16", "SLURM_JOB_NODELIST": "node-[1-2]"}
    env = {**os.environ, **slurm, "LOG": str(tmp_path / "log")}
    done = subprocess.run(
        ["bash", "-eu", "run.sh"], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    told = (tmp_path / "log").read_text().splitlines()
    assert told.index("sleep 20") < [line.startswith("python ") for line in told].index(True)
    there = "--num-cpus=16 --block"
    head, other, run, _ = sorted(told)
    assert head == (
        "node-1, 16 CPUs: ray start --head --node-ip-address=10.0.0.7 --port=6379 " + there
    )
    assert other == f"node-2, 16 CPUs: ray start --address=10.0.0.7:6379 {there}"
    assert run.startswith("python -m fl_app runtime=ray runtime.address=10.0.0.7:6379 hydra.run")
    assert run.endswith("resume=auto")
