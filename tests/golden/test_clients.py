"""Clients and their servers' parts: FedProx, FedDyn, ASO-Fed, SCAFFOLD, MOON, sub-models.

Most clients have one example x, so f(w) = (w - x)^2 / 2 and the gradient is w - x.
"""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import Quadratic, engine_of, make_config, order_for, run, update_of, vec
from torch import nn

from fl_app.algorithms.aso_fed import ASOFed
from fl_app.algorithms.aso_fed.trainer import ASOFedTrainer
from fl_app.algorithms.cana import CANA
from fl_app.algorithms.fedasmu.trainer import FedASMUTrainer
from fl_app.algorithms.fedavg import FedAvg
from fl_app.algorithms.fedbuff import FedBuff
from fl_app.algorithms.feddyn import FedDyn
from fl_app.algorithms.feddyn.trainer import FedDynTrainer
from fl_app.algorithms.fedhist import FedHist
from fl_app.algorithms.fedprox import FedProx
from fl_app.algorithms.moon import MOON
from fl_app.algorithms.moon.trainer import MOONTrainer
from fl_app.algorithms.overlap_fedavg.trainer import OverlapTrainer
from fl_app.algorithms.scaffold import SCAFFOLD
from fl_app.algorithms.scaffold.trainer import SCAFFOLDTrainer
from fl_app.client import LocalTrainer
from fl_app.client.build import chain
from fl_app.client.flat import FlatModel
from fl_app.client.transform import Compressed
from fl_app.core.snapshot import dumps, loads
from fl_app.core.types import GlobalModel, Update, Upload
from fl_app.core.width import Widths, places
from fl_app.runner.components import build_components
from fl_app.runner.validate import UserObjects, build_strategy, validate_config
from fl_app.schedule import fully_async, synchronous
from fl_app.tasks.models import architecture

THREE = Quadratic([[[3.0]]])
HALF = {"local_lr": 0.5, "local_steps": 2}

# -- FedProx --------------------------------------------------------------------------------------


def test_a_client_takes_fedproxs_mu_from_the_order():
    """From w_t = 1 with rate 1/2, mu = 1/2: g = -2 + 0, w = 2;  g = -1 + 1/2 (2 - 1), w = 2.25.

    Without mu: g = -2, w = 2; g = -1, w = 2.5.
    """
    vector, config = FedProx(proximal=0.5).dispatch(GlobalModel(vec(1), 0), client_id=0)
    trainer = LocalTrainer(THREE, **HALF)
    assert trainer.train(order_for(0, 0, vector, config)).vector.tolist() == [2.25]
    assert trainer.train(order_for(0, 1, vector, {})).vector.tolist() == [2.5]
    # The order's mu overrides the trainer's.
    other = LocalTrainer(THREE, **HALF, proximal=0.5)
    assert other.train(order_for(0, 0, vector, {})).vector.tolist() == [2.25]
    assert other.train(order_for(0, 0, vector, {"proximal-mu": 0.0})).vector.tolist() == [2.5]
    # The client's key reaches its orders.
    strategy = build_strategy(make_config("algorithm=fedprox", "algorithm.client.proximal=1"))
    assert strategy.dispatch(GlobalModel(vec(1), 0), client_id=0)[1] == {"proximal-mu": 1}


# -- FedDyn ---------------------------------------------------------------------------------------


def test_feddyns_client_over_two_orders():
    """n = 1, rate 1/2, alpha = 1/2; g = (w - 3) + alpha_i (h + w - c).

    c = 1, h = 0, alpha_i = 1/2:         g = -2,              w = 2
                                         g = -1 + 1/2,        w = 2.25;     h = 1.25
    c = 2, mean n = 2: alpha_i = 1:      g = -1 + 1.25,       w = 1.875
                                         g = -1.125 + 1.125,  w = 1.875;    h = 1.25 - 0.125

    With gradients cut to 1: g = -2 becomes -1, w = 1.5; g = -1.5 + 0.25 becomes -1, w = 2.
    """
    trainer = FedDynTrainer(THREE, **HALF)
    first = trainer.train(order_for(0, 0, vec(1), {"regularisation": 0.5}))
    assert first.vector.tolist() == [2.25]
    assert first.state["memory"].tolist() == [1.25]
    config = {"regularisation": 0.5, "mean_examples": 2.0}
    second = trainer.train(order_for(0, 1, vec(2), config, state=first.state))
    assert second.vector.tolist() == [1.875]
    assert second.state["memory"].tolist() == [1.125]
    assert first.state["memory"].tolist() == [1.25]
    cut = FedDynTrainer(THREE, **HALF, max_grad_norm=1.0)
    assert cut.train(order_for(0, 0, vec(1), {"regularisation": 0.5})).vector.tolist() == [2.0]


