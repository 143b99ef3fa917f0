"""Tries a model on a few examples, before anything is trained."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fl_app.tasks.objective import Objective


def require_fit(
    make: Callable[[], nn.Module], inputs: Tensor, target: Tensor, objective: Objective
) -> None:
    """Refuse a model or a loss that does not fit a task's examples.

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
        warnings.simplefilter("ignore")  # of the model, on two examples
        model = _model(make)
        what = f"inputs of shape {tuple(inputs.shape)} and type {inputs.dtype}"
        remedy = "" if inputs.is_floating_point() else "; integers are taken for tokens"
        with _told(f"the model cannot process {what}: give a model for such inputs{remedy}"):
            output = model.train()(inputs)
        given, wanted = tuple(getattr(output, "shape", ())), objective.output_shape(target)
        # One number for each example may come without a dimension of its own.
        if given != wanted and not (wanted == (len(target), 1) and given == (len(target),)):
            raise ValueError(
                f"the model gives outputs of shape {given} for {len(inputs)} examples and must "
                f"give {wanted}: {objective.kind} needs {objective.num_outputs} outputs for each"
            )
        shapes = f"outputs of shape {given} and targets of shape {tuple(target.shape)}"
        with _told(f"loss cannot process {shapes} and type {target.dtype}"):
            loss = objective.loss(output, target)
        if not (isinstance(loss, Tensor) and loss.numel() == 1 and loss.requires_grad):
            raise ValueError("loss must give one number that depends on the output: the mean loss")


@contextmanager
def _told(problem: str) -> Iterator[None]:
    """Turn an error of any type, in the user's code, into one that says the problem."""
    try:
        yield
    except Exception as error:
        cause = " ".join(str(error).split())[:300]
        raise ValueError(f"{problem} ({type(error).__name__}: {cause})") from error


def _model(make: Callable[[], nn.Module]) -> nn.Module:
    model = make()
    if not isinstance(model, nn.Module):
        raise ValueError(f"model gives a {type(model).__name__} and must give a torch.nn.Module")
    for name, layer in model.named_modules():
        if any(is_lazy(tensor) for tensor in (*layer.parameters(False), *layer.buffers(False))):
            kind = type(layer).__name__
            raise ValueError(
                f"the layer {name or 'of the model'!r} is a {kind}, whose size is known after a "
                f"first batch only: give its size (in a {kind.removeprefix('Lazy')}), since server "
                "and clients exchange parameters before they train"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError("the model has no parameter that can be trained: nothing would be learned")
    return model
