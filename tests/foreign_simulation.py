"""Runs a ClientApp of another project in Flower's simulation engine, on both clocks.

Prints for each the final model, the number of failures, the events and the seconds, as JSON.
"""

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import foreign_app
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fl_app import wire
from fl_app.core.types import Config, Event, GlobalModel, Update, Vector
from fl_app.engine.clock import Clock, VirtualClock, WallClock
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.grid import AnyNode, GridMailbox
from fl_app.schedule import Buffered

NUM_CLIENTS = 10
client_app = ClientApp()


@client_app.train()
def train(msg: Message, context: Context) -> Message:
    """The foreign app's own function; under virtual time, for the client that the order names.

    One client's first order fails.
    """
    config = msg.content["config"]
    if config.get("any-node"):
        context.node_config["partition-id"] = config["client-id"]
        if (config["client-id"], config["sequence"]) == (3, 0):
            return wire.pack_error(msg, RuntimeError("out of memory"))
    return foreign_app.train(msg, context)


class Mean:
    """Adds the mean displacement."""

    def __init__(self) -> None:
        self.report: dict[str, Any] = {}

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        total = sum(model.delta(update) for update in updates)
        return np.asarray(model.params + total / np.float32(len(updates)), np.float32)

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        return model.params, {}

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        return None

    def to_evaluate(self, model: GlobalModel) -> Vector:
        return model.params

    def totals(self) -> dict[str, float]:
        return {}


class Devices:
    """Client i takes i + 1 seconds."""

    def seconds(self, client_id: int, sequence: int, now: float) -> float:
        return client_id + 1.0


class Recorder:
    """Keeps all events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    record = ArrayRecord(foreign_app.Net().state_dict())
    layout = wire.layout_of(record)
    config = {"lr": 0.1}

    def run(clock: Clock, num_versions: int, concurrency: int) -> dict[str, Any]:
        recorder = Recorder()
        began = time.monotonic()
        outcome = Engine(
            strategy=Mean(),
            schedule=Buffered(concurrency=concurrency, buffer_size=2),
            clock=clock,
            initial=wire.from_arrays(record, layout),
            num_trainable=layout.num_trainable,
            stop=Stop(num_versions=num_versions),
            sinks=[recorder],
        ).run()
        return {
            "params": outcome.params.tolist(),
            "stopped": outcome.stopped,
            "failures": outcome.failures,
            "events": recorder.events,
            "seconds": time.monotonic() - began,
        }

    virtual = VirtualClock(AnyNode(grid, layout, train_config=config), Devices(), NUM_CLIENTS)
    results = {"virtual": run(virtual, num_versions=30, concurrency=6)}
    mailbox = GridMailbox(grid, layout, train_config=config, introduce=False)
    results["wall"] = run(WallClock(mailbox), num_versions=5, concurrency=2)
    print("RESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=int(sys.argv[1]),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
