"""When a device asks for a fresh model: an LSTM chooses first, Q-learning afterwards."""

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from fl_app.core.types import Numbers, Rng, Vector

EMBEDDING, HIDDEN = 16, 32
START, WAIT, ASK = 0, 1, 2  # inputs of the LSTM: the beginning, or its last decision
ADD, STAY, MINUS = 0, 1, 2  # what Q-learning does to the last slot
MOVES = (1, 0, -1)


class MetaModel(nn.Module):
    """Decides slot by slot whether to ask now; the first yes is the slot, else the last slot.

    Callers hold its parameters as one vector, which is saved with the rest of the learned state.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(3, EMBEDDING)
        self.cell = nn.LSTMCell(EMBEDDING, HIDDEN)
        self.decide = nn.Linear(HIDDEN, 2)

    def forward(self, num_slots: int) -> Tensor:
        """Log-probability of every slot, shape ``(num_slots,)``."""
        memory = None
        waited = torch.zeros(())
        log_probs = []
        for slot in range(num_slots - 1):
            read = torch.tensor([START if slot == 0 else WAIT])
            memory = self.cell(self.embedding(read), memory)
            wait, ask = torch.log_softmax(self.decide(memory[0])[0], dim=0)
            log_probs.append(waited + ask)
            waited = waited + wait
        return torch.stack([*log_probs, waited])

    @staticmethod
    def initial(seed: int) -> Vector:
        """Parameters of an untrained model, within the bounds of torch's initial LSTM weights."""
        size = sum(parameter.numel() for parameter in MetaModel().parameters())
        bound = HIDDEN**-0.5
        rng = np.random.default_rng((seed, 0xA511))
        return rng.uniform(-bound, bound, size).astype(np.float32)

    @staticmethod
    def log_probs(theta: Vector, num_slots: int) -> Numbers:
        """Log-probability of every slot under parameters `theta`, exactly normalised."""
        with torch.inference_mode():
            logs = cast(Tensor, MetaModel._of(theta)(num_slots)).double()
            return torch.log_softmax(logs, dim=0).numpy()

    @staticmethod
    def reinforce(theta: Vector, num_slots: int, slot: int, step: float) -> Vector:
        """theta + step * grad log P(slot), a new vector; REINFORCE with step = eta (R - b)."""
        if num_slots == 1:  # without a choice there is nothing to learn
            return theta
        model = MetaModel._of(theta)
        log_prob, parameters = model(num_slots)[slot - 1], [*model.parameters()]
        grads = torch.autograd.grad(log_prob, parameters, materialize_grads=True)
        moved = torch.from_numpy(theta) + step * parameters_to_vector(grads)
        return cast(Vector, moved.numpy())

    @staticmethod
    def usable(theta: Vector, num_slots: int) -> bool:
        """Whether these parameters give finite probabilities; huge parameters give NaN."""
        return bool(np.isfinite(np.exp(MetaModel.log_probs(theta, num_slots))).all())

    @staticmethod
    def _of(theta: Vector) -> "MetaModel":
        # The global random state stays as it is: a trainer in this process uses it.
        with torch.random.fork_rng(devices=[]):
            model = MetaModel()
        vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
        return model


def next_slot(values: Numbers, slot: int, epsilon: float, rng: Rng) -> tuple[int, int]:
    """The next slot and the action that leads to it, epsilon-greedily.

    Args:
        values: H, shape ``(num_slots, 3)``.
        slot: the last one, from 1.
        epsilon: share of random actions.
        rng: of the device.
    """
    if rng.random() < epsilon:
        action = int(rng.integers(len(MOVES)))
    else:
        action = int(values[slot - 1].argmax())
    return min(max(slot + MOVES[action], 1), len(values)), action


def learn_slot(
    values: Numbers,
    slot: int,
    action: int,
    reward: float,
    rate: float,
    discount: float,
) -> Numbers:
    """H(l, a) += rate (R + discount max_a' H(l', a') - H(l, a)), a new table ``(num_slots, 3)``."""
    after = min(max(slot + MOVES[action], 1), len(values))
    values = values.copy()
    target = reward + discount * values[after - 1].max()
    values[slot - 1, action] += rate * (target - values[slot - 1, action])
    return values
