"""The event loop: versions, deadlines, failures, ends, and its log."""

import math
from collections import Counter
from copy import copy, deepcopy
from dataclasses import replace

import helpers
import numpy as np
import pytest
from helpers import MeanDelta, Recorder, Scripted, Times, run, toward_own_number, vec

from fl_app.core.errors import ClientError, Diverged, ServerError, Stalled
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import Upload
from fl_app.devices.compute import UniformRatio
from fl_app.devices.fleet import Fleet
from fl_app.engine.checks import require_keepable
from fl_app.engine.clock import Joined, Left
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.federation import Federation
from fl_app.engine.guard import Intake
from fl_app.engine.server import Server
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered, RandomK, Schedule, fully_async, k_async, synchronous
from fl_app.schedule.clustered_quorum import ClusteredQuorum

SCHEDULE = Buffered(concurrency=5, buffer_size=3)
BUSY = {"dispatch": 0.2, "receipt": 0.3, "aggregation": 0.1, "evaluation": 2.0, "poll": 0.7}


def one_second(*_):
    return 1.0


# -- the log --------------------------------------------------------------------------------------


def test_the_log_of_two_rounds():
    """Two clients, K = 2; 0 takes 1 s, 1 takes 2 s; each moves a sixteenth of its way."""
    result = run(
        synchronous(2),
        num_clients=2,
        num_versions=2,
        devices=Times(lambda client, _: 1.0 + client),
        evaluate=lambda version, params: {"accuracy": version / 10, "loss": float(params[0])},
    )
    order = [event["client"] for event in result.events[1:3]]  # random
    assert sorted(order) == [0, 1]
    second_order = [event["client"] for event in result.events[7:9]]
    first, second = 1 / 32, 1 / 32 + 1 / 16 * (0 + 1 - 2 / 32) / 2

    def sent(t, client, version):
        return {**helpers.dispatch(t, client, version), "bytes": 8}

    def received(t, client, version):
        return {**helpers.arrival(t, client, version), "loss": float(client), "bytes": 8}

    expected = [
        {**helpers.evaluate(0.0, 0, 0.0), "loss": 0.0},
        *(sent(0.0, client, 0) for client in order),
        received(1.0, 0, 0),
        received(2.0, 1, 0),
        helpers.aggregate(2.0, 1, [0, 1], [0, 0]),
        {**helpers.evaluate(2.0, 1, 0.1), "loss": first},
        *(sent(2.0, client, 1) for client in second_order),
        received(3.0, 0, 1),
        received(4.0, 1, 1),
        helpers.aggregate(4.0, 2, [0, 1], [0, 0]),
        {**helpers.evaluate(4.0, 2, 0.2), "loss": second},
    ]
    assert result.events == [*helpers.with_orders(expected)]
    outcome, history = result.outcome, result.history
    assert (outcome.version, outcome.seconds, outcome.stopped) == (2, 4.0, "num_versions")
    assert (history.client_updates, history.bytes_up, history.bytes_down) == (4, 32, 32)
    assert history.ages == Counter({0: 4})
    np.testing.assert_allclose(outcome.params, [second, -second])


def test_a_clients_state_comes_with_its_next_order_even_if_its_update_was_refused():
    """Client 1 is always refused; client 0 fails in its second order; its fourth has no state."""

    class RefusesClient1(MeanDelta):
        def admit(self, model, update):
            return "client 1" if update.client_id == 1 else None

    states = {0: [], 1: []}

    class Trainer:
        def train(self, order):
            client_id, sequence, state = order.client_id, order.sequence, order.state
            states[client_id].append(int(state["order"]) if state else None)
            if (client_id, sequence) == (0, 1):
                raise OSError("disk is full")
            memory = {} if (client_id, sequence) == (0, 3) else {"order": np.array(sequence)}
            return Upload(np.zeros(2, np.float32), "delta", 1, 0.0, state=memory)

    result = run(
        fully_async(2),
        Trainer(),
        num_clients=2,
        num_versions=5,
        devices=Times(one_second),
        strategy=RefusesClient1(),
    )
    assert states[0] == [None, 0, 0, 2, None, 4]
    assert result.history.rejected >= 4
    assert states[1] == [None, *range(len(states[1]) - 1)]
    # State does not travel: two floats down for every order, two up for every update.
    assert result.history.bytes_down == 8 * len(result.kind("dispatch"))
    assert result.history.bytes_up == 8 * result.history.client_updates


