"""Secure aggregation of a configured run: what it can be used with, and the engine's intake."""

from copy import deepcopy
from dataclasses import dataclass, fields

from omegaconf import DictConfig

from fl_app.core.algorithm import Algorithm
from fl_app.core.errors import require
from fl_app.core.hyper import POSITIVE, SWITCH, bounded, check_bounds, count, one_of, or_none
from fl_app.core.layout import Layout
from fl_app.schedule import Buffered, RandomK, Schedule
from fl_app.secure.fixed_point import check_overflow, largest_scale
from fl_app.secure.helper import LEAST, Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.request import Summer
from fl_app.secure.server import NoMasks, SecureAggregation
from fl_app.secure.simulated import SimulatedDevices, helper_key, key_of_noise
from fl_app.secure.terms import terms_of
from fl_app.strategy.privacy import Account

ON = "secure_aggregation=helper"


@dataclass
class _Settings:
    """Settings whose bounds depend on nothing else."""

    losses: bool = bounded(True, SWITCH, "it is a switch")
    simulate: str = bounded(
        "helper",
        one_of("helper", "cost"),
        "a simulation masks uploads, or models what that costs",
    )
    patience: float = bounded(600, POSITIVE, "the server would not wait for an answer")
    min_clients: int | None = bounded(None, or_none(count()), "sums would hide nothing")
    scale: float | None = bounded(None, or_none(POSITIVE), "nothing would be sent")
    clip_norm: float | None = bounded(None, or_none(POSITIVE), "nothing would be left of an upload")

    def __post_init__(self) -> None:
        check_bounds("secure_aggregation", self)


def validate_secure(
    config: DictConfig, strategy: Algorithm, schedule: Schedule, versions: float
) -> None:
    """Refuse a run that cannot mask its uploads.

    Args:
        config: of a run with ``secure_aggregation=helper``.
        strategy: of the run.
        schedule: of the run.
        versions: most that the run can publish; inf = any number.

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
    require(
        client.upload in kinds,
        "algorithm.client.upload",
        client.upload,
        f"{' or '.join(kinds)} with algorithm={name} and {ON}",
        "only of these does it use a weighted sum alone",
    )
    clipped = "the server sees no upload; clients clip theirs to secure_aggregation.clip_norm"
    for key, value, only, consequence in (
        ("guard.max_norm", config.guard.max_norm, None, clipped),
        ("guard.max_norm_ratio", config.guard.max_norm_ratio, None, clipped),
        ("algorithm.client.top_k", client.get("top_k"), None, "its places would show the upload"),
        (
            "algorithm.client.upload_dtype",
            client.get("upload_dtype", "float32"),
            "float32",
            "a masked entry has 32 bits",
        ),
        ("runtime.train", config.runtime.get("train", True), True, "nothing would be masked"),
    ):
        require(value == only, key, _shown(value), f"{_shown(only)} with {ON}", consequence)
    _Settings(**{each.name: secure[each.name] for each in fields(_Settings)})
    real = config.runtime.name == "deployment"
    require(
        (secure.address is not None) == real,
        "secure_aggregation.address",
        secure.address,
        "host:port with runtime=deployment, and null without",
        "real nodes need a helper of another party, and a simulation has its own",
    )
    require(
        not real or secure.simulate == "helper",
        "secure_aggregation.simulate",
        secure.simulate,
        "helper with runtime=deployment",
        "uploads of real nodes would not be masked",
    )
    members, least = _members(schedule), fewest(config, schedule)
    require(
        LEAST <= least <= members,
        "secure_aggregation.min_clients",
        least,
        f"between {LEAST} and algorithm.schedule.buffer_size={members}",
        "a sum over one client is its upload, and one of more than the buffer never comes",
    )
    account = _account(config)
    if account is not None:
        require(
            getattr(strategy, "noise_multiplier", None) is None,
            "secure_aggregation.noise_multiplier",
            secure.noise_multiplier,
            f"null with algorithm={name}",
            "its server adds noise already; algorithm=fedbuff leaves the noise to the helper",
        )
        account.validate_run(versions)
    clip_norm = _clip_norm(config, strategy)
    if secure.scale is not None:
        check_overflow(clip_norm, secure.scale, members, secure.noise_multiplier or 0.0)


def with_scale(config: DictConfig, strategy: Algorithm, schedule: Schedule) -> DictConfig:
    """A copy of the configuration in which clip norm, scale and least clients are numbers."""
    config = deepcopy(config)
    secure = config.secure_aggregation
    secure.clip_norm = float(_clip_norm(config, strategy))
    if secure.scale is None:
        noise = secure.noise_multiplier or 0.0
        secure.scale = largest_scale(secure.clip_norm, _members(schedule), noise)
    secure.min_clients = fewest(config, schedule)
    return config


def build_intake(
    config: DictConfig, strategy: Algorithm, schedule: Schedule, size: int, run: str
) -> SecureAggregation:
    """What opens the sums of masked uploads.

    Args:
        config: as `with_scale` gives it.
        strategy: of the run.
        schedule: of the run.
        size: d, entries of an upload.
        run: identifies the run on real nodes.
    """
    secure, real = config.secure_aggregation, config.runtime.name == "deployment"
    return SecureAggregation(
        _helper(config),
        terms_of(config, size, run if real else ""),
        strategy.public_weights(),
        members=_members(schedule),
        least=secure.min_clients,
        account=_account(config),
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

    What a class declares holds for its own `aggregate`, and for no subclass with another one.
    """
    for cls in type(strategy).__mro__:
        own = vars(cls)
        if "linear_in" in own:
            return tuple(own["linear_in"])
        if {"aggregate", "weights", "gradients", "average", "step", "clip"} & own.keys():
            return ()
    return ()


