"""FedASMU: weights by hand, control gradients against autograd, slots by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
from helpers import Quadratic, Times, order_for, run, update_of, vec

from fl_app.algorithms.fedasmu import FedASMU
from fl_app.algorithms.fedasmu.slots import ADD, MINUS, MetaModel, learn_slot, next_slot
from fl_app.algorithms.fedasmu.trainer import FedASMUTrainer
from fl_app.core.types import GlobalModel, Parts
from fl_app.schedule import fully_async


def upload(client_id, base_version, *model, **metrics):
    return update_of(client_id, base_version, *model, kind="model", rate_sum=0.5, metrics=metrics)


def after_uploads(*models, **settings):
    """The strategy after client 0's upload of 9 (w_4 = 3, version 1) and later uploads."""
    strategy = FedASMU(**{"mixing_scale": 2.0, **settings})
    params = strategy.aggregate(GlobalModel(vec(3), 4, {1: vec(0)}), [upload(0, 1, 9)])
    for version, (client_id, model) in enumerate(models, start=5):
        params = strategy.aggregate(
            GlobalModel(params, version), [upload(client_id, version, model)]
        )
    return strategy


# -- server ---------------------------------------------------------------------------------------


def test_the_first_upload_of_a_device():
    """t = 4, o = 1: s = 4. xi = 1 / (sqrt(4) 4^0.5) + 0 = 1/4, alpha = 2 xi / (1 + 2 xi) = 1/3;
    w_5 = 3 + (9 - 3) / 3 = 5."""
    strategy = FedASMU(mixing_scale=2.0)
    model = GlobalModel(vec(3), 4, {1: vec(0), 4: vec(3)})
    assert strategy.aggregate(model, [upload(0, 1, 9)]).tolist() == [5.0]
    assert strategy.report["weight"] == pytest.approx([1 / 3])


def test_the_second_upload_changes_the_controls():
    """After the test above: r = 4, s' = 4, d = 6, xi = 1/4, d alpha / d xi = 2 / 1.5^2 = 8/9.

    The device received w_5 = 5 and ends at 4 with rates summing to 0.5: gradient (5 - 4) / 0.5 = 2.
    q = 2 * 6 * 8/9 = 32/3; lambda: q / (2 * 2) = 8/3; sigma: -q ln 4 / 4; iota: q.
    """
    rates = {"lambda_lr": 0.01, "sigma_lr": 0.02, "iota_lr": 0.001}
    control = after_uploads((0, 4), **rates).state["controls"][0]
    assert control.lam == pytest.approx(1 - 0.01 * 8 / 3)
    assert control.sigma == pytest.approx(0.5 + 0.02 * 32 / 3 * math.log(4) / 4)
    assert control.iota == 0.0  # 0 - 0.001 * 32/3, clipped


def test_with_the_printed_signs_the_controls_climb():
    """The changes of the test above, the other way round; iota is not clipped. The log has means
    over both clients, of which client 1 has its first values.
    """
    rates = {"lambda_lr": 0.01, "sigma_lr": 0.02, "iota_lr": 0.001}
    strategy = after_uploads((0, 4), (1, 0), **rates, signs="printed")
    assert strategy.report["lambda"] == pytest.approx(1 + 0.01 * 8 / 3 / 2)
    assert strategy.report["sigma"] == pytest.approx(0.5 - 0.02 * 32 / 3 * math.log(4) / 4 / 2)
    assert strategy.report["iota"] == pytest.approx(0.001 * 32 / 3 / 2)


def test_the_clock_may_count_from_one():
    """xi = 1 / (sqrt(5) 4^0.5) = 0.2236068, alpha = 2 xi / (1 + 2 xi) = 0.3090170."""
    assert after_uploads(clock_from_one=True).report["weight"] == pytest.approx([0.3090170])


def change_of_lambda(received=5, changes=None, **settings):
    """The change of lambda by device 0's second upload, and alpha of the upload in between."""
    strategy = FedASMU(mixing_scale=2.0, lambda_lr=0.01, sigma_lr=0.0, **settings)
    w_5 = strategy.aggregate(GlobalModel(vec(3), 4, {1: vec(0)}), [upload(0, 1, 9)])
    w_6 = strategy.aggregate(GlobalModel(w_5, 5), [upload(1, 5, 8)])
    between = float(strategy.report["weight"][0])
    history = {5: vec(5), 6: vec(5)}  # equal models, so that the gradient stays 2
    second = replace(upload(0, received, 4), **(changes or {}))
    strategy.aggregate(GlobalModel(w_6, 7, history), [second])
    return 1 - strategy.state["controls"][0].lam, between


