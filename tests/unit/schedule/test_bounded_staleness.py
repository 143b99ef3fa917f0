"""Nobody falls behind by more than the bound."""

import helpers
import pytest
from helpers import run

from fl_app.core.types import Order, Parts, Upload
from fl_app.schedule.bounded_staleness import BoundedStaleness


class SlowFirst:
    """Client 0 takes 100 s for ten epochs, the others a second."""

    def parts(self, client_id: int, sequence: int, now: float) -> Parts:
        return Parts(0.0, 100.0 if client_id == 0 else 1.0 + client_id / 16, 0.0)


class Epochs:
    """Remembers of how many epochs orders are."""

    def __init__(self) -> None:
        self.ordered: list[tuple[int, object]] = []

    def train(self, order: Order) -> Upload:
        self.ordered.append((order.client_id, order.config.get("local_epochs")))
        return helpers.toward_own_number(order.client_id, order.sequence, order.vector)


@pytest.mark.parametrize("epochs", [10, 1])
def test_the_server_waits_for_the_late_one_or_gets_part_of_its_work(epochs: int) -> None:
    trainer = Epochs()
    made = run(
        BoundedStaleness(concurrency=4, buffer_size=2, staleness_bound=3),
        trainer,
        num_clients=4,
        num_versions=12,
        devices=SlowFirst(),
        epochs=epochs,
    )
    assert max(made.history.ages) <= 3
    versions = [event["t"] for event in made.events if event["kind"] == "aggregate"]
    recalled = [event["client"] for event in made.events if event["kind"] == "recall"]
    if epochs == 10:  # at the end of an epoch of 10 s
        assert versions[3] == pytest.approx(10.0)
        assert recalled[0] == 0
        assert (0, 1) in trainer.ordered
    else:
        assert versions[3] == pytest.approx(100.0)
        assert recalled == []


def test_who_is_lost_is_not_waited_for() -> None:
    made = run(
        BoundedStaleness(concurrency=4, buffer_size=2, staleness_bound=3),
        helpers.Scripted(helpers.toward_own_number),
        num_clients=4,
        num_versions=6,
        devices=SlowFirst(),
        deadline=20.0,
    )
    assert made.outcome.version == 6
    versions = [event["t"] for event in made.events if event["kind"] == "aggregate"]
    assert versions[3] == pytest.approx(20.0, abs=2.0)


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"schedule.staleness_bound=0"):
        BoundedStaleness(staleness_bound=0)
    with pytest.raises(ValueError, match=r"schedule.concurrency=10 must be at most num_clients=4"):
        BoundedStaleness().validate_population(4)
