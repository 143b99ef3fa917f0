"""Handles the train and evaluate messages of a device."""

import logging
import math
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import Context, Message, MessageType
from flwr.common import Scalar

from fl_app.core.errors import require
from fl_app.core.files import FULL
from fl_app.core.vector import all_finite
from fl_app.flower import names, wire
from fl_app.node import own_data
from fl_app.node.memory import Memory

if TYPE_CHECKING:
    from fl_app.client import LocalTrainer
    from fl_app.client.flat import FlatModel

log = logging.getLogger("flwr")


class Origin(NamedTuple):
    """What a trainer is built from.

    Attributes:
        app_config: the run's configuration, YAML.
        any_node: whether the node serves clients of any id.
        data: path of the node's own data; None = it has none.
        run: of the order, where the node has data of its own: they may change between runs.
    """

    app_config: str
    any_node: bool
    data: str | None
    run: str


class MessageHandler:
    """Handles train and evaluate messages; keeps data, model and client state between them.

    On a real node, the node's own configuration says which client it is (its partition id), and may
    name data of the node's own. Under virtual time any node serves any client, and the order names
    the client.
    """

    def __init__(self) -> None:
        self._trainer: LocalTrainer | None = None
        self._origin: Origin | None = None

    def handle(self, message: Message, context: Context) -> Message:
        """The reply to a `train` or `evaluate` message, or to a `query` for the examples' number.

        An error is reported in the reply, worded as in the other runtimes.
        """
        began = time.monotonic()
        config: dict[str, Scalar] = {}
        try:
            config = _own_config(message, context)
            trainer = self._prepare(config, context)
            if message.metadata.message_type == MessageType.QUERY:
                examples = trainer.task.train_indices(int(config[names.CLIENT_ID]))
                return wire.pack_metrics(message, int(examples.size), {})
            if not _has_fixed(trainer.model, message, context, config):
                return wire.ask_for_fixed(message)
            memory = None if names.ANY_NODE in config else _memory_of(context, config)
            trainer.state = wire.state_of(message) if memory is None else memory.load()
            older = None
            if memory is not None and _is_old(memory, config):
                older, trainer.state = memory.count, {}
                memory.begin_anew(int(config[names.STATE_COUNT]))
            if message.metadata.message_type == MessageType.EVALUATE:
                reply = _evaluate(trainer, message, config)
            else:
                reply = _train(trainer, message, memory, config, older)
            if names.ANY_NODE not in config:
                _tell(reply, config, time.monotonic() - began)
            return reply
        except OSError as error:
            log.exception("the order could not be carried out")
            if error.errno in FULL:
                error = OSError(f"the disk of this node is full: {error}")
            return wire.pack_error(message, error)
        except Exception as error:
            if names.ANY_NODE not in config:  # a simulated node: the server tells it, once
                log.exception("the order could not be carried out")
            return wire.pack_error(message, error)

    def work_ahead(self, until: Callable[[], bool]) -> None:
        """Train for the next order before it arrives, if the algorithm overlaps training.

        Args:
            until: called after every local epoch; True ends the training.
        """
        if self._trainer is None or not self._trainer.overlaps:
            return
        try:
            self._trainer.work_ahead(until)
        except Exception:  # the next order then trains from its start
            log.exception("training ahead of the next order failed")

    def _prepare(self, config: dict[str, Scalar], context: Context) -> "LocalTrainer":
        """The trainer that the order's configuration describes; the latest one is kept."""
        any_node = names.ANY_NODE in config
        data = None if any_node else own_data.path_of(context)
        run = "" if data is None else str(config.get(names.RUN, context.run_id))
        origin = Origin(str(config.get(names.APP_CONFIG, "")), any_node, data, run)
        if not origin.app_config:
            raise ValueError(
                f"the order carries no {names.APP_CONFIG}: the server must send its configuration"
            )
        if self._trainer is None or self._origin != origin:
            self._trainer = None  # frees its data
            self._trainer, self._origin = _build(origin), origin
        return self._trainer


def _build(origin: Origin) -> "LocalTrainer":
    # Imported here, because torch takes seconds to import on a small device.
    from omegaconf import DictConfig, OmegaConf

    from fl_app.client.build import (
        build_task,
        build_trainer,
        prepare_process,
    )

    config = OmegaConf.create(origin.app_config)
    assert isinstance(config, DictConfig)
    if origin.any_node:
        prepare_process()
    if origin.data is not None:
        return build_trainer(config, own_data.load(config, origin.data))
    task = build_task(config)
    if task.num_clients == 0 or config.num_clients is None:
        raise ValueError(
            "this node has no data, and the run brings none: name its data, as DATA=/path in "
            "node.env or --node-config \"data='/path'\""
        )
    return build_trainer(config, task)