def test_other_uploads_between_two_of_a_device_may_count():
    """Device 0 received w_6: version 5 lies in between, so the gradient shrinks by 1 - alpha_5."""
    plain, between = change_of_lambda(received=6)
    assert plain == pytest.approx(0.01 * 8 / 3)
    assert 0 < between < 1
    assert change_of_lambda(received=6, chain=True)[0] == pytest.approx(plain * (1 - between))
    assert change_of_lambda(received=5, chain=True)[0] == pytest.approx(plain)


def test_updates_of_one_version_are_of_that_version():
    """Both updates made w_5, in which w_4 has the share (1 - first) (1 - second)."""
    strategy = FedASMU(chain=True)
    strategy.aggregate(GlobalModel(vec(3), 4, {1: vec(0)}), [upload(0, 1, 9), upload(1, 1, 8)])
    assert [control.version for control in strategy.state["controls"].values()] == [4, 4]
    first, second = strategy.report["weight"]
    assert strategy.state["kept"] == {4: pytest.approx((1 - first) * (1 - second))}


def test_the_mean_gradient_may_be_over_epochs_or_without_the_merge():
    """Rate 0.05 and 5 epochs: (5 - 4) / 0.25 = 4. A merge by -0.5: (5 - 4 - 0.5) / 0.5 = 1."""
    plain = change_of_lambda()[0]
    by_epochs = change_of_lambda(changes={"metrics": {"rate": 0.05}}, mean_by_epochs=True)[0]
    assert by_epochs == pytest.approx(2 * plain)
    # The upload in between needs no merge vector: its device has no record yet.
    without = change_of_lambda(changes={"extra": {"merge": vec(-0.5)}}, exclude_merge=True)[0]
    assert without == pytest.approx(plain / 2)


def test_orders_request_the_metrics_that_the_server_needs():
    model = GlobalModel(vec(0), 5)
    assert FedASMU(refresh=False).dispatch(model, 0)[1] == {"slot": 0}
    strategy = FedASMU(refresh=False, mean_by_epochs=True, exclude_merge=True)
    assert strategy.dispatch(model, 0)[1] == {"slot": 0, "tell_rate": True, "tell_merge": True}
    assert (FedASMU().upload_extra, strategy.upload_extra) == ((), ("merge",))


@pytest.mark.parametrize(("ends", "bounds"), [(4.0, (0.0, 5.0, 0.0)), (6.0, (None, 0.0, None))])
def test_controls_stay_within_their_bounds(ends, bounds):
    """As above, with rates of 1000: the gradient is 2, or -2 if the device ends at 6.

    lambda and iota have no upper bound, sigma has 5.
    """
    rates = {"lambda_lr": 1e3, "sigma_lr": 1e3, "iota_lr": 1e3}
    control = after_uploads((0, ends), **rates).state["controls"][0]
    lam, sigma, iota = bounds
    assert control.lam == (1 + 1e3 * 8 / 3 if lam is None else lam)
    assert control.sigma == sigma
    assert control.iota == pytest.approx(1e3 * 32 / 3 if iota is None else iota)


def test_too_stale_uploads_are_refused_and_change_nothing():
    strategy = FedASMU(max_staleness=99)
    assert strategy.admit(GlobalModel(vec(0), 98), upload(0, 0, 1)) is None
    reason = strategy.admit(GlobalModel(vec(0), 99), upload(0, 0, 1))
    assert reason == "staleness 100 exceeds strategy.max_staleness=99"
    assert strategy.state["controls"] == {}


