"""Evaluation on clients: orders, times and figures; the guard; extra vectors."""

import math
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from helpers import (
    MeanDelta,
    Quadratic,
    Recorder,
    Scripted,
    Stays,
    Times,
    run,
    toward_own_number,
    vec,
)

from fl_app.client import LocalTrainer
from fl_app.core.errors import Diverged
from fl_app.core.types import KINDS, RESIDUAL, GlobalModel, Order, Scores, Update, Upload
from fl_app.core.vector import weighted_sum
from fl_app.engine.client_evaluation import ClientEvaluation, figures, unusable
from fl_app.engine.clock import Expired
from fl_app.engine.guard import Guard
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered, RoundBlocking, synchronous
from fl_app.schedule.clustered_quorum import ClusteredQuorum

ALL_AT_WORK = Buffered(concurrency=None, buffer_size=1)
EVALUATION = ("evaluate_order", "client_evaluate", "clients_evaluate")


def scores(client_id, version, vector):
    """Accuracy v + c / 100 of version v on client c, which has 10 (c + 1) examples."""
    return Scores({"accuracy": version + client_id / 100}, 10 * (client_id + 1))


def evaluate_run(
    schedule=ALL_AT_WORK,
    *,
    every=2,
    fraction=1.0,
    seconds=(1.0, 3.2),
    shares=(0.5,) * 10,
    measure=scores,
    **more,
):
    """`shares`: time of an evaluation as a share of an order's training, by client."""
    return run(
        schedule,
        Scripted(toward_own_number, measure),
        num_clients=len(seconds),
        devices=Times(lambda client, _: seconds[client]),
        evaluation_share=lambda client: shares[client],
        client_evaluation=ClientEvaluation(every, fraction),
        **more,
    )


def rows_of(events, *kinds):
    """Kind, time, version and client of events."""
    return [
        (e["kind"], round(e["t"], 9), e.get("version", e.get("base_version")), e.get("client"))
        for e in events
        if e["kind"] in kinds
    ]


# -- figures --------------------------------------------------------------------------------------


def test_figures_of_three_clients():
    """By hand: (0.5 x 10 + 0.8 x 30 + 0.2 x 60) / 100 = 0.41; the values' mean is 0.5, their
    deviations 0, 0.3 and -0.3; the worst tenth is one client: 0.2, of the loss the highest, 4.
    The RMSE of all examples is sqrt((10 x 16 + 30 x 4 + 60 x 2) / 100) = 2, their perplexity
    exp((10 x 1 + 30 x 3 + 60 x 0) / 100) = e."""
    sent = (0.5, 1.0, 4.0, math.e, 10), (0.8, 4.0, 2.0, math.e**3, 30), (0.2, 1.0, 2**0.5, 1, 60)
    names = "accuracy", "loss", "rmse", "perplexity"
    result = figures([Scores(dict(zip(names, each, strict=False)), each[-1]) for each in sent])
    assert (result["rmse_mean"], result["perplexity_mean"]) == pytest.approx((2.0, math.e))
    result = {name: value for name, value in result.items() if name[0] in "al"}
    assert result == pytest.approx(
        {
            "accuracy_mean": 0.41,
            "accuracy_std": math.sqrt(0.18 / 3),
            "accuracy_worst_decile": 0.2,
            "loss_mean": (10 + 120 + 60) / 100,
            "loss_std": math.sqrt(2.0),
            "loss_worst_decile": 4.0,
        }
    )


@pytest.mark.parametrize(
    ("name", "worst"),
    [
        *(("accuracy", 0.0), ("f1", 0.0), ("r2", 0.0), ("neg_rmse", 0.0), ("log_rmse", 9.0)),
        *(("cross_entropy", 9.0), ("nll", 9.0), ("brier_score", 9.0), ("kl_divergence", 9.0)),
        *(("hamming_distance", 9.0), ("mean_absolute_deviation", 9.0), ("rmse", 9.0)),
        ("neg_log_likelihood", 9.0),
    ],
)
def test_the_worst_decile_of_an_error_is_the_highest(name, worst):
    numbers = figures([Scores({name: float(i)}, 10) for i in range(10)])
    assert numbers[f"{name}_worst_decile"] == worst
    assert name == "rmse" or numbers[f"{name}_mean"] == 4.5


