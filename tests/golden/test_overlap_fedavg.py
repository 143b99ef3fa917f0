"""Overlap-FedAvg by hand, and against delayed gradient descent on a quadratic."""

import math

import numpy as np
import pytest
from helpers import Quadratic, Times, order_for, run, update_of, vec

from fl_app.algorithms.overlap_fedavg import OverlapFedAvg
from fl_app.algorithms.overlap_fedavg.trainer import OverlapTrainer
from fl_app.core.types import GlobalModel
from fl_app.devices.compute import OverlapCompute, TwoSpeed
from fl_app.devices.fleet import Energy, Fleet, Overlapping
from fl_app.devices.network import Link, OverlapNetwork
from fl_app.schedule import synchronous


def update(client_id, version, *delta, examples=10):
    return update_of(client_id, version, *delta, kind="delta", examples=examples)


SETTINGS = {"server_lr": 0.5, "compensation": 0.25, "momentum": 0.5}
FIRST = [update(0, 0, -1), update(1, 0, -2, examples=30)]


@pytest.mark.parametrize(
    ("settings", "deltas", "expected"),
    [
        (SETTINGS, (-2, -2), 4.625),
        ({**SETTINGS, "nesterov": "algorithm"}, (-1, -3), 6.375),
        ({**SETTINGS, "compensation_form": "scaled"}, (-1, -3), 2.0),
        ({**SETTINGS, "compensation_form": "code"}, (-1, -3), 15.78125),
    ],
)
def test_two_versions(settings, deltas, expected):
    """eta = 0.5, lambda = 0.25, beta = 0.5; lambda / eta = 0.5.

    t = 0: deltas -1 (n 10) and -2 (n 30): d = 1.75; nothing was missed: d_ah = d; V = 1.75;
           w_1 = 4 - 1.75 = 2.25.
    t = 1: uploads from w_0 = 4, both -2: d = 2; w_1 - w_0 = -1.75;
           d_ah = 2 + 0.5 * 4 * (-1.75) = -1.5; V = 0.875 - 1.5 + 0.5 (-1.5 - 2) = -2.375;
           w_2 = 2.25 + 2.375 = 4.625.

    Other readings with uploads -1 and -3: d = 2, the mean of squares is 5.

    algorithm:  d_ah = 2 - 0.875 4 = -1.5, V = 0.875 - 1.5 + (-1.5 - 2) = -4.125
    scaled:     d_ah = 2 - 0.25 4 1.75 = 0.25, V = 0.875 + 0.25 - 0.5 1.75 = 0.25
    code:       d_ah = 2 - 0.25 25 1.75 = -8.9375, V = 0.875 - 8.9375 - 0.5 10.9375 = -13.53125
    """
    strategy = OverlapFedAvg(**settings)
    first = strategy.aggregate(GlobalModel(vec(4), 0), FIRST)
    assert first.tolist() == [2.25]
    assert strategy.report["weight"] == [0.25, 0.75]
    updates = [update(client, 0, delta) for client, delta in enumerate(deltas)]
    second = strategy.aggregate(GlobalModel(first, 1), updates)
    assert second.tolist() == pytest.approx([expected])


