"""WKAFL: K-asynchronous learning that selects gradients by similarity to an estimated unbiased one.

Zhou, Li, Ren, Yang: "Towards Efficient and Stable K-Asynchronous Federated Learning with Unbounded
Stale Gradients on Non-IID Data", IEEE TPDS 2022, arXiv:2203.01214, Algorithm 2, eq. 4-10.

Server, once K uploads have arrived, at version t:

    g_i <- g_i + alpha G                                      momentum (4)
    g_i <- g_i min(1, CB / ||g_i||)
    a_i  = (e/2)^(-tau_i),   gbar = sum_i a_i g_i / sum_i a_i     estimate (5)
    s_i  = cos(g_i, gbar)                                     similarity (6)
    q_i  = exp(beta s_i)  if s_i >= s_min,  else 0            selection (7)
    p_i  = q_i / sum_j q_j                                    (8)
    g_i <- g_i min(1, B ||gbar|| / ||g_i||)                   only in stage two (9)
    w_{t+1} = w_t - eta sum_i p_i g_i,   eta = eta_0 / (1 + gamma min_i tau_i)     (10)
    G   <- gbar

Stage two begins once the clients' mean loss is at most eps, or with version N. It does not end.

Client: g_i, the gradient of one mini-batch at w_o, or (w_o - w_i) / (sum of local learning rates).

Symbols: alpha momentum, CB clip_norm, tau_i = t - o the age, beta similarity_sharpness, s_min
min_similarity, B relative_clip, eta_0 server_lr, gamma lr_decay, eps stage_two_loss, N
stage_two_at. The state between aggregations is G and the stage.

Deviations: if no gradient passes the selection, the step is along gbar (0/0 in eq. 8). A cosine
with a zero vector is 0. The mean loss decides on stage two, as in the text, not the sum of
Algorithm 2, line 10. By default a fixed version decides, as in the published code. Two choices of
that code are options: ``momentum_source="aggregated"`` (sum_i p_i g_i becomes G, as section 5 of
the paper needs) and ``reuse_staleness_weight`` (q_i a_i in place of q_i).

Defects of the published code are not followed: a client receives the server's own tensor, so every
gradient after a client's first is fresh but labelled stale; stage two clips to length 0 or raises;
on two data sets momentum doubles the gradient; tau counts from 1 in eq. 10.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, bounded, one_of, or_none, within
from fl_app.core.staleness import freshness
from fl_app.core.types import GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import cosines, norm, weighted_sum
from fl_app.schedule import k_async
from fl_app.strategy.weighted import Stepped


@dataclass(kw_only=True)
class WKAFL(Stepped):
    """Estimates the unbiased gradient from fresh ones, and averages those that agree with it.

    The defaults are those of the published code for MNIST, except two: the code has server_lr 0.005
    and clip_norm 100 for inputs of 0 to 255; the values here are for inputs of 0 to 1 [A].

    Args:
        momentum: alpha.
        similarity_sharpness: beta.
        lr_decay: gamma, the fall of the rate with the smallest age.
        min_similarity: s_min.
        clip_norm: CB, the largest norm of an upload, > 0; None = any length.
        relative_clip: B, the largest norm in stage two, over that of gbar.
        stage_rule: what begins stage two, ``"iteration"`` or ``"mean_loss"``.
        stage_two_at: N, the first version of stage two.
        stage_two_loss: eps, the mean loss that begins stage two.
        momentum_source: what becomes G, ``"estimated"`` (gbar) or ``"aggregated"`` (sum_i p_i g_i).
        reuse_staleness_weight: whether q_i is multiplied by a_i.
        select: False = no selection and no stage two: the step is along gbar.
        staleness: False sets a_i = 1 and gamma = 0.
        history: False sets alpha = 0.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([2, 0], np.float32), "gradient", 10, 0.5)
        >>> stale = Update(2, 2, np.array([-2, 0], np.float32), "gradient", 30, 0.5)
        >>> strategy = WKAFL(server_lr=1.0)
        >>> strategy.aggregate(model, [fresh, stale]).tolist()
        [-2.0, 0.0]
        >>> strategy.report["kept"]
        1
    """

    schedule = k_async(10)
    looks_at = "the length and the direction of every gradient"
    first_state = {"stage": 1}  # and "momentum", G, from the first aggregation on

    server_lr: float = bounded(0.2, POSITIVE, "the model would not move")
    momentum: float = bounded(0.1, NON_NEGATIVE, "history would be subtracted")
    similarity_sharpness: float = bounded(
        10.0, NON_NEGATIVE, "gradients unlike the estimate would be preferred"
    )
    lr_decay: float = bounded(0.1, NON_NEGATIVE, "staler gradients would go further")
    min_similarity: float = bounded(0.3, within("[-1, 1]"), "it is a cosine")
    clip_norm: float | None = bounded(3.0, or_none(POSITIVE), "nothing would be left of an upload")
    relative_clip: float = bounded(10.0, POSITIVE, "nothing would be left in stage two")
    stage_rule: str = bounded(
        "iteration", one_of("iteration", "mean_loss"), "no other rule is known"
    )
    stage_two_at: int = bounded(1000, COUNT, "versions count from 1")
    stage_two_loss: float = bounded(0.3, NON_NEGATIVE, "losses are not negative")
    momentum_source: str = bounded(
        "estimated", one_of("estimated", "aggregated"), "no other gradient can be remembered"
    )
    reuse_staleness_weight: bool = False
    select: bool = True
    staleness: bool = True
    history: bool = True

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        ages = [model.age(update) for update in updates]
        uploads = [model.gradient(update) for update in updates]
        gradients = np.stack([upload[: model.num_trainable] for upload in uploads])
        if "momentum" in self.state:
            gradients += np.float32(self.momentum) * self.state["momentum"]
        lengths = _clip(gradients, np.array([norm(g) for g in gradients]), self.clip_norm)

        fresh = freshness(ages if self.staleness else [0] * len(ages))
        estimate = weighted_sum(fresh, list(gradients))
        estimate_length = norm(estimate)
        self._begin_stage_two(model, updates)
        weights, direction = fresh, estimate
        if self.select:
            products = (gradients @ estimate)[:, None]
            similarity = cosines(products, lengths, [estimate_length])[:, 0]
            selected = similarity >= self.min_similarity
            self.report["kept"] = int(selected.sum())
            if selected.any():
                # Relative to the largest exponent, so that nothing overflows.
                q = np.exp(self.similarity_sharpness * (similarity - similarity.max()))
                q = q * fresh if self.reuse_staleness_weight else q
                weights = np.where(selected, q, 0.0)
                weights /= weights.sum()
                if self.state["stage"] == 2:
                    lengths = _clip(gradients, lengths, self.relative_clip * estimate_length)
                direction = weighted_sum(weights, list(gradients))
        self.describe(weights, lengths, norm(direction))
        self.report["stage"] = self.state["stage"]

        if self.history:
            aggregated = self.momentum_source == "aggregated"
            self.state["momentum"] = direction if aggregated else estimate
        decay = self.lr_decay if self.staleness else 0.0
        direction = self.complete(model, direction, weights, uploads)
        return self.step(model, direction, self.server_lr / (1 + decay * min(ages)))

    def _begin_stage_two(self, model: GlobalModel, updates: Updates) -> None:
        if self.stage_rule == "iteration":
            begins = model.version + 1 >= self.stage_two_at
        else:
            begins = float(np.mean([update.loss for update in updates])) <= self.stage_two_loss
        if begins:
            self.state["stage"] = 2


def _clip(rows: Vector, lengths: Numbers, bound: float | None) -> Numbers:
    """Shorten rows longer than `bound` in place; returns the new lengths."""
    if bound is None:
        return lengths
    for row, length in zip(rows, lengths, strict=True):
        if length > bound:
            row *= np.float32(bound / length)
    return np.minimum(lengths, bound)