class RandomSchedule(Schedule):
    """Draws at every call, and makes one version per update when two updates wait."""

    def __init__(self):
        self.calls = 0
        self.remaining = 0

    def state_dict(self):
        return {"asked": self.calls, "left": self.remaining}

    def load_state_dict(self, state):
        self.calls, self.remaining = state["asked"], state["left"]

    def start(self, idle, busy, buffer, rng):
        self.calls += 1
        return idle.draw(int(rng.integers(3)) if len(busy) > 2 else 3, rng)

    def take(self, buffer):
        if len(buffer) >= 2:
            self.remaining = len(buffer)
        if not self.remaining:
            return ()
        self.remaining -= 1
        return buffer[:1]


def test_factors_of_the_rate_from_strategy_and_schedule_are_multiplied():
    class Half(MeanDelta):
        def dispatch(self, model, client_id):
            return model.params, {"local_lr_factor": 0.5}

    class Third(Buffered):
        def work(self, client_id):
            return {"local_lr_factor": 1 / 3}

    configs, trainer = [], Scripted(counting)
    trainer.train = lambda order: configs.append(order.config) or counting(0, 0, order.vector)
    run(Third(1, 1), trainer, num_clients=1, num_versions=1, strategy=Half())
    assert configs[0]["local_lr_factor"] == pytest.approx(1 / 6)


# -- clusters -------------------------------------------------------------------------------------


class Watching(MeanDelta):
    """Records versions and updates of every clustering."""

    def __init__(self):
        super().__init__()
        self.clusterings = []
        self.current = []

    def cluster(self, model, updates):
        self.clusterings.append(list(updates))
        self.current.append(model.version)
        return super().cluster(model, updates)


def counting(client_id, sequence, received):
    """A displacement that identifies client and order."""
    return Upload(vec(client_id, sequence), "delta", 10 + client_id, 0.0, rate_sum=0.5)


def test_clusters_are_formed_of_every_clients_latest_gradient():
    """At second 1.25, when all start again, and with version 4. Each version takes two updates:

    version  second  of clients' orders         then at work until second
    1        2.5     0: 1 (2.25), 1: 1 (2.5)    0: 3.5, 1: 3.75, 2: 3.35
    2        3.5     2: 1 (3.35), 0: 2 (3.5)    0: 4.5, 1: 3.75, 2: 5.6
    3        4.5     1: 2 (3.75), 0: 3 (4.5)    0: 5.5, 1: 5.75, 2: 5.6
    4        5.6     0: 4 (5.5),  2: 2 (5.6)
    """
    result = run(
        ClusteredQuorum(num_clusters=1, participation=0.5, recluster_every=4),
        Scripted(counting),
        num_clients=3,
        num_versions=6,
        devices=Times(lambda client, order: (1.0, 1.25, 2.1 if order else 1.0)[client]),
        strategy=Watching(),
    )
    strategy = result.strategy
    assert strategy.current == [0, 4]
    for updates, orders in zip(strategy.clusterings, ([0, 0, 0], [4, 2, 2]), strict=True):
        assert [update.client_id for update in updates] == [0, 1, 2]
        assert {update.kind for update in updates} == {"gradient"}
        assert [update.num_examples for update in updates] == [10, 11, 12]
        expected = [[-2.0 * client, -2.0 * order] for client, order in enumerate(orders)]
        assert [update.vector.tolist() for update in updates] == expected