@pytest.mark.parametrize(
    ("settings", "deltas", "expected"),
    [
        ({"momentum": 0.5}, (-4, -2, -2, 0), (0, -4, -8, -10)),
        (SETTINGS, (-1, -2, -2, 0), (3, 3.5, 0.25, -1.375)),
        # The rate falls by half: eta_1 = 0.25 and lambda / eta_1 = 1, d_ah = 2 + 1 * 4 * (-1).
        ({"server_lr": 0.5, "lr_decay": 0.5, "compensation": 0.25}, (-1, -2), (3, 5)),
    ],
)
def test_the_velocity_lasts_over_many_versions(settings, deltas, expected):
    """Without compensation, beta = 0.5: V = 4, 0.5 4 + 2 = 4, 0.5 4 + 2 = 4, 0.5 4 = 2.

    With eta = 0.5, lambda = 0.25 from w_0 = 4, where lambda / eta = 0.5:
    t = 0: d = 1: V = 1, w_1 = 3.
    t = 1: d = 2, w_1 - w_0 = -1: d_ah = 2 - 2 = 0; V = 0.5 + 0 + 0.5 (0 - 2) = -0.5; w_2 = 3.5.
    t = 2: d = 2, w_2 - w_1 = 0.5: d_ah = 2 + 1 = 3; V = -0.25 + 3 + 0.5 = 3.25; w_3 = 0.25.
    t = 3: d = 0: V = 1.625, w_4 = -1.375.
    """
    strategy, params, models = OverlapFedAvg(**settings), vec(4), []
    for version, delta in enumerate(deltas):
        params = strategy.aggregate(GlobalModel(params, version), [update(0, 0, delta)])
        models.append(float(params[0]))
    assert models == pytest.approx(list(expected))
    if "lr_decay" in settings:  # the rate is 0 by then, and nobody moves
        last = strategy.aggregate(GlobalModel(params, 10_000), [update(0, 0, 0)])
        assert last.tolist() == params.tolist()


def test_a_displacement_of_an_older_version_is_refused():
    model, strategy = GlobalModel(vec(4), 3), OverlapFedAvg()
    assert strategy.admit(model, update(0, 2, 1)) is None
    assert "the displacement is 2 versions old" in (strategy.admit(model, update(0, 1, 1)) or "")


def test_buffers_are_the_uploads():
    """They follow the clients' statistics: no momentum, no compensation, nothing counted twice."""
    strategy = OverlapFedAvg(momentum=0.9)
    first = strategy.aggregate(GlobalModel(vec(4, 10), 0, num_trainable=1), [update(0, 0, -1, 2)])
    assert first.tolist() == [3.0, 12.0]
    second = strategy.aggregate(GlobalModel(first, 1, num_trainable=1), [update(0, 0, -1, 5)])
    assert second[1] == 15.0  # w_0's buffer 10, moved by 5


def one_client(eta, versions, **settings):
    """f = (w - 8)^2 / 2, one full-batch step of rate eta a cycle."""
    task = Quadratic([[[8.0]] * 4])
    trainer = OverlapTrainer(
        task, **{"upload": "delta", "local_lr": eta, "batch_size": 4, **settings}
    )
    return run(
        synchronous(1),
        trainer,
        num_clients=1,
        num_versions=versions,
        strategy=OverlapFedAvg(server_lr=eta),
        devices=Times(lambda client, sequence: 1.0),
    )


def test_delayed_gradient_descent_on_a_quadratic():
    """An upload trained from w_{t-1} is w_{t-1} - eta (w_{t-1} - 8), so

        w_{t+1} = w_t - (w_{t-1} - u) = w_t - eta (w_{t-1} - 8),    w_1 = w_0 - eta (w_0 - 8).

    FedAvg takes the gradient at w_t. The staleness of 1 remains however short transfers are.
    """
    eta, versions = 0.3, 12
    result = one_client(eta, versions)
    expected = [0.0, eta * 8.0]
    while len(expected) <= versions:
        expected.append(expected[-1] - eta * (expected[-2] - 8.0))
    assert result.outcome.params[0] == pytest.approx(expected[-1], rel=1e-5)
    fedavg = 8.0 * (1 - (1 - eta) ** versions)
    assert abs(result.outcome.params[0] - fedavg) > 0.05
    assert result.history.ages == {0: 1, 1: versions - 1}


@pytest.mark.parametrize("upload", ["delta", "pseudo"])
def test_the_second_cycle_may_go_on_from_the_own_model(upload):
    """As above with w_0 = 0, eta = 1/4: u_0 = 0 + 8 / 4 = 2, w_1 = 2.

    The second upload goes on from u_0 = 2: u_1 = 2 + 6 / 4 = 3.5, 3.5 from w_0: w_2 = 2 + 3.5.
    From then on as ever: w_3 = w_2 + (8 - w_1) / 4 = 7, w_4 = w_3 + (8 - w_2) / 4 = 7.625.
    """
    result = one_client(0.25, 4, upload=upload, bootstrap="continue")
    assert result.outcome.params[0] == pytest.approx(7.625)
    assert result.history.ages == {0: 1, 1: 3}


