"""A client that needs no torch, and misbehaves as a file says.

``orders`` of the node's configuration names a JSON file: ``seconds`` that an order takes, and the
``faults`` of the next orders, of which every order takes one. What was done with an order is
appended to the file of the same name and the suffix ``.done``.

With ``real=true`` the node is a real one, which waits for ``wait`` seconds in every order.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]

STEP = 0.002  # deviation of what an order adds to every number of the model
NUM_EXAMPLES = 100
GARBAGE, PART = 100_000_000, 4_000_000  # bytes of a reply, and of each of its arrays

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which partition this node has."""
    partition = int(context.node_config["partition-id"])
    return Message(
        RecordDict({"metrics": MetricRecord({"partition-id": partition})}), reply_to=message
    )


@app.train()
def train(message: Message, context: Context) -> Message:
    """Move the model at random, or do what a client must not do."""
    if context.node_config.get("real"):
        from fl_app.client_app import app as real

        time.sleep(float(str(context.node_config.get("wait", 0.0))))
        return real(message, context)
    config = message.content.config_records["config"]
    path = Path(str(context.node_config["orders"]))
    seconds, fault = take(path)
    note = {"sequence": config["sequence"], "fault": fault, "pid": os.getpid()}
    with path.with_suffix(".done").open("a") as file:
        file.write(json.dumps(note) + "\n")
    word, _, longer = fault.partition(":")
    time.sleep(float(longer) if word == "late" else seconds)
    seed = int(context.node_config["partition-id"]), int(str(config["sequence"]))
    rng = np.random.default_rng(seed)
    arrays: Arrays = {}
    for name, array in message.content.array_records["arrays"].items():
        old = array.numpy()
        arrays[name] = old + np.float32(STEP) * rng.standard_normal(old.shape, np.float32)
    metrics = {
        "num-examples": NUM_EXAMPLES,
        "loss": 1.0,
        "version": config["version"],
    }
    return Message(misbehave(word, arrays, metrics), reply_to=message)


def take(path: Path) -> tuple[float, str]:
    """Seconds that this order takes, and its fault, which is taken out of the file; or ""."""
    orders = json.loads(path.read_text())
    fault = orders["faults"].pop(0) if orders["faults"] else ""
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(orders))
    draft.replace(path)
    return orders["seconds"], fault


def misbehave(fault: str, arrays: Arrays, metrics: dict[str, Any]) -> RecordDict:
    """What the client sends.

    Raises:
        RuntimeError: where the fault is an exception.
    """
    name = next(iter(arrays))
    match fault:
        case "raises":
            raise RuntimeError("the sensor is broken")
        case "nan":
            arrays[name].flat[0] = np.nan
        case "garbage":
            # Never the same bytes: a SuperLink stores what it has already got only once.
            rng = np.random.default_rng()
            parts = range(GARBAGE // PART)
            arrays = {str(i): rng.integers(0, 256, PART, np.uint8) for i in parts}
    record = ArrayRecord({name: Array(array) for name, array in arrays.items()})
    # The order's arrays are one vector, as between this project's own server and clients.
    ours = ConfigRecord({"kind": "model"})
    return RecordDict({"arrays": record, "metrics": MetricRecord(metrics), "upload": ours})
