"""AREA's trainer: local training; `fl_app.algorithms.area` has the equations."""

from dataclasses import replace

import numpy as np

from fl_app.algorithms.area import AFTER, CHECKPOINTS, NUMBER
from fl_app.client import LocalTrainer
from fl_app.core.types import RESIDUAL, Order, Upload

MODELS, NUMBERS = "models", "numbers"


class AREATrainer(LocalTrainer):
    """Local SGD whose upload is what the client's model has changed by since an earlier upload.

    A client keeps between its orders the models that it uploaded last, ``(m, d)``, and the numbers
    of these uploads, ``(m,)``, from 1. `upload` is ``"delta"``, of which the upload is made.

    Raises:
        ValueError: a value is out of its bounds.
    """

    batches = True

    def __post_init__(self) -> None:
        super().__post_init__()
        fits = self.upload == "delta"
        self._require(fits, "upload", "delta", "what is uploaded is made of it")

    def finish(self, order: Order, upload: Upload) -> Upload:
        """r = w_end - y_c, with the y_c that the order names; y_c + r is kept.

        Raises:
            ValueError: the client does not have that model any more.
        """
        after, *saved = (int(order.config.get(key, 0)) for key in (AFTER, *CHECKPOINTS))
        number = order.sequence + 1
        numbers = [int(each) for each in order.state.get(NUMBERS, ())]
        models = dict(zip(numbers, order.state.get(MODELS, ()), strict=True))
        if after and after not in models:
            raise ValueError(
                f"client {order.client_id} has no model of its upload {after}: its memory was "
                "lost, and its last model stays in the mean"
            )
        last = models[after] if after else order.vector
        change = upload.vector
        change += order.vector
        change -= last
        # Compressed here, so that the later compression of the upload changes nothing.
        self.compressed.apply(change)
        models = {each: model for each, model in models.items() if each in (after, *saved)}
        models[number] = last + change
        state = {MODELS: np.stack(list(models.values())), NUMBERS: np.array(list(models))}
        metrics = {**upload.metrics, AFTER: float(after), NUMBER: float(number)}
        return replace(upload, kind=RESIDUAL, state=state, metrics=metrics)
