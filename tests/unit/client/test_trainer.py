"""Local training: steps by hand, uploads, and sources of randomness."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import Quadratic, Scripted, Times, initial_vector, order_for, run, small_model, vec
from torch import nn

from fl_app.algorithms.afl import AFL
from fl_app.client import LocalTrainer
from fl_app.client.first_only import FirstOnlyTrainer
from fl_app.client.numpy_client import TrainerClient
from fl_app.client.transform import Compressed, Transformed
from fl_app.client.untrained import Untrained
from fl_app.core.layout import Layout, check_vector
from fl_app.core.types import GlobalModel, Scores, Update, Upload
from fl_app.schedule import k_async

ONE = Quadratic([[[3.0]]])


def train(trainer, received, client_id=0, order=0):
    return trainer.train(order_for(client_id, order, received, {}))


class Blobs:
    """A small classification task with a BatchNorm and a dropout layer; two clients."""

    name = "blobs"
    num_clients = 2
    has_test_set = False

    def __init__(self):
        generator = torch.Generator().manual_seed(1)
        self.inputs = torch.randn(24, 3, generator=generator)
        self.targets = (self.inputs.sum(-1) > 0).long()
        self.batches = []

    def model(self):
        return small_model()

    def train_indices(self, client_id):
        return np.arange(12 * client_id, 12 * (client_id + 1))

    def batch(self, indices):
        self.batches.append(indices.tolist())
        places = torch.from_numpy(indices)
        return self.inputs[places], self.targets[places]

    def loss(self, output, target):
        return nn.functional.cross_entropy(output, target)

    def evaluate(self, model, client_id):
        inputs, targets = self.batch(self.train_indices(client_id))
        model.eval()
        with torch.no_grad():
            loss = self.loss(model(inputs), targets).item()
        return {"loss": loss}, len(targets)


# -- steps by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch_size": 5, "local_epochs": 2}, [5, 5, 2, 5, 5, 2]),
        ({"batch_size": 5, "local_steps": 4}, [5, 5, 2, 5]),
        ({"batch_size": 50, "local_epochs": 2}, [12, 12]),
        ({"batch_size": 12, "local_steps": 1, "local_epochs": 9}, [12]),
        ({"batch_size": 5, "upload": "gradient"}, [5]),
    ],
)
def test_batches_are_epochs_over_permuted_data(settings, sizes):
    task = Blobs()
    received = initial_vector(task, 0)[0]
    upload = train(LocalTrainer(task, **settings), received, client_id=1)
    assert [len(batch) for batch in task.batches] == sizes
    examples = [index for batch in task.batches for index in batch]
    for start in range(0, len(examples), 12):
        epoch = examples[start : start + 12]
        assert len(set(epoch)) == len(epoch)
        assert set(epoch) <= set(range(12, 24))
        assert epoch != sorted(epoch)
    assert len(examples) < 24 or examples[:12] != examples[12:24]
    assert upload.num_examples == 12


def test_batch_normalisation_never_gets_a_remainder_of_one_example():
    """12 examples in batches of 11: the second batch repeats the last example of the first."""
    task = Blobs()
    train(LocalTrainer(task, batch_size=11, local_epochs=1), initial_vector(task, 0)[0])
    first, second = task.batches
    assert len(first) == 11
    assert second[0] == first[-1]
    assert set(first) | {second[1]} == set(range(12))


def test_a_client_without_examples():
    class Empty(Quadratic):
        def train_indices(self, client_id):
            return np.arange(0)

    trainer = LocalTrainer(Empty([[[0.0]]]))
    for each in (trainer, Untrained(trainer)):
        with pytest.raises(ValueError, match=r"^client 4 has no training examples$"):
            train(each, vec(0), client_id=4)


def test_what_a_client_keeps_cannot_be_changed_in_place():
    """Here it would be the server's own array, and the order may be trained again from it."""

    class Counting(LocalTrainer):
        def begin(self, config, rng):
            self.state["orders"] += 1

    with pytest.raises(ValueError, match="read-only"):
        Counting(ONE).train(order_for(0, 0, vec(0), {}, {"orders": np.zeros(1)}))


def test_trainers_that_pause_cannot_run_without_training():
    with pytest.raises(ValueError, match="train=false must be true with FirstOnlyTrainer"):
        Untrained(FirstOnlyTrainer(ONE))


# -- uploads --------------------------------------------------------------------------------------


def as_update(upload):
    return Update.of(upload, client_id=1, base_version=0)