def test_feddyns_server_over_two_rounds():
    """m = 4, c = 1.

    Uploads 2.25 (n 1) and 3.25 (n 3): mean 2.75, sum of memories 1.25 + 2.25 = 3.5,
    c = 2.75 + 3.5 / 4 = 3.625. Then client 0 sends 2.625: mean 2.625, sum 3.5 - 1 = 2.5,
    c = 2.625 + 2.5 / 4 = 3.25.
    """
    strategy = FedDyn(regularisation=0.5, num_clients=4)
    start = GlobalModel(vec(1), 0)
    assert strategy.to_evaluate(start) is start.params
    assert strategy.dispatch(start, 0) == (start.params, {"regularisation": 0.5})
    two = [
        update_of(0, 0, 2.25, kind="model", examples=1),
        update_of(1, 0, 3.25, kind="model", examples=3),
    ]
    c = strategy.aggregate(start, two)
    assert c.tolist() == [3.625]
    assert strategy.report["weight"] == [0.5, 0.5]
    later = GlobalModel(c, 1)
    assert strategy.to_evaluate(later).tolist() == [2.75]
    assert strategy.dispatch(later, 0)[1] == {"regularisation": 0.5, "mean_examples": 2.0}
    third = update_of(0, 1, 2.625, kind="model", examples=1)
    assert strategy.aggregate(later, [third]).tolist() == [3.25]
    assert strategy.to_evaluate(later).tolist() == [2.625]
    # Without num_clients, m counts the clients so far: c = 2.75 + 3.5 / 2; then (3.5 + 1.5) / 3.
    without_number = FedDyn()
    assert without_number.aggregate(start, two).tolist() == [4.5]
    other = update_of(2, 1, 6.0, kind="model", examples=1)
    c = without_number.aggregate(GlobalModel(vec(4.5), 1), [other])
    assert c.tolist() == pytest.approx([6 + 5 / 3])


# -- ASO-Fed --------------------------------------------------------------------------------------


def arrival(client_id, version, examples):
    return update_of(client_id, version, 8, -8, kind="delta", examples=examples)


def test_aso_feds_client_over_two_orders():
    """lambda = 1/2, b = 1/4, eta = 1/2.

    w_o = 1, r = 1:    g = -2,            z = -2 - 0 + 0,         w = 2;      h = 0,      v = -2
                       g = -1 + 1/2,      z = -0.5 + 2 + 0,       w = 1.25;   h = -1.5,   v = -0.5
    w_o = 2, r = 2:    g = -1,            z = -1 + 0.5 - 1.5,     w = 4;      h = -0.75,  v = -1

    where the last h is 1/4 (-1.5) + 3/4 (-0.5).
    """
    config = {"regularisation": 0.5, "decay": 0.25}
    trainer = ASOFedTrainer(THREE, **HALF)
    first = trainer.train(order_for(0, 0, vec(1), {**config, "local_lr_factor": 1.0}))
    assert first.vector.tolist() == [1.25]
    assert {k: v.tolist() for k, v in first.state.items()} == {"h": [-1.5], "v": [-0.5]}
    trainer.local_steps = 1
    order = order_for(0, 1, vec(2), {**config, "local_lr_factor": 2.0}, state=first.state)
    second = trainer.train(order)
    assert second.vector.tolist() == [4.0]
    assert second.rate_sum == 1.0
    assert {k: v.tolist() for k, v in second.state.items()} == {"h": [-0.75], "v": [-1.0]}
    assert first.state["h"].tolist() == [-1.5]


def test_aso_feds_arrival_counts_by_its_share_of_all_examples():
    """m = 10. n_0 = 20, n = 200: weight 0.1. Then n_1 = 60, n = 10 * 40: weight 0.15.

    Without num_clients, only clients that have uploaded count: weights 1 and 60 / 80.
    """
    model = GlobalModel(vec(1, 1), 4)
    for strategy, weights in ((ASOFed(num_clients=10), (0.1, 0.15)), (ASOFed(), (1, 0.75))):
        for update, weight in zip((arrival(0, 4, 20), arrival(1, 2, 60)), weights, strict=True):
            params = strategy.aggregate(model, [update])
            assert params.tolist() == pytest.approx([1 + 8 * weight, 1 - 8 * weight])
            assert strategy.report["weight"] == pytest.approx([weight])


def test_aso_feds_slow_clients_take_longer_steps():
    """Delays 5 and 1, mean 3: r = ln 3; a mean of 1 or 2, or no known delay, leaves r = 1."""
    strategy, model = ASOFed(regularisation=0.5, decay=0.25), GlobalModel(vec(1, 1), 4)

    def factor(client_id):
        vector, config = strategy.dispatch(model, client_id)
        assert vector is model.params
        assert (config["regularisation"], config["decay"]) == (0.5, 0.25)
        return float(config["local_lr_factor"])

    assert factor(0) == 1.0
    strategy.aggregate(model, [arrival(0, 0, 20)])
    assert factor(0) == pytest.approx(math.log(5))
    strategy.aggregate(model, [arrival(0, 4, 20), arrival(1, 3, 20)])
    assert factor(0) == pytest.approx(math.log(3))
    assert factor(1) == 1.0