def test_clusters_must_contain_the_given_clients():
    class Forgetful(MeanDelta):
        def cluster(self, model, updates):
            return {update.client_id: 0 for update in updates[1:]} | {77: 0}

    text = "must put each of the 10 clients that it is shown into one cluster, and no others: "
    outcome = run(ClusteredQuorum(num_clusters=2), strategy=Forgetful()).outcome
    assert str(outcome.error).endswith(text + "[0, 77]")


# -- versions -------------------------------------------------------------------------------------


def cited_versions(events):
    """Versions cited by orders and waiting updates at each aggregation, and the current one."""
    bases = {}
    waiting = []
    current, versions = 0, []
    for event in events:
        match event["kind"]:
            case "dispatch":
                bases[event["client"]] = event["version"]
            case "arrival":
                waiting.append((event["client"], bases.pop(event["client"])))
            case "failure" | "reject":
                bases.pop(event["client"], None)
            case "aggregate":
                versions.append(sorted({*bases.values(), *(base for _, base in waiting), current}))
                current = event["version"]
                leave(event["client"], waiting)
            case "cluster":
                leave(event["dropped"], waiting)
    return versions


def leave(clients, waiting):
    """Remove the oldest waiting update of every client."""
    for client in clients:
        waiting.remove(next(update for update in waiting if update[0] == client))


def half_of_them_fail(client_id, sequence, received):
    if sequence % 2:
        raise RuntimeError("no power")
    return toward_own_number(client_id, sequence, received)


def half_are_refused(client_id, sequence, received):
    upload = toward_own_number(client_id, sequence, received)
    return replace(upload, num_examples=0) if sequence % 2 else upload


