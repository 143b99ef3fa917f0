"""Secure aggregation with every algorithm: it works, or it is refused with the reason."""

import json
import pickle
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
from helpers import ALGORITHMS, QUIET, Recorder, engine_of, make_config
from secure_world import NoMask

from fl_app.core.types import GlobalModel, Update
from fl_app.runner.components import build_components
from fl_app.runner.factory import build_engine
from fl_app.runner.validate import build_strategy, validate_config
from fl_app.secure import simulated
from fl_app.secure.run import linear_kinds
from fl_app.secure.server import SecureAggregation
from fl_app.secure.simulated import keys

FITS = {
    *("afl", "dp_fedbuff", "dynsgd", "fadas", "fedasync", "fedavg", "fedavg_k", "fedbuff"),
    *("fedprox", "moon", "ringmaster", "safl", "sasgd", "twafl"),
}
# By default synchronous, or with a version after every arrival.
ROUNDS = ("fedasync", "fedavg", "fedprox", "moon", "ringmaster")
ON = ("secure_aggregation=helper", "secure_aggregation.clip_norm=3")
SMALL = (
    *("num_clients=20", "task.model=logistic", "algorithm.client.local_steps=2"),
    *("algorithm.schedule.buffer_size=4", "algorithm.schedule.concurrency=8"),
    *("runtime.workers=0", "partition=iid"),
)


def secure(name, *more):
    clip = ON[:1] if name == "dp_fedbuff" else ON
    kinds = linear_kinds(build_strategy(make_config(f"algorithm={name}")))
    upload = [f"algorithm.client.upload={kinds[0]}"] if kinds else []
    buffered = ["algorithm/schedule=buffered"] if name in ROUNDS else []
    quiet = QUIET.get(name, [])
    return make_config(f"algorithm={name}", *buffered, *quiet, *clip, *upload, *SMALL, *more)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_that_looks_at_uploads_is_refused_by_name_and_reason(name):
    if name in FITS:
        validate_config(secure(name))
        return
    base = make_config(f"algorithm={name}", *ON)
    reason = build_strategy(base).looks_at
    assert len(reason) > 20
    with pytest.raises(ValueError, match=r"cannot be used with secure_agg") as caught:
        validate_config(base)
    assert str(caught.value).startswith(f"algorithm={base.algorithm.name} ")
    assert reason in str(caught.value)


@pytest.mark.parametrize("name", sorted(FITS))
def test_an_algorithm_uses_the_weighted_sum_that_it_declares(name):
    """`aggregate` gives the same if every upload is replaced by the mean with these weights."""
    config = secure(name)
    kind = config.algorithm.client.upload
    rng = np.random.default_rng(3)
    history = {v: rng.standard_normal(6).astype(np.float32) for v in range(4, 8)}
    model = GlobalModel(history[7], 7, history)
    updates = [
        Update(10 + k, 4 + k % 4, vector, kind, 5 + 3 * k, 0.5, rate_sum=0.1 + k)
        for k, vector in enumerate(rng.standard_normal((6, 6)).astype(np.float32) / 8)
    ]
    strategy = build_strategy(config)
    weights = strategy.public_weights().weights(
        [model.age(u) for u in updates], [u.num_examples for u in updates]
    )
    mean = np.average(np.stack([u.vector for u in updates]), axis=0, weights=weights)
    averaged = [replace(u, vector=mean.astype(np.float32)) for u in updates]
    exact = deepcopy(strategy).aggregate(model, updates)
    assert np.abs(deepcopy(strategy).aggregate(model, averaged) - exact).max() < 2e-6


