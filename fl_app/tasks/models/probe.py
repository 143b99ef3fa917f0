"""Tries a model on a few examples, before anything is trained."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_app.tasks.objective import Objective


def require_fit(
    make: Callable[[], nn.Module], inputs: Tensor, target: Tensor, objective: Objective
) -> None:
    """Refuse a model, a loss or a metric that does not fit a task's examples.

    torch's random state is the same after the call.

    Args:
        make: makes the model.
        inputs: of at least two examples, as the model receives them.
        target: the targets of these examples.
        objective: of the task.

    Raises:
        ValueError: naming what was needed and what there was.
    """
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of metrics, on so few examples
        model = _model(make)
        output = _output(model.train(), inputs)
        wanted = objective.output_shape(target)
        given = tuple(output.shape)
        # One number for each example may come without a dimension of its own.
        if given != wanted and not (wanted == (len(target), 1) and given == (len(target),)):
            raise ValueError(
                f"the model gives outputs of shape {given} for {len(inputs)} examples and must "
                f"give {wanted}: {objective.kind} needs {objective.num_outputs} outputs for each"
            )
        _require_loss(objective, output, target)
        _require_metrics(objective, output.detach(), target)


def _model(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model gives a {type(model).__name__} and must give a torch.nn.Module")
    for name, layer in model.named_modules():
        if any(is_lazy(tensor) for tensor in (*layer.parameters(False), *layer.buffers(False))):
            kind = type(layer).__name__
            raise ValueError(
                f"the layer {name or 'of the model'!r} is a {kind}, whose size is known after a "
                f"first batch only: give its size (in a {kind.removeprefix('Lazy')}), or pass one "
                "batch through the model before you return it, since server and clients exchange "
                "parameters before they train"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter that can be trained: nothing would be learned")
    return model


def _output(model: nn.Module, inputs: Tensor) -> Tensor:
    what = f"inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}"
    try:
        output = model(inputs)
    except Exception as error:  # of any type, in the user's code
        remedy = "give a model for such inputs"
        if not inputs.is_floating_point():
            remedy += ", or, since integers are taken for tokens, numbers as floating point"
        raise ValueError(f"the model cannot process {what}: {remedy} ({_said(error)})") from error
    if not isinstance(output, Tensor):
        raise ValueError(f"the model gives a {type(output).__name__} for {what}, and no tensor")
    return output


def _require_loss(objective: Objective, output: Tensor, target: Tensor) -> None:
    try:
        loss = objective.loss(output, target)
        scalar = isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad
    except Exception as error:  # of any type, in the user's code
        raise ValueError(
            f"loss cannot process outputs of shape {tuple(output.shape)} and targets of shape "
            f"{tuple(target.shape)} and type {target.dtype}: {_said(error)}"
        ) from error
    if not scalar:
        raise ValueError("loss must give one number that depends on the output: their mean loss")


def _require_metrics(objective: Objective, output: Tensor, target: Tensor) -> None:
    for name, metric in objective.metrics.items():
        try:
            own = metric.clone()
            own.update(*objective.for_metrics(output, target))
            value = own.compute()
        except Exception as error:  # of any type, in code of other packages
            raise ValueError(
                f"metrics[{name!r}] must be a torchmetrics.Metric that fits {objective.kind} with "
                f"{objective.num_outputs} outputs: {_said(error)}"
            ) from error
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ValueError(
                f"metrics[{name!r}] must compute one number, such as with average='macro', and "
                f"computes {value}"
            )


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