def test_aso_fed_weighs_features_by_their_size_if_asked():
    """W = [[2, 0], [1, 1]], no displacement: softmax [0.8807971, 0.1192029] and [1/2, 1/2]."""
    model = GlobalModel(vec(2, 0, 1, 1, 5), 0)
    zero = update_of(0, 0, 0, 0, 0, 0, 0, kind="delta")
    params = ASOFed(feature_layer=[2, 2]).aggregate(model, [zero])
    np.testing.assert_allclose(params, [1.7615942, 0, 0.5, 0.5, 5], rtol=1e-6)
    assert ASOFed().aggregate(model, [zero]).tolist() == [2, 0, 1, 1, 5]
    message = r"^algorithm\.strategy\.feature_layer=\[3, 2\] must be a layer of at"
    with pytest.raises(ValueError, match=message):
        ASOFed(feature_layer=[3, 2]).aggregate(model, [zero])
    message = r"^algorithm\.strategy\.feature_layer=\[3\] must be two integers >= 1"
    with pytest.raises(ValueError, match=message):
        ASOFed(feature_layer=[3])


# -- SCAFFOLD -------------------------------------------------------------------------------------

# Gradients w - 4 and w + 2, optimum 1.
PAIR = Quadratic([[[4.0]], [[-2.0]]])


def test_scaffold_over_two_rounds():
    """eta_l = 1/2, K = 2, so K eta_l = 1; eta_g = 1, N = 2; x = 0, c = c_0 = c_1 = 0.

    Round 1, nothing to correct:
        client 0: 0 -> 2 -> 3         y - x = 3,     c_0+ = 0 - 0 - 3 = -3,      change -3
        client 1: 0 -> -1 -> -1.5     y - x = -1.5,  c_1+ = 1.5,                 change 1.5
        x = 0 + 1.5 / 2 = 0.75,       c = 0 + (-3 + 1.5) / 2 = -0.75

    Round 2, g_i - c_i + c:
        client 0 adds 3 - 0.75 = 2.25:     g = -3.25 + 2.25 = -1,      y = 1.25
                                           g = -2.75 + 2.25 = -0.5,    y = 1.5
            y - x = 0.75,   c_0+ = -3 + 0.75 - 0.75 = -3,              change 0
        client 1 adds -1.5 - 0.75 = -2.25: g = 2.75 - 2.25 = 0.5,      y = 0.5
                                           g = 2.5 - 2.25 = 0.25,      y = 0.375
            y - x = -0.375, c_1+ = 1.5 + 0.75 + 0.375 = 2.625,         change 1.125
        x = 0.75 + (0.75 - 0.375) / 2 = 0.9375,   c = -0.75 + 1.125 / 2 = -0.1875
    """
    strategy = SCAFFOLD(num_clients=2)
    trainer = SCAFFOLDTrainer(PAIR, upload="delta", **HALF)
    params, states, uploads = vec(0), {}, []
    for version in range(2):
        model, updates = GlobalModel(params, version), []
        for client_id in range(2):
            vector, config = strategy.dispatch(model, client_id)
            extra = strategy.dispatch_extra(model, client_id)
            order = order_for(client_id, version, vector, config, states.get(client_id), extra)
            upload = trainer.train(order)
            states[client_id] = upload.state
            uploads.append((*upload.vector, *upload.extra["control"], *upload.state["control"]))
            updates.append(Update.of(upload, client_id, version))
        params = strategy.aggregate(model, updates)
    assert uploads == [(3, -3, -3), (-1.5, 1.5, 1.5), (0.75, 0, -3), (-0.375, 1.125, 2.625)]
    assert params.tolist() == [0.9375]
    assert strategy.state["control"].tolist() == [-0.1875]
    assert strategy.report["weight"] == [0.5, 0.5]


@pytest.mark.parametrize("kind", ["model", "delta", "pseudo"])
def test_scaffolds_control_variate_is_the_same_whatever_is_uploaded(kind):
    """As client 1 above in round 2."""
    trainer = SCAFFOLDTrainer(PAIR, upload=kind, **HALF)
    state, extra = {"control": vec(1.5)}, {"control": vec(-0.75)}
    upload = trainer.train(order_for(1, 1, vec(0.75), {}, state, extra))
    assert upload.extra["control"].tolist() == [1.125]
    assert state["control"].tolist() == [1.5]
    with pytest.raises(ValueError, match=r"client\.upload=gradient must be model, delta or pseudo"):
        SCAFFOLDTrainer(PAIR, upload="gradient")


def change(client_id, version, *delta, control):
    extra = {"control": vec(control, *delta[1:])}
    return update_of(client_id, version, *delta, kind="delta", extra=extra)


def test_scaffolds_late_update_counts_as_it_is():
    """N = 4, eta_g = 1/2: x = 8 + (4 - 2) / 2 / 2 = 8.5, c = 0 + (6 + 2) / 4, whatever the ages."""
    strategy = SCAFFOLD(server_lr=0.5, num_clients=4)
    model = GlobalModel(vec(8), 3, {1: vec(0), 3: vec(8)})
    params = strategy.aggregate(model, [change(0, 1, 4, control=6), change(1, 3, -2, control=2)])
    assert params.tolist() == [8.5]
    assert strategy.state["control"].tolist() == [2.0]


