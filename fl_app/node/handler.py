"""Handles the train and evaluate messages of a device."""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context, Message

from fl_app.core.errors import require
from fl_app.core.files import FULL
from fl_app.core.layout import names_of
from fl_app.core.types import Order, Scores, Upload
from fl_app.core.vector import all_finite
from fl_app.flower import codec, names
from fl_app.node import memory

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fl_app.client.numpy_client import TrainerClient
    from fl_app.tasks.task import Task

log = logging.getLogger("flwr")


class MessageHandler:
    """Handles train and evaluate messages; keeps data, model and client state between them.

    On a real node, the node's own configuration states its client (its partition id), and may name
    the node's own data. Under virtual time any node serves any client, and the order names
    the client.
    """

    def __init__(self) -> None:
        self._client: TrainerClient | None = None
        self._origin: tuple[str, bool, str | None, str] | None = None  # what it was built from

    def handle(self, message: Message, context: Context) -> Message:
        """The reply to a `train` or `evaluate` message.

        An error is reported in the reply, worded as in the other runtimes.
        """
        began, config = time.monotonic(), codec.order_config(message)
        any_node = names.ANY_NODE in config
        try:
            client_id = config[names.CLIENT_ID] if any_node else _client_of(context, config)
            client = self._prepare(config, context)
            trainer = client.trainer
            if not any_node and names.DATA not in context.node_config:
                bound = f"below num_clients={trainer.task.num_clients} of the run"
                consequence = "the run has no data for this node"
                fits = client_id < trainer.task.num_clients
                require(fits, names.PARTITION_ID, client_id, bound, consequence)
            folder = None if any_node else memory.folder_of(context, _run_of(context, config))
            traces = config.get(names.FROZEN)
            if traces is not None and (differing := trainer.model.differing(traces)):
                raise ValueError(
                    f"the frozen or private parameters {names_of(differing)} are not the server's: "
                    "this node needs the file of task.weights under the same path, and the same "
                    "model"
                )
            order = replace(codec.read_order(message, client.layout), client_id=client_id)
            result = _carry_out(client, order, folder)
            if folder is not None:
                _log_result(order, result, time.monotonic() - began)
            if isinstance(result, Scores):
                return codec.pack_scores(message, result)
            return codec.pack_upload(
                message,
                result,
                client.layout,
                dtype=trainer.upload_dtype,
                lineage=" ".join(trainer.lineage),
            )
        except Exception as error:
            if not any_node:  # of a simulated node, the server logs it, once
                log.exception("the order could not be carried out")
            if isinstance(error, OSError) and error.errno in FULL:
                error = OSError(f"the disk of this node is full: {error}")
            return codec.pack_error(message, error)

    def work_ahead(self, until: Callable[[], bool]) -> None:
        """Train for the next order before it arrives, if the algorithm overlaps training.

        Args:
            until: called after every local epoch; True ends the training.
        """
        if self._client is None or not self._client.trainer.overlaps:
            return
        try:
            self._client.trainer.work_ahead(until)
        except Exception:  # the next order then trains from its start
            log.exception("training ahead of the next order failed")

    def _prepare(self, config: dict[str, Any], context: Context) -> "TrainerClient":
        """The client that the order's configuration describes; built anew only if that changes."""
        any_node = names.ANY_NODE in config
        data = None if any_node else _own_data(context)
        run = "" if data is None else _run_of(context, config)  # own data may change between runs
        app_config = str(config.get(names.APP_CONFIG, ""))
        if not app_config:
            raise ValueError(
                f"the order carries no {names.APP_CONFIG}: the server must send its configuration"
            )
        origin = app_config, any_node, data, run
        if self._client is None or self._origin != origin:
            self._client = None  # frees its data
            self._client = _build(app_config, data, any_node=any_node)
            self._origin = origin
        return self._client


def _carry_out(client: "TrainerClient", order: Order, folder: Path | None) -> Upload | Scores:
    """Train or evaluate; the client's state is in a file, or travels if there is no folder."""
    path = folder and folder / f"client-{order.client_id}.npz"
    if path is not None:
        order = replace(order, state=memory.load(path))
    if order.evaluates:
        return client.score(order)
    upload = client.train(order)
    if path is None:
        return upload
    # A client that diverged keeps its earlier state: with the new one it would always diverge.
    # After a pause the state is always saved: the rest of the order needs it.
    if not upload.done or all_finite(upload.state.values()):
        memory.save(path, upload.state)
    return replace(upload, state={})