def test_kinds_of_upload_mean_the_same():
    """Three steps through BatchNorm, whose statistics are part of the upload."""
    received, layout = initial_vector(Blobs(), 0)
    # Later than the order's version, to distinguish the two.
    model = GlobalModel(received + 1, 5, {0: received}, layout.num_trainable)
    uploads = {
        kind: as_update(train(LocalTrainer(Blobs(), upload=kind, local_steps=3), received, 1))
        for kind in ("model", "delta", "pseudo")
    }
    local = uploads["model"].vector
    assert (local != received)[: layout.num_trainable].mean() > 0.5
    assert (local != received)[layout.num_trainable :].all()
    for kind, update in uploads.items():
        assert update.kind == kind
        assert update.rate_sum == pytest.approx(0.15)
        np.testing.assert_allclose(model.local(update), local, atol=1e-6)
        np.testing.assert_allclose(model.displacement(update), local - received, atol=1e-6)
        expected = (received - local) / 0.15
        expected[layout.num_trainable :] = (model.params - local)[layout.num_trainable :]
        np.testing.assert_allclose(model.gradient(update), expected, atol=1e-5)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_a_gradient_is_the_direction_of_one_step(weight_decay):
    received, layout = initial_vector(Blobs(), 0)
    model = GlobalModel(received, 0, num_trainable=layout.num_trainable)
    settings = {"local_steps": 1, "weight_decay": weight_decay}
    one_step, gradient = (
        as_update(train(LocalTrainer(Blobs(), upload=kind, **settings), received))
        for kind in ("pseudo", "gradient")
    )
    np.testing.assert_allclose(gradient.vector, one_step.vector, atol=1e-5)
    assert (gradient.vector != 0)[layout.num_trainable :].all()
    assert gradient.loss == pytest.approx(one_step.loss)
    assert gradient.rate_sum == 1.0
    np.testing.assert_allclose(model.step(gradient.vector, 0.05), model.local(one_step), atol=1e-6)


@pytest.mark.parametrize("kind", ["gradient", "pseudo", "delta", "model"])
def test_uploads_share_nothing(kind):
    trainer = LocalTrainer(Blobs(), upload=kind, local_steps=2)
    received = initial_vector(Blobs(), 0)[0]
    copy = received.copy()
    upload = train(trainer, received).vector
    before = upload.copy()
    np.testing.assert_array_equal(received, copy)
    received[:] = 99  # the server changes its model in place
    train(trainer, received, order=1)
    np.testing.assert_array_equal(upload, before)


# -- randomness -----------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", ["model", "gradient"])
def test_randomness_comes_from_seed_client_and_order_alone(upload):
    """Earlier training does not affect batches, dropout or momentum."""
    received = initial_vector(Blobs(), 0)[0]

    def result(seed, client_id, order, before=0):
        trainer = LocalTrainer(Blobs(), upload=upload, batch_size=4, momentum=0.5, seed=seed)
        for number in range(before):
            train(trainer, received, client_id=0, order=number)
            torch.rand(number + 1)
        return train(trainer, received, client_id, order).vector.tolist()

    reference = result(0, 1, 5)
    assert result(0, 1, 5, before=3) == reference
    assert result(1, 1, 5) != reference
    assert result(0, 0, 5) != reference
    assert result(0, 1, 6) != reference


# -- hooks ----------------------------------------------------------------------------------------


class Penalised(LocalTrainer):
    """(mu/2) ||w - w_received||^2 as a user would write it."""

    mu = 0.5

    def penalty(self, params, received):
        terms = [(p - r).square().sum() for p, r in zip(params, received, strict=True)]
        return 0.5 * self.mu * torch.stack(terms).sum()


def test_penalty_hook_equals_the_built_in_proximal_term():
    received = initial_vector(Blobs(), 0)[0]
    settings = {"local_steps": 5, "local_lr": 0.3, "momentum": 0.5}
    hook = train(Penalised(Blobs(), **settings), received)
    built_in = train(LocalTrainer(Blobs(), proximal=0.5, **settings), received)
    without = train(LocalTrainer(Blobs(), **settings), received)
    np.testing.assert_allclose(hook.vector, built_in.vector, atol=1e-5)
    assert np.abs(hook.vector - without.vector).max() > 1e-2
    assert train(Penalised(ONE, local_lr=0.5, local_steps=2), vec(1)).vector.tolist() == [2.25]