def test_a_metric_that_is_not_defined_on_a_clients_examples_counts_for_the_others():
    """R2 of one example, for instance. The mean is NaN only if no client defines the metric."""
    result = figures(
        [
            Scores({"r2": 0.5, "f1": math.nan, "loss": 1.0}, 10),
            Scores({"r2": math.nan, "f1": math.nan, "loss": 3.0}, 10),
        ]
    )
    assert (result["r2_mean"], result["r2_std"], result["r2_worst_decile"]) == (0.5, 0.0, 0.5)
    assert math.isnan(result["f1_mean"])
    assert result["loss_mean"] == 2.0
    undefined = Scores({"r2": math.nan, "loss": math.nan}, 10)
    assert math.isnan(figures([Scores({"r2": 1.0, "loss": 1.0}, 10), undefined])["r2_mean"])


def test_scores_that_cannot_be_counted():
    assert unusable(Scores({"accuracy": 0.5}, 3)) == ""
    assert unusable(None) == "the client returned no scores"
    assert unusable(Scores({"accuracy": 0.5}, 0)).startswith("num_examples=0 must be at least 1")
    assert unusable(Scores({"a": 1.0}, 9), 8) == "num_examples=9 is above guard.max_examples=8"
    for metrics in ({}, [0.5]):
        assert unusable(Scores(metrics, 9)).startswith(f"metrics={metrics} must be a mapping of")
    for value in ("high", None, [0.5]):
        reason = unusable(Scores({"loss": math.nan, "f1": value}, 9))
        assert reason == f"metric 'f1'={value!r} must have a name and be a number"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, r"client_eval_every=0 must be an integer >= 1"),
        ({"every": 2.5}, r"client_eval_every=2\.5 must be an integer >= 1"),
        ({"every": 5, "fraction": 0.0}, r"client_eval_fraction=0\.0 must be in \(0, 1\]"),
        ({"every": 5, "fraction": 20}, r"client_eval_fraction=20 must be in \(0, 1\]"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        ClientEvaluation(**settings)


# -- times of evaluations -------------------------------------------------------------------------


def test_the_log_of_a_fast_and_a_slow_client():
    """Client 0 trains for 1 s and evaluates for 0.5 s, client 1 for 3.2 s and 1.6 s.

    v2 is due at 2.0, when client 0 is free and client 1 is at work until 3.2. v4 is due at 3.5,
    while client 1 still evaluates v2. The run ends with v5 at 5.0, while client 1 evaluates v4;
    it evaluates v5 after that.
    """
    result = evaluate_run(num_versions=5)
    assert rows_of(result.events, *EVALUATION) == [
        *(("evaluate_order", 2.0, 2, 0), ("client_evaluate", 2.5, 2, 0)),
        *(("evaluate_order", 3.2, 2, 1), ("evaluate_order", 3.5, 4, 0)),
        ("client_evaluate", 4.0, 4, 0),
        *(("client_evaluate", 4.8, 2, 1), ("clients_evaluate", 4.8, 2, None)),
        *(("evaluate_order", 4.8, 4, 1), ("evaluate_order", 5.0, 5, 0)),
        ("client_evaluate", 5.5, 5, 0),
        *(("client_evaluate", 6.4, 4, 1), ("clients_evaluate", 6.4, 4, None)),
        ("evaluate_order", 6.4, 5, 1),
        *(("client_evaluate", 8.0, 5, 1), ("clients_evaluate", 8.0, 5, None)),
    ]
    versions = [(e["version"], round(e["t"], 9)) for e in result.kind("aggregate")]
    assert versions == [(1, 1.0), (2, 2.0), (3, 3.2), (4, 3.5), (5, 5.0)]
    first = result.kind("clients_evaluate")[0]
    assert first == {
        **{"kind": "clients_evaluate", "t": pytest.approx(4.8), "version": 2, "since": 2.0},
        **{"client_updates": 2, "clients": 2, "num_examples": 30},
        "accuracy_mean": pytest.approx((10 * 2.00 + 20 * 2.01) / 30),
        "accuracy_std": pytest.approx(0.005),
        "accuracy_worst_decile": 2.0,
    }


@pytest.mark.parametrize(
    ("schedule", "sizes"),
    [
        (RoundBlocking(4), {4, 2}),
        (ClusteredQuorum(num_clusters=2, participation=0.5, recluster=False), {3}),
    ],
)
def test_a_client_that_evaluates_is_counted_among_those_at_work(schedule, sizes):
    """Six clients: rounds of four updates and two, and quorums of half of them."""
    seconds = (1.0, 1.1, 1.2, 1.3, 5.0, 5.1)
    result = evaluate_run(schedule, every=1, seconds=seconds, num_versions=12)
    assert {len(e["client"]) for e in result.kind("aggregate")} == sizes


@pytest.mark.parametrize(("fraction", "count"), [(0.25, 2), (0.01, 1)])
def test_the_share_of_drawn_clients(fraction, count):
    """0.25 of 10 clients are 2; at least one client evaluates."""
    result = evaluate_run(synchronous(10), every=3, fraction=fraction, seconds=[1.0] * 10)
    assert {*Counter(e["version"] for e in result.kind("evaluate_order")).values()} == {count}


def test_a_slow_client_measures_the_latest_version_alone():
    """v2, v4 and v6 are due while client 1 is at work, until 7.7; it measures v6."""
    result = evaluate_run(seconds=(1.0, 7.7), num_versions=9)
    counts = {e["version"]: e["clients"] for e in result.kind("clients_evaluate")}
    assert counts == {2: 1, 4: 1, 6: 2, 8: 1, 9: 2}


@pytest.mark.parametrize(
    ("settings", "share"),
    [({"local_epochs": 2}, 1 / 6), ({"local_steps": 3}, 1 / 3), ({"upload": "gradient"}, 1.0)],
)
def test_the_share_of_an_orders_training_time(settings, share):
    """A third of an epoch of 12 examples: of two epochs a sixth, of 3 steps of 4 examples a third,
    and of one batch of 4 examples 12 / (3 x 4) = 1."""
    trainer = LocalTrainer(Quadratic.scattered(2, 12), batch_size=4, **settings)
    assert trainer.evaluation_share(0) == pytest.approx(share)


# -- versions under evaluation --------------------------------------------------------------------


def test_a_version_is_measured_as_it_was_however_late():
    values = {}
    models = {}

    def measure(client_id, version, vector):
        values[client_id, version] = float(vector[0])
        return scores(client_id, version, vector)

    class Shifted(MeanDelta):
        transient = ("histories",)

        def aggregate(self, model, updates):
            params = super().aggregate(model, updates)
            models[model.version + 1] = float(params[0])
            return params

        def to_evaluate(self, model):
            return model.params + 100

    evaluate_run(num_versions=5, measure=measure, strategy=Shifted())
    assert values.keys() == {(c, v) for c in (0, 1) for v in (2, 4, 5)}
    for (_, version), value in values.items():
        assert value == pytest.approx(models[version] + 100)


# -- failures, deadlines, absences ----------------------------------------------------------------


def test_a_client_that_cannot_evaluate_trains_on():
    def measure(client_id, version, vector):
        if client_id == 1:
            raise OSError("no such file")
        return scores(client_id, version, vector)

    result = evaluate_run(seconds=(1.0, 1.1), measure=measure, num_versions=400, every=1)
    failures = result.kind("failure")
    assert {e["reason"] for e in failures} == {"evaluation: OSError: no such file"}
    assert len(failures) > 150  # so many failed training orders would end the run
    assert result.outcome.stopped == "num_versions"
    assert result.history.failures == len(failures)
    assert result.history.orders_wasted == 0
    assert {e["clients"] for e in result.kind("clients_evaluate")} == {1}


def test_a_client_without_examples_to_measure_counts_for_nothing_and_has_not_failed():
    result = evaluate_run(measure=lambda c, *about: scores(c, *about) if c else Scores({}, 0))
    assert not result.kind("failure", "reject")
    assert {e["clients"] for e in result.kind("clients_evaluate")} == {1}


def test_an_evaluation_that_passes_its_deadline_is_given_up():
    """Client 1 trains for 3 s and evaluates for 4.5 s, and the deadline is after 4 s."""
    result = evaluate_run(seconds=(1.0, 3.0), shares=(0.5, 1.5), deadline=4.0, num_versions=12)
    mine = [e for e in rows_of(result.events, "evaluate_order", "failure", "reject") if e[3] == 1]
    assert mine[:3] == [
        ("evaluate_order", 3.0, 2, 1),
        ("failure", 7.0, 2, 1),
        ("reject", 7.5, 2, 1),
    ]
    reasons = {e["reason"] for e in result.kind("failure", "reject")}
    assert reasons == {"evaluation: deadline passed", "late: its deadline had passed"}
    first = next(e for e in result.kind("clients_evaluate") if e["version"] == 2)
    assert (first["t"], first["clients"]) == (7.0, 1)
    assert result.history.orders_wasted == 0
    after = [e for e in result.events if e.get("client") == 1 and e["t"] == 7.5]
    assert [e["kind"] for e in after] == ["reject", "evaluate_order"]  # of the latest version


def test_a_client_that_leaves_is_left_out():
    """v2 is due at 1.5. Client 1 waits for it until it leaves at 3; client 2 evaluates for 1.5 s,
    and leaves at 2.5."""
    result = evaluate_run(
        seconds=(1.0, 30.0, 1.5),
        shares=(1.0,) * 3,
        availability=Stays({1: [3.0, 50.0], 2: [2.5, 50.0]}),
        num_versions=5,
    )
    assert rows_of(result.events, "failure") == [("failure", 2.5, 2, 2), ("failure", 3.0, 0, 1)]
    assert result.kind("failure")[0]["reason"] == "evaluation: went offline"
    first = result.kind("clients_evaluate")[0]
    assert (first["version"], first["t"], first["clients"]) == (2, 3.0, 1)


# -- the ends of a run ----------------------------------------------------------------------------


def test_a_run_without_a_test_set_stops_at_the_clients_accuracy():
    """v4 is the first version with a mean of at least 4, known when its last scores arrive."""
    result = evaluate_run(num_versions=50, target_accuracy=4.0)
    assert result.outcome.stopped == "target_accuracy"
    assert result.outcome.seconds == pytest.approx(6.4)
    accuracies = [evaluation.accuracy for evaluation in result.history.evaluations]
    assert accuracies[:2] == pytest.approx([2 + 0.02 / 3, 4 + 0.02 / 3])


def test_training_is_called_off_before_the_last_evaluation():
    """Client 1 would train until 100 s."""
    result = evaluate_run(every=50, seconds=(1.0, 100.0), shares=(0.01, 0.01), num_versions=3)
    assert rows_of(result.events, *EVALUATION) == [
        ("evaluate_order", 3.0, 3, 0),
        ("evaluate_order", 3.0, 3, 1),
        ("client_evaluate", 3.01, 3, 0),
        ("client_evaluate", 4.0, 3, 1),
        ("clients_evaluate", 4.0, 3, None),
    ]


@pytest.mark.parametrize("num_versions", [3, 8, 13])
def test_the_last_version_is_evaluated_whoever_is_late(num_versions):
    """Client 1 misses the deadline of every evaluation, and may be chosen again before it ends."""
    settings = {"seconds": (1.0, 3.0), "shares": (0.5, 1.5), "deadline": 4.0}
    result = evaluate_run(num_versions=num_versions, **settings)
    last = result.events[-1]
    assert (last["kind"], last["version"], last["clients"]) == (EVALUATION[2], num_versions, 1)


def test_an_interrupt_ends_the_last_evaluation_and_not_the_run():
    """v5 is published at 5.0; client 0 evaluates it by 5.5, client 1 never does."""

    class Stops(Recorder):
        def emit(self, event):
            super().emit(event)
            if event.kind == "client_evaluate" and event.version == 5:
                raise KeyboardInterrupt

    result = evaluate_run(num_versions=5, sinks=[Stops()])
    assert result.outcome.stopped == "num_versions"
    last = result.kind("clients_evaluate")[-1]
    assert (last["version"], last["clients"], last["t"]) == (5, 1, 5.5)


# -- evaluation in a thread: the sinks receive the same events ------------------------------------

SCHEDULE = Buffered(concurrency=5, buffer_size=3)


def measure_params(version, vector):
    return {"accuracy": version / 100, "loss": float(np.square(vector).sum())}


@pytest.fixture
def in_thread():
    with ThreadPoolExecutor(1) as pool:
        yield lambda version, vector: pool.submit(measure_params, version, vector.copy())


def train(evaluate, **more):
    return run(SCHEDULE, evaluate=evaluate, **{"eval_every": 2, **more})


class Gate:
    """An evaluation that lasts until its result is requested."""

    def __init__(self, log, version, vector):
        self._log, self._version, self._vector = log, version, vector.copy()

    def done(self):
        return False

    def result(self):
        self._log.append(f"waits for {self._version}")
        return measure_params(self._version, self._vector)


def test_the_engine_goes_on_until_the_next_evaluation():
    log = []

    class Strategy(MeanDelta):
        def aggregate(self, model, updates):
            log.append(f"makes {model.version + 1}")
            return super().aggregate(model, updates)

    result = train(
        lambda version, vector: Gate(log, version, vector), num_versions=4, strategy=Strategy()
    )
    assert log == [
        *("makes 1", "makes 2", "waits for 0", "makes 3", "makes 4", "waits for 2"),
        "waits for 4",
    ]
    assert result.events == train(measure_params, num_versions=4).events


def test_limits_and_checkpoints_come_after_all_earlier_events(in_thread):
    results = []
    for evaluate in (measure_params, in_thread, lambda *at: Gate([], *at)):
        recorder, states = Recorder(), []

        def save(version, states=states, recorder=recorder):
            states.append((version, len(recorder.events)))

        result = train(
            evaluate, target_accuracy=0.06, sinks=[recorder], checkpoint=save, checkpoint_every=3
        )
        assert result.outcome.version == 6
        results.append((result.events, states))
    assert results[0] == results[1] == results[2]
    assert results[0][1]


def test_the_last_version_is_kept_before_clients_get_it():
    """So a crash while they measure it makes no other version of the same number."""
    more = {"checkpoint": lambda version: None, "checkpoint_every": 1}
    events = evaluate_run(num_versions=3, **more).events
    kinds = [event["kind"] for event in events if event.get("version") == 3]
    assert kinds.index("checkpoint") < kinds.index("evaluate_order")


def test_a_version_that_cannot_be_measured_ends_the_run_when_it_is_due():
    recorder = Recorder()

    class Fails(Gate):
        def result(self):
            raise LookupError(f"no metric of version {self._version}")

    def evaluate(version, vector):
        return (Fails if version == 4 else Gate)([], version, vector)

    outcome = train(evaluate, sinks=[recorder]).outcome
    assert outcome.stopped == "LookupError: no metric of version 4"
    assert [e["version"] for e in recorder.events if e["kind"] == "evaluate"] == [0, 2]
    assert recorder.events[-1]["version"] == 6  # earlier events are still emitted


# -- the guard -------------------------------------------------------------------------------------

MODEL = GlobalModel(vec(1, 1, 7), version=5, history={3: vec(0, 0, 9)}, num_trainable=2)


def update(*vector, client=0, base=5, **more):
    settings = {"kind": "delta", "num_examples": 10, "loss": 0.5} | more
    return Update(client, base, vec(*vector), **settings)


@pytest.mark.parametrize(
    ("upload", "length"),
    [
        (update(3, 4, 99), 5),  # buffers do not count
        (update(3, 4, 99, kind="gradient"), 5),
        (update(3, 4, 99, kind="pseudo", rate_sum=0.1), 5),
        (update(4, 5, 9, kind="model"), 5),  # from the current (1, 1)
        (update(3, 4, 9, kind="model", base=3), 5),  # from (0, 0)
    ],
)
def test_the_length_of_an_upload(upload, length):
    assert Guard(max_norm=length).refuse(MODEL, upload) == ""
    reason = Guard(max_norm=length - 0.01).refuse(MODEL, upload)
    assert reason == "norm=5 is above guard.max_norm=4.99"
    guard = Guard(max_norm=5)
    guard.kind = "delta"  # a short gradient of many steps is a long displacement
    disguised = update(0.03, 0.04, 0, kind="pseudo", rate_sum=200.0)
    assert guard.refuse(MODEL, disguised) == "norm=10 is above guard.max_norm=5"


def test_lengths_are_compared_with_the_median_of_those_before():
    guard = Guard(max_norm_ratio=3)
    for length in (*[1.0] * 4, *[2.0] * 5):
        assert guard.refuse(MODEL, update(length, 0, 0)) == ""
    assert guard.refuse(MODEL, update(1000, 0, 0)) == ""  # nine are too few to judge by
    assert guard.refuse(MODEL, update(6, 0, 0)) == ""  # of ten the median is 2
    reason = guard.refuse(MODEL, update(6.1, 0, 0))
    assert reason == "norm=6.1 is above guard.max_norm_ratio=3 times the running median 2"
    refuse = Guard(max_norm_ratio=3).refuse  # its median is 0: few clients send these vectors
    assert {refuse(MODEL, update(length, 0, 0)) for length in (*[0] * 20, 1)} == {""}


def test_the_median_follows_a_common_change():
    guard = Guard(max_norm_ratio=2)
    for _ in range(100):
        assert guard.refuse(MODEL, update(1, 0, 0)) == ""
    refusals = [bool(guard.refuse(MODEL, update(5, 0, 0))) for _ in range(60)]
    assert refusals == [True] * 50 + [False] * 10


def test_age_and_number_of_examples():
    guard = Guard(max_age=1, max_examples=10)
    assert guard.refuse(MODEL, update(1, 1, 1, base=4)) == ""
    reason = guard.refuse(MODEL, update(1, 1, 1, base=3))
    assert reason == "age=2 is above guard.max_age=1"
    reason = guard.refuse(MODEL, update(1, 1, 1, num_examples=11))
    assert reason == "num_examples=11 is above guard.max_examples=10"


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_norm": 0}, "guard.max_norm=0 must be a finite number above 0 or null: every upload"),
        ({"max_norm_ratio": 1.0}, "guard.max_norm_ratio=1.0 must be a finite number above 1"),
        ({"max_age": -1}, "guard.max_age=-1 must be a finite number >= 0 or null: every upload"),
        ({"max_examples": 0}, "guard.max_examples=0 must be an integer >= 1 or null: every upload"),
    ],
)
def test_bad_bounds_are_refused(settings, text):
    with pytest.raises(ValueError, match=f"^{re.escape(text)}"):
        Guard(**settings)