@pytest.mark.parametrize("announced", [None, 1])
def test_scaffolds_clients_are_at_least_those_that_have_uploaded(announced):
    """c = 6 / 1; then a second client uploads: c = (6 + 3) / 2, the mean of their c_i."""
    strategy = SCAFFOLD(num_clients=announced)
    for client, control, mean in ((5, 6, 6.0), (6, 3, 4.5)):
        strategy.aggregate(GlobalModel(vec(0), 0), [change(client, 0, 0, control=control)])
        assert strategy.state["control"].tolist() == [mean]


@pytest.mark.parametrize("schedule", [synchronous(4), fully_async(5)])
def test_c_is_the_mean_of_clients_control_variates_at_all_ages(schedule):
    controls = {}

    class Recording(SCAFFOLDTrainer):
        def train(self, order):
            upload = super().train(order)
            controls[order.number] = order.client_id, upload.state["control"]
            return upload

    settings = {"local_lr": 0.1, "batch_size": 3, "local_steps": 5}
    trainer = Recording(Quadratic.scattered(10), upload="delta", **settings)
    result = run(schedule, trainer, strategy=SCAFFOLD(num_clients=10), num_versions=12)
    latest = {client: control for _, (client, control) in sorted(controls.items())}
    assert result.history.client_updates == len(controls)  # no training was in vain
    total = sum(latest.values())
    np.testing.assert_allclose(result.strategy.state["control"], total / 10, atol=1e-5)
    assert np.linalg.norm(total) > 0.1


# -- MOON -----------------------------------------------------------------------------------------


class Plane(nn.Module):
    """Features v for every input, and a head of zeros."""

    def __init__(self):
        super().__init__()
        self.v = nn.Parameter(torch.zeros(2))
        self.head = nn.Linear(2, 1, bias=False)

    def forward(self, x):
        output = self.head(self.v.expand(len(x), 2))
        return output


class Nothing(Quadratic):
    """A task whose loss is the square of the output."""

    def __init__(self, module=None):
        super().__init__([[[0.0]] * 4])
        self._module = module or Plane()

    def model(self):
        return self._module

    def losses(self, output, target):
        return output.square().sum(-1)


class TermRecorder(MOONTrainer):
    """Records the term of every batch."""

    def __init__(self, **settings):
        super().__init__(Nothing(), local_lr=0.1, **settings)
        self.terms = []

    def penalty(self, params, received):
        term = super().penalty(params, received)
        self.terms.append(term.item())
        return term


ORDER = MOON(contrast=5.0, temperature=0.5).dispatch(GlobalModel(vec(1, 0, 0, 0), 1), client_id=0)
PREVIOUS = {"previous": vec(0, 1, 0, 0)}


def test_moons_first_order_compares_the_received_model_with_itself():
    trainer = TermRecorder(local_steps=1)
    upload = trainer.train(order_for(0, 0, *ORDER))
    assert trainer.terms == pytest.approx([5 * math.log(2)])
    assert upload.vector[:2].tolist() == [1.0, 0.0]
    assert upload.loss == 0.0  # of the task alone
    assert upload.state["previous"].tolist() == [1, 0, 0, 0]


def test_moons_step_leads_away_from_the_previous_model():
    """The head is zero, so output, loss and their gradients are zero; only the term moves v.

    From v = z_g = (1, 0) with z_p = (0, 1), T = 1/2:

        cos(z, z_g) = 1, cos(z, z_p) = 0:    term = mu log(1 + exp(-2)) = 0.1269280 mu
        d cos(z, z_g) / dv = 0, d cos(z, z_p) / dv = (0, 1):
        gradient = mu / (1 + exp(2)) 2 (0, 1) = 0.2384058 mu (0, 1)

    With mu = 5 and rate 0.1 a step leads to z = (1, -s), s = 0.1192029, of length
    l = sqrt(1 + s^2) = 1.0070798, which is compared with the received model, too:

        cos(z, z_g) = 1 / l = 0.9929700, cos(z, z_p) = -s / l = -0.1183649,
        term = 5 log(1 + exp(2 (-0.1183649 - 0.9929700))) = 5 * 0.1028449
    """
    trainer = TermRecorder(local_steps=1)
    upload = trainer.train(order_for(0, 1, *ORDER, state=PREVIOUS))
    assert trainer.terms == pytest.approx([5 * 0.1269280])
    assert upload.vector[:2].tolist() == pytest.approx([1.0, -0.1192029])
    assert upload.state["previous"].tolist() == upload.vector.tolist()
    assert PREVIOUS["previous"].tolist() == [0, 1, 0, 0]
    assert ORDER[0].tolist() == [1, 0, 0, 0]
    twice = TermRecorder(local_steps=2)
    twice.train(order_for(0, 1, *ORDER, state=PREVIOUS))
    assert twice.terms == pytest.approx([5 * 0.1269280, 5 * 0.1028449], rel=1e-5)


