"""A plain Flower `NumPyClient` without torch, trained asynchronously with FedBuff.

    pip install -e '.[simulation]' scikit-learn
    python examples/numpy_client.py

Ten clients learn handwritten digits by logistic regression in NumPy. Nodes need only Flower and the
client's own packages. The server also needs this project. Neither needs torch.
`Asynchronous(FedAdam())` of `fl_app.asynchronous` can replace `FedBuff()` without other changes.
"""

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from sklearn.datasets import load_digits

from fl_app.algorithms.fedbuff import FedBuff
from fl_app.schedule import Buffered

NUM_CLIENTS, NUM_TRAIN = 10, 1437
IMAGES, LABELS = load_digits(return_X_y=True)
IMAGES = IMAGES.astype(np.float32) / 16

client_app, server_app = ClientApp(), ServerApp()


def probabilities(weights, bias, images):
    """Probabilities of the ten classes, shape ``(n, 10)``."""
    logits = images @ weights + bias
    exponentials = np.exp(logits - logits.max(1, keepdims=True))
    return exponentials / exponentials.sum(1, keepdims=True)


class Client(NumPyClient):
    def __init__(self, partition_id):
        own = slice(partition_id, NUM_TRAIN, NUM_CLIENTS)
        self.images, self.labels = IMAGES[own], LABELS[own]

    def fit(self, parameters, config):
        weights, bias = parameters
        for _ in range(int(config["steps"])):
            error = probabilities(weights, bias, self.images) - np.eye(10)[self.labels]
            error = error.astype(np.float32) / len(self.labels)
            weights = weights - np.float32(config["lr"]) * self.images.T @ error
            bias = bias - np.float32(config["lr"]) * error.sum(0)
        return [weights, bias], len(self.labels), {}


@client_app.train()
def train(message: Message, context: Context) -> Message:
    parameters = message.content["arrays"].to_numpy_ndarrays()
    client = Client(int(context.node_config["partition-id"]))
    parameters, count, metrics = client.fit(parameters, message.content["config"])
    arrays, metrics = ArrayRecord(parameters), MetricRecord({"num-examples": count, **metrics})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def evaluate(version: int, arrays: ArrayRecord) -> MetricRecord:
    guesses = probabilities(*arrays.to_numpy_ndarrays(), IMAGES[NUM_TRAIN:]).argmax(1)
    return MetricRecord({"accuracy": float(np.mean(guesses == LABELS[NUM_TRAIN:]))})


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    result = FedBuff().start(
        grid,
        initial_arrays=ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)]),
        num_rounds=20,  # published versions, each of three updates
        train_config=ConfigRecord({"lr": 0.5, "steps": 20}),
        schedule=Buffered(concurrency=8, buffer_size=3),
        evaluate_fn=evaluate,
    )
    print(f"accuracy: {result.evaluate_metrics_serverapp[20]['accuracy']:.3f}")


if __name__ == "__main__":
    from flwr.simulation import run_simulation

    run_simulation(server_app, client_app, num_supernodes=NUM_CLIENTS)