def test_a_subclass_with_other_equations_inherits_no_declaration():
    from fl_app.algorithms.fedbuff import FedBuff

    class Other(FedBuff):
        def aggregate(self, model, updates):
            return model.params

    class Same(FedBuff):
        pass

    assert linear_kinds(Other()) == ()
    assert linear_kinds(Same()) == ("delta",)


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["guard.max_norm=1"], "guard.max_norm=1 must be null"),
        (["algorithm.client.upload_dtype=float16"], "upload_dtype=float16 must be float32"),
        (["algorithm.client.upload=model"], "upload=model must be delta with algorithm=fedbuff"),
        (["algorithm.schedule.buffer_size=1"], "schedule.buffer_size=1 must be at least 2"),
        (["secure_aggregation.clip_norm=null"], "clip_norm=null must be a number above 0"),
        (["runtime.train=false"], "runtime.train=false must be true with secure_aggregation"),
        (["runtime=deployment"], "address=None must be host:port with runtime=deployment"),
        (["algorithm/schedule=periodic"], "cannot be used with the schedule Periodic"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_incompatible_settings_are_refused(overrides, text):
    with pytest.raises(ValueError, match=text):
        validate_config(make_config(*ON, *overrides))


def test_buffers_are_refused():
    config = make_config(*ON, "task=mnist", "task.made_up=true", "task.model=resnet20")
    with pytest.raises(ValueError, match="needs a model without buffers such as"):
        build_components(config)


# -- runs -----------------------------------------------------------------------------------------


class RecordingHelper:
    """A helper that records its requests and sums."""

    def __init__(self, inner):
        self._inner = inner
        self.requests = []
        self.sums = []

    def __call__(self, request):
        self.requests.append(request)
        self.sums.append(self._inner(request))
        return self.sums[-1]


class Run:
    """A run with the vectors of its clients, and the updates and sums of its server."""

    def __init__(self, config):
        validate_config(config)
        components = build_components(config)
        self.secrets = {}  # (client, sequence) -> upload
        trainer = components.trainer
        train = trainer.train

        def record_secret(order):
            upload = train(order)
            self.secrets[order.client_id, order.sequence] = upload.vector.copy()
            return upload

        trainer.train = record_secret
        self.recorder = Recorder()
        engine = build_engine(components, sinks=[self.recorder])
        self.aggregations = []
        intake = engine.intake
        if isinstance(intake, SecureAggregation):
            intake.helper = self.helper = RecordingHelper(intake.helper)
            opens = intake.open

            def record_aggregation(model, updates):
                result = opens(model, updates)
                self.aggregations.append((list(updates), result.updates[0].vector))
                return result

            intake.open = record_aggregation
        self.outcome = engine.run()
        self.memory = engine.state_dict()
        assert self.outcome.stopped == "num_versions"


@pytest.mark.slow
def test_masks_hide_all_uploads_and_change_nothing_else(monkeypatch):
    """Neither the server's state nor its messages with the helper hold the bytes of an upload.

    Without masks, they hold the bytes of every rounded upload.
    """
    masked = Run(secure("fedbuff", "num_versions=25"))
    for place in ("masked", "integers"):  # masks of the clients, and of the helper
        monkeypatch.setattr(f"fl_app.secure.{place}.Mask", NoMask)
    modelled = Run(secure("fedbuff", "num_versions=25"))
    assert masked.recorder.events == modelled.recorder.events
    assert (masked.outcome.params == modelled.outcome.params).all()
    rounded = [u.vector for updates, _ in modelled.aggregations for u in updates]
    ends = [bytes(vector.data)[-24:] for vector in (*masked.secrets.values(), *rounded)]
    assert len(set(ends)) == len(ends) >= 200
    assert not [end for end in ends if end in memory_bytes(masked)]
    assert len([end for end in ends if end in memory_bytes(modelled)]) == len(rounded)
    assert "seal" not in json.dumps(masked.recorder.events)
    arrival = next(e for e in masked.recorder.events if e["kind"] == "arrival")
    assert arrival["bytes"] == 4 * masked.outcome.params.size + 216


def memory_bytes(run):
    """The server's memory at the end of a run, its updates, and all requests and sums."""
    requests = [request.to_bytes() for request in run.helper.requests]
    updates = [update for aggregation, _ in run.aggregations for update in aggregation]
    return pickle.dumps((run.memory, updates, requests, run.helper.sums, run.recorder.events))


def test_an_update_that_the_helper_refuses_is_dropped_and_the_run_goes_on(monkeypatch):
    liar = 3
    monkeypatch.setattr(
        simulated, "keys", lambda seed, client: keys(seed, 4 if client == liar else client)
    )
    engine, recorder = engine_of(secure("fedbuff", "num_versions=12"))
    assert engine.run().stopped == "num_versions"
    rejected = [e for e in recorder.events if e["kind"] == "reject" and "newer" not in e["reason"]]
    assert rejected
    assert {e["client"] for e in rejected} == {liar}
    assert {e["reason"] for e in rejected} == {"its device is not registered"}
    assert recorder.history.orders_wasted >= len(rejected)
    state = engine.state_dict()["_fed"]
    assert len(state["buffer"]) + len(state["busy"]) >= sum(state["_cited"].values())
