"""CANA: gradients weighted by age, and calibrated by memories of clients as far as these help.

Calibrated by age, normalised. An algorithm of this project. It puts together the freshness mean
(`fl_app.algorithms.dynsgd` with another exponent), the control variate of CA2FL
(`fl_app.algorithms.ca2fl`) with a coefficient that is measured, and, on demand, FedHist's fusion
(`fl_app.algorithms.fedhist`).

Server, once K uploads have arrived, with s_c the version that h_c was computed on:

    a_i = (1 + tau_i)^(-p) / sum_j (1 + tau_j)^(-p)
    M   = {c : heard, t - s_c <= A},   b_c = (1 + t - s_c)^(-p) / sum_{c' in M} (1 + t - s_c')^(-p)
    H   = sum_{c in M} b_c h_c,        R = {i : c(i) in M}
    b^  = clip( sum_R <g_i - gbar, h_c(i) - hbar> / sum_R ||h_c(i) - hbar||^2, 0, 1 )
    beta <- (1 - rho) beta + rho b^            beta = b^ at first
    v   = sum_i a_i g_i - beta sum_R a_i h_c(i) + beta (sum_R a_i) H
    w_{t+1} = w_t - eta v,    h_c(i) <- g_i,   s_c(i) <- o_i

gbar and hbar are means over R. b^ is the least-squares coefficient of the gradients on the
memories. There is none if R has fewer than two uploads or all their memories are equal; beta is 0
until there was one.

With fusion alpha > 0 each g_i in v is g_i + alpha V_k. V_k is the one of the last L steps v whose
cosine with g_i is smallest, of equal ones the oldest. Nothing is added before there are L. Steps
are kept as they were before `normalise`.
With `fusion_falls` alpha is alpha min(1, L K / N): with more clients, gradients are older, and the
last L steps say less about them. With `normalise` the step is as long as the gradients are:

    w_{t+1} = w_t - eta v / ||v|| mean_i ||g_i||

With `fair` a client that takes part rarely counts more, as in FedStaleWeight
(`fl_app.algorithms.fedstaleweight`), and an upload loses weight only as far as it is older than
its client's uploads are on average:

    E_c = (T_c + T / n) / (n_c + 1)
    a_i = m_i / sum_j m_j,   m_i = (K E_c(i) + 1) ((1 + tau_i) / (1 + E_c(i)))^(-p)

T_c is the sum of the ages of the n_c uploads of client c, those at hand included. T and n are the
same over all clients. So a client's mean age begins near that of all clients, and a few uploads
change it little.

With `averaging` a mean of the versions is tested and saved (`fl_app.strategy.weighted`).

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, tau_i = t - o_i the age, o_i the version that upload i started from, h_c the
last gradient of client c that was aggregated, p exponent, A = memory_span N / K, N num_clients,
c(i) the client of upload i, beta calibration, rho = 0.1, alpha fusion, L fusion_length.

Deviations: none, there is no paper. (1 + age)^(-p) of a memory is a sum of exponentials, within
1e-6 of itself (`fl_app.strategy.memories`). Limits: p = 0 and beta = 0 is the mean of K
gradients; p = 1 and beta = 0 is DynSGD; p = 0, any age and beta = 1 is CA2FL once everybody was
heard (before, a memory stands in only for uploads whose clients have one). Both uploads of a client
that is in a buffer twice are compared with the memory from before. A memory that was once older
than A stays out of M until its client's next upload, also where A grows because K or N changes. A
v shorter than 1e-12 is not normalised. Buffers such as BatchNorm's are not remembered: they take
the weighted mean of the uploads.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, UNIT_INTERVAL, bounded, or_none, within
from fl_app.core.staleness import polynomials
from fl_app.core.types import GlobalModel, Numbers, Updates, Vector
from fl_app.core.vector import combine, norm, slope, weighted_sum
from fl_app.strategy.memories import RemembersClients
from fl_app.strategy.weighted import AveragesVersions, keep_step, opposed

RATE = 0.1  # rho
SHORTEST = 1e-12  # the direction of a shorter v is rounding noise


@dataclass(kw_only=True)
class CANA(RemembersClients, AveragesVersions):
    """One step along the age-weighted mean of K gradients, calibrated by clients' memories.

    The server keeps the last gradient of every client, 4 N d bytes or 2 N d, and up to 25 sums of
    them, 4 d bytes each.

    Args:
        exponent: how fast weights fall with age; 0 = not at all.
        memory_span: A K / N, where A is the greatest age of a memory that counts; None = any age.
        calibration: beta; None = it is measured.
        fusion: alpha; 0 = past steps are not added.
        fusion_length: L, number of past steps.
        fusion_falls: whether alpha is multiplied by min(1, L K / N).
        normalise: whether a step has the mean length of the gradients.
        fair: whether clients that rarely take part count more.
        averaging: how much more later versions count in their mean; None = the last one is tested.
        num_clients: N; None = the clients whose uploads were aggregated so far.
        memory_dtype: type of the kept numbers, ``"float32"`` or ``"float16"``.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fresh = Update(1, 3, np.array([3, 0], np.float32), "pseudo", 10, 0.5)
        >>> stale = Update(2, 0, np.array([0, 3], np.float32), "pseudo", 30, 0.5)
        >>> CANA().aggregate(model, [fresh, stale]).tolist()  # weights 1 / 1.5 and 0.5 / 1.5
        [-2.0, -1.0]
    """

    cuts = True
    first_state = {
        "measured": None,
        "num_past": 0,
        "age_sums": {},
        "age_counts": {},
    }

    exponent: float = bounded(0.5, within("[0, 2]"), "staler updates would count more or hardly")
    memory_span: float | None = bounded(3.0, or_none(POSITIVE), "no memory would count")
    calibration: float | None = bounded(
        None, UNIT_INTERVAL, "it is the share of the memories that is used"
    )
    fusion: float = bounded(0.0, NON_NEGATIVE, "history would be subtracted")
    fusion_length: int = bounded(10, COUNT, "it is a number of steps")
    fusion_falls: bool = False
    normalise: bool = False
    fair: bool = False

    @property
    def memory_weight(self) -> float:
        return self.exponent

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        memory, split = self.memory, model.num_trainable
        uploads = self.gradients(model, updates)
        gradients = [upload[:split] for upload in uploads]
        weights = self._weights(model, updates)
        direction, lengths = self._fused(weights, gradients, updates)
        matched = self._matched(model, updates)
        memories = {place: memory.row(updates[place].client_id) for place in matched}
        beta = self._coefficient(gradients, memories)
        self.report["calibration"], self.report["matched"] = beta, len(matched)
        if beta > 0 and matched:
            calibration = self._calibration(model.version, weights, memories, beta)
            direction += self.of_updates(calibration, updates)
        self.remember(updates, uploads, split)
        if self.fusion > 0:
            keep_step(self.state, direction, norm(direction), self.fusion_length)
        if self.normalise and (length := norm(direction)) >= SHORTEST:
            direction *= np.float32(lengths.mean() / length)
        direction = self.complete(model, direction, weights, uploads)
        return self.step(model, direction, self.server_lr)

    def _weights(self, model: GlobalModel, updates: Updates) -> Numbers:
        """a_i, shape ``(K,)``."""
        weights = polynomials(model, updates, self.exponent)
        if self.fair:
            mean = self._mean_ages(model, updates)
            weights *= (len(updates) * mean + 1) * (mean + 1) ** self.exponent
        return weights / weights.sum()

    def _mean_ages(self, model: GlobalModel, updates: Updates) -> Numbers:
        """E_c of each update's client, shape ``(K,)``."""
        sums: dict[int, int] = self.state["age_sums"]
        counts: dict[int, int] = self.state["age_counts"]
        for update in updates:
            sums[update.client_id] = sums.get(update.client_id, 0) + model.age(update)
            counts[update.client_id] = counts.get(update.client_id, 0) + 1
        overall = sum(sums.values()) / sum(counts.values())
        clients = [update.client_id for update in updates]
        return np.array([(sums[c] + overall) / (counts[c] + 1) for c in clients])

    # -- calibration ------------------------------------------------------------------------------

    def _matched(self, model: GlobalModel, updates: Updates) -> list[int]:
        """Places of the updates whose clients are in M; memories that are too old leave it."""
        memory = self.memory
        if self.memory_span is not None:
            since = model.version - self.memory_span * self.population(updates) / len(updates)
            memory.forget_before(since)
        return [i for i, update in enumerate(updates) if memory.counts(update.client_id)]

    def _coefficient(self, gradients: Sequence[Vector], memories: dict[int, Vector]) -> float:
        """beta, with b^ of this aggregation if there is one."""
        if self.calibration is not None:
            return self.calibration
        measured: float | None = self.state["measured"]
        if len(memories) >= 2:
            fit = slope([gradients[place] for place in memories], list(memories.values()))
            if fit is not None:
                fit = min(max(fit, 0.0), 1.0)
                measured = fit if measured is None else (1 - RATE) * measured + RATE * fit
                self.state["measured"] = measured
        return measured or 0.0

    def _calibration(
        self, now: int, weights: Numbers, memories: dict[int, Vector], beta: float
    ) -> Vector:
        """beta (sum_R a_i) H - beta sum_R a_i h_c(i), shape ``(num_trainable,)``."""
        total, mass = self.memory.weighted(now)
        matched = weights[list(memories)]
        total *= beta * matched.sum() / mass
        total -= weighted_sum(beta * matched, list(memories.values()))
        return total.astype(np.float32)

    # -- fusion -----------------------------------------------------------------------------------

    def _fusion(self, updates: Updates) -> float:
        """alpha of this aggregation."""
        if not self.fusion_falls:
            return self.fusion
        return self.fusion * min(1.0, self.fusion_length * len(updates) / self.population(updates))

    def _fused(
        self, weights: Numbers, gradients: Sequence[Vector], updates: Updates
    ) -> tuple[Vector, Numbers]:
        """sum_i a_i g_i, where each g_i has the most opposite past step added; and ||g_i||."""
        fusion, added = self._fusion(updates), None
        if fusion == 0 or self.state["num_past"] < self.fusion_length:
            direction, lengths, _ = combine(weights, gradients)
        else:
            direction, added, lengths, _ = opposed(self.state, weights, gradients, fusion)
        direction = self.by_entry(direction, weights, updates)
        if added is not None:
            direction += self.of_updates(added, updates)
        self.describe(weights, lengths, norm(direction))
        return direction, lengths
