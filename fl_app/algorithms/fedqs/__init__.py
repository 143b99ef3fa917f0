"""FedQS: four kinds of clients, by speed and direction, train and count in different ways.

Li, Gui, Deng, Meng, Wu: "FedQS: Optimizing Gradient and Model Aggregation for Semi-Asynchronous
Federated Learning", NeurIPS 2025, arXiv:2510.07664, in the form of its authors' code
(github.com/bkjod/FedQS_).

u_i uploads of client i were aggregated, and ubar on average of the clients heard. Client i compares
its last displacement with how the global model moved between its last two orders: theta_i is the
angle, thetabar the mean over the clients whose last upload had one. With F = min(ubar / u_i, 9):

                      theta_i <= thetabar          theta_i > thetabar
    u_i > ubar        eta_i -= a F,  momentum      feedback
    u_i <= ubar       eta_i += a F,  momentum      eta_i += a F, and feedback if the accuracy of the
                                                   received model differs by 30 points or more
                                                   between the client's classes, else momentum

    momentum m_0 + min(max(k (thetabar / theta_i - 1), 0), 0.4); none with feedback

Server, once K uploads have arrived, with u = sum_i u_i, and n_i the client's number of examples:

    p_i = n_i (e/2)^(phi - u_i / u) (1 + min(theta_i / thetabar, 2)^2)    with feedback, else n_i
    w_{t+1} = w_t + sum_i p_i Delta_i / sum_i p_i        form = gradient (FedQS-SGD)
    w_{t+1} = sum_i p_i w_i / sum_i p_i                  form = model (FedQS-Avg)

Symbols: a client.rate_step, m_0 client.min_momentum, k client.momentum_slope, eta_i starts at
client.local_lr and stays from a hundredth to twice that, phi expected_share.

Deviations: the paper has a similarity in place of an angle, and another form of p_i; only the
code's form was available in full. The code's angles are means over layers, of vectors scaled to
[0, 1], with the global model itself: its last movement, by the last version, is lost by a slip.
Here it is the angle with the movement between the two versions that the client received last. A
client without an angle (its first order, or a model that stood still) trains plainly; the code
gives it the greatest momentum. The code's rates begin at 0.1 and stay from 0.001 to 0.2. Accuracies
are those on validation examples, if the task has some, without the code's factor 1/2 for classes of
fewer than ten. Without classes the answer is feedback. server_lr multiplies the step, also that of
the model form.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import NON_NEGATIVE, bounded, one_of
from fl_app.core.staleness import exponential
from fl_app.core.types import TRAINED, Config, GlobalModel, Update, Updates, Vector
from fl_app.schedule import k_async
from fl_app.strategy.weighted import AveragesVersions

# Metrics of an upload, and keys of an order.
ANGLE, FEEDBACK, PACE, MEAN_ANGLE = "angle", "feedback", "pace", "mean_angle"


@dataclass(kw_only=True)
class FedQS(AveragesVersions):
    """The mean of K displacements or models, in which clients that ask for it count more.

    Args:
        server_lr: factor of the step; 1 in the paper.
        form: ``"gradient"`` (displacements) or ``"model"``.
        expected_share: phi, the share of all uploads from which on feedback counts less.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> plain = Update(1, 3, np.array([3, 0], np.float32), "delta", 10, 0.5)
        >>> metrics = {"angle": 90.0, "feedback": 1.0}
        >>> asks = Update(2, 3, np.array([0, 3], np.float32), "delta", 10, 0.5, metrics=metrics)
        >>> FedQS(expected_share=0.5).aggregate(model, [plain, asks]).tolist()  # p = 10, 10 (1 + 1)
        [1.0, 2.0]
    """

    schedule = k_async(10)
    takes = TRAINED
    needs = "fl_app.algorithms.fedqs.trainer.FedQSTrainer"
    looks_at = "what every client says of its direction"
    first_state = {"uploads": {}, "angles": {}, "mean_angle": 0.0}  # u_i, theta_i, thetabar

    form: str = bounded("gradient", one_of("gradient", "model"), "no other form is known")
    expected_share: float = bounded(0.1, NON_NEGATIVE, "it is a share")

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        uploads, mean_angle = self.state["uploads"], self.state["mean_angle"]
        if client_id not in uploads or not mean_angle:
            return model.params, {}
        pace = uploads[client_id] * len(uploads) / sum(uploads.values())
        return model.params, {PACE: pace, MEAN_ANGLE: mean_angle}

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        uploads, angles = self.state["uploads"], self.state["angles"]
        for update in updates:
            uploads[update.client_id] = uploads.get(update.client_id, 0) + 1
            angles.pop(update.client_id, None)
            if 0 < update.metrics.get(ANGLE, 0.0) <= 180:  # a node computed it: it may be anything
                angles[update.client_id] = update.metrics[ANGLE]
        self.state["mean_angle"] = sum(angles.values()) / max(len(angles), 1)
        weights = np.array([self._weight(update) for update in updates])
        weights /= weights.sum()
        fresh = self.form == "model"  # measured from w_t
        moves = (model.local(u) - model.params if fresh else model.delta(u) for u in updates)
        direction = -self.average(model, weights, self.clip(model, moves))
        return self.step(model, direction, self.server_lr)

    def _weight(self, update: Update) -> float:
        """p_i, up to a common factor."""
        uploads, angle = self.state["uploads"], self.state["angles"].get(update.client_id)
        if not (angle and update.metrics.get(FEEDBACK)):
            return float(update.num_examples)
        share = uploads[update.client_id] / sum(uploads.values())
        turned = float(min(angle / self.state["mean_angle"], 2.0))
        return update.num_examples * exponential(share - self.expected_share) * (1 + turned**2)