def _log_result(order: Order, result: Upload | Scores, seconds: float) -> None:
    """Log the result of an order, in a line."""
    loss = result.metrics.get(names.LOSS, math.nan) if isinstance(result, Scores) else result.loss
    log.info(
        "client %s: %s order from version %s done in %.1f s: %s examples, loss %.4g",
        order.client_id,
        "evaluate" if order.evaluates else "train",
        order.base_version,
        seconds,
        result.num_examples,
        loss,
    )


# -- settings of an order and of the node ----------------------------------------------------------


def _run_of(context: Context, config: dict[str, Any]) -> str:
    return str(config.get(names.RUN, context.run_id))


def _client_of(context: Context, config: dict[str, Any]) -> int:
    """The id of the client that a real node serves."""
    partition = context.node_config.get(names.PARTITION_ID)
    if partition is not None:
        return int(partition)
    if names.DATA in context.node_config:  # its client is known by the node's id
        return int(config.get(names.CLIENT_ID, context.node_id))
    raise ValueError(
        f"this node has no {names.PARTITION_ID}: start it with "
        '--node-config "partition-id=0 num-partitions=10", so that it knows which client it is, or '
        "with --node-config \"data='/path'\", if it has data of its own"
    )


def _own_data(context: Context) -> str | None:
    """Path of the node's own data; None = it has none.

    Errors that the server gets do not quote the data. The node's log has the whole reason, as the
    cause of the error.
    """
    path = context.node_config.get(names.DATA)
    if path is None:
        return None
    try:
        os.stat(str(path))
    except OSError as error:
        raise ValueError(
            f"this node's own data cannot be found ({error.strerror}): DATA in its node.env, or "
            f"{names.DATA} in its node config, must be their path"
        ) from error
    return str(path)


def _build(app_config: str, data: str | None, *, any_node: bool) -> "TrainerClient":
    # Imported here, because torch takes seconds to import on a small device.
    from omegaconf import DictConfig, OmegaConf

    from fl_app.client.build import (
        asks_for_masks,
        build_task,
        build_trainer,
        prepare_process,
        transformed,
    )
    from fl_app.client.numpy_client import TrainerClient

    config = OmegaConf.create(app_config)
    assert isinstance(config, DictConfig)
    kit = os.environ.get("FL_APP_KIT")
    if kit and Path(kit, "helper.pub").exists():
        real = not any_node and config.runtime.name == "deployment"
        if not (real and asks_for_masks(config)):
            raise ValueError(
                "this node's kit has a helper, so it masks its uploads: the run needs "
                "secure_aggregation=helper, or the node's folder no helper.pub"
            )
    if any_node:
        prepare_process()
    weights = config.task.get("weights")
    if weights is not None and not Path(weights).expanduser().exists():
        config.task.weights = None  # orders bring the trained parameters
    task = build_task(config) if data is None else _task_of(config, data)
    if data is None and (task.num_clients == 0 or config.num_clients is None):
        raise ValueError(
            "this node has no data, and the run brings none: name its data, as DATA=/path in "
            "node.env or --node-config \"data='/path'\""
        )
    trainer = build_trainer(config, task)
    return TrainerClient(trainer, transformed(config, trainer))


def _task_of(config: "DictConfig", path: str) -> "Task":
    """The run's task with the node's own data."""
    from fl_app.client.build import build_task
    from fl_app.client.node_data import kind_of, own_config, too_few

    own_config(config, path)  # its errors quote only the run's configuration
    try:
        task = build_task(config, path)
    except Exception as error:
        name = kind_of(config.task)
        raise ValueError(
            f"this node's own data cannot be read as task={name} with the run's schema: the node's "
            "log says why, and so does `python -m fl_app.field doctor` on it"
        ) from error
    if problem := too_few(task):
        raise ValueError(f"this node's own data are too few: {problem}")
    return task
