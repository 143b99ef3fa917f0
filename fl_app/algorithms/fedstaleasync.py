"""FedStaleAsync: memories of clients, discounted by age and corrected for unequal participation.

From the implementation AsyncFlower (2026), no paper. Low confidence.

Server, once K uploads have arrived, with B the buffer, tau_c = t - s_c the age of a memory and
tau_i that of an upload:

    v = (1/N) ( sum_c beta(tau_c) h_c
                + sum_{i in B} [ alpha(tau_i) g_i - mean beta_c(i) h_c(i) ] / p_c(i) )
    w_{t+1} = w_t - eta v
    h_c(i) <- g_i,   s_c(i) <- o_i
    p_c <- (1 - rho) p_c + rho (number of uploads of c in B)

    alpha(tau) = (1 + tau)^(-a),   beta(tau) = (1 + tau)^(-b)

mean beta_c is the mean of beta(tau_c) over the aggregations since h_c was kept, this one included.
p_c = K / N at first. v divides by max(p_c, K / (10 N)).

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, N num_clients, a upload_exponent, b memory_exponent, rho
participation_rate, h_c the last gradient of client c (0 until it was heard), s_c the version that
it was computed on.

Deviations: p_c is the estimate from before the aggregation, and its running mean and lower bound
are ours [A]; AsyncFlower has several estimators. Its N counts the clients heard, or it weighs by
examples. Both uploads of a client that is in a buffer twice are compared with the memory from
before. Buffers such as BatchNorm's are not remembered: they take the mean of the uploads. With
a = b = rho = 0 it is CA2FL over all N clients.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import NON_NEGATIVE, UNIT_INTERVAL, bounded, within
from fl_app.core.staleness import polynomial, polynomials
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.core.vector import norm
from fl_app.strategy.memories import RemembersClients

MIN_SHARE = 0.1  # of K / N, below which no participation is estimated


@dataclass(kw_only=True)
class FedStaleAsync(RemembersClients):
    """One step along all clients' memories and K gradients, over their clients' participation.

    The server keeps the last gradient of every client, 4 N d bytes or 2 N d, and up to 25 sums of
    them, 4 d bytes each.

    Args:
        upload_exponent: a, how fast an upload's weight falls with its age.
        memory_exponent: b, how fast a memory's weight falls with its age.
        participation_rate: rho, of the running means p_c; 0 = p_c stays K / N.
        num_clients: N; None = the clients whose uploads were aggregated so far.
        memory_dtype: type of the kept numbers, ``"float32"`` or ``"float16"``.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> stale = Update(1, 0, np.array([4, 0], np.float32), "pseudo", 10, 0.5)
        >>> strategy = FedStaleAsync(num_clients=2)
        >>> strategy.aggregate(model, [stale]).tolist()  # 1/2 (1/2 4) / (1/2)
        [-2.0, 0.0]
    """

    first_state = {
        "participation": {},  # client that was heard -> p_c
        "others": None,  # p_c of everybody else
        "discounts": {},  # client -> sum of beta(tau_c) since its memory was kept, and number
    }

    upload_exponent: float = bounded(0.5, NON_NEGATIVE, "staler updates would count more")
    memory_exponent: float = bounded(0.5, within("[0, 2]"), "older ones would count more or hardly")
    participation_rate: float = bounded(0.1, UNIT_INTERVAL, "it is a share")

    @property
    def memory_weight(self) -> float:
        return self.memory_exponent

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        memory, size = self.memory, model.num_trainable
        gradients = self.gradients(model, updates)
        population = self.population(updates)
        expected = len(updates) / population
        if self.state["others"] is None or self.participation_rate == 0:
            self.state["others"] = expected
        self._count_discounts(model)
        probabilities = [self._participation(update.client_id, expected) for update in updates]
        discounts = polynomials(model, updates, self.upload_exponent)
        weights = discounts / np.multiply(population, probabilities)
        direction = self.average(model, weights, gradients)
        share = [1 / len(updates)] * len(updates)
        direction = self.complete(model, direction[:size], share, gradients)
        if memory:
            correction, _ = memory.weighted(model.version)
            for update, probability in zip(updates, probabilities, strict=True):
                if update.client_id in memory:
                    total, number = self.state["discounts"][update.client_id]
                    row = memory.row(update.client_id).astype(np.float64)
                    correction -= total / (number * probability) * row
            direction[:size] += (correction / population).astype(np.float32)
            self.report["correction"] = norm((correction / population).astype(np.float32))
        self._observe(updates, expected)
        self.remember(updates, gradients, size)
        for update in updates:
            self.state["discounts"][update.client_id] = (0.0, 0)
        return self.step(model, direction, self.server_lr)

    def _participation(self, client_id: int, expected: float) -> float:
        """p_c before this aggregation, which has `expected` = K / N uploads of each on average."""
        participation = self.state["participation"].get(client_id, self.state["others"])
        return float(max(participation, MIN_SHARE * expected))

    def _observe(self, updates: Updates, expected: float) -> None:
        """Update p_c of all clients by this aggregation."""
        rate, participation = self.participation_rate, self.state["participation"]
        if rate == 0:
            return
        for update in updates:
            participation.setdefault(update.client_id, self.state["others"])
        for client_id in participation:
            participation[client_id] *= 1 - rate
        for update in updates:
            participation[update.client_id] += rate
        self.state["others"] *= 1 - rate

    def _count_discounts(self, model: GlobalModel) -> None:
        """Add beta(tau_c) of every memory to the sum and the number of its mean discount."""
        discounts = self.state["discounts"]
        for client_id, version in self.memory.versions.items():
            total, number = discounts[client_id]
            discount = polynomial(model.version - version, self.memory_exponent)
            discounts[client_id] = (total + discount, number + 1)
