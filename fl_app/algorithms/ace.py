"""ACE and ACED: every arrival makes a step along the mean of all clients' last gradients.

Chang, Yao, Krishnamurthy, Shelton, Chakraborty, Swami, Oymak, Roy-Chowdhury: "Mitigating
Participation Imbalance Bias in Asynchronous Federated Learning", arXiv:2511.19066. In rounds it is
MIFA: Gu, Huang, Zhang, Huang, NeurIPS 2021, arXiv:2106.04159. With N' = N and all clients at work
it is DuDe-ASGD (``algorithm=dude_asgd``), later IA2SGD: Wang, Sun, Wai, Zhang: "Dual-Delayed
Asynchronous SGD for Arbitrarily Heterogeneous Data", arXiv:2405.16966. Its semi-asynchronous form,
in which several clients arrive at once, is a schedule with a larger buffer.

Server, on every arrival g of client c, computed on version o:

    h_c <- g,  s_c <- o
    v = (1/N') sum_{c in M} h_c,    w_{t+1} = w_t - eta v
    M = all clients heard                                     ACE
    M = the clients heard with t - s_c <= max_age             ACED

Client: g = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient of
one mini-batch at w_o.

Symbols: eta server_lr, N' the number of clients in M.

Deviations: the paper first lets every client send a gradient of w_0, and divides by N. Here the
model moves from the first arrival on, and N' counts the clients in M; with ``over="all"`` it is N.
An arrival that is itself older than max_age is kept and does not count. If no client counts, it is
refused and not kept, so no version is made. Several updates at once (another schedule) are kept
first, and then make one step. If none of them counts by then, for example because the schedule held
them back over versions, the version equals its predecessor. Buffers such as BatchNorm's are not
remembered: they take the mean of the uploads.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import NON_NEGATIVE, bounded, one_of
from fl_app.core.types import GlobalModel, Update, Updates, Vector
from fl_app.schedule import fully_async
from fl_app.strategy.memories import RemembersClients


@dataclass(kw_only=True)
class ACE(RemembersClients):
    """One step along the mean of the last gradients of all clients, or of all that are recent.

    The server keeps the last gradient of every client: 4 N d bytes, or 2 N d.

    Args:
        max_age: ACED's bound, versions; None = any age (ACE). Begin with 2 N, or 2 N / K with K
            updates a version.
        over: N' is the number of clients that count (``"heard"``), or N (``"all"``).
        num_clients: N; None = the clients whose uploads were aggregated so far.
        memory_dtype: type of the kept numbers, ``"float32"`` or ``"float16"``.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> first = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> second = Update(2, 3, np.array([0, 4], np.float32), "pseudo", 10, 0.5)
        >>> strategy = ACE()
        >>> strategy.aggregate(model, [first]).tolist()
        [-2.0, 0.0]
        >>> strategy.aggregate(model, [second]).tolist()
        [-1.0, -2.0]
    """

    schedule = fully_async(10)

    max_age: float | None = bounded(
        None, NON_NEGATIVE, "no gradient would count, not even a fresh one"
    )
    over: str = bounded("heard", one_of("heard", "all"), "no other mean is known")

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        if self.max_age is None or model.age(update) <= self.max_age:
            return None
        since = model.version - self.max_age
        if any(version >= since for version in self.memory.versions.values()):
            return None
        return (
            f"age={model.age(update)} is above strategy.max_age={self.max_age:g}, and no client "
            "has a younger gradient"
        )

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        memory, size = self.memory, model.num_trainable
        gradients = self.gradients(model, updates)
        self.remember(updates, gradients, size)
        if self.max_age is not None:
            memory.forget_before(model.version - self.max_age)
        total, counted = memory.weighted(model.version)
        self.report["counted"] = int(counted)
        if not counted:
            self.report["weight"] = [0.0] * len(updates)
            return model.params.copy()
        population = counted if self.over == "heard" else self.population(updates)
        mean = (total / population).astype(np.float32)
        latest = {update.client_id: place for place, update in enumerate(updates)}
        weights = [0.0] * len(updates)
        for client_id, place in latest.items():
            if memory.counts(client_id):
                weights[place] = 1 / population
        self.report["weight"] = weights
        share = np.full(len(updates), 1 / len(updates))
        direction = self.complete(model, mean, share, gradients)
        return self.step(model, direction, self.server_lr)