def test_an_upload_may_count_as_old_as_the_model_merged_into_it():
    """t = 9, o = 0, g = 6: s = 10, or 4 from g. 0.6 s^-0.5 = 0.3 for s = 4. Then another order."""
    old = GlobalModel(vec(0), 9, {0: vec(0), 6: vec(0)})
    for counted, s in ((True, 4), (False, 10)):
        strategy = FedASMU(dynamic=False, version_after_merge=counted, max_staleness=s)
        strategy.refresh(GlobalModel(vec(0), 6), upload(1, 0))
        assert strategy.admit(old, upload(1, 0, 1)) is None
        assert strategy.admit(GlobalModel(vec(0), 10), upload(1, 0, 1)) is not None
        strategy.aggregate(old, [upload(1, 0, 1)])
        assert strategy.report["weight"] == [0.6 * s**-0.5]
        # A client without a fresh model, and an order that began after the fresh model.
        assert strategy.staleness_of(upload(2, 0, 1), 9) == 10
        assert strategy.staleness_of(upload(1, 8, 1), 9) == 2


def test_ablations():
    """Without dynamic weights 0.6 s^-0.5: s = 4 gives 0.3. Without refresh devices never ask."""
    model = GlobalModel(vec(0), 4, {1: vec(0)})
    static = FedASMU(dynamic=False, refresh=False)
    assert static.aggregate(model, [upload(0, 1, 10)]).tolist() == [3.0]
    assert static.dispatch(model, 7)[1] == {"slot": 0}


# -- slots ----------------------------------------------------------------------------------------


def test_the_meta_models_step_is_the_gradient_of_the_log_probability():
    theta, eps = MetaModel.initial(seed=3), 1e-2
    direction = MetaModel.reinforce(theta, 4, slot=3, step=1.0) - theta
    unit = direction / np.linalg.norm(direction)
    up = MetaModel.log_probs((theta + eps * unit).astype(np.float32), 4)[2]
    down = MetaModel.log_probs((theta - eps * unit).astype(np.float32), 4)[2]
    assert (up - down) / (2 * eps) == pytest.approx(np.linalg.norm(direction), rel=1e-2)


def test_the_server_chooses_the_first_slot_and_learns_from_its_reward():
    """b = 0.1 * 2 after a reward of 2; a device that returns chooses its own slot."""
    strategy = FedASMU()
    model = GlobalModel(vec(0), 5)
    _, config = strategy.dispatch(model, 3)
    assert config["slot"] in (1, 2, 3, 4)
    theta = strategy.state["theta"].copy()
    strategy.aggregate(model, [upload(3, 5, 1, reward=2.0)])
    assert strategy.state["baseline"] == pytest.approx(0.2)
    assert (strategy.state["theta"] != theta).any()
    theta = strategy.state["theta"].copy()
    assert strategy.dispatch(model, 3)[1] == {}
    strategy.aggregate(model, [upload(3, 5, 1, reward=1.2)])
    assert strategy.state["baseline"] == pytest.approx(0.3)
    assert (strategy.state["theta"] == theta).all()


@pytest.mark.parametrize("reward", [math.nan, math.inf, 1e30, -1e30, 1e308])
def test_an_invalid_reward_does_not_stop_other_devices_from_learning(reward):
    """The upload itself counts. A reward that would leave no valid probabilities changes nothing,
    and the server still learns from other rewards."""
    strategy = FedASMU()
    model = GlobalModel(vec(0), 5)
    for client_id, value in enumerate([1.0, reward, -reward, 1.0, -2.0]):
        assert strategy.dispatch(model, client_id)[1]["slot"] in (1, 2, 3, 4)
        params = strategy.aggregate(model, [upload(client_id, 5, 1, reward=value)])
        assert params[0] > 0
    assert math.isfinite(strategy.state["baseline"])
    assert np.isfinite(strategy.state["theta"]).all()
    assert strategy.dispatch(model, 9)[1]["slot"] in (1, 2, 3, 4)


@pytest.mark.parametrize(("local_epochs", "slots"), [(2, {1}), (3, {1, 2}), (5, {1, 2, 3, 4})])
def test_slots_lie_between_the_local_epochs(local_epochs, slots):
    strategy = FedASMU(local_epochs=local_epochs)
    model = GlobalModel(vec(0), 5)
    assert {strategy.dispatch(model, i)[1]["slot"] for i in range(60)} == slots


