"""What a server needs, built from the configuration: devices, clock, mailbox and engine.

A node needs `fl_app.client.build` alone.
"""

import logging
import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from omegaconf import DictConfig, OmegaConf

from fl_app.client import TrainingTask
from fl_app.client.build import asks_for_masks, build_task, build_trainer, instantiate
from fl_app.client.gpus import prepare
from fl_app.client.recipe import Recipe, together
from fl_app.client.untrained import Untrained
from fl_app.core.algorithm import Algorithm
from fl_app.core.events import Sink
from fl_app.core.layout import Layout
from fl_app.core.types import Vector
from fl_app.devices import Fleet, Overlapping
from fl_app.engine.clock import Clock, Mailbox
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.intake import Intake
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline, Workers
from fl_app.flower import names, patches
from fl_app.flower.grid import AnyNode, GridMailbox
from fl_app.runner.evaluation import build_evaluation
from fl_app.runner.given import NOTHING, Given
from fl_app.runner.placement import Placement, placement
from fl_app.runner.server_examples import ServerExamples
from fl_app.runner.validate import (
    PARTS,
    build_client_evaluation,
    build_guard,
    build_schedule,
    build_strategy,
)
from fl_app.schedule import Schedule
from fl_app.strategy.memories import memory_cost

if TYPE_CHECKING:
    from flwr.serverapp import Grid

    from fl_app.client import LocalTrainer
    from fl_app.client.flat import FlatModel

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sizes:
    """Bytes per message, extra vectors included; the same for every client.

    Attributes:
        model: of a model's vector.
        order: of an order.
        upload: of an upload.
        fixed: of the fixed part of the model (`fl_app.client.flat.FlatModel`), which travels with a
            client's first order; 0 if clients build it themselves, or there is none.
    """

    model: int
    order: int
    upload: int
    fixed: int = 0


@dataclass(frozen=True)
class Components:
    """The objects of a run that do not depend on its folder.

    Attributes:
        config: the run's, with the number of local epochs that nodes are to train.
        trainer: of the task; does the training where no Flower nodes do.
        strategy: how updates become the next model.
        schedule: when clients start and updates are aggregated.
        devices: of all clients; None where the schedule or real nodes decide how long orders take.
        initial: w_0.
        sizes: of messages.
        placement: of the processes that train.
        given: objects in place of parts of the configuration.
    """

    config: DictConfig
    trainer: "LocalTrainer"
    strategy: Algorithm
    schedule: Schedule
    devices: Fleet | Overlapping | None
    initial: Vector
    sizes: Sizes
    placement: Placement
    given: Given = NOTHING

    def recipe(self, batch: int = 1) -> Recipe:
        """What a process that inherits nothing makes a trainer from.

        Args:
            batch: largest number of clients that are trained in one operation.
        """
        trainer = self.trainer
        fixed = trainer.model.fixed_bytes() if self.sizes.fixed else None
        return Recipe(self.config, trainer.task, self.given.trainer, fixed, batch)


def build_components(
    config: DictConfig, task: TrainingTask | None = None, given: Given = NOTHING
) -> Components:
    """Build what `config` describes; `config` itself is not changed.

    Args:
        config: composed from ``conf/``, and accepted by `validate_config`.
        task: as `build_task` gives it; None = build it.
        given: objects in place of parts of the configuration.

    Raises:
        ValueError: a value is refused.
    """
    task = build_task(config) if task is None else task
    masked = asks_for_masks(config)
    if masked:
        from fl_app.secure import run as secure  # a leaf, which few runs need
        from fl_app.secure.seals import SEAL_BYTES

        # Clients and helper need the numbers that follow from others.
        config = secure.with_scale(
            config, build_strategy(config, given), build_schedule(config, given)
        )
    placed = placement(config)
    prepare(placed.device)
    trainer = build_trainer(config, task, given.trainer, placed.device)
    from fl_app.client.initial import build_model  # torch, after what is refused without it

    first = build_model(
        task, config.seed, private=trainer.private, weights=config.task.get("weights")
    )
    strategy, schedule = build_strategy(config, given), build_schedule(config, given)
    sizes = build_sizes(strategy, trainer, first)
    if masked:
        secure.refuse_buffers(trainer.model.layout)
        sizes = replace(sizes, upload=sizes.upload + SEAL_BYTES)
    devices = None
    if config.runtime.name != "deployment" and schedule.devices is None:
        devices = _build_devices(config, trainer, sizes)
    if isinstance(devices, Overlapping):
        # These devices know how many local epochs cover a transfer.
        config = deepcopy(config)
        config.algorithm.client.local_epochs = devices.local_epochs
        trainer = build_trainer(config, task, given.trainer, placed.device)
    if sizes.fixed:
        trainer.model.load_fixed(first.fixed_bytes())
    return Components(
        config, trainer, strategy, schedule, devices, first.read(), sizes, placed, given
    )