@pytest.mark.parametrize("key", ["max_norm", "max_norm_ratio"])
def test_uploads_without_a_length_cannot_be_bounded(key):
    Guard(**{key: 9.0}).validate_kinds(KINDS)
    Guard(max_age=3).validate_kinds(["delta", RESIDUAL])
    message = f"guard.{key}=9.0 must be null with uploads of kind 'residual': their length is not"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        Guard(**{key: 9.0}).validate_kinds(["delta", RESIDUAL])


def test_extra_vectors_are_compared_with_those_of_their_name():
    """Lengths 1 and 100, ten times; then one of them is four times as long."""

    def with_extra(a, b):
        return replace(update(1, 0, 0), extra={"a": vec(a, 0, 9), "b": vec(b, 0, 9)})

    guard = Guard(max_norm_ratio=3, max_norm=2)
    for _ in range(10):
        assert guard.refuse(MODEL, with_extra(1, 100)) == ""
    reason = guard.refuse(MODEL, with_extra(4, 100))
    assert reason == (
        "norm=4 of extra vector 'a' is above guard.max_norm_ratio=3 times the running median 1"
    )
    assert guard.refuse(MODEL, with_extra(1, 290)) == ""
    assert "of extra vector 'b'" in guard.refuse(MODEL, with_extra(1, 310))