@pytest.mark.parametrize(
    "schedule",
    [
        *(synchronous(4), k_async(3), Buffered(8, 3), fully_async(8)),
        *(RandomK(3, 10, 0), RandomSchedule()),
        ClusteredQuorum(num_clusters=1, participation=0.3, recluster_every=9),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
@pytest.mark.parametrize("script", [toward_own_number, half_of_them_fail, half_are_refused])
def test_versions_are_kept_exactly_while_an_order_or_update_cites_them(schedule, script):
    devices = schedule if isinstance(schedule, RandomK) else None
    schedule = deepcopy(schedule)
    result = run(schedule, Scripted(script), devices=devices, num_versions=120, deadline=4.5)
    assert result.strategy.histories == cited_versions(result.events)
    sizes = [len(history) for history in result.strategy.histories]
    assert max(sizes) <= 10 + 1
    assert max(sizes[60:]) <= max(sizes[:60]) + 1  # no growth


def test_a_client_that_diverged_keeps_its_earlier_state():
    """Otherwise it would diverge for ever, as a client of FedDyn with its h_i.

    A list, which is refused, would end the run at its next checkpoint.
    """
    federation = Federation(vec(0, 0), 2, [7], seed=0)
    for values in (np.array([1.0]), np.array([math.nan]), np.array([math.inf]), [2.0]):
        federation.keep(7, {"h": values})
    assert federation.give(7, 0, vec(0, 0), {}, 0.0).state == {"h": [1.0]}


def test_a_version_that_diverges_ends_the_run_without_a_warning():
    class Overflows(MeanDelta):
        def aggregate(self, model, updates):
            return super().aggregate(model, updates) * np.float32(3e38)

    outcome = run(SCHEDULE, strategy=Overflows(), num_versions=5).outcome
    assert outcome.stopped.startswith("Diverged: version 2 is not finite")


def test_the_history_cannot_be_changed_and_vectors_are_read_only():
    class WritesToModel(MeanDelta):
        def aggregate(self, model, updates):
            for vector in (model.params, *model.history.values(), *(u.vector for u in updates)):
                assert not vector.flags.writeable
            with pytest.raises(TypeError):
                model.history[0] = vec(9, 9)
            return super().aggregate(model, updates)

    assert run(SCHEDULE, strategy=WritesToModel(), num_versions=5).outcome.version == 5


# -- ties and seeds -------------------------------------------------------------------------------


def test_equal_devices_do_not_favour_low_client_ids():
    """10 equally fast clients, K = 5: over the run all are used about equally often."""
    result = run(k_async(5), devices=Times(one_second), num_versions=200)
    counts = Counter(client for event in result.kind("aggregate") for client in event["client"])
    assert max(counts.values()) - min(counts.values()) <= 2
    first = [event["client"] for event in result.kind("aggregate")[:4]]
    assert first[0] != sorted(first[0])
    other = run(k_async(5), devices=Times(one_second), num_versions=200, seed=1)
    assert [event["client"] for event in other.kind("aggregate")[:4]] != first


# -- deadlines ------------------------------------------------------------------------------------


def slow_once(seconds):
    """Client 0's first order takes `seconds`, all other orders one second."""
    return Times(lambda client, order: seconds if (client, order) == (0, 0) else 1.0)


@pytest.mark.parametrize(
    "schedule", [Buffered(4, 2), synchronous(4), k_async(2, 4), fully_async(4)]
)
def test_an_order_past_its_deadline_fails_and_its_place_is_refilled(schedule):
    calls = []

    def script(client_id, sequence, received):
        calls.append((client_id, sequence))
        return toward_own_number(client_id, sequence, received)

    result = run(
        schedule,
        Scripted(script),
        num_clients=5,
        num_versions=80,
        devices=slow_once(10.5),
        deadline=3.0,
    )
    start = next(e["t"] for e in result.kind("dispatch") if e["client"] == 0)
    (failure,) = result.kind("failure")
    assert (failure["client"], failure["t"]) == (0, start + 3.0)
    assert failure["reason"] == "deadline passed"
    after = result.events[result.events.index(failure) + 1]
    assert (after["kind"], after["t"], after["client"] != 0) == ("dispatch", start + 3.0, True)
    # Its late reply is refused without being computed; then the client may start again.
    (reject,) = result.kind("reject")
    assert (reject["client"], reject["t"]) == (0, start + 10.5)
    assert reject["reason"] == "late: its deadline had passed"
    assert (0, 0) not in calls
    assert (0, 1) in calls
    restarts = [e["t"] for e in result.kind("dispatch") if e["client"] == 0][1:]
    assert min(restarts) >= reject["t"]
    assert result.outcome.version == 80
    assert (result.history.failures, result.history.rejected) == (1, 1)


def test_an_upload_takes_the_place_of_its_clients_waiting_one_where_the_intake_says_so():
    """Client 0 uploads after 1 and 2 s, client 1 after 2.5 s: the first upload is dropped."""
    intake, times = Intake(), Times(lambda client, number: [1.0, 2.5][client])
    intake.replaces = True
    result = run(Buffered(2, 2), num_clients=2, num_versions=6, devices=times, intake=intake)
    versions = result.kind("aggregate")
    assert all(sorted(event["client"]) == [0, 1] for event in versions)
    assert all(event["age"] == [0, 0] for event in versions)
    dropped = result.kind("reject")
    assert {event["client"] for event in dropped} == {0}
    assert "a newer upload of its client" in dropped[0]["reason"]


# -- runs that cannot go on -----------------------------------------------------------------------


def test_failures_in_a_row_end_the_run_with_the_last_reason():
    def script(client_id, sequence, received):
        raise OSError("disk is full")

    result = run(SCHEDULE, Scripted(script), num_versions=100)
    assert isinstance(result.outcome.error, ClientError)
    text = "15 orders failed, and none brought an update: OSError: disk is full"
    assert str(result.outcome.error) == text
    assert result.outcome.stopped == f"ClientError: {text}"
    assert (result.outcome.version, result.history.failures) == (0, 15)


class ReportsAge(MeanDelta):
    def aggregate(self, model, updates):
        self.report["age"] = 1.0
        return super().aggregate(model, updates)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"strategy": ReportsAge()}, "'age' in the strategy's report must have another name"),
        ({"evaluate": lambda *_: {"t": 1.0}}, "'t' in the result of the evaluation on the server"),
    ],
    ids=["report", "evaluation"],
)
def test_numbers_that_would_replace_an_events_own_end_the_run(settings, text):
    assert text in run(SCHEDULE, **settings).outcome.stopped