def test_working_ahead_continues_from_the_own_model():
    """u_0 = 2, then 3.5 from w_0, trained before the order with w_1 came."""
    device = OverlapTrainer(
        Quadratic([[[8.0]] * 4]), upload="delta", local_lr=0.25, batch_size=4, bootstrap="continue"
    )
    first = device.train(order_for(0, 0, vec(0), {}))
    device.work_ahead(lambda: False)
    assert device._ahead is not None
    ahead = device._ahead[2].vector
    second = device.train(order_for(0, 1, vec(2), {"version": 1}, state=first.state))
    assert (first.vector.tolist(), second.vector.tolist()) == ([2.0], [3.5])
    assert second.vector is ahead
    assert second.base_version == 0


def travel(seconds):
    return Link(num_bytes=seconds, down=1.0, up=1.0, latency=0.0, jitter=0.0)


@pytest.mark.parametrize(
    ("transfer", "epochs", "cycle"),
    [
        (0.5, 1, 2.0),  # an epoch of 2 s covers it
        (2.5, 3, 6.0),  # 5 s of transfers: three epochs
        (20.0, 5, 40.0),  # beyond the cap of five the devices wait
    ],
)
def test_a_cycle_takes_the_longer_of_training_and_transfers(transfer, epochs, cycle):
    fleet = Fleet(TwoSpeed(num_clients=2, base_seconds=5.0, jitter=0.0), travel(transfer))
    devices = Overlapping(fleet, num_clients=2, max_epochs=5)
    assert devices.local_epochs == epochs
    assert devices.parts(1, 3, 0.0).seconds == pytest.approx(cycle)
    assert devices.parts(1, 0, 0.0).seconds == pytest.approx(2 * transfer + 2.0 * epochs)
    waiting = fleet.parts(1, 3, 0.0).seconds  # FedAvg: five epochs, then the transfers
    assert waiting == pytest.approx(10.0 + 2 * transfer)


@pytest.mark.parametrize(
    ("elapsed", "joules"),
    [(0.0, 0.0), (4.5, 17.0), (18.0 - 1e-9, 68.0), (18.0, 68.0), (math.inf, 68.0)],
)
def test_joules_of_a_part_of_a_cycle(elapsed, joules):
    """Training of 10 s at 5 W lies within transfers of 18 s at 1 W."""
    energy = Energy(compute_watts=5.0, radio_watts=1.0)
    compute = TwoSpeed(num_clients=1, base_seconds=5.0, jitter=0.0)
    compute.start_up = lambda client, sequence: 90.0 * (sequence == 0)  # makes no epoch longer
    fleet = Fleet(compute, travel(9.0), energy)
    devices = Overlapping(fleet, num_clients=1, max_epochs=5)
    assert Overlapping(Fleet(compute, travel(1.0)), 1, 5).parts(0, 0, 0.0).seconds == 90 + 2 + 2
    assert devices.parts(0, 3, 0.0).seconds == 18.0
    assert devices.joules(*devices.parts(0, 3, 0.0).logged, elapsed) == pytest.approx(joules)