# -- vectors beside the model ----------------------------------------------------------------------

AT_WORK = Buffered(concurrency=5, buffer_size=3)


class Shifted(MeanDelta):
    """Sends (t, client), and adds the mean of the vectors that come back to the displacements."""

    order_extra = ("shift",)
    upload_extra = ("seen", "own")

    def dispatch_extra(self, model, client_id):
        return {"shift": vec(model.version, client_id)}

    def refresh(self, model, paused):
        return model.params, {}

    def aggregate(self, model, updates):
        for update in updates:
            assert update.extra["seen"].tolist() == [update.base_version, update.client_id]
            assert not update.extra["seen"].flags.writeable
        vectors = [update.extra["seen"] for update in updates]
        mean = weighted_sum([0.01] * len(vectors), vectors)
        return super().aggregate(model, updates) + mean


class Echo:
    """Returns the received vector, one with its client id, and as the loss the model's number."""

    def train(self, order):
        out = np.full_like(order.vector, 1 / 8)
        shift = order.extra["shift"]
        assert not shift.flags.writeable
        extra = {"own": np.full_like(out, order.client_id), "seen": shift.copy()}
        return Upload(out, "delta", 10, float(order.vector[0]), extra=extra)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_extra_vectors_travel_both_ways_and_their_bytes_count(workers):
    result = run(AT_WORK, Echo(), strategy=Shifted(), workers=workers)
    inline = run(AT_WORK, Echo(), strategy=Shifted())
    assert result.history.rejected == result.history.failures == 0
    assert (result.final, result.events) == (inline.final, inline.events)
    assert result.final != run(AT_WORK, num_versions=20).final
    assert result.history.bytes_down == len(result.kind("dispatch")) * 2 * 8
    assert result.history.bytes_up == len(result.kind("arrival")) * 3 * 8


