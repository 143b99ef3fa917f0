"""FedAsync as fedctl implements it: a plain Flower strategy for the benchmark.

    python -m fl_app.benchmark examples.fedctl_fedasync.FedCtlAsync

What github.com/Haoran-Jie/fedctl calls FedAsync is FedBuff with a buffer of one update:

    w_{t+1} = w_t + eta (1 + age)^(-a) (w_i - w_o)

Xie et al. (2019) instead mix the local model itself into the global one (`algorithm=fedasync`),
which pulls w_t back towards the old version that w_i started from.

Deviations: none known. eta and a have the values of fedctl's configurations for CIFAR-10.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg


class FedCtlAsync(FedAvg):
    """Adds each displacement with a weight that falls with its age."""

    buffer_size = 1  # updates per version

    def __init__(self, server_learning_rate=0.5, exponent=0.5, **settings):
        super().__init__(**settings)
        self.server_learning_rate, self.exponent = server_learning_rate, exponent
        self.current = {}

    def configure_train(self, server_round, arrays, config, grid):
        self.current = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        (reply,) = replies  # its arrays are w_t + (w_i - w_o), see fl_app.asynchronous
        age = server_round - int(reply.metadata.group_id)
        rate = np.float32(self.server_learning_rate * (1 + age) ** -self.exponent)
        mixed = {
            name: Array(self.current[name] + rate * (array.numpy() - self.current[name]))
            for name, array in reply.content["arrays"].items()
        }
        return ArrayRecord(mixed), MetricRecord({"age": age})
