"""Flower's front door for clients: a ClientApp that trains as ordered.

On a real node the partition is the one in the node's own configuration. Under virtual time any node
works for any client, and the order says for which.
"""

import logging
from functools import lru_cache
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common import Scalar

from fl_app import wire
from fl_app.memory import Memory

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer

log = logging.getLogger("flwr")

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Carry out one order; what goes wrong is told as in the other runtimes."""
    try:
        config = _own_config(message, context)
        any_node = wire.ANY_NODE in config
        trainer = _trainer(str(config.get(wire.APP_CONFIG, "")), any_node)
        layout = trainer.model.layout
        memory = None if any_node else Memory.of(context, int(config[wire.CLIENT_ID]))
        trainer.state = wire.state_of(message) if memory is None else memory.load()
        upload, num_examples, metrics = trainer.fit(wire.order_arrays(message, layout), config)
        if memory is not None:
            memory.save(trainer.state)
        kept = trainer.state if any_node else None
        return wire.pack_upload(message, layout, upload, num_examples, metrics, kept)
    except Exception as error:
        log.exception("the order could not be carried out")
        return wire.pack_error(message, error)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Loss and accuracy of a model on the client's own training data."""
    config = _own_config(message, context)
    trainer = _trainer(str(config.get(wire.APP_CONFIG, "")), wire.ANY_NODE in config)
    arrays = wire.order_arrays(message, trainer.model.layout)
    loss, num_examples, metrics = trainer.evaluate(arrays, config)
    return wire.pack_metrics(message, num_examples, {**metrics, wire.LOSS: loss})


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which partition this node has, without loading it."""
    return wire.pack_introduction(message, context)


def _own_config(message: Message, context: Context) -> dict[str, Scalar]:
    """The order's settings, with the client id for which this node works."""
    config = wire.order_config(message)
    if wire.ANY_NODE in config:
        return config
    partition = context.node_config.get(wire.PARTITION_ID)
    if partition is None:
        raise ValueError(
            f"this node has no {wire.PARTITION_ID}: start it with "
            '--node-config "partition-id=0 num-partitions=10", or nobody knows whose data it has'
        )
    return {**config, wire.CLIENT_ID: int(partition)}


@lru_cache(maxsize=1)
def _trainer(app_config: str, any_node: bool) -> "LocalTrainer":
    """The trainer of a configuration, with its data; built once per process."""
    if not app_config:
        raise ValueError(
            f"the order carries no {wire.APP_CONFIG}: the server must send its configuration"
        )
    # Imported here so that `query` is answered at once: torch takes seconds on a small device.
    from omegaconf import DictConfig, OmegaConf

    from fl_app.factory import build_trainer, prepare_process

    if any_node:
        prepare_process()
    config = OmegaConf.create(app_config)
    assert isinstance(config, DictConfig)
    return build_trainer(config)