def test_numbers_that_are_not_finite_before_any_step_are_not_blamed_on_a_rate():
    class Rooted(LocalTrainer):
        def penalty(self, params, received):
            return sum((p - r).square().sum().sqrt() for p, r in zip(params, received, strict=True))

    with pytest.raises(ValueError, match=r"^the gradient of the first batch of version 0 is not"):
        train(Rooted(Blobs()), initial_vector(Blobs(), 0)[0])
    for upload in ("gradient", "model"):
        with pytest.raises(ValueError, match=r"^the loss of the first batch of version 0 is not"):
            train(LocalTrainer(Blobs(), upload=upload), initial_vector(Blobs(), 0)[0] * np.nan)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 3.75), ({"weight_decay": 0.5}, 3.0625), ({"upload": "gradient"}, -3.0)],
)
def test_correct_hook_changes_the_gradient_step_by_step(settings, expected):
    """From 1 towards 3, rate 1/2, gradient corrected by -(step + 1):

    plain               g = -2 - 1,          w = 2.5;     g = -0.5 - 2,             w = 3.75
    weight decay 1/2    g = -2 - 1 + 0.5,    w = 2.25;    g = -0.75 - 2 + 1.125,    w = 3.0625
    """
    steps = []

    class Corrected(LocalTrainer):
        def correct(self, grad, step):
            steps.append(step)
            return [g - (step + 1) for g in grad]

    upload = train(Corrected(ONE, local_lr=0.5, local_steps=2, **settings), vec(1))
    assert upload.vector.tolist() == [expected]
    assert steps == [0, 1][: 1 if upload.kind == "gradient" else 2]


@pytest.mark.parametrize(("hook", "message"), [
    ({"penalty": lambda self, params, received: params[0]}, "a scalar tensor"),
    ({"correct": lambda self, grad, step: [g.sum() for g in grad]}, r"a tensor for each of grad's"),
])  # fmt: skip
def test_a_hook_with_a_wrong_result_is_refused(hook, message):
    with pytest.raises(TypeError, match=message):
        train(type("Wrong", (LocalTrainer,), hook)(Blobs()), initial_vector(Blobs(), 0)[0])


def test_a_penalty_without_effect_is_logged_once(caplog):
    hook = {"penalty": lambda self, params, received: params[0].detach().square().sum()}
    train(type("Detached", (LocalTrainer,), hook)(Blobs()), initial_vector(Blobs(), 0)[0])
    (message,) = caplog.messages
    assert message == "Detached.penalty is not computed from params: it changes nothing"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        *(({}, 1.25), ({"weight_decay": 0.5}, 1.1015625)),
        *(({"proximal": 0.5}, 1.1875), ({"momentum": 0.5}, 1.5)),
    ],
)
def test_parameters_whose_gradients_are_one_tensor(settings, expected):
    """f = 1/2 (a + b - 3)^2 has the same gradient for both, and PyTorch returns one tensor twice.

    From a = b = 1/2, rate 1/4; b as a:

        plain               g = -2,           a = 1;         g = -1,                    a = 1.25
        weight decay 1/2    g = -2 + 0.25,    a = 0.9375;    g = -1.125 + 0.46875,    a = 1.1015625
        proximal 1/2        g = -2,           a = 1;         g = -1 + 1/2 (1 - 1/2),    a = 1.1875
        momentum 1/2        v = -2,           a = 1;         v = -1 - 1,                a = 1.5
    """

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Parameter(torch.tensor([0.5]))
            self.b = nn.Parameter(torch.tensor([0.5]))

        def forward(self, points):
            return self.a + self.b - points

    class Task(Quadratic):
        def model(self):
            return Sum()

    trainer = LocalTrainer(Task([[[3.0]]]), local_lr=0.25, local_steps=2, **settings)
    upload = train(trainer, vec(0.5, 0.5))
    assert upload.vector.tolist() == [expected, expected]
    assert (upload.kind, upload.num_examples, upload.rate_sum) == ("model", 1, 0.5)
    # 1/2 (1 - 3)^2 = 2 and 1/2 (2 a - 3)^2 after the first step
    assert upload.loss == (1.25 if "weight_decay" not in settings else 1.31640625)


# -- settings of an order, and state of a client --------------------------------------------------


@pytest.mark.parametrize("config", [{"version": 1}, {"version": 2, "local_lr_factor": 2.0}])
def test_the_rate_falls_with_the_version_and_by_the_orders_factor(config):
    """Rate 1/2 halved once, or twice and doubled: g = -2, w = 1.5; g = -1.5, w = 1.875."""
    settings = {"local_lr": 0.5, "local_steps": 2, "lr_decay": 0.5}
    upload = LocalTrainer(ONE, **settings).train(order_for(0, 0, vec(1), config))
    assert (upload.vector.tolist(), upload.rate_sum) == ([1.875], 0.5)
    pseudo = LocalTrainer(ONE, upload="pseudo", **settings).train(order_for(0, 0, vec(1), config))
    assert (pseudo.vector.tolist(), pseudo.rate_sum) == ([-1.75], 0.5)
    late = order_for(0, 0, vec(1), {"version": 99})
    with pytest.raises(ValueError, match=r"learning rates=.* must be a finite number >= 1e-18: n"):
        LocalTrainer(ONE, upload="pseudo", **settings).train(late)


