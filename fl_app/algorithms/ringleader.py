"""Ringleader ASGD: in a round all clients report, then each makes a step along all mean gradients.

Maranjyan, Richtarik: "Ringleader ASGD: The First Asynchronous SGD with Optimal Time Complexity
under Data Heterogeneity", ICLR 2026, arXiv:2509.22860.

Server, in rounds of N versions, from G_c = 0 and b_c = 0 on:

    phase 1: on every arrival g of client c    G_c <- G_c + g,  b_c <- b_c + 1
             until all b_c > 0, which makes a version of the last c
    phase 2: on the first arrival of every other client    the same, and a version
             further arrivals wait, and are the first ones of the next round
    version:                                   w_{t+1} = w_t - eta (1/N) sum_c G_c / b_c

Client: g = (w_o - w_i) / (sum of local learning rates) after local SGD from w_o, or the gradient of
one mini-batch at w_o.

Symbols: eta server_lr, N the number of clients. Every g that counts is at most 2 N - 2 versions
old.

Deviations: the phases are the schedule's (`fl_app.schedule.two_phase`), which keeps arrivals of
phase 1, and those that wait, one by one: the paper keeps their sums. Orders carry the newest model;
in the paper a client goes on with the one that it got when it last made a version. Rounds do not
wait for a client that left, whose last mean still counts. With a schedule that takes one arrival
at a time this is the equation of ACE. Buffers such as BatchNorm's take the mean of the uploads.
"""

from collections import Counter

import numpy as np

from fl_app.core.types import GlobalModel, Updates, Vector
from fl_app.schedule.two_phase import TwoPhase
from fl_app.strategy.memories import RemembersClients


class Ringleader(RemembersClients):
    """One step along the mean of all clients' mean gradients of this round.

    Args:
        num_clients: for how many memory is reserved; None = as they come.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> fast = Update(1, 3, np.array([2, 0], np.float32), "pseudo", 10, 0.5)
        >>> slow = Update(2, 3, np.array([0, 4], np.float32), "pseudo", 10, 0.5)
        >>> strategy = Ringleader()
        >>> strategy.aggregate(model, [fast, fast, slow]).tolist()
        [-1.0, -2.0]
        >>> more = Update(1, 3, np.array([8, 0], np.float32), "pseudo", 10, 0.5)
        >>> strategy.aggregate(model, [more]).tolist()
        [-2.0, -2.0]
    """

    schedule = TwoPhase()
    first_state = {"counts": Counter(), "stepped": set()}  # b_c; who made a version

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        counts, stepped = self.state["counts"], self.state["stepped"]
        gradients = self.gradients(model, updates)
        if any(u.client_id in stepped or u.client_id not in counts for u in updates):  # a new round
            counts.clear()
            stepped.clear()
        stepped.add(updates[-1].client_id)
        for update, gradient in zip(updates, gradients, strict=True):
            client_id, mean = update.client_id, gradient[: model.num_trainable]
            counts[client_id] += 1
            if counts[client_id] > 1:
                before = self.memory.row(client_id)
                mean = before + (mean - before) / np.float32(counts[client_id])
            self.memory.put(client_id, mean, update.base_version)
        population = len(self.memory)
        self.report["weight"] = [1 / (population * counts[update.client_id]) for update in updates]
        share = np.full(len(updates), 1 / len(updates))
        mean = (self.memory.weighted(model.version)[0] / population).astype(np.float32)
        direction = self.complete(model, mean, share, gradients)
        return self.step(model, direction, self.server_lr)
