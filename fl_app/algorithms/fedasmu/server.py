"""FedASMU's server: it learns for each device how much an upload counts."""

import math
from collections.abc import Mapping
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.core import staleness
from fl_app.core.hyper import COUNT, NON_NEGATIVE, POSITIVE, SWITCH, bounded, count, one_of, within
from fl_app.core.types import TRAINED, Config, GlobalModel, Update, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule
from fl_app.schedule.periodic import Periodic
from fl_app.strategy import AsyncStrategy

if TYPE_CHECKING:
    from fl_app.algorithms.fedasmu.slots import MetaModel

STATIC_MIXING, STATIC_EXPONENT = 0.6, 0.5  # FedAsync's, for the ablations without dynamic weights
MAX_SIGMA = 5.0
MERGE = "merge"  # extra vector of an upload: what the merge with a fresh model moved it by
REWARD_RATE = 0.1  # [A], of the rewards' running mean
RATE = "rate"  # metric of an upload: the device's learning rate
TELL_RATE, TELL_MERGE = "tell_rate", "tell_merge"  # of an order: whether the device adds them


@dataclass
class Control:
    """A device's control parameters and its last applied upload.

    Attributes:
        lam: lambda_i >= 0.
        sigma: sigma_i in [0, 5].
        iota: iota_i >= 0.
        version: r_i, at which the last upload was applied; -1 = none so far.
        staleness: s of that upload, r_i - o' + 1 unless it is counted from a fresh model.
        xi: of that upload.
        lam_used: the lambda_i of that `xi`.
        sigma_used: the sigma_i of that `xi`.
        direction: d_i = w_i - w_{r_i} of that upload, trainable part.
    """

    lam: float
    sigma: float
    iota: float
    version: int = -1
    staleness: int = 1
    xi: float = 0.0
    lam_used: float = 0.0
    sigma_used: float = 0.0
    direction: Vector | None = None