def build_sizes(
    strategy: Algorithm, trainer: "LocalTrainer", first: "FlatModel | None" = None
) -> Sizes:
    """The bytes of an algorithm's orders and uploads, known before the first order.

    Args:
        strategy: of the run.
        trainer: as a client builds it.
        first: the server's model before training, if its fixed part may be another one.
    """
    layout = trainer.model.layout
    sent = first is not None and first.fixed_digest != trainer.model.fixed_digest
    return Sizes(
        model=4 * layout.size,
        order=4 * layout.size * (1 + len(strategy.order_extra)),
        upload=trainer.compression.num_bytes(layout) * (1 + len(strategy.upload_extra)),
        fixed=trainer.model.num_fixed_bytes if sent else 0,
    )


def _build_devices(
    config: DictConfig, trainer: "LocalTrainer", sizes: Sizes
) -> Fleet | Overlapping:
    task, settings = trainer.task, config.devices
    facts = {
        "num_clients": config.num_clients,
        "seed": config.seed,
        "num_bytes": sizes.model,
        "download_share": sizes.order / sizes.model,
        "upload_share": sizes.upload / sizes.model,
        "num_examples": [task.train_indices(i).size for i in range(config.num_clients)],
    }
    own = [key for key in settings if key not in PARTS]
    compute = instantiate(OmegaConf.masked_copy(settings, own), facts)
    facts["mean_seconds"] = compute.mean_seconds
    network, energy = (
        instantiate(settings[part], facts) if part in settings else None
        for part in ("network", "energy")
    )
    fleet = usual = Fleet(compute, network, energy)
    if sizes.fixed and network is not None:
        facts["download_share"] = (sizes.order + sizes.fixed) / sizes.model
        fleet = Fleet(compute, network, energy, first=instantiate(settings["network"], facts))
    if not trainer.overlaps:
        return fleet
    most = config.algorithm.strategy.max_local_epochs
    return Overlapping(fleet, config.num_clients, most, usual)


def build_engine(
    components: Components,
    *,
    sinks: Sequence[Sink],
    checkpoint: Callable[[int], None] | None = None,
    grid: "Grid | None" = None,
    run: str = "",
) -> Engine:
    """The engine with all that it drives.

    Args:
        components: of the run.
        sinks: receive the events; the list may grow until the engine runs.
        checkpoint: called with the version whenever a checkpoint is due.
        grid: of the ServerApp, for the runtimes that need one.
        run: letters and digits that identify the run on real nodes, also after it was resumed;
            "" = Flower's run id.

    Raises:
        ValueError: a value is refused.
    """
    config, trainer, strategy = components.config, components.trainer, components.strategy
    layout = trainer.model.layout
    if config.runtime.name != "deployment":
        strategy.prepare(ServerExamples(trainer).gradient)
    if told := memory_cost(strategy, layout.num_trainable, config.num_clients or 0):
        log.info(told)
    return Engine(
        strategy=strategy,
        schedule=components.schedule,
        clock=_clock(components, layout, grid, run),
        initial=components.initial,
        num_trainable=layout.num_trainable,
        stop=Stop(
            num_versions=_unlimited(config.num_versions),
            seconds=_unlimited(config.max_seconds),
            target_accuracy=_unlimited(config.target_accuracy),
            updates=_unlimited(config.max_updates),
        ),
        evaluate=build_evaluation(trainer, config, components.placement, components.recipe()),
        eval_every=config.eval_every,
        client_evaluation=build_client_evaluation(config),
        guard=build_guard(config),
        tolerates=config.failures == "tolerate" or config.runtime.name == "deployment",
        intake=_intake(components, layout.size, run),
        upload_bytes=components.sizes.upload,
        # Real nodes are sent the fixed part if they ask for it.
        fixed_bytes=0 if config.runtime.name == "deployment" else components.sizes.fixed,
        checkpoint=checkpoint,
        checkpoint_every=config.checkpoint_every,
        checkpoint_final=config.checkpoint_final,
        sinks=sinks,
        seed=config.seed,
    )


