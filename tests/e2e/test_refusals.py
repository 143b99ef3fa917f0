"""A value that is refused costs no import of what takes seconds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "torchvision", "sklearn", "scipy", "pandas", "altair", "vl_convert", "ray")
REFUSED = [
    "algorith=fedbuff",
    "fusion=0.2",
    "algorithm=fedbuf",
    "num_versions=-1",
    "deadline=0",
    "tensorboard=1",
    "runtime.workers=-3",
    "guard.max_age=-1",
    "client_eval_every=0",
    "client_eval_every=5 client_eval_fraction=20",
    "algorithm.strategy.server_lr=-1",
    "algorithm.schedule.concurrency=51",
    "algorithm.client.local_lr=fast",
    "partition.alpha=-1",
    "devices.ratio=-1",
    "experiment=quickstart algorithm.client.top_k=2",
    "algorithm=moon algorithm.strategy.temperature=0",
    "algorithm=feddyn algorithm.strategy.regularisation=0",
    "algorithm=aso_fed algorithm.strategy.decay=2",
    "algorithm=scaffold algorithm.strategy.server_lr=0",
    "algorithm=overlap_fedavg algorithm.strategy.momentum=2",
    "algorithm=fedasmu algorithm.strategy.mixing_scale=-1",
    "task.model=foo",
    "task.model=textcnn",
    "task.scaling=foo",
    "task=imdb task.sources=[foo]",
    "task=cifar10 task.augment=foo",
    "task=emnist task.split=foo",
    "task=wikitext2 task.train_split=foo",
    "task=synthetic task.noise=-1",
    "task=csv",
    "task=csv task.path=a.csv task.kind=ranking",
    "task=csv task.path=a.csv task.test_share=1",
    "task=csv task.path=a.csv task.schema=none.json",
    "task=image_folder task.path=a task.size=0",
    "task=image_folder task.path=a task.channels=2",
    "task=huggingface task.path=a task.scaling=foo",
    "task=arrays task.path=a.npz task.model=foo",
]
# As `python -m fl_app` for each of the commands; then it tells what was imported.
COMMANDS = f"""
import json, shlex, sys
from fl_app.__main__ import main

for words in sys.argv.pop().splitlines():
    sys.argv[1:] = shlex.split(words)
    status = main()
    print(json.dumps([words, status, [name for name in {HEAVY} if name in sys.modules]]))
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_nothing_heavy_is_imported_for_a_refusal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, "\n".join(REFUSED)],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [[words, 2, []] for words in REFUSED], done.stderr
    assert done.stderr.count("error: ") == len(REFUSED)
