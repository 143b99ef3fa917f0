"""MOON's trainer: local training; `fl_app.algorithms.moon` has the equations."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fl_app.client import LocalTrainer
from fl_app.core.hyper import NON_NEGATIVE, POSITIVE, bounded
from fl_app.core.types import Config, Order, Rng, Upload


@dataclass(kw_only=True, eq=False, repr=False)
class MOONTrainer(LocalTrainer):
    """Local SGD with the contrastive term; keeps each client's last trained model.

    Args:
        task: data, model and loss of every client; the model has a linear layer.
        contrast: mu >= 0; an order's value has precedence.
        temperature: T > 0; an order's value has precedence.

    Raises:
        ValueError: a value is out of its bounds, or the model has no linear layer.
    """

    twins = True
    contrast: float = bounded(5.0, NON_NEGATIVE, "features would flee the global model's")
    temperature: float = bounded(0.5, POSITIVE, "similarities are divided by it")

    def __post_init__(self) -> None:
        super().__post_init__()
        twins = self._received, self._previous = self.model.twin(), self.model.twin()
        self._features = _Features(self.model.module)
        self._of_received, self._of_previous = (_Features(twin.module.eval()) for twin in twins)

    def begin(self, config: Config, rng: Rng) -> None:
        """Freeze the received model and the client's previous one."""
        self._mu = float(config.get("contrast", self.contrast))
        self._temperature = float(config.get("temperature", self.temperature))
        received = self.model.read()
        self._received.load(received)
        self._previous.load(self.state.get("previous", received))

    def penalty(self, params: list[Tensor], received: list[Tensor]) -> Tensor:
        """mu log(1 + exp((cos(z, z_p) - cos(z, z_g)) / T)), the mean over the batch."""
        z, inputs = self._features.of_head, self._features.inputs
        to_received = F.cosine_similarity(z, self._of_received.of(inputs), dim=-1)
        to_previous = F.cosine_similarity(z, self._of_previous.of(inputs), dim=-1)
        return self._mu * F.softplus((to_previous - to_received) / self._temperature).mean()

    def finish(self, order: Order, upload: Upload) -> Upload:
        """Keep the trained model."""
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
        self._module = module
        module.register_forward_pre_hook(self._keep_inputs)
        heads[-1].register_forward_pre_hook(self._keep_features)

    def _keep_inputs(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        (self.inputs,) = args

    def _keep_features(self, head: nn.Module, args: tuple[Tensor, ...]) -> None:
        (self.of_head,) = args

    def of(self, inputs: Tensor) -> Tensor:
        """Inputs of the last linear layer, shape ``(n, ..., size)``, without a gradient."""
        with torch.no_grad():
            self._module(inputs)
        return self.of_head