@pytest.mark.parametrize(
    ("parameters", "epochs", "fedavg", "overlap", "saved"),
    [
        (199_210, 1, 31.20, 28.85, 7.53),
        (878_538, 1, 48.07, 45.33, 5.70),
        (2_440_394, 2, 64.40, 49.33, 23.40),
        (13_828_478, 3, 133.19, 87.90, 34.00),
    ],
)
def test_runs_take_the_seconds_of_table_4(parameters, epochs, fedavg, overlap, saved):
    """The table has seconds of an iteration (five local epochs) of both methods, and percent saved.

    Twelve iterations are 60 local epochs. Our reading: a cycle has as many epochs as cover the
    transfers, rounded up, so an iteration has five cycles over that number. The first download
    and the first upload come on top.
    """
    compute = OverlapCompute(num_bytes=4 * parameters, num_examples=[100, 400, 250])
    network = OverlapNetwork(num_bytes=4 * parameters)
    fleet = Fleet(compute, network)
    devices = Overlapping(fleet, num_clients=3, max_epochs=5)
    assert devices.local_epochs == epochs
    rounds = run(synchronous(3), num_clients=3, num_versions=12, devices=fleet)
    cycles = run(
        synchronous(3),
        num_clients=3,
        num_versions=60 // epochs,
        devices=devices,
        strategy=OverlapFedAvg(server_lr=0.1),
    )
    first = network.download(0, 0) + network.upload(0, 0)
    waiting = rounds.outcome.seconds / 12
    travelling = (cycles.outcome.seconds - first) / 12
    assert waiting == pytest.approx(fedavg, abs=0.01)
    assert travelling == pytest.approx(overlap, abs=0.01)
    assert 100 * (1 - travelling / waiting) == pytest.approx(saved, abs=0.05)


def trainer(**settings):
    task = Quadratic.scattered(2, examples=8)
    defaults = {"upload": "delta", "local_lr": 0.1, "batch_size": 4, "local_epochs": 5}
    return OverlapTrainer(task, **{**defaults, **settings})


def orders(device, epochs):
    """Uploads of three orders, with models of 0, 1 and 2; the device trains `epochs` ahead."""
    uploads = []
    state = {}
    for version in range(3):
        config = {"version": version, "max_local_epochs": 4}
        uploads.append(
            device.train(order_for(1, version, vec(*[version] * 3), config, state=state))
        )
        state = uploads[-1].state
        if epochs is not None:
            left = iter([False] * (epochs - 1) + [True])
            device.work_ahead(lambda left=left: next(left))
    return uploads


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_model_trained_ahead_is_the_answer(epochs):
    """Apart from its number of epochs, it equals training that begins with the order.

    8 examples in batches of 4: 2 steps an epoch, each of rate 0.1 2^-t in exchange t.
    """
    ahead = orders(trainer(lr_decay=0.5), epochs)
    plain = orders(trainer(lr_decay=0.5, local_epochs=epochs), None)
    for version, (mine, other) in enumerate(zip(ahead[1:], plain[1:], strict=True), start=1):
        assert mine.vector.tobytes() == other.vector.tobytes()
        assert mine.rate_sum == pytest.approx(0.2 * epochs * 0.5**version)
        assert mine.loss == other.loss
        assert (mine.kind, mine.num_examples) == ("delta", 8)
    assert [upload.base_version for upload in ahead] == [0, 0, 1]
    assert [int(upload.state["version"]) for upload in ahead] == [0, 1, 2]


def test_beyond_the_cap_the_device_waits():
    device = trainer()
    device.train(order_for(1, 0, vec(0, 0, 0), {"version": 0, "max_local_epochs": 2}))
    device.work_ahead(lambda: False)
    assert device._ahead is not None
    assert device._ahead[2].rate_sum == pytest.approx(0.4)
    device.work_ahead(lambda: pytest.fail("there is nothing left to do"))


def test_a_model_trained_from_another_model_is_no_answer():
    """That model is another client's, or one that the client's memory does not know."""
    device = trainer()
    first = device.train(order_for(1, 0, vec(0, 0, 0), {"max_local_epochs": 1}))
    for client_id, base in ((0, 0.0), (1, 7.0)):
        device.work_ahead(lambda: True)
        state = {"received": vec(base, base, base), "version": np.array(0)}
        late = device.train(order_for(client_id, 1, vec(1, 1, 1), {}, state=state))
        alone = trainer().train(order_for(client_id, 1, vec(1, 1, 1), {}, state=state))
        assert late.vector.tobytes() == alone.vector.tobytes()
        device.train(order_for(1, 0, vec(0, 0, 0), {"max_local_epochs": 1}))
    assert first.base_version == 0