def test_moons_trainer_uses_its_own_values_without_those_of_an_order():
    trainer = TermRecorder(local_steps=1, contrast=1.0, temperature=1.0)
    trainer.train(order_for(0, 1, ORDER[0], {}, state=PREVIOUS))
    assert trainer.terms == pytest.approx([math.log(1 + math.exp(-1))])


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        *(("mlp", (1, 8, 8), 32), ("lenet", (1, 28, 28), 84), ("resnet20", (3, 8, 8), 64)),
        *(("alexnet", (3, 32, 32), 256), ("transformer", (6, 10), 200)),
    ],
)
def test_moons_features_are_the_inputs_of_the_last_linear_layer(name, shape, size):
    torch.manual_seed(0)
    trainer = MOONTrainer(Nothing(architecture(name, shape, 10)()))
    inputs = torch.randint(10, (3, 6)) if len(shape) == 2 else torch.randn(3, *shape)
    trainer.model.module(inputs)
    assert trainer._features.of_head.shape[-1] == size
    assert trainer._features.of_head.requires_grad
    features = trainer._of_received.of(inputs)
    assert features.shape == trainer._features.of_head.shape
    assert not features.requires_grad
    assert torch.equal(features, trainer._of_received.of(inputs))  # without dropout
    assert torch.equal(features, trainer._of_previous.of(inputs))
    trainer._previous.load(trainer.model.read() + 1)
    assert not torch.equal(features, trainer._of_previous.of(inputs))


def test_moon_refuses_a_model_without_a_linear_layer():
    with pytest.raises(ValueError, match=re.escape("task.model=Position must have a linear layer")):
        MOONTrainer(Quadratic.scattered(2))


# -- layers that stay on clients -------------------------------------------------------------------


class TwoParts(nn.Module):
    """Returns w + p - x; w and p begin at 0."""

    def __init__(self):
        super().__init__()
        self.head = nn.Parameter(torch.zeros(1))
        self.body = nn.Parameter(torch.zeros(1))

    def forward(self, points):
        return self.body + self.head - points


class Two(Quadratic):
    def __init__(self):
        super().__init__([[[4.0]], [[0.0]]])

    def model(self):
        return TwoParts()


HALF_PRECISION = {"local_lr": 0.5, "local_steps": 1, "private": ["head"]}


def test_shared_part_is_sent_and_private_part_is_kept():
    """From w = 0, p = 0 with rate 1/2:

    client 0: r = -4, so w = 2, p_0 = 2.    Client 1: r = 0, so w = 0, p_1 = 0.

    The mean is w = 1. In the second round

    client 0: r = 1 + 2 - 4 = -1, so w = 1.5, p_0 = 2.5.
    Client 1: r = 1 + 0 - 0 = 1, so w = 0.5, p_1 = -0.5.
    """
    trainer = LocalTrainer(Two(), **HALF_PRECISION)
    assert trainer.model.layout.names == ["body"]
    first = chain(trainer).train(order_for(0, 0, vec(0), {}))
    assert first.vector.tolist() == [2.0]
    assert {name: array.tolist() for name, array in first.state.items()} == {"private.head": [2.0]}
    other = chain(trainer).train(order_for(1, 0, vec(0), {}))
    assert (other.vector.tolist(), other.state["private.head"].tolist()) == ([0.0], [0.0])
    again = chain(trainer).train(order_for(0, 1, vec(1), {}, first.state))
    assert (again.vector.tolist(), again.state["private.head"].tolist()) == ([1.5], [2.5])
    last = chain(trainer).train(order_for(1, 1, vec(1), {}, other.state))
    assert (last.vector.tolist(), last.state["private.head"].tolist()) == ([0.5], [-0.5])


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_two_rounds_of_a_federation(workers):
    """The second round's mean is (1.5 + 0.5) / 2 = 1; without private parts w would be 2."""
    result = run(
        synchronous(2), chain(LocalTrainer(Two(), **HALF_PRECISION)), num_clients=2, num_versions=2,
        strategy=FedAvg(), initial=vec(0), workers=workers,
    )  # fmt: skip
    assert result.outcome.params.tolist() == [1.0]
    assert {event["bytes"] for event in result.kind("dispatch", "arrival")} == {4}


@pytest.mark.parametrize("kind", ["delta", "pseudo", "model"])
def test_uploads_are_those_of_the_shared_part(kind):
    """From w = 1, p = 0: r = -3, so w = 2.5: a displacement of 1.5, a gradient of -3."""
    trainer = LocalTrainer(Two(), **HALF_PRECISION, upload=kind, upload_dtype="float16")
    upload = chain(trainer).train(order_for(0, 0, vec(1), {}))
    assert upload.vector.tolist() == [{"delta": 1.5, "pseudo": -3.0, "model": 2.5}[kind]]
    assert upload.state["private.head"].tolist() == [1.5]


