"""CA2FL and FedStale: the mean of K gradients, calibrated by the last gradient of every client.

Wang, Cao, Wu, Chen, Chen: "Tackling the Data Heterogeneity in Asynchronous Federated Learning with
Cached Update Calibration", ICLR 2024, openreview 4aywmeb97I (CA2FL, beta = 1). Rodio, Neglia:
"FedStale: leveraging stale client updates in federated learning", ECAI 2024, arXiv:2405.04171
(beta in [0, 1]); Jhunjhunwala, Sharma, Nagarkatti, Joshi: "FedVARP", UAI 2022 (beta = 1, in
rounds).

Server, once K uploads have arrived, with h_c = 0 until client c was heard:

    v = beta (1/N) sum_c h_c + (1/K) sum_i (g_i - beta h_c(i)),    w_{t+1} = w_t - eta v
    h_c(i) <- g_i

Client: g_i = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient
of one mini-batch at w_o.

Symbols: eta server_lr, beta calibration (0 = the mean of K gradients), N num_clients, c(i) the
client of upload i.

Deviations: the papers keep displacements; here gradients are kept, which is the same at a constant
local rate. With ``over="heard"`` the mean of the memories is over the clients heard before this
aggregation, as in two public implementations. FedStale has rounds, and divides an upload by its
client's probability to take part. Both uploads of a client that is in a buffer twice are compared
with the memory from before, and the later one is kept. Buffers such as BatchNorm's are not
remembered: they take the mean of the uploads.
"""

from dataclasses import dataclass

import numpy as np

from fl_app.core.hyper import UNIT_INTERVAL, bounded, one_of
from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.strategy.memories import RemembersClients
from fl_app.strategy.weighted import AveragesVersions


@dataclass(kw_only=True)
class CA2FL(RemembersClients, AveragesVersions):
    """One step along the mean of K gradients, corrected by what is remembered of all clients.

    The server keeps the last gradient of every client: 4 N d bytes, or 2 N d.

    Args:
        calibration: beta; 1 = CA2FL, between 0 and 1 FedStale, 0 = no correction.
        over: ``"all"`` (the mean of the memories is over N) or ``"heard"``.
        num_clients: N; None = the clients whose uploads were aggregated so far.
        memory_dtype: type of the kept numbers, ``"float32"`` or ``"float16"``.
        averaging: how much more later versions count in their mean; None = the last one is tested.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> first = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> strategy = CA2FL(num_clients=4)
        >>> strategy.aggregate(model, [first]).tolist()
        [-2.0, 0.0]
        >>> second = Update(1, 3, np.array([3, 1], np.float32), "pseudo", 10, 0.5)
        >>> strategy.aggregate(model, [second]).tolist()
        [-1.5, -1.0]
    """

    calibration: float = bounded(1.0, UNIT_INTERVAL, "it is the share of the memories that is used")
    over: str = bounded("all", one_of("all", "heard"), "no other mean is known")

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        memory, size, share = self.memory, model.num_trainable, 1 / len(updates)
        gradients = self.gradients(model, updates)
        direction = self.average(model, [share] * len(updates), gradients)
        if memory and self.calibration > 0:
            population = len(memory) if self.over == "heard" else self.population(updates)
            correction = memory.weighted(model.version)[0] / population
            for update in updates:
                if update.client_id in memory:
                    correction -= share * memory.row(update.client_id).astype(np.float64)
            direction[:size] += (self.calibration * correction).astype(np.float32)
        self.remember(updates, gradients, size)
        return self.step(model, direction, self.server_lr)
