"""FedAsync as fedctl has it, as a plain strategy of Flower, which enters the benchmark.

    python -m fl_app.benchmark examples.fedctl_fedasync.FedCtlAsync

github.com/Haoran-Jie/fedctl runs what it calls FedAsync as FedBuff with a buffer of one update:

    w_{t+1} = w_t + eta (1 + age)^(-a) (w_i - w_o)

Xie et al. (2019) instead mix the local model itself into the global one (`algorithm=fedasync`),
which pulls w_t back to the old version that w_i started from.

Deviations: none known; the values of eta and a are those of its configurations for CIFAR-10.
"""

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg


class FedCtlAsync(FedAvg):
    """Adds each displacement with a weight that falls with its age."""

    buffer_size = 1  # updates of a version

    def __init__(self, server_learning_rate=0.5, exponent=0.5, **settings):
        super().__init__(**settings)
        self.server_learning_rate, self.exponent = server_learning_rate, exponent
        self.current = {}

    def configure_train(self, server_round, arrays, config, grid):
        self.current = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        (reply,) = replies  # as fl_app.asynchronous shows it: w_t + (w_i - w_o)
        age = server_round - int(reply.metadata.group_id)
        rate = np.float32(self.server_learning_rate * (1 + age) ** -self.exponent)
        mixed = {
            name: Array(self.current[name] + rate * (array.numpy() - self.current[name]))
            for name, array in reply.content["arrays"].items()
        }
        return ArrayRecord(mixed), MetricRecord({"age": age})
