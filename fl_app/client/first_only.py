"""Clients of WKAFL's published code, where only a client's first gradient is stale.

NOTE: this is a defect, for comparison with the published numbers alone (arXiv:2203.01214). The code
gives a client the server's own tensor in place of a copy. So from its second order on, a client's
gradient is that of the server's model at the moment of its report. Its staleness is still counted
from the model that it was sent.
"""

import math
from dataclasses import replace

from fl_app.client.trainer import LocalTrainer
from fl_app.core.types import Order, Upload


class FirstOnlyTrainer(LocalTrainer):
    """Asks for the newest model when it has finished, and computes its upload from that one."""

    pauses = True
    epochs = 2  # the clock looks for a pause from the middle of an order on

    def train(self, order: Order) -> Upload:
        if order.sequence == 0:
            return super().train(order)
        if order.config.get("continues", False):
            vector = order.vector if order.vector.size else order.state["received"]
            config = {key: value for key, value in order.config.items() if key != "continues"}
            return super().train(replace(order, vector=vector, config=config, state={}))
        self.state = {"received": order.vector.copy()}
        size = int(self.task.train_indices(order.client_id).size)
        return self._pause(size, loss=0.0, share=math.nextafter(1.0, 0.0))
