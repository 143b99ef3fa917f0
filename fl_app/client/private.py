"""Parameters that stay on their client: federated learning with personalisation layers.

Arivazhagan, Aggarwal, Singh, Choudhary: "Federated Learning with Personalization Layers", 2019,
arXiv:1912.00818. A client's model consists of shared parameters w and private ones p_i. Local
training moves both,

    (w, p_i) <- (w, p_i) - lr grad f_i(w, p_i),

and only w is sent, aggregated and tested on the server. p_i starts from the model's initial values
and lasts from order to order.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from fl_app.client.compression import Trainer
from fl_app.core.types import Order, Scores, State, Upload

if TYPE_CHECKING:
    from fl_app.client.flat import FlatModel

PRIVATE = "private."  # prefix of a name in the client state


class Private:
    """A trainer whose private parameters are part of the client's state.

    Args:
        trainer: does the training.
        model: its model.
    """

    def __init__(self, trainer: Trainer, model: "FlatModel") -> None:
        self._trainer = trainer
        self._model = model

    def train(self, order: Order) -> Upload:
        """See `fl_app.client.LocalTrainer.train`; the state also holds the private parameters."""
        self._model.load_private(private_of(order.state))
        own = {k: v for k, v in order.state.items() if not k.startswith(PRIVATE)}
        upload = self._trainer.train(replace(order, state=own))
        kept = {PRIVATE + name: array for name, array in self._model.read_private().items()}
        return replace(upload, state={**upload.state, **kept})

    def score(self, order: Order) -> Scores:
        """See `fl_app.client.LocalTrainer.score`; the client's private parameters take part."""
        self._model.load_private(private_of(order.state))
        return self._trainer.score(order)


def private_of(state: State) -> State:
    """The private parameters in a client's state, by their own names."""
    return {k.removeprefix(PRIVATE): v for k, v in state.items() if k.startswith(PRIVATE)}