class FakeNodes(Inline):
    """A mailbox of 300 real nodes that only join and leave; then Ctrl-C."""

    def __init__(self, *events):
        super().__init__(Scripted(toward_own_number))
        self._events = list(events)

    def pull(self, timeout):
        if not self._events:
            raise KeyboardInterrupt
        return map(self._events.pop(0), range(300))


def on_nodes(*events, recorder):
    return Engine(
        strategy=MeanDelta(),
        schedule=Buffered(None, 1),
        clock=WallClock(FakeNodes(*events)),
        initial=vec(0, 0),
        stop=Stop(num_versions=9),
        sinks=[recorder],
    )


def test_orders_of_many_nodes_that_are_lost_at_once_do_not_end_the_run():
    """All nodes leave and come back; then the server is restarted."""
    recorder = Recorder()
    engine = on_nodes(Joined, Left, Joined, recorder=recorder)
    assert engine.run().stopped == "interrupted"
    assert recorder.history.failures == 300
    assert len(engine.clients[1]) == 300
    restarted = on_nodes(recorder=recorder)
    restarted.load_state_dict(deepcopy(engine.state_dict()))
    assert restarted.run().stopped == "interrupted"
    assert recorder.history.failures == 600


def test_a_run_without_work_stalls():
    """In a round of three, one client never returns: two updates wait for a third."""
    result = run(synchronous(3), num_clients=3, devices=slow_once(math.inf), deadline=5.0)
    assert isinstance(result.outcome.error, Stalled)
    assert str(result.outcome.error).endswith("2 are online and idle, 2 updates wait")


class Exploding(MeanDelta):
    """Version 4 is not finite."""

    def aggregate(self, model, updates):
        if model.version == 3:
            return np.array([0, np.nan], np.float32)
        return super().aggregate(model, updates)


def test_divergence_keeps_the_last_finite_model():
    result = run(SCHEDULE, strategy=Exploding())
    assert isinstance(result.outcome.error, Diverged)
    assert str(result.outcome.error) == (
        "version 4 is not finite: Exploding.aggregate made NaN of finite numbers, as 0 / 0 does"
    )
    assert result.outcome.version == 3
    assert result.final == run(SCHEDULE, num_versions=3).final


@pytest.mark.parametrize(
    ("base", "method", "result", "text"),
    [
        (Buffered, "take", lambda self, buffer: None, " returned None, and must return updates of"),
        (Buffered, "take", lambda self, buffer: [*buffer, *buffer], "of the buffer, each once, or"),
        (Buffered, "take", lambda self, buffer: [*map(copy, buffer)], "of the buffer, each once"),
        (Buffered, "start", lambda *_: None, " returned None, and must return clients of"),
        (Buffered, "work", lambda *_: 2, " returned 2, and must return a dict"),
        (Buffered, "work", lambda *_: {"local_steps": 0}, "local_steps=0 must be an integer >= 1"),
        (MeanDelta, "aggregate", lambda *_: np.zeros(2), " returned float64, expected float32"),
        (MeanDelta, "aggregate", lambda *_: vec(0), " returned shape (1,), expected that of model"),
        (MeanDelta, "aggregate", lambda *_: [0.0, 0.0], " returned a list, expected a NumPy array"),
        (MeanDelta, "dispatch", lambda *_: vec(0, 0), "must return a vector and a dict, the"),
        (MeanDelta, "dispatch", lambda _, model, client: (model.params, {"proximal-mu": -1}), "-1"),
        (MeanDelta, "admit", lambda *_: True, " returned True, and must return a reason or None"),
        (MeanDelta, "totals", lambda *_: {"a": [1]}, " returned {'a': [1]}, and must return"),
        (MeanDelta, "to_evaluate", lambda *_: None, " returned None, expected a vector"),
    ],
)
def test_the_error_of_a_method_with_a_bad_result_names_it(base, method, result, text):
    made = type("Wrong", (base,), {method: result})
    parts = (SCHEDULE, made()) if base is MeanDelta else (made(2, 1), MeanDelta())
    outcome = run(parts[0], strategy=parts[1]).outcome
    assert all(part in str(outcome.error) for part in (method, text))
    assert outcome.params.shape == (2,)


