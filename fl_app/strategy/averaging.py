"""A mean of the versions, which is tested and saved in place of the last one."""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import at_least, bounded, or_none
from fl_app.core.types import GlobalModel, Vector
from fl_app.strategy.strategy import AsyncStrategy


@dataclass(kw_only=True)
class AveragesVersions(AsyncStrategy):
    """A server that can test and save a mean of its versions; clients receive w_t as before.

        m_{t+1} = m_t + (e + 1) / (t + e + 1) (w_{t+1} - m_t),    m_1 = w_1

    A version counts in the mean by about its e-th power. Source: Shamir, Zhang: "Stochastic
    Gradient Descent for Non-smooth Optimization: Convergence Results and Optimal Averaging
    Schemes", ICML 2013. The server keeps one more vector: 4 d bytes.
    Buffers such as BatchNorm's are averaged like the rest, and not measured anew.

    Args:
        averaging: e; None = the last version is tested and saved.
    """

    averaging: float | None = bounded(
        None, or_none(at_least(0)), "early versions would count more than late ones"
    )

    def step(self, model: GlobalModel, direction: Vector, server_lr: float) -> Vector:
        """The next version as of `Algorithm.step`, which the mean takes in."""
        params = super().step(model, direction, server_lr)
        if self.averaging is not None:
            before = self.state.get("mean", params)
            share = np.float32((self.averaging + 1) / (model.version + self.averaging + 1))
            self.state["mean"] = before + share * (params - before)
        return params

    def to_evaluate(self, model: GlobalModel) -> Vector:
        mean: Vector = self.state.get("mean", model.params)
        return mean
