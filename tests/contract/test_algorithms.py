"""Properties that every algorithm must have. Algorithms are found by their YAML files."""

import doctest
import inspect
import json
import logging
import sys
from copy import deepcopy
from functools import cache

import numpy as np
import pytest
from helpers import (
    ALGORITHMS,
    NAMES,
    QUIET,
    REPRESENTATIVES,
    HeadedQuadratic,
    engine_of,
    make_config,
    run_configured,
    vec,
)
from hydra.utils import get_class
from torch import nn

from fl_app.client.build import build_trainer
from fl_app.core.events import from_json
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update
from fl_app.record.history import History
from fl_app.runner.validate import build_schedule, build_strategy, validate_config

CLIENTS = 20


TASK = HeadedQuadratic.scattered(CLIENTS)

every_algorithm = pytest.mark.parametrize("name", NAMES, scope="module")  # one after another
representatives = pytest.mark.parametrize("name", REPRESENTATIVES, scope="module")


@cache
def configuration(name, *overrides):
    overrides = (*QUIET.get(name, []), *overrides)
    return make_config(f"algorithm={name}", f"num_clients={CLIENTS}", *overrides)


@every_algorithm
def test_configuration_is_complete_and_valid(name):
    """Every keyword of the strategy is a key of its file, and the schedule is valid."""
    config = configuration(name)
    validate_config(config)
    strategy = config.algorithm.strategy
    keywords = inspect.signature(get_class(strategy._target_)).parameters.keys()
    assert set(strategy) - {"_target_"} == keywords
    assert strategy._target_.startswith(f"fl_app.algorithms.{name}.")


# -- a single aggregation, with hand-made updates -------------------------------------------------

VERSION, SIZE, TRAINABLE = 7, 6, 4


def random_vector(rng):
    return vec(*rng.standard_normal(SIZE))


def model_and_updates(name):
    """A model with buffers, and ten updates of the algorithm's upload kind, of several ages."""
    rng = np.random.default_rng(3)
    history = {version: random_vector(rng) for version in range(4, VERSION + 1)}
    trainable = SIZE if name == "dp_fedbuff" else TRAINABLE  # it refuses buffers
    model = GlobalModel(history[VERSION], VERSION, history, trainable)
    kind = configuration(name).algorithm.client.upload
    extra = build_strategy(configuration(name)).upload_extra
    updates = [
        Update(
            client_id=10 + k,
            base_version=4 + k % 4,
            vector=random_vector(rng),
            kind=kind,
            num_examples=5 + 3 * k,
            loss=1.0 / (1 + k),
            rate_sum=1.0 if kind == "gradient" else 0.25,
            extra={name: random_vector(rng) for name in extra},
        )
        for k in range(10)
    ]
    return model, updates


def make_strategy(name):
    """The strategy; gradients of the server are random vectors."""
    strategy = build_strategy(configuration(name))
    strategy.prepare(lambda params, *rest: random_vector(np.random.default_rng(4)))
    return strategy


def settings(strategy):
    return {k: v for k, v in vars(strategy).items() if k not in ("state", "report", "schedule")}


@every_algorithm
def test_an_aggregation_changes_nothing_but_its_state(name):
    """Inputs and settings stay. It returns a finite vector, repeatably, and a weight per update."""
    model, updates = model_and_updates(name)
    vectors = [*model.history.values(), *(update.vector for update in updates)]
    vectors += [vector for update in updates for vector in update.extra.values()]
    before = [vector.tobytes() for vector in vectors]
    strategy = make_strategy(name)
    old_settings = deepcopy(settings(strategy))
    params = strategy.aggregate(model, updates)
    assert params.dtype == np.float32
    assert params.shape == (SIZE,)
    assert np.isfinite(params).all()
    assert (params != model.params).all()
    buffers = np.stack([model.params, *map(model.local, updates)])[:, model.num_trainable :]
    means = params[model.num_trainable :]  # else a variance could be negative
    np.testing.assert_allclose(means, means.clip(*np.sort(buffers, axis=0)[[0, -1]]), atol=1e-6)
    weights = strategy.report["weight"]
    assert len(weights) == len(updates)
    assert all(isinstance(weight, float) for weight in weights)
    second = strategy.aggregate(model, updates)
    assert settings(strategy) == old_settings
    assert strategy.state or second.tobytes() == params.tobytes()
    assert make_strategy(name).aggregate(model, updates).tobytes() == params.tobytes()
    assert [vector.tobytes() for vector in vectors] == before
    assert sorted(model.history) == [4, 5, 6, 7]