@pytest.mark.parametrize("workers", [0, 2])
def test_an_order_keeps_its_vectors_if_the_strategy_changes_them_in_place_later(workers):
    """Version v holds v in both entries; client 3 takes ten times as long as the others.

    A simulation that sends the server's own array computes every later gradient on the newest
    model and only labels it stale. There are published results with this error.
    """

    class InPlace(Shifted):
        def __init__(self):
            super().__init__()
            self.shift, self.params = np.zeros((2, 2), np.float32)

        def dispatch_extra(self, model, client_id):
            self.shift[:] = model.version, client_id
            return {"shift": self.shift}

        def aggregate(self, model, updates):
            super().aggregate(model, updates)
            self.params += 1
            return self.params

    times = Times(lambda client, _: 10.0 if client == 3 else 1.0)
    settings = {"num_clients": 4, "num_versions": 40, "devices": times, "workers": workers}
    result = run(Buffered(4, 2), Echo(), strategy=InPlace(), **settings)
    assert result.history.rejected == 0
    arrivals = result.kind("arrival")
    assert [event["loss"] for event in arrivals] == [event["base_version"] for event in arrivals]
    assert max(event["age"] for event in arrivals if event["client"] == 3) > 5


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({}, "extra vectors are none, expected shift"),
        ({"shift": vec(0, 0), "more": vec(0, 0)}, "extra vectors are shift, more, expected shift"),
        ({"shift": vec(0)}, r"extra vector 'shift': payload has shape \(1,\), expected \(2,\)"),
        ({"shift": np.zeros(2)}, "extra vector 'shift': payload is float64, expected float32"),
    ],
)
def test_the_error_of_wrong_extra_vectors_names_them(extra, text):
    wrong = type("Wrong", (Shifted,), {"dispatch_extra": lambda *_: extra})
    error = run(AT_WORK, Echo(), strategy=wrong()).outcome.error
    assert re.fullmatch(rf"ValueError: dispatch_extra\(\) for client \d: {text}", str(error))