@pytest.mark.parametrize(
    ("settings", "epochs", "batches"),
    [({}, 1, [5, 5, 2]), ({}, 3, [5, 5, 2] * 3), ({"local_steps": 2}, 3, [5, 5])],
)
def test_an_order_may_say_how_many_epochs(settings, epochs, batches):
    task = Blobs()
    trainer = LocalTrainer(task, local_lr=0.5, batch_size=5, local_epochs=2, **settings)
    upload = trainer.train(order_for(0, 0, initial_vector(task, 0)[0], {"local_epochs": epochs}))
    assert [len(batch) for batch in task.batches] == batches
    assert upload.rate_sum == 0.5 * len(batches)


def test_long_gradients_are_cut_and_short_ones_left():
    """From 1 towards 3 with rate 1/2: g = -2 is cut to -1.75, w = 1.875; g = -1.125 is not."""
    trainer = LocalTrainer(ONE, local_lr=0.5, local_steps=2, max_grad_norm=1.75)
    assert train(trainer, vec(1)).vector.tolist() == [2.4375]

    received, layout = initial_vector(Blobs(), 0)
    split = layout.num_trainable
    assert LocalTrainer(Blobs(), upload="gradient", local_epochs=5).epochs == 1  # nobody recalls
    whole, cut = (
        train(LocalTrainer(Blobs(), upload="gradient", max_grad_norm=limit), received).vector
        for limit in (None, 0.01)
    )
    length = np.linalg.norm(whole[:split])  # over all parameters
    assert length > 0.1
    np.testing.assert_allclose(cut[:split], 0.01 / length * whole[:split], rtol=1e-4)


@pytest.mark.parametrize("upload", ["model", "delta"])
def test_the_rest_of_a_paused_order_can_be_computed_repeatedly(upload):
    """A resumed run does so from the state in its checkpoint."""

    class Pausing(LocalTrainer):
        def should_pause(self, epoch):
            return epoch == 1

    task = Quadratic.scattered(1)
    with pytest.raises(ValueError, match="local_steps=3 must be null: a client pauses at the end"):
        Pausing(task, local_steps=3)
    trainer = Pausing(task, upload=upload, local_epochs=3, batch_size=4, momentum=0.5, proximal=0.1)
    state = trainer.train(order_for(0, 0, vec(0, 0, 0), {})).state
    before = {name: array.copy() for name, array in state.items()}
    assert {"paused_velocity", "paused_received"} <= before.keys()
    first, second = (
        trainer.train(order_for(0, 0, vec(), {"continues": True}, state=state)).vector
        for _ in range(2)
    )
    assert first.tolist() == second.tolist()
    for name, array in before.items():
        assert state[name].tolist() == array.tolist(), name


class Counting(LocalTrainer):
    """Counts the orders of a client."""

    def begin(self, config, rng):
        self.state["orders"] = np.array(int(self.state.get("orders", 0)) + 1)


class Replacing(LocalTrainer):
    """As `Counting`, with a new dictionary, after the last step."""

    def finish(self, order, upload):
        self.state = {"orders": np.array(int(order.state.get("orders", 0)) + 1)}
        return upload


@pytest.mark.parametrize("cls", [Counting, Replacing])
def test_state_of_a_hook_returns_with_the_upload_and_belongs_to_one_client(cls):
    trainer = cls(Quadratic.scattered(2))
    first = trainer.train(order_for(0, 0, vec(0, 0, 0), {}))
    second = trainer.train(order_for(0, 1, vec(0, 0, 0), {}, state=first.state))
    other = trainer.train(order_for(1, 0, vec(0, 0, 0), {}))
    assert [int(upload.state["orders"]) for upload in (first, second, other)] == [1, 2, 1]
    assert train(LocalTrainer(ONE), vec(1)).state == {}


