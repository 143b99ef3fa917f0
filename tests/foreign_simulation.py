"""Runs a ClientApp of another project in Flower's simulation engine, on both clocks.

Prints for each the final model, the number of failures, the events and the seconds, as JSON.
"""

import json
import sys
import time
from typing import Any

import foreign_app
import torch
from flwr.app import ArrayRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from helpers import MeanDelta, Recorder

from fl_app.core.layout import Layout
from fl_app.core.types import Parts
from fl_app.engine.clock import Clock
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.flower import codec
from fl_app.flower.grid import AnyNode, GridMailbox
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
            return codec.pack_error(msg, RuntimeError("out of memory"))
    return foreign_app.train(msg, context)


class Devices:
    """Client i takes i + 1 seconds."""

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        return Parts(0.0, client_id + 1.0, 0.0)


server_app = ServerApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    torch.manual_seed(0)
    record = ArrayRecord(foreign_app.Net().state_dict())
    layout = Layout.of_arrays(codec.arrays_of(record))
    config = {"lr": 0.1}

    def run(clock: Clock, num_versions: int, concurrency: int) -> dict[str, Any]:
        recorder = Recorder()
        began = time.monotonic()
        outcome = Engine(
            strategy=MeanDelta(),
            schedule=Buffered(concurrency=concurrency, buffer_size=2),
            clock=clock,
            initial=codec.from_arrays(record, layout),
            num_trainable=layout.num_trainable,
            stop=Stop(num_versions=num_versions),
            sinks=[recorder],
        ).run()
        return {
            "params": outcome.params.tolist(),
            "stopped": outcome.stopped,
            "failures": recorder.history.failures,
            "events": recorder.events,
            "seconds": time.monotonic() - began,
        }

    virtual = VirtualClock(AnyNode(grid, layout, train_config=config), Devices(), NUM_CLIENTS)
    results = {"virtual": run(virtual, num_versions=30, concurrency=6)}
    mailbox = GridMailbox(grid, layout, train_config=config)
    results["wall"] = run(WallClock(mailbox), num_versions=5, concurrency=2)
    print("RESULTS", json.dumps(results), flush=True)


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=int(sys.argv[1]),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
