"""Parameters that stay on their client: federated learning with personalisation layers.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019,
arXiv:1912.00818. A client's model consists of shared parameters w and private ones p_i. Local
training moves both,

    (w, p_i) <- (w, p_i) - lr grad f_i(w, p_i),

and only w is sent, aggregated and tested on the server. p_i starts from the model's initial values
and lasts from order to order.
"""

from dataclasses import replace

from fl_app.client.flat import FlatModel
from fl_app.client.transform import Transformation
from fl_app.core.types import Order, State, Upload

PRIVATE = "private."  # prefix of a name in the client state


class Private(Transformation):
    """Keeps a model's private parameters in the client's state.

    Args:
        model: of the trainer.
    """

    def __init__(self, model: FlatModel) -> None:
        self._model = model

    def receive(self, order: Order) -> Order:
        self._model.load_private(private_of(order.state))
        own = {name: array for name, array in order.state.items() if not name.startswith(PRIVATE)}
        return replace(order, state=own)

    def send(self, order: Order, upload: Upload) -> Upload:
        kept = {PRIVATE + name: array for name, array in self._model.read_private().items()}
        return replace(upload, state={**upload.state, **kept})


def private_of(state: State) -> State:
    """The private parameters in a client's state, by their own names."""
    return {k.removeprefix(PRIVATE): v for k, v in state.items() if k.startswith(PRIVATE)}
