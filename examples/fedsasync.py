"""FedSaSync as a plain strategy of Flower, which enters the benchmark.

    python -m fl_app.benchmark examples.fedsasync.FedSaSync

Hidalgo-Izquierdo, Carrion, Caminero: "Semi-asynchronous Federated Learning in Flower: Framework
Extension and Performance Assessment", 2026, arXiv:2606.24230, as in pull request 7503 of Flower. A
round takes the first M replies of all clients, and these start again from the new model:

    w_{t+1} = sum_i n_i w_i / sum_i n_i

The local models w_i may have started from old versions: the mean replaces the global model, and
with it what other clients brought in the meantime.

Deviations: exactly M replies, where the original takes all that have come by its next look; no wait
for all clients in the last round.
"""

from flwr.app import Array, ArrayRecord
from flwr.serverapp.strategy import FedAvg


class FedSaSync(FedAvg):
    """The mean of the first M local models takes the place of the global one.

    `fl_app.asynchronous` shows a reply as w_t + (w_i - w_o), and its group as the round in which it
    was sent: with the models of the rounds this becomes w_i again.
    """

    buffer_size = 10  # M

    def __init__(self, **settings):
        super().__init__(**settings)
        self.sent = {}  # round -> the arrays that its clients start from

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