def test_a_server_with_other_local_epochs_is_refused():
    """Otherwise its LSTM would learn from rewards for slots that were not used."""
    strategy = FedASMU(local_epochs=5)
    model = GlobalModel(vec(0), 5)
    last = next(i for i in range(99) if strategy.dispatch(model, i)[1]["slot"] == 4)
    order = {"version": 5, **strategy.dispatch(model, last)[1]}
    text = r"^slot=4 must be at most algorithm.client.local_epochs - 1=2: .* algorithm.strategy"
    with pytest.raises(ValueError, match=text):
        trainer(local_epochs=3).train(order_for(0, 0, vec(0), order))
    with pytest.raises(ValueError, match=r"^algorithm\.strategy.local_epochs=1 must be at least 2"):
        FedASMU(local_epochs=1)
    assert FedASMU(local_epochs=1, refresh=False).dispatch(model, 0)[1] == {"slot": 0}


def test_q_learning_by_hand():
    """H(2, add) += 0.1 (0.5 + 0.9 * 4 - 1): from 1 to 1.31. No move leaves the slots."""
    values = np.zeros((4, 3))
    values[1, ADD], values[2] = 1.0, (4.0, 2.0, 0.0)
    learned = learn_slot(values, 2, ADD, reward=0.5, rate=0.1, discount=0.9)
    assert learned[1, ADD] == pytest.approx(1.31)
    assert values[1, ADD] == 1.0
    rng = np.random.default_rng(0)
    assert next_slot(values, 2, 0.0, rng) == (3, ADD)
    values[3] = (1.0, 0.0, 0.0)
    assert next_slot(values, 4, 0.0, rng) == (4, ADD)
    values[0] = (0.0, 0.0, 1.0)
    assert next_slot(values, 1, 0.0, rng) == (1, MINUS)
    actions = {next_slot(values, 2, 1.0, rng)[1] for _ in range(50)}
    assert actions == {0, 1, 2}


# -- device ---------------------------------------------------------------------------------------


def trainer(**more):
    task = Quadratic([[[8.0]] * 4, [[4.0]] * 4])
    settings = {"upload": "model", "local_lr": 0.1, "batch_size": 4, "local_epochs": 5}
    return FedASMUTrainer(task, **{**settings, **more})


def test_a_device_reports_its_rate_and_its_merge_if_asked():
    device = trainer(slot="first")
    config = {"version": 5, "tell_rate": True, "tell_merge": True}
    paused = device.train(order_for(0, 0, vec(0), config))
    assert not paused.extra
    for fresh, newer in ((vec(6), True), (vec(), False)):
        more = {"continues": True, **({"fresh_version": 6} if newer else {})}
        answer = device.train(order_for(0, 0, fresh, {**config, **more}, paused.state))
        assert answer.metrics["rate"] == pytest.approx(0.1)
        beta = answer.metrics["merge_weight"] if newer else 0.0
        expected = beta * (6 - paused.state["paused"])
        np.testing.assert_allclose(answer.extra["merge"], expected, rtol=1e-5)
    assert (beta, bool(expected.any())) == (0.0, False)


def test_a_merge_by_hand():
    """f = (w - 8)^2 / 2 from w_0 = 0, rate 0.1: after two epochs 8 (1 - 0.81) = 1.52.

    g = 4, o = 1: phi = 1 / 2 (1 - 0.5 / 2) = 3/8; mu_b = 2: beta = 0.75 / 1.75 = 3/7;
    w = 1.52 + 3/7 (5.02 - 1.52) = 3.02; reward (6.48^2 - 4.98^2) / 2.
    dF / d phi = (3.02 - 8) 3.5 * 2 / 1.75^2 = s; gamma -= rate s 3/8, upsilon += rate s / 4.
    Then three epochs: 8 - 4.98 * 0.9^3.
    """
    device = trainer(merge_scale=2.0, gamma_lr=0.01, upsilon_lr=0.1)
    order = {"version": 1, "slot": 2}
    paused = device.train(order_for(0, 0, vec(0), order))
    assert not paused.done
    assert paused.progress == pytest.approx(0.4)
    assert paused.vector.size == 0
    fresh = vec(5.02)
    device.train(order_for(1, 0, vec(0), {"version": 1, "slot": 1}))  # another client in between
    config = {**order, "continues": True, "fresh_version": 4}
    done = device.train(order_for(0, 0, fresh, config, state=paused.state))
    assert done.done
    assert done.vector.tolist() == pytest.approx([8 - 4.98 * 0.9**3], rel=1e-5)
    assert done.rate_sum == pytest.approx(0.5)
    assert done.metrics["reward"] == pytest.approx((6.48**2 - 4.98**2) / 2, rel=1e-5)
    assert done.metrics["merge_weight"] == pytest.approx(3 / 7)
    slope = (3.02 - 8) * 3.5 * 2 / 1.75**2
    assert float(done.state["gamma"]) == pytest.approx(1 - 0.01 * slope * 3 / 8, rel=1e-5)
    assert float(done.state["upsilon"]) == pytest.approx(0.5 + 0.1 * slope / 4, rel=1e-5)
    assert not [key for key in done.state if key.startswith("paused")]


