"""FedHist: buffered history stabilises gradients, weighs clients and sets the step's length.

Jiang, Xu, Gao, Liao, Zhou: "Take History as a Mirror in Heterogeneous Federated Learning",
arXiv:2312.10425v1, Algorithm 1, eq. 4-15.

Server, in round r = t + 1, once K uploads (i, g_i, tau_i) have arrived; L_0..L_{h-1} are the
uploads of the last h rounds, this round's last, and G holds the steps g of the h rounds before:

    EGS (once G is full)   g~_i = g_i + alpha argmin_{G_k} cos(g_i, G_k)          (6, 7)
    HAA                    ph_i = max(0, (e/2)^(-tau_i) + lambda U_i)              (8)
                           p_i = ph_i / sum_j ph_j,    g = sum_i p_i g~_i          (9)
    INA                    g <- g / ||g|| max(1 - mu r, floor) mean_i ||g_i||      (15)
    w_{t+1} = w_t - eta g

    then, once L is full, on L_0, the oldest round kept:
    S      = uploads of L_k with tau = k + 1, k = 0..h-1; all began at version r - h    (10)
    gpred  = mean of S                                                             (11)
    c      = cos(g_i, gpred),    e_i = (e/2)^(-tau_i)                              (12)
    Util_i = (c - c_0) |S| (1 - e_i  if c >= c_0,  else e_i)                       (13)
    U_i   <- (1 - gamma) U_i + gamma Util_i                                        (14)

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: h buffer_length, alpha fusion, tau_i = t - o + 1 >= 1 the staleness, lambda
utility_weight, U_i = 0 at first, mu norm_decay, floor norm_floor, eta server_lr, c_0
similarity_threshold, gamma utility_rate.

Options for what the paper leaves open, with the default first: ``aggregate_raw`` (g~_i are
aggregated; or g_i, as line 16 of Algorithm 1 has it), ``ina_norm`` (the mean of ||g_i||; or of
||g~_i||), ``egs_partial`` (EGS begins once G is full; or with what is there), ``extra_slot`` (h
rounds are kept, this one included, so that round r - h + 1 is judged; or h + 1 rounds and round
r - h, as the text has it), ``cache_before_ina`` (G holds steps with their final length; or before
INA), ``decay_absent`` (U_i of clients that are not judged stays; or falls by 1 - gamma).
Not in the paper: with `averaging` a mean of the versions is tested and saved
(`fl_app.strategy.weighted`).

Deviations: eq. 8 as printed sums over the clients that it weighs. The reward in eq. 13 as printed,
(1 - e/2)^(-tau), changes its sign with every version and diverges; according to the text it grows
with the staleness. Algorithm 1 aggregates g_i, the text g~_i. The floor keeps the step from
changing its sign. Weights are equal if all ph_i are 0. With h = 0 only (e/2)^(-tau) and INA remain.
The paper prints no hyper-parameter's value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fl_app.core.hyper import (
    NON_NEGATIVE,
    POSITIVE,
    SHARE,
    UNIT_INTERVAL,
    bounded,
    count,
    one_of,
    within,
)
from fl_app.core.staleness import exponential, freshness
from fl_app.core.types import GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import combine, cosines, norm, weighted_sum
from fl_app.schedule import Schedule, k_async
from fl_app.strategy.weighted import AveragesVersions, keep_step, opposed

NORM_FLOOR = 0.05
SHORTEST = 1e-12  # the direction of a shorter g is rounding noise


@dataclass(kw_only=True)
class FedHist(AveragesVersions):
    """Fuses gradients with opposite past ones, weighs clients in hindsight, keeps steps long.

    The server keeps the last ``h K`` uploads and the last h steps: 4 h (K + 1) d bytes.

    Args:
        buffer_length: h, rounds.
        fusion: alpha, how much of the most opposite past step is added.
        utility_weight: lambda; a utility lies between -(1 + |c_0|) |S| and (1 + |c_0|) |S|.
        utility_rate: gamma, the rate of the running mean of utilities.
        norm_decay: mu, per round.
        norm_floor: floor of INA; None = 0.05, and a longer run than 1 / mu is refused.
        similarity_threshold: c_0.
        egs: False sets alpha = 0.
        haa: False sets lambda = 0.
        ina: False leaves the length of g as it is.
        aggregate_raw: whether g_i are aggregated instead of g~_i, so that EGS moves nothing.
        ina_norm: lengths that INA takes the mean of, ``"raw"`` (||g_i||) or ``"fused"`` (||g~_i||).
        egs_partial: whether EGS begins before G is full.
        extra_slot: whether h + 1 rounds of uploads are kept, and the one before is judged.
        cache_before_ina: whether G holds the steps before INA.
        decay_absent: whether utilities of clients that are not judged fall by 1 - gamma.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> update = Update(1, 3, np.array([3, 4], np.float32), "pseudo", 10, 0.5)
        >>> FedHist(server_lr=1.0).aggregate(model, [update]).round(3)
        array([-2.999, -3.998], dtype=float32)
    """

    schedule = k_async(10)
    looks_at = "the direction of every gradient"
    cuts = True
    # L without its first round, which is not needed after its judgement; U. The rows of G are
    # replaced in turn.
    first_state = {"local": [], "num_past": 0, "utility": {}}

    server_lr: float = bounded(0.7, POSITIVE, "the model would not move")
    buffer_length: int = bounded(10, count(0), "it is a number of rounds")
    fusion: float = bounded(0.3, NON_NEGATIVE, "history would be subtracted")
    utility_weight: float = bounded(0.1, NON_NEGATIVE, "useful clients would count less")
    utility_rate: float = bounded(0.1, UNIT_INTERVAL, "it is a share")
    norm_decay: float = bounded(1e-4, NON_NEGATIVE, "steps would grow without bound")
    norm_floor: float | None = bounded(None, SHARE, "it is the fraction of the length that is left")
    similarity_threshold: float = bounded(0.3, within("[-1, 1]"), "it is a cosine")
    egs: bool = True
    haa: bool = True
    ina: bool = True
    aggregate_raw: bool = False
    ina_norm: str = bounded("raw", one_of("raw", "fused"), "no other lengths are known")
    egs_partial: bool = False
    extra_slot: bool = False
    cache_before_ina: bool = False
    decay_absent: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.egs = self.egs and self.buffer_length > 0
        self.haa = self.haa and self.buffer_length > 0

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        harmless = not self.ina or self.norm_floor is not None or self.norm_decay == 0
        harmless = harmless or math.isinf(num_versions)  # unknown: INA's floor bounds it
        fits = harmless or self.norm_decay * num_versions < 1
        bound = (
            f"below 1 / num_versions={1 / num_versions:g}, or algorithm.strategy.norm_floor be set"
        )
        reason = "steps would shrink to nothing before the run ends"
        self._require(fits, "norm_decay", bound, reason)

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        uploads = self.gradients(model, updates)
        clients = [update.client_id for update in updates]
        staleness = [model.age(update) + 1 for update in updates]
        weights = self._weights(clients, staleness)
        gradients = [upload[: model.num_trainable] for upload in uploads]
        if self.egs and self.state["num_past"] >= (1 if self.egs_partial else self.buffer_length):
            direction, added, lengths, fused_lengths = opposed(
                self.state, weights, gradients, self.fusion
            )
        else:
            direction, lengths, _ = combine(weights, gradients)
            added, fused_lengths = None, lengths
        direction = self.by_entry(direction, weights, updates)
        if added is not None and not self.aggregate_raw:
            direction += self.of_updates(added, updates)
        length = norm(direction)
        self.describe(weights, lengths, length)
        if self.egs and self.cache_before_ina:
            keep_step(self.state, direction, length, self.buffer_length)
        if self.ina and length >= SHORTEST:
            mean = float((fused_lengths if self.ina_norm == "fused" else lengths).mean())
            floor = NORM_FLOOR if self.norm_floor is None else self.norm_floor
            target = max(1 - self.norm_decay * (model.version + 1), floor) * mean
            direction *= np.float32(target / length)
            length = target
        if self.egs and not self.cache_before_ina:
            keep_step(self.state, direction, length, self.buffer_length)
        if self.haa:
            local = self.state["local"]
            local.append(
                {
                    "client": clients,
                    "staleness": staleness,
                    "length": lengths.tolist(),
                    "gradient": gradients,  # the uploads themselves, which are read-only
                }
            )
            if len(local) == self.buffer_length + self.extra_slot:
                self._judge(local)
                del local[0]
        direction = self.complete(model, direction, weights, uploads)
        return self.step(model, direction, self.server_lr)

    # -- HAA --------------------------------------------------------------------------------------

    def _weights(self, clients: Sequence[int], staleness: Sequence[int]) -> Numbers:
        """p_i, shape ``(K,)``."""
        if not self.haa:
            return freshness(staleness)
        utilities = [self.state["utility"].get(client, 0.0) for client in clients]
        self.report["utility"] = utilities
        raw = np.array([exponential(tau) for tau in staleness])
        raw = np.maximum(raw + self.utility_weight * np.array(utilities), 0.0)
        return raw / raw.sum() if raw.any() else np.full(len(raw), 1 / len(raw))

    def _judge(self, local: Sequence[Mapping[str, Any]]) -> None:
        """Compare the oldest round with the gradient that S predicts."""
        reference = [
            row
            for k, uploads in enumerate(local)
            for row, tau in zip(uploads["gradient"], uploads["staleness"], strict=True)
            if tau == k + 1
        ]
        size = len(reference)
        self.report["reference_size"] = size
        if not reference:
            return
        predicted = weighted_sum(np.full(size, 1 / size), reference)
        oldest, threshold = local[0], self.similarity_threshold
        products = np.array([[np.dot(g, predicted)] for g in oldest["gradient"]])
        cosine = cosines(products, oldest["length"], [norm(predicted)])[:, 0]
        if self.decay_absent:
            for client in self.state["utility"].keys() - set(oldest["client"]):
                self.state["utility"][client] *= 1 - self.utility_rate
        for client, tau, c in zip(oldest["client"], oldest["staleness"], cosine, strict=True):
            stale = exponential(tau)
            gain = float(c - threshold) * size * (1 - stale if c >= threshold else stale)
            before = self.state["utility"].get(client, 0.0)
            self.state["utility"][client] = (
                1 - self.utility_rate
            ) * before + self.utility_rate * gain