def test_a_client_of_flower_fits_as_a_trainer_trains_and_tags_the_version():
    client = TrainerClient(LocalTrainer(Blobs(), upload="delta", local_steps=2))
    received, layout = initial_vector(Blobs(), 0)
    config = {"client-id": 1, "sequence": 7, "version": 3}
    arrays, num_examples, metrics = client.fit(client.get_parameters({}), config)
    upload = train(LocalTrainer(Blobs(), upload="delta", local_steps=2), received, 1, 7)
    np.testing.assert_array_equal(layout.flatten(arrays), upload.vector)
    assert num_examples == 12
    assert metrics["version"] == 3
    assert (metrics["kind"], metrics["loss"]) == ("delta", upload.loss)
    loss, num_examples, _ = TrainerClient(LocalTrainer(ONE)).evaluate([vec(1)], {})
    assert (loss, num_examples) == (2.0, 1)  # 1/2 (3 - 1)^2
    with pytest.raises(ValueError, match="got 1 arrays, the model has 9"):
        client.fit([np.zeros(3, np.float32)], {})
    counting = TrainerClient(Counting(ONE))
    for _ in range(2):
        counting.fit([vec(1)], {})
    assert int(counting.state["orders"]) == 2


def test_scores_are_on_the_clients_own_data_and_leave_no_trace():
    """From w = 1 client 1's example 5 is at 1/2 4^2 = 8."""
    trainer = LocalTrainer(Quadratic([[[3.0]], [[5.0]]]))
    scores = trainer.score(order_for(1, 0, vec(1), {}))
    assert scores == Scores({"loss": 8.0, "accuracy": 1 / 9}, 1)
    task = Blobs()
    blobs, received = LocalTrainer(task), initial_vector(task, 0)[0]
    order = order_for(0, 0, received, {})
    assert blobs.score(order) == blobs.score(order)  # no dropout, no running statistics
    np.testing.assert_array_equal(blobs.model.read(), received)
    after, fresh = train(blobs, received), train(LocalTrainer(task), received)
    np.testing.assert_array_equal(after.vector, fresh.vector)  # training has its dropout back


# -- half precision -------------------------------------------------------------------------------

ROUNDED = Compressed(
    Layout.of_arrays({"w": np.zeros(4, np.float32), "running_mean": np.zeros(1, np.float32)}),
    "float16",
)


def test_half_precision_rounds_only_uploads():
    """Numbers that are too large become the largest float16. Buffers are not rounded."""
    vector = vec(1 / 3, 1e6, -1e6, 1e-9, 1 / 3)
    third, exact = float(np.float16(1 / 3)), np.float32(1 / 3)
    rounded = [third, 65504, -65504, 0, exact]

    def training(client_id, sequence, received):
        upload = Upload(vector.copy(), "delta", 10, 0.5)
        return replace(upload, extra={"c": vector}, state={"c": vector})

    result = Transformed(Scripted(training), ROUNDED).train(order_for(0, 0, vec(), {}))
    assert result.vector.tolist() == result.extra["c"].tolist() == rounded
    assert result.state["c"].tolist() == vector.tolist()
    assert ROUNDED.num_bytes == 4 * 2 + 4


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rounding_makes_no_bad_upload_a_good_one(bad):
    vector = vec(1e6, bad, 2, 1, 9).copy()
    ROUNDED.apply(vector)
    assert check_vector(vector, 5) == "payload has non-finite entries"


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"momentum": 1.0}, "momentum=1.0 must be in [0, 1): steps would oscillate or grow"),
        ({"upload_dtype": "float8"}, "upload_dtype=float8 must be float32 or float16"),
    ],
)
def test_bad_values_are_refused(settings, text):
    with pytest.raises(ValueError, match=f"^algorithm.client.{re.escape(text)}"):
        LocalTrainer(ONE, **settings)


# -- WKAFL's published code -----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_only_first_gradients_are_stale(workers):
    """WKAFL's published code by hand: f_i(w) = 1/2 (w - x_i)^2, x = 4 and 8, w_0 = 0, eta = 1/2.

    Client 0 reports every second, client 1 after 3.5. Gradients are of the newest model, except a
    client's first; ages count from the model that was sent.

        second      1     2     3     3.5         4
        client      0     0     0     1           0
        sent        w_0   w_1   w_2   w_0         w_3
        age         0     0     0     3           1
        gradient   -4    -2    -1    -8 (at w_0)  7.5 - 4 = 3.5 (at w_4; at w_3 it were -0.5)
        w           2     3     3.5   7.5         5.75
    """
    result = run(
        k_async(1),
        FirstOnlyTrainer(Quadratic([[[4.0]], [[8.0]]]), upload="gradient"),
        num_clients=2,
        num_versions=5,
        devices=Times(lambda client_id, _: (1.0, 3.5)[client_id]),
        strategy=AFL(server_lr=0.5),
        workers=workers,
    )
    assert [event["t"] for event in result.kind("aggregate")] == [1, 2, 3, 3.5, 4]
    assert [event["age"] for event in result.kind("aggregate")] == [[0], [0], [0], [3], [1]]
    assert result.outcome.params.tolist() == [5.75]