def test_a_device_beyond_the_clamp_keeps_its_model_and_goes_on_learning():
    """upsilon = 4, o = 1, g = 4: phi = 1 / 2 (1 - 4 / 2) = -1/2, as 0: beta = 0, w = 1.52 stays.

    dF / d beta = (1.52 - 8) (5.02 - 1.52), d beta / d phi = mu_b = 2, d phi / d upsilon = -1/4:
    upsilon falls, and comes back to where there is something to merge.
    """
    device = trainer(merge_scale=2.0, upsilon0=4.0, gamma_lr=0.0, upsilon_lr=0.1)
    state = {"paused": vec(1.52), "paused_received": vec(0), "paused_at": np.array([2, 0.0])}
    config = {"version": 1, "slot": 2, "continues": True, "fresh_version": 4}
    done = device.train(order_for(0, 0, vec(5.02), config, state=state))
    assert done.metrics["merge_weight"] == done.metrics["reward"] == 0.0
    assert done.vector.tolist() == pytest.approx([8 - 6.48 * 0.9**3], rel=1e-5)
    slope = (1.52 - 8) * (5.02 - 1.52) * 2
    assert float(done.state["upsilon"]) == pytest.approx(4 - 0.1 * slope * -0.25, rel=1e-5)


@pytest.mark.parametrize(("slot", "epochs"), [("first", 1), ("middle", 2), ("last", 4)])
def test_heuristics(slot, epochs):
    paused = trainer(slot=slot).train(order_for(0, 3, vec(0), {"version": 1}))
    assert paused.progress == pytest.approx(epochs / 5)


def test_a_pause_with_momentum_and_displacement():
    """The saved state carries velocity and received model over the pause."""
    device = trainer(upload="pseudo", momentum=0.5)
    order = {"version": 1, "slot": 2}
    paused = device.train(order_for(0, 0, vec(1), order))
    done = device.train(order_for(0, 0, vec(), {**order, "continues": True}, state=paused.state))
    plain = device.train(order_for(0, 0, vec(1), {"version": 1, "slot": 0}))
    assert done.vector.tolist() == pytest.approx(plain.vector.tolist())
    assert done.rate_sum == plain.rate_sum


# -- together -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_pauses_are_answered_and_other_clients_do_not_wait(workers):
    """5 s of training, a second for each transfer; client 0 is twice as slow."""
    task = Quadratic.scattered(6)
    times = Times(lambda client, _: Parts(1.0, 5.0 + 5.0 * (client == 0) + client / 8, 1.0))
    device = FedASMUTrainer(task, local_lr=0.1, batch_size=4, local_epochs=5, slot="middle")
    settings = {"num_clients": 6, "num_versions": 40, "devices": times, "workers": workers}
    result = run(fully_async(3), device, strategy=FedASMU(), **settings)
    pauses, refreshes = result.kind("pause"), result.kind("refresh")
    arrivals = result.kind("arrival")
    assert len(pauses) >= 40
    assert 20 < len(refreshes) <= len(pauses)  # at first there is no newer model
    assert {event["progress"] for event in pauses} == {0.4}
    assert len(arrivals) == 40
    assert result.history.bytes_down == (len(result.kind("dispatch")) + len(refreshes)) * 12
    first = next(event for event in arrivals if event["client"] == 0)
    dispatch = next(event for event in result.kind("dispatch") if event["client"] == 0)
    seconds = first["t"] - dispatch["t"]
    answers = [e for e in refreshes if e["client"] == 0 and dispatch["t"] < e["t"] < first["t"]]
    assert seconds == pytest.approx(12.0 + len(answers))