def _shown(value: object) -> object:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else value


def fewest(config: DictConfig, schedule: Schedule) -> int:
    """T, the fewest different clients of a sum."""
    least = config.secure_aggregation.min_clients
    return _members(schedule) if least is None else least


def _members(schedule: Schedule) -> int:
    """K, the updates of an aggregation.

    Raises:
        ValueError: the schedule has no such number.
    """
    if not isinstance(schedule, Buffered | RandomK):
        raise ValueError(
            f"{ON} cannot be used with the schedule {type(schedule).__name__}: how many updates it "
            "aggregates is unknown, so a sum could overflow"
        )
    require(
        schedule.buffer_size >= LEAST,
        "algorithm.schedule.buffer_size",
        schedule.buffer_size,
        f"at least {LEAST} with {ON}",
        "a sum over one client is its upload",
    )
    return schedule.buffer_size


def _clip_norm(config: DictConfig, strategy: Algorithm) -> float:
    """C, the algorithm's or that of the secure aggregation.

    Raises:
        ValueError: there is none, or both are given.
    """
    mine, theirs = config.secure_aggregation.clip_norm, strategy.clip_norm
    require(
        mine is None or theirs is None or mine == theirs,
        "secure_aggregation.clip_norm",
        mine,
        f"null with algorithm.strategy.clip_norm={theirs}",
        "clients clip once, and the server sees no upload that it could clip",
    )
    norm = theirs if mine is None else mine
    if norm is None:
        raise ValueError(
            "secure_aggregation.clip_norm=null must be a number above 0, about the largest norm of "
            "an upload, where algorithm.strategy.clip_norm is null: without it a sum could overflow"
        )
    return float(norm)


def _helper(config: DictConfig) -> Summer:
    secure, seed = config.secure_aggregation, config.seed
    if config.runtime.name == "deployment":
        from fl_app.secure.remote import RemoteHelper

        return RemoteHelper(secure.address, patience=secure.patience)
    if secure.simulate == "cost":
        return NoMasks(key_of_noise(seed))
    devices = SimulatedDevices(seed, config.num_clients)
    return Helper(
        helper_key(seed),
        devices,
        Ledger(),
        secure.min_clients,
        key_of_noise=key_of_noise(seed),
    )


def _account(config: DictConfig) -> Account | None:
    """What counts the privacy that the helper's noise spends; None without noise.

    Raises:
        ValueError: a value is out of its bounds.
    """
    secure = config.secure_aggregation
    if secure.noise_multiplier is None:
        require(
            secure.max_epsilon is None,
            "secure_aggregation.max_epsilon",
            secure.max_epsilon,
            "null with secure_aggregation.noise_multiplier=null",
            "without noise no epsilon bounds what is spent",
        )
        return None
    return Account("secure_aggregation", secure.noise_multiplier, secure.delta, secure.max_epsilon)