def test_a_misspelt_key_of_an_order_is_told():
    schedule = type("Own", (Buffered,), {"work": lambda *_: {"local_step": 2}})(2, 1)
    with pytest.warns(UserWarning, match="^local_step in the .* did you mean local_steps"):
        run(schedule)


@pytest.mark.parametrize("weights", [[1.0], np.full(3, np.nan), [[0.5]] * 3, 1.0])
def test_the_error_of_weights_that_do_not_fit_the_updates_names_the_aggregation(weights):
    class Careless(MeanDelta):
        def aggregate(self, model, updates):
            self.report["weight"] = weights
            return super().aggregate(model, updates)

    message = (
        f"aggregation of version 1: report['weight']={np.asarray(weights).tolist()} must be "
        "3 finite numbers, one for each update"
    )
    assert str(run(SCHEDULE, strategy=Careless()).outcome.error) == message


class Odd(Buffered):
    def start(self, idle, busy, buffer, rng):
        return [999] if self.buffer_size == 1 else super().start(idle, busy, buffer, rng)

    def take(self, buffer):
        return []


def test_a_schedule_that_takes_nothing_or_starts_a_stranger_ends_the_run():
    error = run(Odd(concurrency=2, buffer_size=2), num_clients=3).outcome.error
    assert isinstance(error, Stalled)
    assert str(error) == "1031 updates wait, of which the schedule takes none"
    error = run(Odd(concurrency=2, buffer_size=1), num_clients=3).outcome.error
    assert str(error) == "ValueError: client 999 was chosen, and is not among the idle ones"


def test_uploads_that_diverge_blame_the_learning_rates():
    def script(client_id, sequence, received):
        return replace(toward_own_number(client_id, sequence, received), rate_sum=1e31)

    error = run(SCHEDULE, Scripted(script)).outcome.error
    assert isinstance(error, Stalled)
    assert str(error) == (
        "201 orders in a row brought nothing usable, the last one: rate_sum=1e+31 must be between "
        "1e-18 and 1e+18, most likely since a learning rate is too large: try a tenth of it"
    )


# -- contents of checkpoints -----------------------------------------------------------------------


def make(**settings):
    clock = VirtualClock(Inline(Scripted(toward_own_number)), Times(one_second), 10)
    settings = {"schedule": SCHEDULE, "clock": clock, **settings}
    return Engine(initial=vec(0, 0), stop=Stop(6), **settings)


class Opaque(MeanDelta):
    """Has an attribute that no checkpoint can hold."""

    def __init__(self):
        super().__init__()
        self.counts = {"seen": [0]}
        self.cache = object()


class Momentum(Opaque):
    """Learns in its own attributes, one of which exists from its first version on."""

    transient = ("cache",)

    def aggregate(self, model, updates):
        self.counts["seen"][0] += 1
        step = super().aggregate(model, updates) - model.params
        self.velocity = 0.5 * getattr(self, "velocity", 0) + step
        return model.params + self.velocity


def run_with_checkpoints(strategy):
    """An engine after its run of six versions, and its states after every second version."""
    states = []
    engine = make(strategy=strategy, checkpoint=lambda _: states.append(dumps(engine.state_dict())))
    engine.checkpoint_every = 2
    engine.run()
    return engine, states


