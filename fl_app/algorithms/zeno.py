"""Zeno++: each gradient is tested against one that the server computes on examples of its own.

Xie, Koyejo, Gupta: "Zeno++: Robust Fully Asynchronous SGD", ICML 2020, arXiv:1903.07020; in the
form of WKAFL's published code (github.com/zzh816/WKAFL-code), which compares with it.

Server, on every arrival g:

    v = gradient at w_t of a mini-batch of the server's examples, anew every k versions
    g~ = ||v|| / ||g|| g
    w_{t+1} = w_t - eta g~     if <v, g~> - rho ||g~||^2 >= -epsilon
    nothing                    otherwise

Client: the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: eta server_lr, rho penalty, epsilon tolerance, k validate_every.

Deviations: the paper's condition multiplies inner product and epsilon by its rate gamma, so its rho
is gamma times this one. The defaults are the code's but for eta, which is ours [A]: the code's
0.00005 is for inputs of 0 to 255. At versions that are multiples of k the code computes v anew for
every arrival. The age of a gradient plays no part. Buffers are not tested.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded
from fl_app.core.types import GlobalModel, Update, Updates, Vector
from fl_app.core.vector import norm
from fl_app.schedule import fully_async
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class Zeno(Stepped):
    """A step of the server's length along each gradient that agrees with the server's.

    Args:
        penalty: rho, what the square of the step's length costs.
        tolerance: epsilon, how far the score may be below 0.
        validate_every: k, versions between two gradients of the server.
        server_examples: examples that the server holds, drawn from those of all clients.
        batch_size: examples of one gradient of the server; all of them if it holds fewer.

    Raises:
        RunError: it runs where the server has no training examples.

    Examples:
        The server's gradient is (3, 4). An upload of its direction makes a step of its length;
        an opposite one is refused.

        >>> model = GlobalModel(np.zeros(2, np.float32), version=0)
        >>> along, against = (
        ...     Update(1, 0, np.array([x, y], np.float32), "gradient", 10, 0.5)
        ...     for x, y in ((6, 8), (-3, -4))
        ... )
        >>> strategy = Zeno()
        >>> strategy.prepare(lambda params, version, held, batch: np.array([3, 4], np.float32))
        >>> (10 * strategy.aggregate(model, [along])).tolist()
        [-3.0, -4.0]
        >>> strategy.admit(model, against)
        'score=-30 is below -strategy.tolerance=-0.1'
    """

    schedule = fully_async(10)
    takes = ("gradient", "pseudo")
    first_state = {"validated": None, "gradient": None}

    server_lr: float = bounded(0.1, POSITIVE, "the model would not move")
    penalty: float = bounded(0.2, NON_NEGATIVE, "long steps would be rewarded")
    tolerance: float = bounded(0.1, NON_NEGATIVE, "a step that helps could be refused")
    validate_every: int = bounded(5, COUNT, "the server would have no gradient")
    server_examples: int = bounded(100, COUNT, "the server could not test a gradient")
    batch_size: int = bounded(50, COUNT, "the server's gradient would be of nothing")

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        v = self._own(model)[: model.num_trainable]
        g = self._scaled(model, update, v)[: model.num_trainable]
        score = float(np.vdot(v, g)) - self.penalty * norm(g) ** 2
        if score >= -self.tolerance:
            return None
        return f"score={score:.3g} is below -strategy.tolerance={-self.tolerance:g}"

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        v = self._own(model)[: model.num_trainable]
        steps = [self._scaled(model, update, v) for update in updates]
        return self.step(model, self.average(model, np.ones(len(steps)), steps), self.server_lr)

    def _own(self, model: GlobalModel) -> Vector:
        """v, shape ``(d,)``; a new one if it is k versions old."""
        validated: int | None = self.state["validated"]
        if validated is None or model.version >= validated + self.validate_every:
            held, batch = self.server_examples, self.batch_size
            v = self._server_gradient(model.params, model.version, held, batch)
            self.state |= {"validated": model.version, "gradient": v}
        return self.state["gradient"]

    def _scaled(self, model: GlobalModel, update: Update, v: Vector) -> Vector:
        """g~, shape ``(d,)``: the trainable part has the length of v."""
        (g,) = self.gradients(model, [update])
        scaled = g.copy()
        length = norm(g[: v.size])
        scaled[: v.size] *= norm(v) / length if length > 0 else 0.0
        return scaled
