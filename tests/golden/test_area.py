"""AREA against hand-derived values (Iakovidou, Kim 2024), N = 4, K = 1, w_0 = 0.

client  received   w_end   y_c before   upload          w = mean of y, clients 2 and 3 at 0
0       w_0 = 0    4       0            4               4 / 4 = 1
1       w_1 = 1    3       (begins)     3 - 1 = 2       1 + (2 + (1 - 0)) / 4 = 7/4
0       w_1 = 1    2       4            -2              7/4 - 2/4 = 5/4
1       w_3 = 5/4  0       3            -3              5/4 - 3/4 = 1/2
"""

from typing import Any

import numpy as np
import pytest
from helpers import Quadratic, Recorder, order_for, vec

from fl_app.algorithms.area import AREA
from fl_app.algorithms.area.trainer import AREATrainer
from fl_app.client.build import chain
from fl_app.core.snapshot import Encoder, decode
from fl_app.core.types import RESIDUAL, GlobalModel, Order, Update, Upload, Vector
from fl_app.devices import Fleet, UniformRatio
from fl_app.engine.engine import Engine, Stop
from fl_app.engine.guard import Guard
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.workers import Inline
from fl_app.schedule import Buffered


def update(client: int, version: int, r: float, after: int = 0, number: int = 1) -> Update:
    told = {"after": float(after), "upload": float(number)}
    return Update(client, version, vec(r), RESIDUAL, 10, 0.1, metrics=told)


UPDATES = [update(0, 0, 4), update(1, 1, 2), update(0, 1, -2, 1, 2), update(1, 3, -3, 1, 2)]


def test_the_model_is_the_mean_of_the_latest_models():
    strategy, history = AREA(num_clients=4), {0: vec(0)}
    for version, (each, expected) in enumerate(zip(UPDATES, [1, 7 / 4, 5 / 4, 1 / 2], strict=True)):
        model = GlobalModel(history[version], version, dict(history))
        assert strategy.admit(model, each) is None
        history[version + 1] = strategy.aggregate(model, [each])
        np.testing.assert_allclose(history[version + 1], [expected])
        assert strategy.report["weight"] == [1 / 4]


def test_uploads_of_a_client_that_wait_together_come_out_right():
    """The first two of client 0 in one aggregation: its latest model is 2, so w = 2/4."""
    model = GlobalModel(vec(0), 0)
    both = [update(0, 0, 4), update(0, 0, -2, 1, 2)]
    np.testing.assert_allclose(AREA(num_clients=4).aggregate(model, both), [1 / 2])


def test_orders_say_after_which_upload_the_next_one_counts():
    strategy, model = AREA(num_clients=1), GlobalModel(vec(0), 0)

    def named() -> list[int]:
        config = strategy.dispatch(model, 0)[1]
        return [config[key] for key in ("after", "checkpoint", "checkpoint_before")]

    assert named() == [0, 0, 0]
    strategy.admit(model, update(0, 0, 4, 0, 3))
    assert named() == [3, 3, 3]
    strategy.state_dict()
    strategy.admit(model, update(0, 0, 4, 3, 4))
    assert named() == [4, 3, 3]
    strategy.state_dict()
    strategy.admit(model, update(0, 0, 4, 4, 5))
    assert named() == [5, 4, 3]
    strategy.state_dict()
    assert named() == [5, 5, 4]


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (update(0, 0, 1, 7, 8), "it is told after upload 7 of its client, and the last one was 0"),
        (update(0, 0, 1, 0, float("nan")), "it says that it is upload nan of its client, and the "),
        (update(0, 0, 1, 0, float("inf")), "it says that it is upload inf of its client"),
        (update(0, 0, 1, 0, 0), "it says that it is upload 0 of its client, and the last was 0"),
        (update(5, 0, 1), "strategy.num_clients=1 other clients have been heard"),
        (Update(0, 0, vec(1), "delta", 10, 0.1), "kind 'delta' is not 'residual'"),
    ],
)
def test_what_does_not_fit_the_mean_is_refused(refused, told):
    strategy, model = AREA(num_clients=1), GlobalModel(vec(0), 0)
    if refused.client_id == 5:
        strategy.admit(model, update(0, 0, 1))
    before = dict(strategy.state["accepted"])
    assert told in (strategy.admit(model, refused) or "")
    assert strategy.state["accepted"] == before


def test_norm_bounds_are_refused_before_a_run():
    told = r"^guard\.max_norm=9\.0 must be null with uploads of kind 'residual'"
    with pytest.raises(ValueError, match=told):
        AREA().start(None, None, guard=Guard(max_norm=9.0))  # type: ignore[arg-type]


# -- the device -----------------------------------------------------------------------------------

TASK = Quadratic.scattered(4)


def trainer(**settings: Any) -> AREATrainer:
    return AREATrainer(TASK, upload="delta", local_steps=3, local_lr=0.1, **settings)


def trained(
    device: AREATrainer, sequence: int, received: Vector, state: Any, **config: int
) -> Upload:
    return device.train(order_for(1, sequence, received, {"version": 0, **config}, state))


def test_a_client_uploads_the_change_since_the_upload_that_the_order_names():
    device, w = trainer(), vec(1, 2, 3)
    first = trained(device, 0, w, {}, after=0)
    end = device.model.read()
    np.testing.assert_allclose(first.vector, end - w, atol=1e-6)
    assert first.kind == RESIDUAL
    assert first.metrics == {"after": 0, "upload": 1}
    second = trained(device, 1, vec(0, 0, 0), first.state, after=1, checkpoint=1)
    np.testing.assert_allclose(second.vector, device.model.read() - end, atol=1e-6)
    assert second.state["numbers"].tolist() == [1, 2]
    # The second upload was refused, so the third is told after the first.
    third = trained(device, 2, vec(5, 5, 5), second.state, after=1, checkpoint=1)
    np.testing.assert_allclose(third.vector, device.model.read() - end, atol=1e-6)
    assert third.state["numbers"].tolist() == [1, 3]
    fourth = trained(device, 3, w, third.state, after=3, checkpoint=3)
    assert fourth.state["numbers"].tolist() == [3, 4]


