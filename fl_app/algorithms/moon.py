"""MOON: clients learn features close to the global model's and far from their previous ones.

Li, He, Song: "Model-Contrastive Federated Learning", CVPR 2021, arXiv:2103.16257, Algorithm 1.

Server, once all K clients of a round have reported:

    w_{t+1} = sum_i (n_i / n) w_i,    n = sum_i n_i

Client: E epochs of mini-batch SGD from w_t on the task's loss and, over the examples of a batch,

    mu mean -log( exp(cos(z, z_g) / T) / (exp(cos(z, z_g) / T) + exp(cos(z, z_p) / T)) )

where z are the features under the model in training, z_g under w_t, and z_p under the model with
which this client's previous order ended (w_t at first, so the term begins at mu log 2).

Symbols: mu contrast and T temperature, which every order carries; n_i number of training examples
of client i.

Deviations: features are the inputs of the model's last linear layer. The authors put a projection
head of two layers before it, but then the model would differ from that of other algorithms. w_t and
the previous model are frozen completely: no dropout, batch normalisation by running statistics.
With a single local step the term has no effect, because z is z_g.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.client import LocalTrainer, TrainingTask
from fl_app.client.flat import FlatModel
from fl_app.core.errors import require_at_least, require_positive
from fl_app.core.hyper import POSITIVE, at_least, bounded
from fl_app.core.types import TRAINED, Config, GlobalModel, Order, Update, Upload, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule, synchronous
from fl_app.strategy import AsyncStrategy


@dataclass(kw_only=True)
class MOON(AsyncStrategy):
    """Average of the local models, weighted by the number of examples.

    Args:
        contrast: mu, the weight of the clients' term; 0 = FedAvg.
        temperature: T of the clients' term.

    Example:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=3)
        >>> small = Update(1, 3, np.array([4, 0], np.float32), "model", 10, 0.5)
        >>> large = Update(2, 3, np.array([0, 4], np.float32), "model", 30, 0.5)
        >>> MOON().aggregate(model, [small, large]).tolist()
        [1.0, 3.0]
        >>> MOON().dispatch(model, client_id=1)[1]
        {'contrast': 5.0, 'temperature': 0.5}
    """

    schedule: ClassVar[Schedule] = synchronous(10)
    takes: ClassVar[Sequence[str]] = TRAINED
    needs: ClassVar[str] = "fl_app.algorithms.moon.MOONTrainer"

    contrast: float = bounded(5.0, at_least(0), "features would flee the global model's")
    temperature: float = bounded(0.5, POSITIVE, "similarities are divided by it")

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        del client_id
        return model.params, {"contrast": self.contrast, "temperature": self.temperature}

    def aggregate(self, model: GlobalModel, updates: Sequence[Update]) -> Vector:
        weights = np.array([update.num_examples for update in updates], np.float64)
        weights /= weights.sum()
        self.report = {"weight": weights.tolist()}
        return weighted_sum(weights, [model.local(update) for update in updates])


class MOONTrainer(LocalTrainer):
    """Local SGD with the contrastive term; keeps each client's last trained model.

    Args:
        task: data, model and loss of every client; the model has a linear layer.
        contrast: mu >= 0; an order's value has precedence.
        temperature: T > 0; an order's value has precedence.
        settings: those of `LocalTrainer`.

    Raises:
        ValueError: a value is out of its bounds, or the model has no linear layer.
    """

    def __init__(
        self,
        task: TrainingTask,
        *,
        contrast: float = 5.0,
        temperature: float = 0.5,
        **settings: Any,
    ) -> None:
        super().__init__(task, **settings)
        require_at_least("client.contrast", contrast, 0, "features would flee the global model's")
        require_positive("client.temperature", temperature, "similarities are divided by it")
        self.contrast = contrast
        self.temperature = temperature
        self._features = _Features(self.model.module)
        self._received, self._previous = (_Frozen(task, self.device) for _ in range(2))

    def begin(self, config: Config, rng: np.random.Generator) -> None:
        """Freeze the received model and the client's previous one."""
        del rng
        self._mu = float(config.get("contrast", self.contrast))
        self._temperature = float(config.get("temperature", self.temperature))
        received = self.model.read()
        self._received.load(received)
        self._previous.load(self.state.get("previous", received))

    def penalty(self, params: list[Tensor], received: list[Tensor]) -> Tensor:
        """mu log(1 + exp((cos(z, z_p) - cos(z, z_g)) / T)), the mean over the batch."""
        del params, received
        z, inputs = self._features.of_head, self._features.inputs
        alike = F.cosine_similarity(z, self._received.features(inputs), dim=-1)
        before = F.cosine_similarity(z, self._previous.features(inputs), dim=-1)
        return self._mu * F.softplus((before - alike) / self._temperature).mean()

    def train(self, order: Order, out: Vector | None = None) -> Upload:
        upload = super().train(order, out)
        return replace(upload, state={"previous": self.model.read()})


class _Features:
    """The last inputs of a module and of its last linear layer."""

    inputs: Tensor
    of_head: Tensor

    def __init__(self, module: nn.Module) -> None:
        heads = [part for part in module.modules() if isinstance(part, nn.Linear)]
        if not heads:
            raise ValueError(
                f"task.model={type(module).__name__} must have a linear layer: MOON compares "
                "the inputs of the last one"
            )
        module.register_forward_pre_hook(self._keep_inputs)
        heads[-1].register_forward_pre_hook(self._keep_features)

    def _keep_inputs(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        (self.inputs,) = args

    def _keep_features(self, head: nn.Module, args: tuple[Tensor, ...]) -> None:
        (self.of_head,) = args


class _Frozen:
    """A second model of the task that is not trained."""

    def __init__(self, task: TrainingTask, device: torch.device) -> None:
        self._model = FlatModel(task.model(), device)
        self._model.module.eval()
        self._features = _Features(self._model.module)
        self.load = self._model.load

    def features(self, inputs: Tensor) -> Tensor:
        """Inputs of the last linear layer, shape ``(n, ..., size)``."""
        with torch.no_grad():
            self._model.module(inputs)
        return self._features.of_head