@dataclass(kw_only=True)
class FedASMU(AsyncStrategy):
    """Mixes each arrival into the global model with a weight learned for each device.

    Args:
        mixing_scale: mu_a.
        lambda0: first lambda_i.
        sigma0: first sigma_i.
        iota0: first iota_i.
        lambda_lr: eta_lambda.
        sigma_lr: eta_sigma.
        iota_lr: eta_iota.
        max_staleness: tau; an upload with more is refused.
        local_epochs: L_max of the devices, which may ask for a fresh model between two epochs.
        rl_lr: eta_RL.
        dynamic: False = FedAsync's polynomial weight 0.6 s^-0.5 (ablation FedASMU-DA).
        refresh: False = devices never ask for a fresh model (ablation FedASMU-FA; with DA:
            FedASMU-0).
        version_after_merge: whether an upload's staleness counts from the fresh model that was
            merged (t - g + 1) instead of the order's (t - o + 1).
        clock_from_one: whether the root is sqrt(t + 1) instead of sqrt(max(t, 1)).
        chain: whether control gradients are multiplied by prod_s (1 - alpha_s) over the versions
            between a device's last upload and its received model.
        mean_by_epochs: whether the device's mean gradient is its displacement over its rate times
            its local epochs, as printed, instead of over the sum of its rates.
        exclude_merge: whether the device's mean gradient leaves its merge out; uploads then carry
            it as a further vector.
        signs: of the control gradients: ``"derivative"``, or ``"printed"``, with which they climb
            the loss.
        seed: of the meta-model.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=4)
        >>> update = Update(1, 4, np.array([6, 12], np.float32), "model", 10, 0.5)
        >>> FedASMU().aggregate(model, [update]).tolist()
        [5.0, 10.0]
    """

    schedule = Periodic()
    takes = TRAINED
    needs = "fl_app.algorithms.fedasmu.trainer.FedASMUTrainer"
    looks_at = "every client's model, to learn its weight"

    mixing_scale: float = bounded(10.0, POSITIVE, "the model would never move")
    lambda0: float = bounded(1.0, NON_NEGATIVE, "weights could be negative")
    sigma0: float = bounded(
        0.5, within(f"[0, {MAX_SIGMA:g}]"), "staler uploads would count more, or nothing at all"
    )
    iota0: float = bounded(0.0, NON_NEGATIVE, "weights could be negative")
    lambda_lr: float = bounded(1e-4, NON_NEGATIVE, "it would climb the loss")
    sigma_lr: float = bounded(1e-4, NON_NEGATIVE, "it would climb the loss")
    iota_lr: float = bounded(1e-4, NON_NEGATIVE, "it would climb the loss")
    max_staleness: int = bounded(99, COUNT, "every upload would be refused")
    local_epochs: int = 5
    rl_lr: float = bounded(0.001, NON_NEGATIVE, "it would climb the loss")
    dynamic: bool = True
    refresh: InitVar[bool] = True  # the name of a method, see below
    version_after_merge: bool = False
    clock_from_one: bool = False
    chain: bool = False
    mean_by_epochs: bool = False
    exclude_merge: bool = False
    signs: str = bounded("derivative", one_of("derivative", "printed"), "there is no third sign")
    seed: int = bounded(0, count(0), "no random numbers could be drawn")

    def __post_init__(self, refresh: bool) -> None:
        super().__post_init__()
        SWITCH.check("algorithm.strategy.refresh", refresh, "it is a switch")
        bound = "at least 2 or algorithm.strategy.refresh be false"
        reason = "there is no moment between epochs at which devices could ask"
        self._require(self.local_epochs >= 2 or not refresh, "local_epochs", bound, reason)
        self.num_slots = self.local_epochs - 1 if refresh else 0  # 0 = the devices never ask
        self.state = {
            "controls": {},  # client -> Control
            "theta": _meta_model().initial(self.seed) if self.num_slots else None,
            "baseline": 0.0,  # b, running mean of the rewards
            "chosen": {},  # client -> slot of its first order, until its reward is known
            "fresh": {},  # client -> version g of its last fresh model, if that counts
            "sums": np.zeros(3),  # of lambda_i, sigma_i and iota_i over the clients heard so far
        }
        if self.chain:
            self.state["kept"] = {}  # version t -> share of w_t in w_{t+1}
        if self.exclude_merge:
            self.upload_extra = (MERGE,)  # type: ignore[misc]  # as this keyword says

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        if schedule.devices is not None:
            raise ValueError(
                "FedASMU cannot use algorithm/schedule=random_k: that schedule draws how long an "
                "order takes, but not when its client pauses"
            )

    def state_dict(self) -> dict[str, Any]:
        controls: dict[int, Control] = self.state["controls"]
        plain = {client_id: dict(vars(control)) for client_id, control in controls.items()}
        return super().state_dict() | {"state": {**self.state, "controls": plain}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        plain = self.state["controls"]
        self.state["controls"] = {i: Control(**values) for i, values in plain.items()}

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        requests = {TELL_RATE: self.mean_by_epochs, TELL_MERGE: self.exclude_merge}
        config: dict[str, int] = {key: True for key, on in requests.items() if on}
        if not self.num_slots:
            config["slot"] = 0
        elif client_id not in self.state["controls"]:  # afterwards the device chooses
            log_probs = _meta_model().log_probs(self.state["theta"], self.num_slots)
            rng = np.random.default_rng((self.seed, client_id, model.version))
            config["slot"] = 1 + int(rng.choice(self.num_slots, p=np.exp(log_probs)))
            self.state["chosen"][client_id] = config["slot"]
        return model.params, config

    def _note_fresh(self, model: GlobalModel, paused: Update) -> tuple[Vector, Config]:
        if self.version_after_merge:
            self.state["fresh"][paused.client_id] = model.version
        return super().refresh(model, paused)

    def staleness_of(self, update: Update, version: int) -> int:
        """s >= 1 of an upload that is applied at version t."""
        # A fresh model of an earlier order is not newer than this order's own model.
        fresh: int = self.state["fresh"].get(update.client_id, 0)
        return version - max(update.base_version, fresh) + 1

    @property
    def oldest_admitted(self) -> float:
        return self.max_staleness - 1

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        tau = self.staleness_of(update, model.version)
        if tau > self.max_staleness:
            return f"staleness {tau} exceeds strategy.max_staleness={self.max_staleness}"
        return None

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        params, weights, version = model.params, [], model.version
        for update in updates:
            control = self._control(update.client_id)
            self._learn(control, model, update)
            weight = self.weight(control, version, self.staleness_of(update, version))
            local = model.local(update)
            control.direction = (local - params)[: model.num_trainable]
            params = weighted_sum([1 - weight, weight], [params, local])
            weights.append(weight)
            self._reward(update)
        if self.chain:
            self.state["kept"][version] = math.prod(1 - weight for weight in weights)
        lam, sigma, iota = (self.state["sums"] / len(self.state["controls"])).tolist()
        self.report = {"weight": weights, "baseline": self.state["baseline"]}
        self.report |= {"lambda": lam, "sigma": sigma, "iota": iota}
        return params

    def weight(self, control: Control, version: int, s: int) -> float:
        """alpha at version t for staleness s; `control` keeps its ingredients."""
        control.version, control.staleness = version, s
        control.lam_used, control.sigma_used = control.lam, control.sigma
        decay = self._root(version) * s**control.sigma
        control.xi = max(control.lam / decay + control.iota, 0.0)
        if not self.dynamic:
            return STATIC_MIXING * staleness.polynomial(s - 1, STATIC_EXPONENT)
        return self.mixing_scale * control.xi / (1 + self.mixing_scale * control.xi)

    def control_gradient(self, control: Control, gradient: Vector) -> tuple[float, float, float]:
        """dF/d(lambda, sigma, iota) through alpha of the device's last upload.

        Args:
            control: of a device that has a last upload.
            gradient: of the device's loss at the model it received, trainable part.
        """
        assert control.direction is not None
        slope = self.mixing_scale / (1 + self.mixing_scale * control.xi) ** 2  # d alpha / d xi
        q = float(np.dot(gradient, control.direction)) * slope
        decay = self._root(control.version) * control.staleness**control.sigma_used
        return q / decay, -q * control.lam_used * math.log(control.staleness) / decay, q

    def _root(self, version: int) -> float:
        return math.sqrt(version + 1 if self.clock_from_one else max(version, 1))

    def _mean_gradient(self, model: GlobalModel, update: Update) -> Vector:
        """The device's mean gradient, shape ``(num_trainable,)``."""
        split = model.num_trainable
        if not self.mean_by_epochs and not self.exclude_merge:
            return model.gradient(update)[:split]
        moved = model.delta(update)[:split]
        if self.exclude_merge:
            moved = moved - update.extra[MERGE][:split]
        rates = update.rate_sum
        if self.mean_by_epochs:
            rates = float(update.metrics.get(RATE, 0.0)) * self.local_epochs or rates
        return moved * np.float32(-1.0 / rates)

    def _control(self, client_id: int) -> Control:
        controls: dict[int, Control] = self.state["controls"]
        if client_id not in controls:
            controls[client_id] = Control(self.lambda0, self.sigma0, self.iota0)
            self.state["sums"] += self.lambda0, self.sigma0, self.iota0
        return controls[client_id]

    def _learn(self, control: Control, model: GlobalModel, update: Update) -> None:
        if control.version < 0 or not self.dynamic:
            return
        gradient = self._mean_gradient(model, update)
        if self.chain:
            between = range(control.version + 1, update.base_version)
            shares = [self.state["kept"].get(version, 1.0) for version in between]
            gradient = np.float32(math.prod(shares)) * gradient
        if self.signs == "printed":
            gradient = -gradient
        by_lambda, by_sigma, by_iota = self.control_gradient(control, gradient)
        before = control.lam, control.sigma, control.iota
        control.lam = max(control.lam - self.lambda_lr * by_lambda, 0.0)
        control.sigma = min(max(control.sigma - self.sigma_lr * by_sigma, 0.0), MAX_SIGMA)
        control.iota = max(control.iota - self.iota_lr * by_iota, 0.0)
        self.state["sums"] += np.subtract((control.lam, control.sigma, control.iota), before)

    def _reward(self, update: Update) -> None:
        """Train the meta-model by the reward of a merge, if there was one."""
        slot = self.state["chosen"].pop(update.client_id, None)
        if "reward" not in update.metrics:
            return
        advantage = float(update.metrics["reward"]) - self.state["baseline"]
        if not math.isfinite(advantage):  # the node computed it, and it is not checked before
            return
        if slot is not None:
            theta = _meta_model().reinforce(
                self.state["theta"], self.num_slots, slot, self.rl_lr * advantage
            )
            if _meta_model().usable(theta, self.num_slots):
                self.state["theta"] = theta
        self.state["baseline"] += REWARD_RATE * advantage


# The default of the keyword `refresh` has taken the place of the method of that name.
FedASMU.refresh = FedASMU._note_fresh  # type: ignore[method-assign, assignment]


def _meta_model() -> "type[MetaModel]":
    """The LSTM's class, imported on use: it needs torch, and checking values must not."""
    from fl_app.algorithms.fedasmu.slots import MetaModel

    return MetaModel