def test_scaffold_controls_the_shared_part():
    """From w = c = 0 with one step of rate 1/2: c_i+ = c_i - c + (x - y_i) / (K eta_l) = -4.

    In client 0's second order, from w = 2 with p_0 = 2 and c = -2: r = 0, so the corrected
    gradient of w is 0 - c_i + c = 0 + 4 - 2 = 2 and w = 1; p_0 stays 2.
    """
    trainer = SCAFFOLDTrainer(Two(), **HALF_PRECISION, upload="delta")
    first = chain(trainer).train(order_for(0, 0, vec(0), {}, extra={"control": vec(0)}))
    assert first.extra["control"].tolist() == [-4.0]
    state = {name: array.tolist() for name, array in first.state.items()}
    assert state == {"control": [-4.0], "private.head": [2.0]}
    again = chain(trainer).train(order_for(0, 1, vec(2), {}, first.state, {"control": vec(-2)}))
    assert again.vector.tolist() == [-1.0]
    assert again.state["private.head"].tolist() == [2.0]
    whole = run(
        synchronous(2), chain(trainer), num_clients=2, num_versions=3, strategy=SCAFFOLD(),
        initial=vec(0),
    )  # fmt: skip
    assert np.isfinite(whole.outcome.params).all()


def test_a_pause_keeps_the_private_part_and_the_whole_velocity():
    """x = 4, rate 1/4, momentum 1/2, one step an epoch, and a pause after the first of two:

    r = -4, so both are 1; after the pause r = -2, v = -4 / 2 - 2 = -4, so both are 2.
    """

    class Pausing(FedASMUTrainer):
        def should_pause(self, epoch):
            return epoch == 1

    settings = {
        "private": ["head"], "local_lr": 0.25, "momentum": 0.5, "local_epochs": 2
    }  # fmt: skip
    trainer = Pausing(Two(), **settings, slot="first")
    paused = chain(trainer).train(order_for(0, 0, vec(0), {"slot": 1}))
    assert not paused.done
    assert paused.state["private.head"].tolist() == [1.0]
    chain(trainer).train(order_for(1, 0, vec(0), {"slot": 1}))  # the same process, another client
    config = {"slot": 1, "continues": True}
    upload = chain(trainer).train(order_for(0, 0, vec(), config, paused.state))
    assert upload.vector.tolist() == [2.0]
    assert upload.state["private.head"].tolist() == [2.0]


def test_the_client_evaluates_with_its_own_part():
    """w + p - x = 1 + 3 - 4 = 0, and 1 + 0 - 4 = -3 with the initial p."""
    trainer = LocalTrainer(Two(), **HALF_PRECISION)
    for state, loss in (({"private.head": vec(3)}, 0.0), ({}, 4.5)):
        scores = chain(trainer).score(order_for(0, 1, vec(1), {}, state))
        assert scores.metrics["loss"] == loss


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"private": ["*"]}, "client.private=['*'] matches the others"),
        ({"private": []}, "client.private=[] must be a list of patterns such as [head.*] or null"),
        ({"private": "head"}, "client.private=head must be a list of patterns such as"),
        ({"private": [1]}, "client.private=[1] must be a list of patterns such as"),
        ({"private": ["head"], "upload": "gradient"}, "client.upload=gradient must be model"),
    ],
)
def test_bad_patterns_are_refused(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        LocalTrainer(Two(), **settings)


def test_a_trainer_that_works_ahead_cannot_have_private_parts():
    with pytest.raises(ValueError, match=r"client.private=\['head'\] must be null with Overlap"):
        OverlapTrainer(Two(), private=["head"])


# -- sub-models (HeteroFL, FedRolex) ---------------------------------------------------------------

# Linear(2, 4) and Linear(4, 3): W1 is 0..7, b1 8..11, W2 12..23, b2 24..26.
HALVES = {
    ("first", 9): [0, 1, 2, 3, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 26],  # units 0, 1
    ("rolling", 7): [0, 1, 6, 7, 8, 11, 12, 15, 16, 19, 20, 23, 24, 25, 26],  # 7 mod 4 = 3, and 0
}


def two_layers():
    torch.manual_seed(0)
    return FlatModel(nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)))


@pytest.mark.parametrize(("window", "version"), HALVES)
def test_the_entries_of_half_a_perceptron(window, version):
    model, half = two_layers(), HALVES[window, version]
    offset = version if window == "rolling" else 0
    assert places(model.layout, 0.5, offset).tolist() == half
    sub, alone = model.narrowed(0.5), np.zeros(27, np.float32)
    alone[half] = model.read()[half]
    sub.load(alone[half])
    model.load(alone)
    inputs = torch.tensor([[1.0, -2.0]])
    hidden = sub.module[0](inputs)
    assert hidden.shape == (1, 2)
    # It is the model without its other units; in training its hidden outputs are doubled.
    torch.testing.assert_close(sub.module.eval()(inputs), model.module(inputs))
    torch.testing.assert_close(hidden, 2 * sub.module[0](inputs))


