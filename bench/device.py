"""``python -m bench.device``: what passes on a real node between two trainings, and while models
travel; one JSON object a line.

A SuperLink and one SuperNode run on loopback, with LeNet and made-up data.

- ``noop``, ``stock``, ``warm``: seconds from the end of one training to the beginning of the next,
  of a ClientApp that does nothing, of ours, and of ours on a warm node (`fl_app.node.warm`). Orders
  are one at a time.
- ``fedavg``, ``overlap_fedavg``: the share of time in which the device trains, over a link so slow
  that a model takes one local epoch down and one up. Both on a warm node.

Time that the machine gives to others while a training runs counts as training.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from bench.stamps import VARIABLE, Span, busy_share, gaps, spans, step_seconds
from faults.link import Link
from fl_app.client import LocalTrainer
from fl_app.core.types import Order
from fl_app.field.demo import APP, demo
from fl_app.field.loopback import federation_in
from fl_app.tasks.partition import Iid
from fl_app.tasks.synthetic import synthetic

BATCH = 16
COMMON = ["runtime=deployment", "task=synthetic", "partition=iid", "num_clients=1"]
COMMON += [f"algorithm.client.batch_size={BATCH}", "tensorboard=false"]
COMMON += ["algorithm.schedule.buffer_size=1", "eval_every=1000000"]
STAMPED = "algorithm.client._target_=bench.stamps.Stamped"
NOOP = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "noop"
version = "1.0.0"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "noop.server:app"
clientapp = "noop.client:app"
[tool.flwr.app.config]
overrides = ""
output = ""
""",
    "noop/__init__.py": "",
    "noop/server.py": "from fl_app import server_app\n\napp = server_app.app\n",
    "noop/client.py": """
import os
import time
from flwr.app import Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
app = ClientApp()
@app.query()
def query(message, context):
    return Message(RecordDict({"metrics": MetricRecord({"partition-id": 0})}), reply_to=message)
@app.train()
def train(message, context):
    began = time.monotonic()
    metrics = MetricRecord({"num-examples": 1})
    content = RecordDict({"arrays": message.content["arrays"], "metrics": metrics})
    with open(os.environ["BENCH_STAMPS"], "a") as file:
        file.write(f"{began!r} {time.monotonic()!r} 0\\n")
    return Message(content, reply_to=message)
""",
}


WARM = [sys.executable, "-m", "fl_app.node.warm"]


def between(name: str, versions: int) -> dict[str, Any]:
    """Seconds between two trainings of one device."""
    overrides = [*COMMON, "algorithm=fedavg", "task.num_examples=1600"]
    overrides += ["algorithm.client.local_epochs=1"]
    overrides += [] if name == "noop" else [STAMPED]
    trained = federate(name, overrides, versions)
    waits = gaps(trained)
    return {
        "work": name,
        "seconds_between": round(statistics.median(waits), 2),
        "least": round(min(waits), 2),
        "most": round(max(waits), 2),
        "orders": len(trained),
    }


def travelling(name: str, versions: int, epoch: float) -> dict[str, Any]:
    """Share of the time in which a device trains whose link is slow."""
    num_examples, num_bytes = calibrate(epoch)
    overrides = [*COMMON, f"algorithm={name}", f"task.num_examples={num_examples}"]
    overrides += ["algorithm.client.local_epochs=2"]
    overrides += [STAMPED + "Overlap" * (name == "overlap_fedavg")]
    trained = federate(name, overrides, versions, bandwidth=num_bytes / epoch)
    return {
        "work": name,
        "busy_share": round(busy_share(trained), 3),
        "longest_gap": round(max(gaps(trained)), 2),
        "epoch_seconds": round(step_seconds(trained) * num_examples / BATCH, 1),
        "transfer_seconds": round(2 * epoch, 1),
        "cycle_seconds": round((trained[-1].ended - trained[0].ended) / (len(trained) - 1), 1),
        "orders": len(trained),
    }


def calibrate(seconds: float) -> tuple[int, int]:
    """How many examples take so many seconds at present, and the bytes of the model."""
    torch.set_num_threads(1)  # as on the node
    task = synthetic(partition=Iid(), num_clients=1, num_examples=1600)
    trainer = LocalTrainer(task, batch_size=BATCH)
    vector = trainer.model.read()
    trainer.train(Order(0, 0, 0, 0, vector, {"local_epochs": 1}, 0.0))
    began = time.monotonic()
    trainer.train(Order(1, 0, 1, 0, vector, {"local_epochs": 5}, 0.0))
    rate = 8000 / (time.monotonic() - began)
    return BATCH * round(rate * seconds / BATCH), vector.nbytes


def federate(
    name: str, overrides: list[str], versions: int, *, bandwidth: float = 0.0
) -> list[Span]:
    """Run a federation of one node; when it trained."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        folder = Path(scratch)
        os.environ[VARIABLE] = str(folder / "stamps")
        os.environ["PYTHONPATH"] = str(APP)  # nodes find the trainers of this folder
        os.environ["FL_APP_STATE_DIR"] = str(folder / "state")
        app = APP if name != "noop" else folder / "app"
        for path, text in NOOP.items():
            (folder / "app" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "app" / path).write_text(text)
        link = (lambda port: Link(port, bandwidth).port) if bandwidth else None
        with federation_in(folder / "federation") as federation:
            supernode = ["flower-supernode"] if name in ("noop", "stock") else WARM
            federation.start(1, via=link, supernode=supernode)
            words = [*overrides, f"num_versions={versions}"]
            demo(federation, folder / "run", words, versions, app)
        return spans(folder / "stamps")


def main() -> None:
    """Measure one after the other."""
    parser = argparse.ArgumentParser(prog="python -m bench.device", description=__doc__)
    gaps = ["noop", "stock", "warm"]
    names = [*gaps, "fedavg", "overlap_fedavg"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="W")
    parser.add_argument("--versions", type=int, default=8, help="orders of each")
    parser.add_argument("--epoch", type=float, default=5.0, help="seconds of a local epoch")
    options = parser.parse_args()
    for name in options.only:
        if name in gaps:
            result = between(name, options.versions)
        else:
            result = travelling(name, options.versions, options.epoch)
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
