"""What every algorithm promises, found by the name of its YAML file."""

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

every_algorithm = pytest.mark.parametrize("name", NAMES, scope="module")  # one after the other
representatives = pytest.mark.parametrize("name", REPRESENTATIVES, scope="module")


@cache
def configuration(name, *overrides):
    overrides = (*QUIET.get(name, []), *overrides)
    return make_config(f"algorithm={name}", f"num_clients={CLIENTS}", *overrides)


@every_algorithm
def test_configuration_is_complete_and_found_good(name):
    """Every keyword of the strategy is a key of its file, and the schedule is possible."""
    config = configuration(name)
    validate_config(config)
    assert config.algorithm.name.split()[0] == name  # fedsa says more
    strategy = config.algorithm.strategy
    keywords = inspect.signature(get_class(strategy._target_)).parameters.keys()
    assert set(strategy) - {"_target_"} == keywords
    assert strategy._target_.startswith(f"fl_app.algorithms.{name}.")


# -- on its own, with hand-made updates -----------------------------------------------------------

VERSION, SIZE, TRAINABLE = 7, 6, 4


def frozen(rng):
    return vec(*rng.standard_normal(SIZE))


def situation(name):
    """A model with buffers, and ten uploads of the kind that the algorithm orders, of all ages."""
    rng = np.random.default_rng(3)
    history = {version: frozen(rng) for version in range(4, VERSION + 1)}
    trainable = SIZE if name == "dp_fedbuff" else TRAINABLE  # it takes no buffers
    model = GlobalModel(history[VERSION], VERSION, history, trainable)
    kind = configuration(name).algorithm.client.upload
    extra = build_strategy(configuration(name)).upload_extra
    updates = [
        Update(
            client_id=10 + k,
            base_version=4 + k % 4,
            vector=frozen(rng),
            kind=kind,
            num_examples=5 + 3 * k,
            loss=1.0 / (1 + k),
            rate_sum=1.0 if kind == "gradient" else 0.25,
            extra={name: frozen(rng) for name in extra},
        )
        for k in range(10)
    ]
    return model, updates


def built(name):
    """The strategy; a gradient that is computed on the server is made up."""
    strategy = build_strategy(configuration(name))
    strategy.prepare(lambda params, *rest: frozen(np.random.default_rng(4)))
    return strategy


def settings(strategy):
    return {k: v for k, v in vars(strategy).items() if k not in ("state", "report", "schedule")}


@every_algorithm
def test_an_aggregation_changes_nothing_but_its_state(name):
    """Not its inputs, not its settings; it gives a finite vector, again, and a weight an update."""
    model, updates = situation(name)
    vectors = [*model.history.values(), *(update.vector for update in updates)]
    vectors += [vector for update in updates for vector in update.extra.values()]
    before = [vector.tobytes() for vector in vectors]
    strategy = built(name)
    own = deepcopy(settings(strategy))
    params = strategy.aggregate(model, updates)
    assert params.dtype == np.float32
    assert params.shape == (SIZE,)
    assert np.isfinite(params).all()
    assert (params != model.params).all()
    buffers = np.stack([model.params, *map(model.local, updates)])[:, model.num_trainable :]
    made = params[model.num_trainable :]  # else a variance could be negative
    np.testing.assert_allclose(made, made.clip(*np.sort(buffers, axis=0)[[0, -1]]), atol=1e-6)
    weights = strategy.report["weight"]
    assert len(weights) == len(updates)
    assert all(isinstance(weight, float) for weight in weights)
    second = strategy.aggregate(model, updates)
    assert settings(strategy) == own
    assert strategy.state or second.tobytes() == params.tobytes()
    assert built(name).aggregate(model, updates).tobytes() == params.tobytes()
    assert [vector.tobytes() for vector in vectors] == before
    assert sorted(model.history) == [4, 5, 6, 7]


@every_algorithm
def test_the_docstring_shows_one_aggregation_by_hand(name):
    algorithm = get_class(make_config(f"algorithm={name}").algorithm.strategy._target_)
    names = vars(sys.modules[algorithm.__module__])
    given = {**names, "np": np, "GlobalModel": GlobalModel, "Update": Update}
    (found,) = doctest.DocTestFinder(recurse=False).find(algorithm, globs=given)
    shown = any(".aggregate(model, " in example.source for example in found.examples)
    assert shown, f"{algorithm.__name__} needs Examples: with .aggregate(model, ...)"
    assert doctest.DocTestRunner().run(found).failed == 0


