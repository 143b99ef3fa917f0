"""FedSaSync: a plain Flower strategy for the benchmark.

    python -m fl_app.benchmark examples.fedsasync.FedSaSync

Hidalgo-Izquierdo, Carrion, Caminero: "Semi-asynchronous Federated Learning in Flower: Framework
Extension and Performance Assessment", 2026, arXiv:2606.24230, as in Flower's pull request 7503. A
round takes the first M replies of all clients. Their clients start again from the new model:

    w_{t+1} = sum_i n_i w_i / sum_i n_i

The local models w_i may have started from old versions. Their mean replaces the global model, so
the updates that other clients contributed in the meantime are lost.

Deviations: a round takes exactly M replies; the original takes all that have arrived when it polls
again. The last round does not wait for all clients.
"""

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg


class FedSaSync(FedAvg):
    """The mean of the first M local models replaces the global model.

    `fl_app.asynchronous` gives a reply the arrays w_t + (w_i - w_o) and, as its group, the round in
    which its order was sent. The models of both rounds turn these arrays into w_i again.
    """

    buffer_size = 10  # M

    def __init__(self, **settings):
        super().__init__(**settings)
        self.sent = {}  # round -> arrays from which its clients start

    def configure_train(self, server_round, arrays, config, grid):
        self.sent[server_round] = {name: array.numpy() for name, array in arrays.items()}
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        for reply in replies:
            now, then = self.sent[server_round], self.sent[int(reply.metadata.group_id)]
            rebased = reply.content["arrays"]
            local = {name: a.numpy() - now[name] + then[name] for name, a in rebased.items()}
            reply.content["arrays"] = ArrayRecord({name: Array(a) for name, a in local.items()})
        return super().aggregate_train(server_round, replies)
