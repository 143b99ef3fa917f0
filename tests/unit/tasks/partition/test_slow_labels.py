"""Slow clients hold labels of their own."""

import numpy as np
import pytest

from fl_app.devices import TwoSpeed
from fl_app.tasks.partition import SlowLabels, make_partition

LABELS = np.repeat(np.arange(10), 100)


def test_slow_clients_hold_their_own_labels_and_no_others() -> None:
    parts = make_partition(SlowLabels(slow_share=0.3, labels=[2, 7]), LABELS, 20, seed=4)
    held = [set(LABELS[part].tolist()) for part in parts]
    slow = TwoSpeed(num_clients=20, slow_share=0.3, slowdown=5.0).mean_seconds
    for client, labels in enumerate(held):
        assert (labels <= {2, 7}) == (slow[client] == 5.0)
        assert labels.isdisjoint({2, 7}) == (slow[client] == 1.0)
    assert sorted(np.concatenate(parts).tolist()) == list(range(1000))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"slow_share": 0}, "slow_share=0 must be above 0"),
        ({"slow_share": 1.0}, "partition.slow_share=1.0 must be smaller"),
        ({"labels": []}, "partition.labels=.* must be classes, each once"),
        ({"labels": [1, 1]}, "partition.labels=.* must be classes, each once"),
        ({"labels": [11]}, "partition.labels=.* must be some but not all of the classes"),
        ({"labels": list(range(10))}, "partition.labels=.* must be some but not all"),
        ({"alpha": 0}, "partition.alpha=0"),
    ],
)
def test_bad_values_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_partition(SlowLabels(**settings), LABELS, 20, seed=0)  # type: ignore[arg-type]