# -- in a run -------------------------------------------------------------------------------------


def train(name, *overrides, num_versions, seed=0, workers=0):
    """The algorithm as its file has it, on devices of which one is five times slower."""
    config = configuration(name, f"seed={seed}", f"num_versions={num_versions}", *overrides)
    return run_configured(config, build_trainer(config, TASK), workers=workers)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_checkpoint_can_hold_what_is_learned(name, caplog):
    settings = ["num_versions=3", "runtime.workers=0", "algorithm.client.local_epochs=2"]
    config = make_config(f"algorithm={name}", f"num_clients={CLIENTS}", *settings)
    engine, _ = engine_of(config, TASK)
    engine.run()
    assert loads(dumps(engine.state_dict())).keys() == engine.state_dict().keys()
    # MOON's penalty says that a model of one layer has nothing to compare.
    told = [each for each in caplog.records if each.name != "fl_app.client.trainer"]
    assert not [record for record in told if record.levelno >= logging.WARNING]


# AREA moves by K / N of what the clients' models do.
IN_30_VERSIONS = {"area": ["algorithm.client.local_epochs=20"]}


@representatives
def test_trains_to_the_optimum_of_a_quadratic(name):
    """From 5 away; clients' own optima lie 0.46 around it, which averaging must beat."""
    buffer_size = getattr(build_schedule(configuration(name)), "buffer_size", 1)
    settings = IN_30_VERSIONS.get(name, [])
    result = train(name, *settings, num_versions=300 // buffer_size)
    assert result.history.client_updates >= 300
    assert result.history.failures == result.history.rejected == 0
    assert np.linalg.norm(TASK.optimum) > 5
    assert np.linalg.norm(result.outcome.params - TASK.optimum) < 0.2


def trained(name, seed=0, workers=0):
    """Mini-batches are drawn, for they have fewer examples than a client."""
    return train(name, "algorithm.client.batch_size=3", num_versions=6, seed=seed, workers=workers)


@representatives
def test_same_seed_same_log_whatever_the_number_of_workers(name):
    """And another seed another log. A log that is read again tells as much as the run itself."""
    one, same, other = trained(name), trained(name, workers=2), trained(name, seed=1)
    assert same.events == one.events != other.events
    assert same.final == one.final
    # By more than the order of a sum, which all that differs would be were the batches the same.
    assert np.abs(one.outcome.params - other.outcome.params).max() > 1e-4
    history = History()
    for event in one.events:
        history.emit(from_json(json.loads(json.dumps(event))))
    assert vars(history) == vars(one.history)


class Drawn(HeadedQuadratic):
    """Begins at a random point."""

    def model(self):
        module = super().model()
        nn.init.normal_(module.head.weight)
        return module


def course(name, seed):
    """w_0, what arrived when, and the final model, of a run as configured."""
    config = configuration(name, f"seed={seed}", "num_versions=8", "runtime.workers=0")
    engine, recorder = engine_of(config, Drawn.scattered(CLIENTS))
    initial = engine.outcome.params.tobytes()
    final = engine.run().params.tobytes()
    arrivals = [event for event in recorder.events if event["kind"] == "arrival"]
    return initial, [(e["t"], e["client"], e["base_version"]) for e in arrivals], final


def test_a_seed_is_the_same_beginning_and_the_same_arrivals_for_all_that_are_compared():
    """Same schedule and devices: the methods differ in what they make of it, and in that alone."""
    names = ("fedavg_k", "twafl", "wkafl", "fedhist")
    initials, arrivals, finals = zip(*(course(name, seed=3) for name in names), strict=True)
    assert len(set(initials)) == 1
    assert all(other == arrivals[0] for other in arrivals[1:])
    assert len({base_version for _, _, base_version in arrivals[0]}) > 3
    assert len(set(finals)) == len(names)
    initial, other, _ = course("twafl", seed=4)
    assert initial != initials[0]
    assert other != arrivals[0]