def _has_fixed(
    model: "FlatModel", message: Message, context: Context, config: dict[str, Scalar]
) -> bool:
    """Whether the model has the server's fixed part, which the order or a file may hold.

    A node builds this part from configuration and seed. Another version of torch, another processor
    or weights from a file that only the server has can make a difference.

    Raises:
        ValueError: the server has sent it, and it does not fit.
    """
    wanted = str(config.get(names.FIXED, ""))
    if not wanted or model.fixed_digest == wanted:
        return True
    memory = None
    if names.ANY_NODE not in config:
        memory = Memory.of_fixed(context, _run_of(context, config), wanted)
    if sent := wire.fixed_of(message):
        model.load_fixed(sent)
        require(
            model.fixed_digest == wanted,
            "SHA-256 of the frozen and private parameters that the server sent",
            model.fixed_digest,
            wanted,
            "server and client do not build the same model",
        )
        if memory is not None:
            memory.save(sent)
        return True
    if memory is not None and (kept := memory.load()):
        with suppress(ValueError):  # a damaged file: the server is asked
            model.load_fixed(kept)
    return model.fixed_digest == wanted


def _memory_of(context: Context, config: dict[str, Scalar]) -> Memory:
    return Memory.of(context, _run_of(context, config), int(config[names.CLIENT_ID]))


def _run_of(context: Context, config: dict[str, Scalar]) -> str:
    return str(config.get(names.RUN, context.run_id))


def _is_old(memory: Memory, config: dict[str, Scalar]) -> bool:
    """Whether a client's state is an old copy: the server has seen a later one."""
    return int(config.get(names.STATE_COUNT, 0)) > memory.count


def _train(
    trainer: "LocalTrainer",
    message: Message,
    memory: Memory | None,
    config: dict[str, Scalar],
    older: int | None,
) -> Message:
    """Carry out a training order; the state is kept in `memory`, or sent back if there is none.

    Args:
        trainer: of the client.
        message: the order.
        memory: of the client's state.
        config: of the order.
        older: how often a state had been saved that was given up as an old copy; None = none was.
    """
    layout = trainer.model.layout
    trainer.extra = wire.extra_of(message, layout)
    upload, num_examples, metrics = trainer.fit(wire.order_arrays(message, layout), config)
    # A client that diverged keeps its earlier state: with the new one it would diverge for ever.
    # After a pause (no upload) the state is always saved: the rest of the order needs it.
    if memory is not None and (not upload or all_finite(trainer.state.values())):
        memory.save(trainer.state)
    kept = trainer.state if memory is None else None
    if memory is not None and trainer.state:
        metrics = {**metrics, names.STATE_COUNT: memory.count}
    if older is not None:
        metrics = {**metrics, names.STATE_OLDER: older}
    return wire.pack_upload(message, layout, upload, num_examples, metrics, kept, trainer.extra)


def _evaluate(trainer: "LocalTrainer", message: Message, config: dict[str, Scalar]) -> Message:
    """Metrics of a model on the client's validation examples."""
    arrays = wire.order_arrays(message, trainer.model.layout)
    loss, num_examples, metrics = trainer.evaluate(arrays, config)
    return wire.pack_metrics(message, num_examples, {**metrics, names.LOSS: loss})


def _tell(reply: Message, config: dict[str, Scalar], seconds: float) -> None:
    """Log what was done for an order, in a line."""
    numbers = reply.content.metric_records[names.METRICS]
    log.info(
        "client %s: %s order from version %s done in %.1f s: %s examples, loss %.4g",
        config[names.CLIENT_ID],
        reply.metadata.message_type,
        config.get(names.VERSION, "?"),
        seconds,
        numbers[names.NUM_EXAMPLES],
        numbers.get(names.LOSS, math.nan),
    )


def _own_config(message: Message, context: Context) -> dict[str, Scalar]:
    """The order's settings, with the id of the client that this node serves."""
    config = wire.order_config(message)
    if names.ANY_NODE in config:
        return config
    partition = context.node_config.get(names.PARTITION_ID)
    if partition is not None:
        return {**config, names.CLIENT_ID: int(partition)}
    if names.DATA in context.node_config:  # its client is known by the node's id
        return {names.CLIENT_ID: context.node_id, **config}
    raise ValueError(
        f"this node has no {names.PARTITION_ID}: start it with "
        '--node-config "partition-id=0 num-partitions=10", so that it knows which client it is, or '
        "with --node-config \"data='/path'\", if it has data of its own"
    )