def test_channels_of_a_residual_network_with_group_norm():
    """1 -> 4 -> 4 channels of 2x2 pixels, which a linear layer reads: half has channels 0 and 1."""

    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.norm = nn.Conv2d(1, 4, 1), nn.GroupNorm(4, 4)
            self.second, self.out = nn.Conv2d(4, 4, 1), nn.Linear(16, 2)

        def forward(self, images):
            images = self.norm(self.first(images))
            return self.out((images + self.second(images)).flatten(1))

    model = FlatModel(Residual())
    sub = model.narrowed(0.5)
    shapes = [entry.shape for entry in sub.layout.entries]
    assert shapes == [(2, 1, 1, 1), (2,), (2,), (2,), (2, 2, 1, 1), (2,), (2, 8), (2,)]
    assert sub.module.norm.num_groups == 2
    assert sub.module(torch.zeros(3, 1, 2, 2)).shape == (3, 2)
    start = model.layout.slices["out.weight"].start
    row = places(model.layout, 0.5)[-18:-10] - start
    assert row.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_each_entry_moves_by_the_updates_that_have_it():
    """Entries move by the mean of the updates that contain them.

    A whole update of 4, age 3, so s = 1/2: 2. A half of 6. Shared (2 + 6) / 2 = 4, others 2.

    Two halves from versions 0 and 1, of units 0, 1 and 1, 2, do not move unit 3.
    """
    layout = two_layers().layout
    strategy, model = FedBuff(), GlobalModel(np.zeros(27, np.float32), 3)
    strategy.widths = Widths(layout, [1.0, 0.5], rolling=False)
    half = np.zeros(27, np.float32)
    half[HALVES["first", 9]] = 6
    updates = [update_of(0, 0, *[4] * 27, kind="delta"), update_of(1, 3, *half, kind="delta")]
    expected = np.full(27, 2.0)
    expected[HALVES["first", 9]] = 4
    assert strategy.aggregate(model, updates).tolist() == expected.tolist()

    strategy = FedBuff(staleness_function="constant")
    strategy.widths = Widths(layout, [0.5, 0.5], rolling=True)
    updates = []
    for version in (0, 1):
        vector = np.zeros(27, np.float32)
        vector[places(layout, 0.5, version)] = 6
        updates.append(update_of(version, version, *vector, kind="delta"))
    bias = strategy.aggregate(model, updates)[8:12]
    assert bias.tolist() == [6, 6, 6, 0]


@pytest.mark.parametrize(
    ("strategy", "last"),
    [
        (FedHist(buffer_length=1), 1),
        (CANA(fusion=1, fusion_length=1), 2 / 3),
        (CANA(calibration=1), None),  # its memories move each entry by another number
    ],
)
def test_entries_of_no_update_stay_and_entries_of_one_update_count_alone(strategy, last):
    """Gradients of ones, of units 0, 1 (version 0) and 1, 2 (version 1): CANA steps by 1, 1, 1, 0.

    Then a step of whole models, of 1 or CANA's 2, 2, 2, 1, and gradients of units 2, 3 (version 2)
    and 3, 0 (version 3): unit 1 stays, and the others move by 1 and the past step (CANA: 3, 3, 2).
    """
    layout, params = two_layers().layout, np.zeros(27, np.float32)
    strategy.widths = Widths(layout, [0.5, 0.5, 1.0, 1.0], rolling=True)

    def halves(v):
        ones = [np.bincount(places(layout, 0.5, v + client), minlength=27) for client in (0, 1)]
        return [update_of(client, v + client, *ones[client]) for client in (0, 1)]

    if isinstance(strategy, CANA):
        step = params - strategy.aggregate(GlobalModel(params, 1), halves(0))
        assert step[8:12].tolist() == pytest.approx([1, 1, 1, 0])
    whole = [update_of(client, 1, *[1] * 27) for client in (2, 3)]
    first = strategy.aggregate(GlobalModel(params, 1), whole)
    assert (first < 0).all()
    difference = strategy.aggregate(GlobalModel(first, 3), halves(2)) - first
    assert difference[9] == 0
    if last:
        assert difference[[8, 10, 11]] / difference[8] == pytest.approx([1, 1, last])


def test_rounding_moves_no_entry_that_a_client_lacks():
    model, vector = two_layers(), np.full(27, 0.1, np.float32)  # 0.1 is no number of float16
    trainer = SimpleNamespace(model=model, private=None, widths=[0.5])
    trainer.compressed = Compressed(model.layout, "float16")
    trainer.train = lambda order: Upload(order.vector + 1, "model", 10, 0.1)
    order = order_for(0, 0, vector, {"width": 0.5, "window": 0})
    moved = chain(trainer).train(order).vector != vector
    assert np.flatnonzero(moved).tolist() == HALVES["first", 9]


SLOW = ["num_clients=4", "task.model=mlp", "devices/network=link", "devices.network.latency=0"]
SLOW += ["runtime.workers=0", "num_versions=6", "algorithm.schedule.buffer_size=2"]
SLOW += ["algorithm.schedule.concurrency=3", "devices.network.jitter=0", "devices.jitter=0"]