def test_a_strategy_whose_vector_is_no_longer_finite_ends_the_run():
    class Exploding(Shifted):
        def dispatch_extra(self, model, client_id):
            return {"shift": vec(model.version, np.inf if model.version == 2 else client_id)}

    outcome = run(AT_WORK, Echo(), strategy=Exploding()).outcome
    assert isinstance(outcome.error, Diverged)
    assert str(outcome.error).startswith("what travels with version 2: shift must be finite")


def test_the_answer_to_a_pause_brings_those_of_the_newer_version():
    """When client 0, the slowest, pauses, others have made versions; the answer has new vectors."""
    pairs = []

    class Pausing(Echo):
        def train(self, order):
            if order.client_id == 0 and "continues" not in order.config:
                return Upload(vec(), "delta", 10, 0.5, done=False, progress=0.5)
            if order.client_id == 0 and order.extra:
                pairs.append((order.extra["shift"][0], order.config["fresh_version"]))
            upload = super().train(replace(order, extra={"shift": vec(0, 0)}))
            shift = vec(order.base_version, order.client_id)
            return replace(upload, extra={**upload.extra, "seen": shift})

    result = run(
        AT_WORK,
        Pausing(),
        strategy=Shifted(),
        devices=Times(lambda client_id, sequence: 1.0 if client_id else 2.0),
        num_clients=5,
        num_versions=8,
        epochs=2,
    )
    assert pairs
    assert all(shift == version > 0 for shift, version in pairs)
    down = len(result.kind("dispatch")) + len(result.kind("refresh"))
    assert result.history.bytes_down == down * 2 * 8


def test_an_order_that_is_never_carried_out_keeps_nothing_alive():
    """Otherwise there would be as many vectors as orders."""
    clock = VirtualClock(Inline(Echo()), Times(lambda *_: 9.0), 2, deadline=1.0)
    clock.dispatch(Order(0, 0, 0, 0, vec(1, 1), {}, 0.0, extra={"shift": vec(1, 1)}))
    expired = clock.next(100.0)
    assert isinstance(expired, Expired)
    assert (expired.order.vector.size, expired.order.extra) == (0, {})