def test_errors_before_the_first_update_still_count_after_a_resume():
    def script(client_id, sequence, received):
        raise OSError("disk is full")

    clocks = [VirtualClock(Inline(Scripted(script)), Times(one_second), 10) for _ in range(2)]
    first, resumed = (make(clock=clock, strategy=MeanDelta()) for clock in clocks)
    assert "14 orders failed" in first.run().stopped
    resumed.load_state_dict(loads(dumps(first.state_dict())))
    assert "15 orders failed" in resumed.run().stopped


def test_attributes_of_an_author_go_on_from_a_checkpoint():
    whole, (state, *_) = run_with_checkpoints(Momentum())
    resumed = make(strategy=Momentum())
    resumed.load_state_dict(loads(state))
    assert resumed.strategy.counts == {"seen": [2]}
    assert resumed.run().params.tobytes() == whole.outcome.params.tobytes()
    assert resumed.strategy.velocity.tobytes() == whole.strategy.velocity.tobytes()


class Unruly(Buffered):
    """Has an attribute that no checkpoint can hold."""

    def __init__(self):
        super().__init__(2, 2)
        self.order = lambda client_id: client_id


class OldPattern(MeanDelta):
    """Returns a state that would be restored as attributes."""

    def state_dict(self):
        return self.state


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"strategy": Opaque()}, "^strategy.cache is a object, which .* the `transient` of its"),
        ({"schedule": Unruly()}, "^schedule.order is a function, which a checkpoint cannot hold"),
        ({"strategy": OldPattern()}, "^state_dict of OldPattern must return attributes, `state` "),
    ],
)
def test_attributes_that_no_checkpoint_can_hold_are_refused_before_the_run(parts, message):
    with pytest.raises(ValueError, match=message):
        require_keepable(**{"strategy": MeanDelta(), "schedule": SCHEDULE, **parts})


def test_a_strategy_that_restores_itself_may_return_any_state():
    class Own(OldPattern):
        def load_state_dict(self, state):
            self.state = dict(state)

    require_keepable(Own(), SCHEDULE)


class Mailbox(Inline):
    """Raises as Ctrl-C does when its fourth vector is shared."""

    closed = False
    shared = 0

    def share(self, vector):
        self.shared += 1
        if self.shared == 4:
            raise KeyboardInterrupt
        return super().share(vector)

    def close(self):
        self.closed = True


def on(mailbox, strategy):
    return make(strategy=strategy, clock=VirtualClock(mailbox, Times(one_second), 10))


@pytest.mark.parametrize("method", ["aggregate", "dispatch", "to_evaluate", "totals"])
def test_an_error_of_the_strategy_ends_the_run_and_closes_the_clock(method):
    def broken(*args):
        raise LookupError("a bug")

    mailbox = Mailbox(Scripted(toward_own_number))
    outcome = on(mailbox, type("Broken", (MeanDelta,), {method: broken})()).run()
    assert outcome.stopped == "LookupError: a bug"
    assert isinstance(outcome.error, ServerError)
    assert isinstance(outcome.error.__cause__, LookupError)
    assert outcome.version == (2 if method in ("to_evaluate", "totals") else 0)
    assert mailbox.closed


def test_ctrl_c_while_a_version_is_published_leaves_the_one_before():
    outcome = on(Mailbox(Scripted(toward_own_number)), MeanDelta()).run()
    assert (outcome.stopped, outcome.version) == ("interrupted", 2)
    same = run(SCHEDULE, devices=Times(one_second), num_versions=2)
    assert outcome.params.tolist() == same.outcome.params.tolist()


# -- ends and evaluations -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("every", "last", "expected"),
    [
        (1, 3, [0, 1, 2, 3]),
        (3, 7, [0, 3, 6, 7]),
        (3, 6, [0, 3, 6]),
        (10, 4, [0, 4]),
        (4, 100, [0, 4, 8]),  # the target accuracy is reached
    ],
)
def test_evaluations_at_both_ends_and_every_eval_every_versions(every, last, expected):
    result = run(
        SCHEDULE,
        num_versions=last,
        target_accuracy=0.8,
        eval_every=every,
        evaluate=lambda version, params: {"accuracy": version / 10, "loss": 1.0},
    )
    assert [event["version"] for event in result.kind("evaluate")] == expected
    assert result.outcome.version == expected[-1]
    assert result.outcome.stopped == ("num_versions" if last < 8 else "target_accuracy")