def make_engine(*overrides, **more):
    engine, recorder = engine_of(make_config(*SLOW, *overrides), **more)
    return engine, recorder.events


def test_seconds_and_bytes_are_those_of_the_share():
    """64-32-10: (64 + 1) 32 + (32 + 1) 10 = 2410; half has 65 16 + 16 10 + 10 = 1210 entries."""
    whole = build_components(make_config(*SLOW))
    widths = "algorithm.client.widths=[0.5,1]"
    components = build_components(make_config(*SLOW, widths))
    engine, events = make_engine(widths)
    engine.run()
    rank = np.argsort(whole.devices.compute.mean_seconds).tolist()
    part = {client: 1 if rank.index(client) < 2 else 1210 / 2410 for client in range(4)}
    for client in range(4):
        expected = [part[client] * each for each in whole.devices.parts(client, 5, 0.0)[:3]]
        assert components.devices.parts(client, 5, 0.0)[:3] == pytest.approx(expected)
    transfers = {(e["client"], e["bytes"]) for e in events if e["kind"] in ("dispatch", "arrival")}
    assert transfers <= {(client, round(4 * 2410 * part[client])) for client in range(4)}


@pytest.mark.parametrize("algorithm", ["fedbuff", "fedhist", "cana"])
def test_with_whole_models_nothing_changes(algorithm):
    plain, ones = (
        make_engine(f"algorithm={algorithm}", "algorithm/schedule=buffered", *SLOW, *more)
        for more in ([], ["algorithm.client.widths=[1,1]"])
    )
    assert plain[0].run().params.tobytes() == ones[0].run().params.tobytes()
    assert plain[1] == ones[1]


@pytest.mark.parametrize("upload", ["model", "delta", "pseudo"])
def test_a_resumed_run_continues_its_rolling_windows(upload):
    overrides = ["algorithm.client.widths=[1,0.4]", "algorithm.client.width_window=rolling"]
    overrides += [f"algorithm.client.upload={upload}"]
    states, expected = [], make_engine(*overrides)[0].run().params

    def checkpoint(version):
        states.append(dumps(first.state_dict()))
        first.ask_to_stop()

    first, _ = make_engine(*overrides, "checkpoint_every=3", checkpoint=checkpoint)
    first.run()
    second, _ = make_engine(*overrides)
    second.load_state_dict(loads(states[0]))
    assert second.run().params.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm=safl"], "algorithm=safl must be fedbuff, fedhist or cana with"),
        (["runtime=deployment", "num_clients=3"], "devices=UniformRatio must be boards or two_spe"),
        (["runtime=deployment", "devices=two_speed", "num_clients=null"], "num_clients=None must"),
        (["algorithm/schedule=random_k"], "algorithm.schedule=random_k must be another one"),
        (["client_eval_every=1"], "client_eval_every=1 must be null with"),
        (["algorithm.client.widths=[0.5,0]"], "widths=[0.5, 0] must be a list of numbers in"),
        (
            ["algorithm.client.widths=null", "algorithm.client.width_window=rolling"],
            "width_window=rolling must be used with algorithm.client.widths",
        ),
    ],
)
def test_sub_models_are_refused(overrides, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        validate_config(make_config("algorithm.client.widths=[1,0.5]", *overrides))


def test_sub_models_are_refused_with_further_vectors():
    (strategy := FedBuff()).upload_extra = ("control",)
    with pytest.raises(ValueError, match="algorithm=fedbuff must be one without further vectors"):
        validate_config(make_config("algorithm.client.widths=[1,0.5]"), UserObjects(None, strategy))


def test_layers_without_sub_models_are_refused():
    with pytest.raises(ValueError, match=r"shared: 1, 1\.running_mean, .* has no sub-model"):
        FlatModel(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4))).narrowed(0.5)
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    tied[1].weight = tied[0].weight
    with pytest.raises(ValueError, match=r"shared: 1\.weight has no sub-model"):
        FlatModel(tied).narrowed(0.5)
    FlatModel(nn.Sequential(nn.Linear(2, 6), nn.Linear(6, 4), nn.Linear(4, 2))).narrowed(0.5)
    joined = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(1, 4, 3), nn.Conv2d(8, 2, 3))
    with pytest.raises(ValueError, match=r"2\.weight has 8 inputs, after layers of \[4, 4\] units"):
        FlatModel(joined).narrowed(0.5)


@pytest.mark.parametrize("client", ["moon", "first_only"])
def test_trainers_with_other_whole_models_have_no_sub_models(client):
    overrides = ("algorithm.client.widths=[1,0.5]", f"algorithm/client={client}")
    with pytest.raises(ValueError, match=r"widths=\[1, 0.5\] must be null with"):
        build_components(make_config(*overrides))
    words = ("task=cifar10", "task.made_up=true", "task.model=cnn_bn")
    with pytest.raises(ValueError, match="widths needs a model of Linear"):
        build_components(make_config(overrides[0], *words))
