"""WKAFL's published code by hand: f_i(w) = 1/2 (w - x_i)^2, x = 4 and 8, w_0 = 0, eta = 1/2.

Client 0 reports every second, client 1 after 3.5. A gradient is that of the newest model, but for
a client's first; ages count from the model that was sent.

    second      1     2     3     3.5         4
    client      0     0     0     1           0
    sent        w_0   w_1   w_2   w_0         w_3
    age         0     0     0     3           1
    gradient   -4    -2    -1    -8 (at w_0)  7.5 - 4 = 3.5 (at w_4; at w_3 it were -0.5)
    w           2     3     3.5   7.5         5.75
"""

import pytest
from helpers import Quadratic, Times, run

from fl_app.algorithms.afl import AFL
from fl_app.client.first_only import FirstOnlyTrainer
from fl_app.schedule import k_async


@pytest.mark.parametrize("workers", [0, 2])
def test_only_first_gradients_are_stale(workers: int) -> None:
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
