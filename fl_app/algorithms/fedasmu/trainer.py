"""FedASMU's trainer: when it asks for a fresh model, and how it merges it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fl_app.algorithms.fedasmu.server import MERGE, RATE, TELL_MERGE, TELL_RATE
from fl_app.algorithms.fedasmu.slots import STAY, learn_slot, next_slot
from fl_app.client import LocalTrainer
from fl_app.core.errors import require
from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, UNIT_INTERVAL, bounded, one_of
from fl_app.core.types import Config, Order, Rng, Upload, Vector

Q_LR, Q_DISCOUNT = 0.1, 0.9  # Q-learning's phi and psi [A]
FIXED = ("first", "middle", "last")


def merge_weight(
    gamma: float, upsilon: float, origin: int, version: int, scale: float
) -> tuple[float, float, float]:
    """beta = mu phi / (1 + mu phi), phi = gamma / sqrt(g) (1 - upsilon / sqrt(g - o + 1)) >= 0.

    Args:
        gamma: gamma_i.
        upsilon: upsilon_i.
        origin: o >= 0.
        version: g > o.
        scale: mu_b.

    Returns:
        beta, in [0, 1), and its derivatives by gamma and upsilon. They ignore the clamp of phi at
        0, because with derivatives of 0 learning would stop there for good.
    """
    root, age = math.sqrt(version), math.sqrt(version - origin + 1)
    scaled = scale * max(0.0, gamma / root * (1 - upsilon / age))
    slope = scale / (1 + scaled) ** 2  # d beta / d phi
    return (
        scaled / (1 + scaled),
        slope * (1 - upsilon / age) / root,
        -slope * gamma / (root * age),
    )


@dataclass(kw_only=True, eq=False, repr=False)
class FedASMUTrainer(LocalTrainer):
    """Local SGD that pauses once for a fresh global model and merges it into its own.

    A client keeps between its orders gamma_i and upsilon_i, its last slot and action, and its table
    of Q-values ``(L_max - 1, 3)``.

    Args:
        task: data, model and loss of every client.
        merge_scale: mu_b > 0.
        gamma0: first gamma_i, >= 0.
        upsilon0: first upsilon_i, >= 0.
        gamma_lr: eta_gamma >= 0.
        upsilon_lr: eta_upsilon >= 0.
        slot: ``"learned"``, or always ``"first"`` (H1), ``"middle"`` (H2, L_max / 2 rounded down),
            ``"last"`` (H3).
        epsilon: share of random actions, in [0, 1].
        local_epochs: L_max >= 2.

    Raises:
        ValueError: a value is out of its bounds.
    """

    merge_scale: float = bounded(10.0, POSITIVE, "no model would ever be merged")
    gamma0: float = bounded(1.0, NON_NEGATIVE, "merging weights could be negative")
    upsilon0: float = bounded(0.5, NON_NEGATIVE, "merging weights could be negative")
    gamma_lr: float = bounded(1e-4, NON_NEGATIVE, "it would climb the loss")
    upsilon_lr: float = bounded(1e-4, NON_NEGATIVE, "it would climb the loss")
    slot: str = bounded("learned", one_of("learned", *FIXED), "no other choice exists")
    epsilon: float = bounded(0.1, UNIT_INTERVAL, "it is a share")

    def __post_init__(self) -> None:
        super().__post_init__()
        key = "algorithm.client.local_epochs - 1"
        COUNT.check(key, self.local_epochs - 1, "there would be no slot")

    def train(self, order: Order) -> Upload:
        """See `LocalTrainer.train`; adds the values that the order asks for to the upload."""
        self._jump: Vector | None = None
        upload = super().train(order)
        if upload.done and order.config.get(TELL_RATE, False):
            metrics = {**upload.metrics, RATE: self.rate(order.config)}
            upload = replace(upload, metrics=metrics)
        if upload.done and order.config.get(TELL_MERGE, False):
            jump = np.zeros(self.model.layout.size, np.float32)
            if self._jump is not None:
                jump[: self.model.layout.num_trainable] = self._jump
            upload = replace(upload, extra={MERGE: jump})
        return upload

    def begin(self, config: Config, rng: Rng) -> None:
        """Choose the slot of this order."""
        num_slots = self.local_epochs - 1
        self._ask_after = int(config.get("slot", -1))  # 0 = never
        if self._ask_after == 0:
            return
        if self.slot in FIXED:
            slots = (1, (num_slots + 1) // 2, num_slots)
            self._ask_after = slots[FIXED.index(self.slot)]
            return
        action = STAY
        if self._ask_after < 0 and "slot" in self.state:
            last = int(self.state["slot"])
            self._ask_after, action = next_slot(self._values(), last, self.epsilon, rng)
            self.state["came_from"] = np.array(last)
        else:
            # The server chooses the first order's slot. NOTE: a known device without a slot, as one
            # that lost its memory, takes the first slot.
            bound = f"at most algorithm.client.local_epochs - 1={num_slots}"
            reason = "the server chose it by algorithm.strategy.local_epochs"
            require(self._ask_after <= num_slots, "slot", self._ask_after, bound, reason)
            self._ask_after = max(self._ask_after, 1)
            self.state.pop("came_from", None)
        self.state["slot"], self.state["action"] = np.array(self._ask_after), np.array(action)

    def should_pause(self, epoch: int) -> bool:
        """After the slot's epoch."""
        return epoch == self._ask_after

    def merge(self, fresh: Vector, config: Config, rng: Rng) -> dict[str, float]:
        """w <- w + beta (w_g - w), then learn gamma_i, upsilon_i and the slot's value.

        Returns:
            ``reward``, the fall of a batch's loss, and ``merge_weight``, beta.
        """
        indices = self.task.train_indices(self.client_id)
        chosen = rng.permutation(indices)[: self.batch_size]
        origin, version = int(config["version"]), int(config["fresh_version"])
        gamma = float(self.state.get("gamma", np.array(self.gamma0)))
        upsilon = float(self.state.get("upsilon", np.array(self.upsilon0)))
        beta, by_gamma, by_upsilon = merge_weight(gamma, upsilon, origin, version, self.merge_scale)
        # Both losses use the same dropout: the generator is restored after the first.
        device = self.torch_device
        gpus = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=gpus), torch.no_grad():
            before = self.loss(chosen)
        own = torch.tensor(self.model.read(), device=device)
        gap = torch.tensor(fresh, device=device) - own
        self.model.load(own.add(gap, alpha=beta).cpu().numpy())
        split = self.model.layout.num_trainable
        if config.get(TELL_MERGE, False):
            self._jump = (beta * gap[:split]).cpu().numpy()
        after = self.loss(chosen)
        # Of the loss alone: weight decay and clip belong to local training.
        grad = torch.autograd.grad(after, self.model.params)

        slope = float(torch.dot(torch.cat([g.reshape(-1) for g in grad]), gap[:split]))
        self.state["gamma"] = np.array(gamma - self.gamma_lr * slope * by_gamma)
        self.state["upsilon"] = np.array(upsilon - self.upsilon_lr * slope * by_upsilon)
        reward = (before - after).item()
        if "came_from" in self.state:
            slot, action = int(self.state["came_from"]), int(self.state["action"])
            values = learn_slot(self._values(), slot, action, reward, Q_LR, Q_DISCOUNT)
            self.state["values"] = values
        return {"reward": reward, "merge_weight": beta}

    def _values(self) -> Any:
        return self.state.get("values", np.zeros((self.local_epochs - 1, 3)))