def test_a_client_keeps_what_the_last_two_checkpoints_name():
    device, state = trainer(), {}
    for sequence in range(6):
        named = {"checkpoint": min(sequence, 3), "checkpoint_before": min(sequence, 1)}
        state = trained(device, sequence, vec(1, 2, 3), state, after=sequence, **named).state
    assert state["numbers"].tolist() == [1, 3, 5, 6]


def test_a_client_without_its_memory_says_so():
    device = trainer()
    with pytest.raises(ValueError, match=r"^client 1 has no model of its upload 4: its memory was"):
        trained(device, 5, vec(1, 2, 3), {}, after=4)


@pytest.mark.parametrize("settings", [{"top_k": 0.34}, {"upload_dtype": "float16"}])
def test_what_compression_left_out_is_part_of_the_next_upload(settings):
    """y moves by what was sent, so that what the server adds up stays y."""
    device, received = trainer(**settings), vec(1, 2, 3)
    first = chain(device).train(order_for(1, 0, received, {"after": 0}))
    assert first.vector.tolist() != (device.model.read() - received).tolist()
    y = received + first.vector
    order = order_for(1, 1, received, {"after": 1}, first.state)
    second = chain(device).train(order)
    exact = device.model.read() - y
    if "top_k" in settings:
        place = np.abs(exact).argmax()
        exact = np.where(np.arange(3) == place, exact, 0)
    np.testing.assert_allclose(second.vector, exact, rtol=1e-3, atol=1e-6)
    assert not np.any(second.state.get("residual", 0))


def test_other_uploads_are_refused():
    with pytest.raises(ValueError, match=r"^algorithm\.client\.upload=model must be delta"):
        AREATrainer(TASK, upload="model")


# -- in runs --------------------------------------------------------------------------------------

CLIENTS = 8


class Device(AREATrainer):
    """Has a memory of its own, which no server takes back, and notes where it ended."""

    def __init__(self) -> None:
        super().__init__(Quadratic.scattered(CLIENTS), upload="delta", local_steps=2, local_lr=0.1)
        self.memory: dict[int, Any] = {}
        self.ends: dict[tuple[int, int], Vector] = {}

    def train(self, order: Order) -> Upload:
        own = order_for(
            order.client_id,
            order.sequence,
            order.vector,
            order.config,
            self.memory.get(order.client_id),
        )
        upload = super().train(own)
        self.memory[order.client_id] = upload.state
        self.ends[order.client_id, order.sequence + 1] = self.model.read()
        return upload


class Checked(AREA):
    """Refuses every fifth arrival, and compares each version with the mean of the latest models."""

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        self.state["arrivals"] = self.state.get("arrivals", 0) + 1
        if self.state["arrivals"] % 5 == 0:
            return "every fifth"
        return super().admit(model, update)

    def aggregate(self, model: GlobalModel, updates: Any) -> Vector:
        params = super().aggregate(model, updates)
        latest = self.state.setdefault("latest", {})
        latest |= {u.client_id: int(u.metrics["upload"]) for u in updates}
        sum_of_ends = sum(DEVICE.ends[key] for key in latest.items())
        mean = (sum_of_ends + (CLIENTS - len(latest)) * self.state["first"]) / CLIENTS
        np.testing.assert_allclose(params, mean, atol=1e-5)
        return params


DEVICE = Device()


def engine(num_versions: int, checkpoint: Any = None) -> tuple[Engine, Recorder]:
    recorder = Recorder()
    made = Engine(
        strategy=Checked(num_clients=CLIENTS),
        schedule=Buffered(concurrency=6, buffer_size=3),
        clock=VirtualClock(
            Inline(DEVICE), Fleet(UniformRatio(ratio=5, num_clients=CLIENTS)), CLIENTS
        ),
        initial=vec(1, -1, 1),
        stop=Stop(num_versions),
        sinks=[recorder],
        checkpoint=checkpoint,
        checkpoint_every=7 if checkpoint else None,
    )
    return made, recorder


def test_refused_and_waiting_uploads_leave_the_model_the_mean():
    made, recorder = engine(40)
    assert made.run().stopped == "num_versions"
    aggregated = [event["client"] for event in recorder.events if event["kind"] == "aggregate"]
    assert any(len(set(clients)) < len(clients) for clients in aggregated)
    assert recorder.history.rejected > 10
    assert len({client for clients in aggregated for client in clients}) == CLIENTS


def test_a_server_that_resumes_from_the_checkpoint_before_the_last_asks_for_nothing_lost():
    saved: list[Any] = []

    def checkpoint(version: int) -> None:
        encoder = Encoder()
        saved.append((encoder.encode(made.state_dict()), [a.copy() for a in encoder.arrays]))

    made, _ = engine(27, checkpoint)
    made.run()
    assert len(saved) == 3
    again, recorder = engine(80)
    again.load_state_dict(decode(*saved[-2]))
    assert again.run().stopped == "num_versions"
    assert recorder.history.failures == 0
    # Without a later checkpoint they do not keep all of their models from then on.
    assert max(len(memory["numbers"]) for memory in DEVICE.memory.values()) <= 4
