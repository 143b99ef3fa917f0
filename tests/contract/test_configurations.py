"""Configurations of algorithms: bad values, unusable schedules and uploads, and defaults."""

import inspect
import re

import numpy as np
import pytest
import yaml
from helpers import ALGORITHMS, HeadedQuadratic, engine_of, make_config
from hydra.utils import get_object
from omegaconf import OmegaConf

from fl_app.asynchronous import Asynchronous
from fl_app.cli import CONF, refuse_surplus
from fl_app.client import LocalTrainer
from fl_app.client.build import build_trainer
from fl_app.core.types import KINDS
from fl_app.runner.validate import build_schedule, build_strategy, validate_config

TASK = HeadedQuadratic.scattered(12)
SCHEDULES = sorted(path.stem for path in (CONF / "algorithm" / "schedule").glob("*.yaml"))

every_algorithm = pytest.mark.parametrize("name", ALGORITHMS)


def configuration(name, *overrides):
    return make_config(f"algorithm={name}", "num_clients=12", "runtime.workers=0", *overrides)


# -- values ---------------------------------------------------------------------------------------

# Keys for which -1 is valid: a cosine.
VALID = {("strategy.similarity_threshold", -1), ("strategy.min_similarity", -1)}

# Keys whose error names another key: one that depends on them, or Flower's own name.
OTHER_KEYS = {
    "strategy.max_local_epochs": "algorithm.client.local_epochs",
    "strategy.inner.beta": "beta",
}


def keys(node, above=""):
    for key, value in node.items():
        if isinstance(value, dict):
            yield from keys(value, f"{above}{key}.")
        elif key != "_target_":
            yield f"{above}{key}"


@every_algorithm
def test_bad_values_are_refused_by_the_name_of_their_key(name):
    config = configuration(name)
    algorithm = OmegaConf.to_container(config.algorithm, resolve=True)
    assert isinstance(algorithm, dict)
    failures = []
    for key in keys({part: algorithm[part] for part in ("strategy", "schedule", "client")}):
        good = OmegaConf.select(config.algorithm, key)
        for bad in (float("nan"), -1, "x"):
            if (key, bad) in VALID:
                continue
            OmegaConf.update(config.algorithm, key, bad)
            try:
                validate_config(config)
                if key.startswith("client."):  # the trainer's class checks its own keys
                    build_trainer(config, TASK)
                message = "nothing"
            except ValueError as error:
                message = str(error)
            if OTHER_KEYS.get(key, f"algorithm.{key}") not in message:
                failures.append((key, bad, message))
            OmegaConf.update(config.algorithm, key, good)
    assert failures == []


BEYOND = {
    "asyncfeded": "offset=0 epoch_rate=0",
    "aso_fed": "decay=1.0 num_clients=0",
    "ca2fl": "calibration=1.5 num_clients=0",
    "cana": "exponent=51 memory_span=0 calibration=2 fusion_length=0",
    "dp_fedbuff": "clip_norm=0 clip_norm=null noise_multiplier=0 delta=1 max_epsilon=0",
    "fadas": "momentum=1 second_momentum=1 epsilon=0",
    "fedasync": "mixing=0 mixing=1.1",
    "feddyn": "regularisation=0.0",
    "fedcompass": "server_lr=0 exponent=-1 num_clients=0",
    "fedhist": "utility_rate=2 norm_floor=0 similarity_threshold=2",
    "fedpsa": "temperature_slope=-1 min_temperature=0 queue_length=0 sketch_size=0",
    "fedqs": "form=both expected_share=-1",
    "fedsa": "mixing=0.0 mixing=1.5 local_epochs=0 num_versions=0",
    "fedstaleasync": "participation_rate=2",
    "fedstaleweight": "rate=0",
    "gsgm": "momentum=1",
    "mr_asyncfl": "discount=1 num_clients=0 max_staleness=-1",
    "moon": "temperature=0.0",
    "refl": "boost=1.5 scale=0.5",
    "ringmaster": "delay_threshold=0",
    "scaffold": "server_lr=0 num_clients=0",
    "zeno": "penalty=-1 tolerance=-1 validate_every=0 server_examples=0 batch_size=0",
    "wkafl": "clip_norm=0 min_similarity=1.1 stage_two_at=0",
}


@pytest.mark.parametrize("name", BEYOND)
def test_values_just_beyond_their_bounds_are_refused(name):
    for word in BEYOND[name].split():
        key, _, value = word.partition("=")
        config = configuration(name)
        OmegaConf.update(config.algorithm.strategy, key, yaml.safe_load(value))
        with pytest.raises(ValueError, match=rf"^algorithm\.strategy\.{key}="):
            validate_config(config)


# -- schedules and uploads ------------------------------------------------------------------------


def run(config):
    """How a run ended, its model, and the reasons of its failures and refusals."""
    engine, recorder = engine_of(config, TASK)
    outcome = engine.run()
    reasons = [event["reason"] for event in recorder.events if "reason" in event]
    return outcome.stopped, outcome.params, reasons