def _intake(components: Components, size: int, run: str) -> Intake:
    config = components.config
    if not asks_for_masks(config):
        return Intake()
    from fl_app.secure.run import build_intake  # a leaf, which few runs need

    return build_intake(config, components.strategy, components.schedule, size, run)


# Of a reply, in models: a sparse upload may have three, an encrypted one more. [A]
REPLY_MODELS = 8
REPLY_BESIDE = 4 * 2**20  # bytes of what is beside them


def _largest_reply(components: Components) -> int:
    """Bytes that a real node may send for one order; an honest one needs less by far."""
    vectors = 1 + len(components.strategy.upload_extra)
    return REPLY_MODELS * vectors * components.trainer.model.read().nbytes + REPLY_BESIDE


def _clock(components: Components, layout: Layout, grid: "Grid | None", run: str) -> Clock:
    config, trainer, schedule = components.config, components.trainer, components.schedule
    deadline = _unlimited(config.deadline)
    runtime = config.runtime
    settings = {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)}
    fixed = trainer.model.fixed_bytes()
    if fixed:
        settings[names.FIXED] = trainer.model.fixed_digest
    if runtime.name == "deployment":
        assert grid is not None
        if runtime.warm and patches.tried():
            patches.pull_sooner()
        patches.bound_replies(_largest_reply(components), grid)
        if run:
            settings[names.RUN] = run
        mailbox = GridMailbox(
            grid,
            layout,
            train_config=settings,
            fixed=fixed,
            deadline=deadline,
        )
        return WallClock(mailbox, deadline=deadline)
    if schedule.devices is not None and (trainer.pauses or trainer.overlaps):
        raise ValueError(
            f"algorithm/schedule=random_k knows how long an order takes, and not its parts: "
            f"algorithm={config.algorithm.name} needs devices, and another schedule"
        )
    return _virtual_clock(components, _mailbox(components, layout, grid, settings))


def _virtual_clock(components: Components, mailbox: Mailbox) -> VirtualClock:
    config, trainer, schedule = components.config, components.trainer, components.schedule
    devices = schedule.devices or components.devices
    assert devices is not None
    availability, server = (config.devices.get(part) for part in ("availability", "server"))
    return VirtualClock(
        mailbox,
        devices,
        config.num_clients,
        deadline=_unlimited(config.deadline),
        seed=config.seed,
        availability=availability and instantiate(availability, {"seed": config.seed}),
        epochs=trainer.epochs,
        counts_epochs=trainer.local_steps is None and schedule.devices is None,
        pauses=trainer.pauses,
        # A schedule that decides how long orders take does not know their parts.
        evaluation_share=None if schedule.devices else trainer.evaluation_share,
        server=server and instantiate(server),
    )


def _mailbox(
    components: Components,
    layout: Layout,
    grid: "Grid | None",
    settings: dict[str, str],
) -> Mailbox:
    runtime, trainer = components.config.runtime, components.trainer
    if grid is not None and runtime.name == "flower":
        fixed = trainer.model.fixed_bytes()
        return AnyNode(grid, layout, train_config=settings, fixed=fixed)
    if runtime.name == "ray":
        from fl_app.runner.on_cluster import build_cluster_mailbox  # Ray, which not all have

        return build_cluster_mailbox(components)
    if not runtime.get("train", True):
        return Inline(Untrained(trainer, components.strategy.upload_extra))
    workers, gpus = components.placement.workers, components.placement.gpus
    carries_out = together(components.config, trainer, runtime.batch)
    batch = getattr(carries_out, "batch", 1)
    if not workers:
        return Inline(carries_out)
    return Workers(
        components.recipe(batch) if gpus else carries_out,
        workers,
        layout.size,
        devices=gpus,
        batch=batch,
        upload_extra=components.strategy.upload_extra,
        patience=runtime.patience,
    )


def _unlimited(value: float | None) -> float:
    return math.inf if value is None else value