def course(state=None, until=math.inf, **server):
    """The events of a run, and its states when it was stopped; `state` resumes such a run."""
    recorder, states = Recorder(), []

    class Stopping(Recorder):
        def emit(self, event):
            if len(recorder.events) >= until:
                engine.ask_to_stop()

    engine = Engine(
        strategy=MeanDelta(),
        schedule=RandomSchedule(),
        clock=VirtualClock(
            Inline(Scripted(toward_own_number)),
            Fleet(UniformRatio(ratio=5, num_clients=10, seed=3)),
            10,
            server=Server(**server),
        ),
        initial=vec(0, 0),
        stop=Stop(num_versions=23),
        evaluate=lambda version, _: {"accuracy": version / 100, "loss": 1.0},
        eval_every=7,
        checkpoint=lambda _: states.append(deepcopy(engine.state_dict())),
        sinks=[recorder, Stopping()],
    )
    if state is not None:
        engine.load_state_dict(state)
    stopped = engine.run().stopped
    assert stopped == ("interrupted" if until < math.inf else "num_versions")
    return recorder.events, states


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("until", range(1, 60, 7))
def test_events_are_those_of_one_run_wherever_it_was_stopped(until, busy):
    """Also within an aggregation, and where a second call of the schedule would draw others."""
    server = BUSY if busy else {}
    whole, _ = course(**server)
    first, (state,) = course(until=until, **server)
    second, _ = course(state, **server)
    assert first + second == whole


# -- the server's own work -------------------------------------------------------------------------


def times(result, kind):
    return [event["t"] for event in result.kind(kind)]


# -- one server -----------------------------------------------------------------------------------


def test_work_is_done_one_after_the_other():
    server = Server(dispatch=2.0, receipt=1.0, evaluation=5.0)
    assert server.work("dispatch", 0.0) == 2.0
    assert server.work("dispatch", 0.5) == 4.0
    assert server.receive(3.0) == 5.0
    assert server.receive(9.0) == 10.0
    assert server.work("evaluation", 10.0) == 15.0


def test_an_idle_server_looks_every_poll_seconds():
    server = Server(poll=1.0, receipt=0.25)
    assert server.begins(0.1) == 1.0
    assert server.receive(0.1) == 1.25
    assert server.receive(0.9) == 1.5  # found by the same poll
    assert server.receive(1.1) == 2.75  # a poll one second after the work
    assert server.receive(7.0) == 8.0  # 2.75 + 5 polls = 7.75


# -- a run ----------------------------------------------------------------------------------------


def test_a_round_takes_the_sum_of_its_parts():
    """Three orders leave after 0.5, 1 and 1.5 s and take 10 s each.

    Replies come at 10.5, 11 and 11.5 and are received until 11.25, 12 and 12.75 at 0.75 s each.
    The aggregation ends at 13.75 and the evaluation at 17.75. The first version's evaluation delays
    all of it by 4 s.
    """
    server = Server(dispatch=0.5, receipt=0.75, aggregation=1.0, evaluation=4.0)
    result = run(
        synchronous(3),
        devices=Times(lambda client, order: 10.0),
        num_clients=3,
        num_versions=2,
        server=server,
        evaluate=lambda version, vector: {"accuracy": 0.5, "loss": 1.0},
    )
    assert times(result, "dispatch")[:3] == [4.5, 5.0, 5.5]
    assert times(result, "arrival")[:3] == [15.25, 16.0, 16.75]
    assert times(result, "aggregate") == [17.75, 35.5]
    assert times(result, "evaluate") == [4.0, 21.75, 39.5]