SMALL = ["num_versions=4", "eval_every=4", "algorithm.client.local_epochs=2"]
REFUSED = {
    ("eafl", "any but clustered_quorum"): "EAFL needs algorithm/schedule=clustered_quorum",
    ("overlap_fedavg", "any but full_participation, synchronous"): (
        "OverlapFedAvg needs algorithm/schedule=full_participation"
    ),
    ("area", "clustered_quorum"): "AREA cannot use algorithm/schedule=clustered_quorum",
    ("fedasmu", "random_k"): "FedASMU cannot use algorithm/schedule=random_k",
    ("krum", "all_async, fully_async, periodic, clustered_quorum, two_phase"): (
        r"algorithm.schedule\.buffer_size=1 must be at least"
    ),
}


def refusal(name, schedule):
    for (algorithm, schedules), reason in REFUSED.items():
        listed = schedule in schedules.removeprefix("any but ").split(", ")
        if algorithm == name and listed != schedules.startswith("any but "):
            return reason
    return None


def test_a_limit_of_updates_is_one_of_versions():
    """30 updates are 3 versions of 10 updates, which spend an epsilon of 9."""
    overrides = ("num_versions=null", "max_updates=30", "algorithm.strategy.max_epsilon=20")
    validate_config(configuration("dp_fedbuff", *overrides))
    message = "num_versions=None must be an integer: .*with num_versions=null it must be given"
    with pytest.raises(ValueError, match=message):
        validate_config(configuration("fedsa", *overrides[:2]))


def test_noise_on_real_nodes_is_secret_and_never_used_twice():
    overrides = ["algorithm=dp_fedbuff", "runtime=deployment", "num_clients=12"]
    overrides += ["checkpoint_every=1", "algorithm.strategy.noise_seed=null"]
    validate_config(make_config(*overrides))
    seed, every, guard = "algorithm.strategy.noise_seed=0", "checkpoint_every=2", "guard.max_norm=5"
    for override in (seed, every, guard, "guard.max_norm_ratio=5"):
        with pytest.raises(ValueError, match=f"^{override} must be "):
            validate_config(make_config(*overrides, override))


def test_a_gradient_is_no_model_to_mix():
    with pytest.raises(ValueError, match="upload=gradient must be one of model, delta"):
        validate_config(configuration("safl", "algorithm.strategy.form=model"))


# A common client, clients that pause, and clients that correct their gradients.
FEW = ("fedbuff", "fedasmu", "scaffold")
PAIRS = [(name, schedule) for name in ALGORITHMS for schedule in SCHEDULES]


@pytest.mark.parametrize(("name", "schedule"), [pair for pair in PAIRS if refusal(*pair)])
def test_a_schedule_of_no_use_is_refused_in_one_sentence(name, schedule):
    with pytest.raises(ValueError, match=f"^{refusal(name, schedule)}[^\n]*$"):
        validate_config(configuration(name, f"algorithm/schedule={schedule}"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "override"),
    [(name, f"algorithm/schedule={s}") for name, s in PAIRS if name in FEW and not refusal(name, s)]
    + [(name, f"algorithm.client.upload={kind}") for name in FEW for kind in KINDS],
)
def test_any_other_schedule_or_upload_works_or_is_refused_in_one_sentence(name, override):
    config = configuration(name, override, *SMALL)
    upload = config.algorithm.client.upload
    if upload not in build_strategy(config).takes:
        message = rf"^algorithm\.client\.upload={upload} must be one of .*delta.* with \w+: [^\n]*$"
        with pytest.raises(ValueError, match=message):
            validate_config(config)
        return
    validate_config(config)
    stopped, params, reasons = run(config)
    assert (stopped, reasons) == ("num_versions", [])
    assert np.isfinite(params).all()


# -- defaults of classes are those of conf/: `X().start(...)` is `algorithm=x` --------------------

# Where they differ, conf/ gives the reason beside the key: ``# class default D: reason``.
FACTS = {"num_clients": 977, "num_versions": 978, "seed": 979}  # a run's; no class knows them
RUN = [f"{key}={value}" for key, value in FACTS.items()]


def keywords(function):
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def settings(name, part):
    node = make_config(f"algorithm={name}", *RUN).algorithm[part]
    values = OmegaConf.to_container(node, resolve=True)
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def unexplained(python, conf, *files):
    """Keys in both whose values differ without a reason in one of the files."""
    lines = "\n".join((CONF / "algorithm" / f"{file}.yaml").read_text() for file in files)
    return {
        key: (python[key], conf[key])
        for key in python.keys() & conf.keys()
        if python[key] != conf[key]
        and conf[key] not in FACTS.values()
        and not re.search(rf"\b{key}: .*# .*\bclass default {python[key]}: \w", lines)
    }


@every_algorithm
def test_the_schedule_is_that_of_the_class(name):
    config = make_config(f"algorithm={name}", *RUN)
    refuse_surplus(config, [f"algorithm={name}"])  # the file's name is the algorithm's
    strategy, schedule = build_strategy(config), build_schedule(config)
    if isinstance(strategy, Asynchronous):
        pytest.skip("one class for all strategies of Flower, each with a schedule of its own")
    default = type(strategy)().schedule
    assert type(schedule) is type(default)
    kind = inspect.getmodule(type(schedule)).__name__.rpartition(".")[2]
    assert unexplained(vars(default), vars(schedule), f"schedule/{kind}") == {}


@every_algorithm
def test_the_clients_options_are_those_of_the_algorithms_own_trainer(name):
    conf = settings(name, "client")
    python = keywords(get_object(conf["_target_"]))
    options = {key: python[key] for key in python.keys() - keywords(LocalTrainer)}
    assert unexplained(options, conf, name) == {}
