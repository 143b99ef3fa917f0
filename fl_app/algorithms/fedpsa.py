"""FedPSA: an update counts by how alike its model and the global one react to their parameters.

Lu: "FedPSA: Modeling Behavioral Staleness in Asynchronous Federated Learning", arXiv:2602.15337,
Algorithm 1.

Server, once K updates Delta_i = w_i - w_o have arrived:

    w_{t+1} = w_t + sum_i p_i Delta_i,    p = softmax(kappa / T),  or  p_i = 1/K until M_0 is known
    kappa_i = cos(R s(w_i), R s(w_t)),    s(w) = | g w - 1/2 g^2 w^2 |  by entry
    T = gamma M / M_0 + delta

g is the gradient at w of the loss of a calibration batch that all share, g^2 stands for the
diagonal of its Fisher information, and R is a fixed random matrix of k rows. M is the mean of the
last L squared lengths |Delta|^2, and M_0 is M when there were L for the first time. Client: SGD.

Symbols: K schedule.buffer_size, k sketch_size, L queue_length, gamma temperature_slope, delta
min_temperature.

Deviations: the equations are those of a public implementation (FedProC) and a review; the paper's
text was not available. In the paper a client computes R s(w_i) on a public calibration batch and
uploads it; here the server computes it from the upload, on examples of its own, so that nothing
more travels, at the cost of K + 1 gradients a version. `sketch_size` None leaves R out: kappa_i is
then the cosine that the paper's estimates. K is 5 in the paper. server_lr multiplies the step.
`clip_norm` bounds Delta_i, but not the w_i of kappa_i.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded, or_none
from fl_app.core.types import TRAINED, GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import cosines, norm
from fl_app.schedule import Buffered
from fl_app.strategy.weighted import AveragesVersions

SKETCH = 0x505341  # seed of R


@dataclass(kw_only=True)
class FedPSA(AveragesVersions):
    """Displacements weighted by the cosine of their models' sensitivities with the global one's.

    Args:
        temperature_slope: gamma; 0 = the temperature stays delta.
        min_temperature: delta.
        queue_length: L, updates.
        sketch_size: k; None = sensitivities are compared whole.
        server_examples: of the calibration batch, drawn from those of all clients.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Raises:
        RunError: it runs where the server has no training examples.

    Examples:
        >>> model = GlobalModel(np.ones(2, np.float32), version=3)
        >>> updates = [Update(k, 3, np.eye(2, dtype="f")[k], "delta", 10, 0.5) for k in (0, 1)]
        >>> strategy = FedPSA(queue_length=2, sketch_size=None)
        >>> strategy.prepare(lambda params, *rest: np.array([1, 0], np.float32))
        >>> strategy.aggregate(model, updates).round(3)  # s = [0, 0], [1/2, 0]; T = 5.5
        array([1.455, 1.545], dtype=float32)
    """

    schedule = Buffered(concurrency=10, buffer_size=10)
    takes = TRAINED
    looks_at = "a gradient at the model of every client"
    first_state = {"lengths": [], "first": None}  # the last L squared lengths, and M_0

    temperature_slope: float = bounded(5.0, NON_NEGATIVE, "weights could turn round")
    min_temperature: float = bounded(0.5, POSITIVE, "similarities are divided by it")
    queue_length: int = bounded(50, COUNT, "no length would be known")
    sketch_size: int | None = bounded(16, or_none(COUNT), "nothing could be compared")
    server_examples: int = bounded(100, COUNT, "there would be no gradient to compare")

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        deltas = self.deltas(model, updates)
        squares = [norm(delta[: model.num_trainable]) ** 2 for delta in deltas]
        lengths = self.state["lengths"] = [*self.state["lengths"], *squares][-self.queue_length :]
        mean = sum(lengths) / len(lengths)
        if self.state["first"] is None and len(lengths) == self.queue_length:
            self.state["first"] = mean
        similarities, first = self._similarities(model, updates), self.state["first"]
        weights = np.ones(len(updates))
        if first:  # not None, and not of models that stood still
            temperature = self.temperature_slope * mean / first + self.min_temperature
            weights = np.exp((similarities - similarities.max()) / temperature)
            self.report["temperature"] = temperature
        weights /= weights.sum()
        return self.step(model, -self.average(model, weights, deltas), self.server_lr)

    def _similarities(self, model: GlobalModel, updates: Updates) -> Numbers:
        """kappa of K updates, shape ``(K,)``."""
        rows = []
        for params in (model.params, *(model.local(update) for update in updates)):
            gradient = self._server_gradient(params, 0, self.server_examples, self.server_examples)
            product = (gradient * params)[: model.num_trainable].astype(np.float64)
            rows.append(np.abs(product - product**2 / 2))
        sensitivities = np.stack(rows)
        if self.sketch_size is not None:  # row by row: R may be larger than all uploads
            rng = np.random.default_rng(SKETCH)
            draws = (rng.standard_normal(sensitivities.shape[1]) for _ in range(self.sketch_size))
            sensitivities = np.stack([sensitivities @ draw for draw in draws], axis=1)
        lengths = np.linalg.norm(sensitivities, axis=1)
        return cosines(sensitivities[1:] @ sensitivities[:1].T, lengths[1:], lengths[:1])[:, 0]