@every_algorithm
def test_the_docstring_shows_one_aggregation_by_hand(name):
    algorithm = get_class(make_config(f"algorithm={name}").algorithm.strategy._target_)
    names = vars(sys.modules[algorithm.__module__])
    globs = {**names, "np": np, "GlobalModel": GlobalModel, "Update": Update}
    (test,) = doctest.DocTestFinder(recurse=False).find(algorithm, globs=globs)
    has_call = any(".aggregate(model, " in example.source for example in test.examples)
    assert has_call, f"{algorithm.__name__} needs Examples: with .aggregate(model, ...)"
    assert doctest.DocTestRunner().run(test).failed == 0


# -- in a run -------------------------------------------------------------------------------------


def train(name, *overrides, num_versions, seed=0, workers=0):
    """Run the algorithm as configured, on devices whose speeds differ by a factor up to five."""
    config = configuration(name, f"seed={seed}", f"num_versions={num_versions}", *overrides)
    return run_configured(config, build_trainer(config, TASK), workers=workers)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checkpoint_can_hold_what_is_learned(name, caplog):
    overrides = ["num_versions=3", "runtime.workers=0", "algorithm.client.local_epochs=2"]
    config = make_config(f"algorithm={name}", f"num_clients={CLIENTS}", *overrides)
    engine, _ = engine_of(config, TASK)
    engine.run()
    assert loads(dumps(engine.state_dict())).keys() == engine.state_dict().keys()
    # MOON's penalty warns that a model of one layer has no features to compare.
    records = [each for each in caplog.records if each.name != "fl_app.client.trainer"]
    assert not [record for record in records if record.levelno >= logging.WARNING]


# AREA's steps are K / N of those of the clients' models.
IN_30_VERSIONS = {"area": ["algorithm.client.local_epochs=20"]}


@representatives
def test_trains_to_the_optimum_of_a_quadratic(name):
    """It starts 5 away. Clients' optima lie 0.46 from it, so only averaging comes closer."""
    buffer_size = getattr(build_schedule(configuration(name)), "buffer_size", 1)
    settings = IN_30_VERSIONS.get(name, [])
    result = train(name, *settings, num_versions=300 // buffer_size)
    assert result.history.client_updates >= 300
    assert result.history.failures == result.history.rejected == 0
    assert np.linalg.norm(TASK.optimum) > 5
    assert np.linalg.norm(result.outcome.params - TASK.optimum) < 0.2


def fit(name, seed=0, workers=0):
    """Train in random mini-batches, smaller than a client's data."""
    return train(name, "algorithm.client.batch_size=3", num_versions=6, seed=seed, workers=workers)


@representatives
def test_same_seed_same_log_whatever_the_number_of_workers(name):
    """Another seed gives another log. The history of a log is that of the run."""
    one, same, other = fit(name), fit(name, workers=2), fit(name, seed=1)
    assert same.events == one.events != other.events
    assert same.final == one.final
    # With the same batches, models would differ only by the rounding of sums in another order.
    assert np.abs(one.outcome.params - other.outcome.params).max() > 1e-4
    history = History()
    for event in one.events:
        history.emit(from_json(json.loads(json.dumps(event))))
    assert vars(history) == vars(one.history)


class RandomStart(HeadedQuadratic):
    """Begins at a random point."""

    def model(self):
        module = super().model()
        nn.init.normal_(module.head.weight)
        return module


def course(name, seed):
    """w_0, the arrivals (second, client, base version), and the final model of a run."""
    config = configuration(name, f"seed={seed}", "num_versions=8", "runtime.workers=0")
    engine, recorder = engine_of(config, RandomStart.scattered(CLIENTS))
    initial = engine.outcome.params.tobytes()
    final = engine.run().params.tobytes()
    arrivals = [event for event in recorder.events if event["kind"] == "arrival"]
    return initial, [(e["t"], e["client"], e["base_version"]) for e in arrivals], final


def test_a_seed_fixes_start_and_arrivals_of_all_algorithms():
    """With the same schedule and devices, the algorithms differ only in their models."""
    names = ("fedavg_k", "twafl", "wkafl", "fedhist")
    initials, arrivals, finals = zip(*(course(name, seed=3) for name in names), strict=True)
    assert len(set(initials)) == 1
    assert all(other == arrivals[0] for other in arrivals[1:])
    assert len({base_version for _, _, base_version in arrivals[0]}) > 3
    assert len(set(finals)) == len(names)
    initial, other, _ = course("twafl", seed=4)
    assert initial != initials[0]
    assert other != arrivals[0]
