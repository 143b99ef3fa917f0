"""Secure aggregation of a configured run: what it can be used with, and the engine's intake."""

from copy import deepcopy
from functools import partial

from omegaconf import DictConfig, OmegaConf, open_dict

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import require
from fl_app.core.hyper import POSITIVE
from fl_app.core.layout import Layout
from fl_app.schedule import Buffered, RandomK, Schedule
from fl_app.secure.helper import MIN_DEVICES, Helper
from fl_app.secure.integers import largest_scale
from fl_app.secure.ledger import Ledger
from fl_app.secure.request import Summer, Terms
from fl_app.secure.server import SecureAggregation
from fl_app.secure.simulated import find_device, helper_key

ON = "secure_aggregation=helper"


def validate_secure(config: DictConfig, strategy: Algorithm, schedule: Schedule) -> None:
    """Refuse a run that cannot mask its uploads.

    Args:
        config: of a run with ``secure_aggregation=helper``.
        strategy: of the run.
        schedule: of the run.

    Raises:
        ValueError: naming key, value, bound and consequence.
    """
    secure, client = config.secure_aggregation, config.algorithm.client
    name = config.algorithm.name
    kinds = linear_kinds(strategy)
    if not kinds:
        raise ValueError(
            f"algorithm={name} cannot be used with {ON}: it needs {strategy.looks_at}, and the "
            "server sees sums alone"
        )
    strategy.public_weights()  # it refuses a form of the algorithm with other weights
    bound = f"{' or '.join(kinds)} with algorithm={name} and {ON}"
    effect = "of other kinds it uses more than a weighted sum"
    require(client.upload in kinds, "algorithm.client.upload", client.upload, bound, effect)
    clipped = "the server sees no upload; clients clip theirs to secure_aggregation.clip_norm"
    for key, only, consequence in (
        ("guard.max_norm", None, clipped),
        ("guard.max_norm_ratio", None, clipped),
        ("algorithm.client.upload_dtype", "float32", "a masked entry has 32 bits"),
        ("runtime.train", True, "nothing would be masked"),
    ):
        value = OmegaConf.select(config, key, default=only)
        require(value == only, key, _shown(value), f"{_shown(only)} with {ON}", consequence)
    key = "secure_aggregation.losses"
    require(type(secure.losses) is bool, key, secure.losses, "true or false", "it is a switch")
    fits = (secure.address is not None) == (config.runtime.name == "deployment")
    bound = "host:port with runtime=deployment, and null without"
    effect = "real nodes need a helper of another party, and a simulation has its own"
    require(fits, "secure_aggregation.address", secure.address, bound, effect)
    settled(config, strategy, schedule)


def settled(config: DictConfig, strategy: Algorithm, schedule: Schedule) -> DictConfig:
    """A copy of the configuration in which the clip norm is a number, with `scale`.

    Raises:
        ValueError: it does not fit the algorithm or its schedule.
    """
    config = deepcopy(config)
    secure = config.secure_aggregation
    if not isinstance(schedule, Buffered | RandomK):
        raise ValueError(
            f"{ON} cannot be used with the schedule {type(schedule).__name__}: how many updates it "
            "aggregates is unknown, so a sum could overflow"
        )
    members, clip = schedule.buffer_size, strategy.clip_norm
    if secure.clip_norm is not None:
        key, consequence = "secure_aggregation.clip_norm", "nothing would be left of an upload"
        POSITIVE.check(key, secure.clip_norm, consequence)
    bound, effect = f"at least {MIN_DEVICES} with {ON}", "a sum over one client is its upload"
    require(members >= MIN_DEVICES, "algorithm.schedule.buffer_size", members, bound, effect)
    fits = None in (secure.clip_norm, clip) or secure.clip_norm == clip
    bound = f"null with algorithm.strategy.clip_norm={clip}"
    effect = "clients clip once, and the server sees no upload that it could clip"
    require(fits, "secure_aggregation.clip_norm", secure.clip_norm, bound, effect)
    if secure.clip_norm is None:
        secure.clip_norm = clip
    if secure.clip_norm is None:
        raise ValueError(
            "secure_aggregation.clip_norm=null must be a number above 0, about the largest norm of "
            "an upload, where algorithm.strategy.clip_norm is null: without it a sum could overflow"
        )
    secure.clip_norm = float(secure.clip_norm)
    with open_dict(secure):
        secure.scale = largest_scale(secure.clip_norm, members)
    return config


def build_intake(
    config: DictConfig, strategy: Algorithm, schedule: Schedule, size: int, run: str
) -> SecureAggregation:
    """The engine's intake, which opens the sums of masked uploads.

    Args:
        config: as `settled` returns it.
        strategy: of the run.
        schedule: of the run.
        size: d, entries of an upload.
        run: identifies the run on real nodes.
    """
    assert isinstance(schedule, Buffered | RandomK)  # `settled` refuses others
    real = config.runtime.name == "deployment"
    return SecureAggregation(
        _helper(config, schedule.buffer_size),
        Terms.of(config, size, run if real else ""),
        strategy.public_weights(),
        members=schedule.buffer_size,
    )


def refuse_buffers(layout: Layout) -> None:
    """Refuse a model with entries that are not trained.

    Raises:
        ValueError: naming some of them.
    """
    buffers = [entry.name for entry in layout.entries if not entry.trainable]
    if buffers:
        raise ValueError(
            f"{ON} needs a model without buffers such as {buffers[0]}: their size has no bound, so "
            "a sum could overflow"
        )


def linear_kinds(strategy: Algorithm) -> tuple[str, ...]:
    """Kinds of uploads of which an algorithm uses a weighted sum alone.

    The declaration of a class holds for its own `aggregate`, not for a subclass that overrides it.
    """
    for cls in type(strategy).__mro__:
        attributes = vars(cls)
        if "linear_in" in attributes:
            return tuple(attributes["linear_in"])
        if {"aggregate", "weights", "gradients", "average", "step", "clip"} & attributes.keys():
            return ()
    return ()


def _shown(value: object) -> object:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value


def _helper(config: DictConfig, members: int) -> Summer:
    secure, seed = config.secure_aggregation, config.seed
    if config.runtime.name == "deployment":
        from fl_app.secure.folder import kit_folder, server_context
        from fl_app.secure.remote import ask_helper

        return partial(ask_helper, secure.address, server_context(kit_folder()))
    find = partial(find_device, seed, config.num_clients)
    return Helper(helper_key(seed), find, Ledger(), members).sum
